package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"relayedge/admission"
	"relayedge/admission/httpguard"
)

// listener is one listening socket. A reload that keeps it changes its terms.
type listener struct {
	server *Server
	socket net.Listener
	local  bool // a unix socket, whose peers have no address
	open   atomic.Int64
	terms  atomic.Pointer[terms]
	stop   context.CancelFunc // ends accept; nil before it began; guarded by the server's mutex
	over   atomic.Bool        // accept has ended
}

// terms are what a listener's connections have in common: its part of a policy,
// made ready. They never change, but for the keys of tickets; a connection lives
// by the terms that it came in under.
type terms struct {
	config   ListenerConfig
	times    *times
	embedded []netip.Prefix // in whose addresses the client's is the last 32 bits
	routes   routes
	trust    admission.Networks // empty: no PROXY header is expected
	guard    *httpguard.Guard   // nil: requests are not limited
	tls      *tls.Config        // nil: TLS does not end here
	tickets  string             // what the keys of tickets are derived for
}

func newListener(s *Server, socket net.Listener) *listener {
	return &listener{server: s, socket: socket, local: socket.Addr().Network() == "unix"}
}

func newTerms(c ListenerConfig, limits Limits, upstreams map[string]*destination, certificate chooseCertificate) (*terms, error) {
	t := &terms{
		config: c, times: limits.times(), embedded: limits.EmbeddedIPv4,
		trust: admission.NewNetworks(c.TrustProxyFrom),
	}
	var err error
	if t.routes, err = newRoutes(c, upstreams); err != nil {
		return nil, err
	}
	if c.TLS != "terminate" {
		return t, nil
	}
	return t, t.endTLS(certificate)
}

// accept takes connections until ctx ends. An accept that fails for a reason
// that passes is tried again; a refusal costs a close.
func (l *listener) accept(ctx context.Context) error {
	var backoff admission.AcceptBackoff
	for {
		conn, err := l.socket.Accept()
		if err == nil {
			backoff.Reset()
			l.admit(conn)
			continue
		}
		l.failed(err)
		if ctx.Err() != nil {
			return nil
		}
		if !backoff.Wait(err, ctx.Done()) {
			return err
		}
	}
}

// failed counts an accept that failed for want of a descriptor.
func (l *listener) failed(err error) {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		l.server.stats.refuse(Descriptors)
	}
}

// close requires the server's mu. The listener accepts nobody any longer.
func (l *listener) close() {
	if l.stop != nil {
		l.stop()
	}
	l.socket.Close()
}

// admit asks the gate and starts the session, or closes the connection. Behind a
// load balancer only the global slot is taken here: the PROXY header names the
// client later. It reports whether the connection lives on.
func (l *listener) admit(conn net.Conn) bool {
	stats, terms := l.server.stats, l.terms.Load()
	stats.accepted.Add(1)
	now := time.Now()
	peer := peerOf(conn).Addr()
	if !terms.trust.Empty() {
		// Who may connect to a unix socket is for the permissions of its file.
		if !l.local && !terms.trust.Contains(peer) {
			stats.end(ProxyUntrusted)
			terms.refuse(conn)
			return false
		}
		peer = netip.Addr{}
	}
	if !l.server.room.take() {
		return l.turnAway(terms, conn, Descriptors, now)
	}
	lease, reason := l.server.gate.Admit(peer, now)
	if reason != "" {
		l.server.room.give()
		return l.turnAway(terms, conn, reason, now)
	}
	l.open.Add(1)
	s := newSession(l, terms, lease, conn, now)
	l.server.remember(s)
	l.server.engine.serve(s)
	return true
}
