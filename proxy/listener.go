package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"relayedge/admission"
	"relayedge/proxy/certs"
	"relayedge/proxy/upstream"
)

// listener is one listening socket and what its connections have in common.
type listener struct {
	server   *Server
	config   ListenerConfig
	socket   net.Listener
	upstream *upstream.Upstream
	trust    admission.Networks // empty: no PROXY header is expected
	tls      *tls.Config        // nil: plain TCP
	open     atomic.Int64
}

func newListener(s *Server, l Listener, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (*listener, error) {
	built := &listener{server: s, config: l.ListenerConfig, socket: l.Socket, upstream: s.upstreams[l.Upstream], trust: admission.NewNetworks(l.TrustProxyFrom)}
	if built.upstream == nil {
		return nil, fmt.Errorf("no upstream is named %q", l.Upstream)
	}
	if l.TLS == "none" {
		return built, nil
	}
	var err error
	built.tls, err = tlsConfig(l.ListenerConfig, certificate)
	return built, err
}

// unrecognized has no certificate, which is what makes crypto/tls answer with
// the alert unrecognized_name; an error from a callback would be internal_error,
// as if the fault were ours.
var unrecognized = &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}

// tlsConfig lives as long as its listener, so that crypto/tls rotates the
// session ticket keys in it by itself.
func tlsConfig(cfg ListenerConfig, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (*tls.Config, error) {
	c := &tls.Config{
		MinVersion: map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[cfg.TLSMinVersion],
		NextProtos: cfg.ALPN,
		// This is asked at resumptions too, which need no certificate.
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if _, err := certificate(hello); errors.Is(err, certs.ErrUnknownName) {
				hello.Conn.(*wire).certErr = err
				return unrecognized, nil
			}
			return nil, nil
		},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err := certificate(hello)
			hello.Conn.(*wire).certErr = err
			return cert, err
		},
	}
	if cfg.ClientCAFile == "" {
		return c, nil
	}
	pem, err := os.ReadFile(cfg.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("client_ca_file: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("client_ca_file: %s holds no PEM certificate", cfg.ClientCAFile)
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c, nil
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
		if !l.trust.Contains(peer) {
			stats.end(ProxyUntrusted)
			conn.Close()
			return
		}
		peer = netip.Addr{}
	}
	if !l.server.room.take() {
		stats.end(Descriptors)
		conn.Close()
		return
	}
	lease, reason := l.server.gate.Admit(peer, now)
	if reason != "" {
		l.server.room.give()
		stats.end(reason)
		conn.Close()
		return
	}
	l.open.Add(1)
	s := newSession(l, lease, conn, now)
	l.server.remember(s)
	l.server.running.Go(func() { l.server.serve(s) })
}
