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
)

// listener is one listening socket and what its connections have in common.
type listener struct {
	server *Server
	config ListenerConfig
	socket net.Listener
	local  bool // a unix socket, whose peers have no address
	routes routes
	trust  admission.Networks // empty: no PROXY header is expected
	tls    *tls.Config        // nil: TLS does not end here
	open   atomic.Int64
}

func newListener(s *Server, l Listener, certificate chooseCertificate) (*listener, error) {
	built := &listener{
		server: s, config: l.ListenerConfig, socket: l.Socket, local: l.Socket.Addr().Network() == "unix",
		trust: admission.NewNetworks(l.TrustProxyFrom),
	}
	var err error
	if built.routes, err = newRoutes(l.ListenerConfig, s.upstreams); err != nil {
		return nil, err
	}
	if l.TLS != "terminate" {
		return built, nil
	}
	built.warnOfUncovered(certificate, s.log)
	return built, built.endTLS(certificate)
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
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			l.server.stats.refuse(Descriptors)
		}
		if ctx.Err() != nil {
			return nil
		}
		if !backoff.Wait(err, ctx.Done()) {
			return err
		}
	}
}

// admit asks the gate and starts the session. Behind a load balancer only the
// global slot is taken here: the PROXY header names the client later.
func (l *listener) admit(conn net.Conn) {
	stats := l.server.stats
	stats.accepted.Add(1)
	now := time.Now()
	peer := addrPort(conn.RemoteAddr()).Addr()
	if !l.trust.Empty() {
		// Who may connect to a unix socket is for the permissions of its file.
		if !l.local && !l.trust.Contains(peer) {
			stats.end(ProxyUntrusted)
			l.refuse(conn)
			return
		}
		peer = netip.Addr{}
	}
	if !l.server.room.take() {
		l.turnAway(conn, Descriptors, now)
		return
	}
	lease, reason := l.server.gate.Admit(peer, now)
	if reason != "" {
		l.server.room.give()
		l.turnAway(conn, reason, now)
		return
	}
	l.open.Add(1)
	s := newSession(l, lease, conn, now)
	l.server.remember(s)
	l.server.running.Go(func() { l.server.serve(s) })
}
