package proxy

import (
	"context"
	"net/netip"
	"time"

	"relayedge/internal/hostport"
	"relayedge/internal/logging"
)

// The watch for load balancers whose PROXY header nobody expects: behind one
// all clients have one address, and share what one client may have.
const (
	balancerWatch  = time.Minute // between two looks
	balancerQuiet  = time.Hour   // between two lines about one listener
	balancerFewest = 32          // open connections of one address that are worth a line
)

// watchBalancers tells, until ctx ends, of private addresses that hold most of
// a listener's connections.
func (s *Server) watchBalancers(ctx context.Context) {
	told := make(map[*listener]time.Time)
	ticker := time.NewTicker(balancerWatch)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		for _, l := range s.inForce() {
			if last, ok := told[l]; !l.terms.Load().trust.Empty() || ok && now.Sub(last) < balancerQuiet {
				continue
			}
			addr, holds, open := s.heaviest(l)
			if holds < balancerFewest || 2*holds <= open || !hostport.Private(addr) {
				continue
			}
			told[l] = now
			s.log.Warn("one private address holds most connections, probably a load balancer in front whose clients are taken for one; name it in the listener's trust_proxy_from and have it send the PROXY header",
				"listener", l.terms.Load().config.Name, logging.Client(addr), "holds", holds, "open", open)
		}
	}
}

// heaviest returns the address that holds more than half of a listener's
// connections, if there is one, how many it holds, and how many are open. It
// takes no memory: of all addresses only that one survives when each pair of
// different ones is struck out.
func (s *Server) heaviest(l *listener) (addr netip.Addr, holds, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	balance := 0
	for session := range s.sessions {
		if session.listener != l {
			continue
		}
		switch a := session.client.Addr(); {
		case balance == 0:
			addr, balance = a, 1
		case a == addr:
			balance++
		default:
			balance--
		}
	}
	for session := range s.sessions {
		if session.listener == l {
			open++
			if session.client.Addr() == addr {
				holds++
			}
		}
	}
	return addr, holds, open
}
