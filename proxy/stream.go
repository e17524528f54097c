package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"time"

	"relayedge/admission"
	"relayedge/internal/proxyheader"
	"relayedge/internal/socket"
	"relayedge/proxy/upstream"
)

// serveStream is the stream engine: one straight function a connection, in a
// goroutine of its own, with one more for the relay's direction. It is portable
// and defines the behaviour.
func serveStream(s *session) {
	defer s.finish()
	s.carry()
}

// carry is the life of a connection, top to bottom. Each step returns why the
// connection ends there, or nothing.
func (s *session) carry() {
	began := s.accepted
	if !s.terms.trust.Empty() {
		if reason := s.awaitProxyHeader(); reason != "" {
			s.end(reason)
			return
		}
		began = time.Now()
	}
	if s.terms.config.TLS != "none" {
		if reason := s.handshake(began); reason != "" {
			s.end(reason)
			return
		}
		if s.validation() {
			s.end(ClientClosed)
			return
		}
	}
	ready := time.Now()
	s.wire.settle(s.terms.times.writerStall)
	if s.terms.config.Protocol == "http" {
		s.serveHTTP(ready)
		return
	}
	relay, reason := s.dial()
	if reason == "" {
		reason = s.introduce(relay, s.upstream.Config())
	}
	if reason != "" {
		s.end(reason)
		return
	}
	f := &forwarding{s: s, times: s.terms.times, client: s.wire, tls: s.secure, relay: relay}
	f.forward(ready)
}

// awaitProxyHeader reads the header that a trusted peer owes, in its time.
func (s *session) awaitProxyHeader() Reason {
	s.wire.SetReadDeadline(s.accepted.Add(s.terms.times.proxyHeader))
	h, rest, err := proxyheader.Read(s.wire, proxyheader.V1|proxyheader.V2)
	switch {
	case errors.Is(err, io.EOF):
		return ClientClosed // a load balancer's check: connect and close
	case streamEnd(err) == Reset:
		return Reset
	case err != nil:
		return ProxyHeader
	}
	s.wire.unread(rest)
	if reason := s.named(h, time.Now()); reason != "" {
		return s.turnedAway(reason)
	}
	return ""
}

// handshake ends TLS, or waits for the hello of TLS that ends at the relay, or
// names why it could not. It is the one place where a handshake begins and ends.
// Nothing but the socket is held for a client that has not sent its first byte.
func (s *session) handshake(began time.Time) Reason {
	place, ok := s.enter(time.Now())
	if !ok {
		return s.turnedAway(HandshakeCap)
	}
	defer place.Leave()
	s.wire.SetDeadline(began.Add(s.terms.times.handshake))
	if s.terms.tls == nil {
		return s.awaitHello()
	}
	return s.terminate(began, place)
}

func (s *session) terminate(began time.Time, place *admission.Place) Reason {
	if _, err := s.wire.fill(); err != nil {
		return handshakeFailure(err, nil)
	}
	secure := tls.Server(s.wire, s.terms.tls)
	if err := secure.Handshake(); err != nil {
		reason := handshakeFailure(err, s.wire.certErr)
		if header, ok := errors.AsType[tls.RecordHeaderError](err); ok && reason == NotTLS {
			answerPlain(s.wire, header.RecordHeader)
		}
		return reason
	}
	if !place.Leave() {
		return HandshakeCap // it made way at the last moment
	}
	s.server.stats.handshakes.observe(time.Since(began))
	s.secured(secure)
	return ""
}

// answerPlain tells a client that speaks plain HTTP to the TLS port so.
func answerPlain(client io.Writer, first [5]byte) {
	switch string(first[:4]) {
	case "GET ", "HEAD", "POST", "PUT ", "OPTI", "DELE", "PATC", "CONN":
		io.WriteString(client, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 23\r\n\r\nThis port speaks TLS.\r\n")
	}
}

// introduce tells the relay who the client is, at once: a relay that speaks
// first waits for it.
func (s *session) introduce(relay *socket.Socket, cfg upstream.Config) Reason {
	header, err := s.header(cfg)
	if err != nil {
		s.tell(slog.LevelError, "the PROXY header does not fit", slog.Any("error", err))
		return UpstreamUnavailable
	}
	if len(header) == 0 {
		return ""
	}
	if err := relay.WriteAll(header, s.terms.times.writerStall); err != nil {
		return writeFault(err, false, UpstreamUnavailable)
	}
	return ""
}
