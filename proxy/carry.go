package proxy

import (
	"cmp"
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

// carry takes a session through all that comes before the forwarding, top to
// bottom, in a goroutine that may wait. It returns what is to be forwarded, and
// since when the client's first byte is awaited; nil: the connection ends, and
// why was named. A place among the handshakes may have been taken for it already.
func (s *session) carry(place *admission.Place) (*forwarding, time.Time) {
	ready, reason := s.secureClient(place)
	if reason != "" {
		s.end(reason)
		return nil, ready
	}
	s.wire.settle(s.terms.times.writerStall)
	if s.terms.config.Protocol == "http" {
		return s.serveHTTP(ready), time.Now()
	}
	relay, reason := s.dial()
	if reason != "" {
		s.end(reason)
		return nil, ready
	}
	return &forwarding{s: s, times: s.terms.times, client: s.wire, tls: s.secure, relay: relay, introduce: true}, ready
}

// secureClient awaits the header of a trusted peer and the handshake, where they
// are due. It returns when the client was ready.
func (s *session) secureClient(place *admission.Place) (time.Time, Reason) {
	began := s.accepted
	if !s.terms.trust.Empty() {
		if reason := s.awaitProxyHeader(); reason != "" {
			return began, reason
		}
		began = time.Now()
	}
	if s.terms.config.TLS == "none" {
		return time.Now(), ""
	}
	if reason := s.handshake(began, place); reason != "" {
		return began, reason
	}
	if s.validation() {
		return began, ClientClosed
	}
	return time.Now(), ""
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
func (s *session) handshake(began time.Time, place *admission.Place) Reason {
	if place == nil {
		var ok bool
		if place, ok = s.enter(time.Now()); !ok {
			return s.turnedAway(HandshakeCap)
		}
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
	if err := s.shakeHands(secure); err != nil {
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

// shakeHands does the handshake. Where an event loop goes on with the connection,
// the records of a flight leave together, and the tickets of TLS 1.3 are left in
// the wire's flight, to leave with the first bytes for the client.
func (s *session) shakeHands(secure *tls.Conn) error {
	if s.gathers {
		s.wire.gather = &s.wire.flight
		defer func() { s.wire.gather = nil }()
	}
	err := secure.Handshake()
	if err != nil || secure.ConnectionState().Version < tls.VersionTLS13 {
		err = cmp.Or(err, s.wire.depart())
	}
	return err
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
	header, reason := s.introduction(cfg)
	if len(header) == 0 {
		return reason
	}
	if err := relay.WriteAll(header, s.terms.times.writerStall); err != nil {
		return writeFault(err, false, UpstreamUnavailable)
	}
	return ""
}

// introduction is the header for the relay, or none if it wants none.
func (s *session) introduction(cfg upstream.Config) ([]byte, Reason) {
	header, err := s.header(cfg)
	if err != nil {
		s.tell(slog.LevelError, "the PROXY header does not fit", slog.Any("error", err))
		return nil, UpstreamUnavailable
	}
	return header, ""
}
