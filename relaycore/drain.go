package relaycore

import (
	"time"

	"relayedge/internal/spread"
)

// drain ends every connection and returns when all have ended, by the end of
// drain_secs. Those without a session have nothing to finish and end at once. The
// sessions are closed with 1001, in a random order and spread over at most half
// of the time, so that their clients do not come back elsewhere all at once; the
// other half is for the last of them to hear it. What is open then is cut.
func (s *Server) drain() {
	grace := s.inForce.Load().drain
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	s.mu.Lock()
	s.draining = true
	var sessions []*session
	for nc, c := range s.conns {
		if c == nil {
			nc.Close()
		} else {
			sessions = append(sessions, c)
		}
	}
	s.mu.Unlock()
	// Who asks the HTTP API gets the answer to the request that is under way.
	s.handover.Close()
	s.http.SetKeepAlivesEnabled(false)
	s.log.Info("draining the relay", "sessions", len(sessions), "drain_secs", int(grace/time.Second))
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	spread.Each(sessions, grace/2, ended, func(c *session) { c.end(endDrain) })
	select {
	case <-ended:
		return
	case <-deadline.C:
	}
	s.mu.Lock()
	s.log.Info("drain_secs are over: cutting what is still open", "connections", len(s.conns))
	for nc := range s.conns {
		nc.Close()
	}
	s.mu.Unlock()
	s.http.Close()
	<-ended
}

// awaitTaken waits until the close frame of a drain is written or given up. It
// stands behind everything that is queued: a client that takes some of that in
// every lastWords gets all of it, as far as drain_secs go.
func (c *session) awaitTaken(written <-chan struct{}) {
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	for before := c.out.held(); ; {
		select {
		case <-written:
			return
		case <-timer.C:
		}
		held := c.out.held()
		if held >= before {
			c.io.CloseAt(time.Now())
			<-written
			return
		}
		before = held
		timer.Reset(lastWords)
	}
}
