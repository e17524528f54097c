package proxy

import (
	"context"

	"relayedge/proxy/upstream"
)

// streamEngine gives each connection a goroutine, and one more for the relay's
// direction: one straight function a connection. It is portable and defines the
// behaviour.
type streamEngine struct{}

func (streamEngine) accept(ctx context.Context, l *listener) error { return l.accept(ctx) }
func (streamEngine) serve(s *session)                              { go serveStream(s) }
func (streamEngine) connector(*session) upstream.Connector         { return nil }
func (streamEngine) close()                                        {}

func serveStream(s *session) {
	defer s.finish()
	if f, ready := s.carry(nil); f != nil {
		f.forward(ready)
	}
}
