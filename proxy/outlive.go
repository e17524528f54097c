package proxy

import (
	"context"
	"log/slog"
	"time"

	"relayedge/internal/spread"
)

// sweep is how often a server that outlives its successor's start looks for
// sessions that have begun to speak HTTP.
const sweep = time.Second

// Serving returns a channel that closes when Serve accepts.
func (s *Server) Serving() <-chan struct{} { return s.accepting }

// Outlive lets the sessions go on after another process has taken the place of this
// one, whose sockets are paused: each of them to its end, those too that have not
// reached their relay. Of HTTP sessions the next request is the last. What is left
// after drain_secs is closed, spread out, as at the end of a drain. Outlive reports
// whether all have ended; it is false when ctx ends first, because this process is
// to accept again.
func (s *Server) Outlive(ctx context.Context) bool {
	grace := s.limits.Load().times().drain
	over := time.NewTimer(grace)
	defer over.Stop()
	looks := time.NewTicker(sweep)
	defer looks.Stop()
	empty := s.whenEmpty()
	s.log.Info("another process has taken over: serving what is open to its end", slog.Int("open", len(s.open())), slog.Int("drain_secs", int(grace/time.Second)))
	for {
		for _, session := range s.open() {
			session.lastRequest()
		}
		select {
		case <-empty:
			return true
		case <-ctx.Done():
			return false
		case <-looks.C:
			continue
		case <-over.C:
		}
		break
	}
	left := s.open()
	s.log.Info("drain_secs are over: closing what is still open, spread out", "open", len(left))
	stop := make(chan struct{})
	defer context.AfterFunc(ctx, func() { close(stop) })()
	spread.Each(left, min(grace, drainSpread), stop, func(session *session) { go session.stop(Drain) })
	select {
	case <-empty:
		return true
	case <-ctx.Done():
		return false
	}
}

// whenEmpty returns a channel that closes when no session is open.
func (s *Server) whenEmpty() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	empty := make(chan struct{})
	if len(s.sessions) == 0 {
		close(empty)
		return empty
	}
	s.emptied = empty
	return empty
}

// lastRequest makes the next request of an HTTP session the last.
func (s *session) lastRequest() {
	s.mu.Lock()
	http := s.http
	s.mu.Unlock()
	if http != nil {
		http.last()
	}
}

// Open is how many sessions are open.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}
