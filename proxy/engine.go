package proxy

import (
	"context"
	"fmt"

	"relayedge/proxy/upstream"
)

// engine moves the bytes of connections and watches their time. What a
// connection may do, where it goes and how its end is counted is the session's.
type engine interface {
	// accept has the newcomers of a listener admitted until ctx ends. It fails if the
	// listener has failed for good.
	accept(ctx context.Context, l *listener) error
	// serve takes an admitted session to its finish, and does not wait for that.
	serve(s *session)
	// connector makes the connections to relays; nil: the net package does.
	connector(s *session) upstream.Connector
	// close ends the engine when all sessions have ended.
	close()
}

// newEngine returns the engine of a name. auto is the event loop where there is one.
func newEngine(name string) (engine, error) {
	switch {
	case name == "loop" && !loopsWork:
		return nil, fmt.Errorf("engine: loop needs Linux; allowed here: auto, stream")
	case name == "loop", name == "auto" && loopsWork:
		return &loopEngine{together: callsTogether}, nil
	case name == "stream", name == "auto":
		return streamEngine{}, nil
	}
	return nil, fmt.Errorf("no engine is named %q; there are auto, loop and stream", name)
}
