package proxy

import (
	"sync"
	"time"

	"relayedge/internal/spread"
)

// drainSpread is how long the closes behind drain_secs take at most, drain_secs
// itself if that is shorter. So a drain ends by drain_secs + min(drain_secs, 10 s).
const drainSpread = 10 * time.Second

// Draining returns a channel that closes when the edge has stopped for newcomers:
// its listeners are closed, and nobody is about to dial a relay any more. A
// relay in the same process begins its own drain then, while those of its
// clients that the edge still carries hear it.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// drain ends every session and returns when all have ended. No session may be
// added meanwhile. Those that have not reached their relay, or have no request under
// way, have nothing to finish and end at once; the others get drain_secs; what is left is closed then, spread
// out, and none waits for another's goodbye.
func (s *Server) drain() {
	grace := s.limits.Load().times().drain
	over := time.NewTimer(grace)
	defer over.Stop()
	open := s.open()
	var unserved []*session
	for _, session := range open {
		if !session.hasToFinish() {
			unserved = append(unserved, session)
		}
	}
	s.log.Info("draining the edge", "open", len(open)-len(unserved), "not_served_yet", len(unserved), "drain_secs", int(grace/time.Second))
	var stops sync.WaitGroup
	for _, session := range unserved {
		stops.Go(func() { session.stop(Drain) })
	}
	stops.Wait()
	close(s.draining)

	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return
	case <-over.C:
	}
	left := s.open()
	s.log.Info("drain_secs are over: closing what is still open, spread out", "open", len(left))
	spread.Each(left, min(grace, drainSpread), ended, func(session *session) { go session.stop(Drain) })
	<-ended
}

// open returns the sessions that have not ended.
func (s *Server) open() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := make([]*session, 0, len(s.sessions))
	for session := range s.sessions {
		open = append(open, session)
	}
	return open
}

// hasToFinish reports whether the session has its relay and, where requests are
// parsed, one that is in flight. That is then its last.
func (s *session) hasToFinish() bool {
	s.mu.Lock()
	reached, http := s.relay != nil, s.http
	s.mu.Unlock()
	if http != nil {
		reached = http.last() && reached
	}
	return reached
}
