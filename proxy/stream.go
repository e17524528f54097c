package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"time"

	"relayedge/internal/proxyheader"
)

// serveStream is the stream engine: one straight function a connection, in a
// goroutine of its own, with one more for the relay's direction. It is portable
// and defines the behaviour.
func serveStream(s *session) {
	defer s.finish()
	s.carry()
}

// carry is the life of a connection, top to bottom.
func (s *session) carry() {
	client, times := s.wire, s.server.times
	began := s.accepted

	if !s.listener.trust.Empty() {
		if !s.awaitProxyHeader(client, times) {
			return
		}
		began = time.Now()
	}

	var secure *tls.Conn
	if s.listener.tls != nil {
		if secure = s.handshake(client, began, times); secure == nil {
			return
		}
	}

	relay, reason := s.dial()
	if reason != "" {
		s.end(reason)
		return
	}
	client.settle(times.writerStall)
	f := &forwarding{s: s, times: times, client: client, tls: secure, relay: newSocket(relay)}
	if !s.introduce(f.relay, times) {
		return
	}
	f.forward()
}

// awaitProxyHeader reads the header that a trusted peer owes, in its time.
func (s *session) awaitProxyHeader(client *wire, times *times) bool {
	client.SetReadDeadline(s.accepted.Add(times.proxyHeader))
	h, rest, err := proxyheader.Read(client, proxyheader.V1|proxyheader.V2)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return s.end(ClientClosed) // a load balancer's check: connect and close
		}
		if r := streamEnd(err); r == Reset {
			return s.end(Reset)
		}
		return s.end(ProxyHeader)
	}
	if r := s.named(h, time.Now()); r != "" {
		return s.end(r)
	}
	client.unread(rest)
	return true
}

// handshake ends TLS, or names why it could not. Nothing but the socket is
// held for a client that has not sent its first byte.
func (s *session) handshake(client *wire, began time.Time, times *times) *tls.Conn {
	s.server.stats.handshaking.Add(1)
	defer s.server.stats.handshaking.Add(-1)
	client.SetDeadline(began.Add(times.handshake))
	if _, err := client.fill(); err != nil {
		s.end(handshakeFailure(err, nil))
		return nil
	}
	secure := tls.Server(client, s.listener.tls)
	if err := secure.Handshake(); err != nil {
		reason := handshakeFailure(err, client.certErr)
		if header, ok := errors.AsType[tls.RecordHeaderError](err); ok && reason == NotTLS {
			answerPlain(client, header.RecordHeader)
		}
		s.end(reason)
		return nil
	}
	s.server.stats.handshakes.observe(time.Since(began))
	s.secured(secure)
	return secure
}

// answerPlain tells a client that speaks plain HTTP to the TLS port so.
func answerPlain(client *wire, first [5]byte) {
	switch string(first[:4]) {
	case "GET ", "HEAD", "POST", "PUT ", "OPTI", "DELE", "PATC", "CONN":
		io.WriteString(client, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 23\r\n\r\nThis port speaks TLS.\r\n")
	}
}

// introduce tells the relay who the client is, at once: a relay that speaks
// first waits for it.
func (s *session) introduce(relay socket, times *times) bool {
	header, err := s.header()
	if err != nil {
		s.server.log.Error("the PROXY header does not fit", "id", s.id, "error", err)
		return s.end(UpstreamUnavailable)
	}
	if len(header) == 0 {
		return true
	}
	if err := relay.writeAll(header, times.writerStall); err != nil {
		return s.end(writeFault(err, false, UpstreamUnavailable))
	}
	return true
}
