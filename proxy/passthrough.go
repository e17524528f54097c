package proxy

import (
	"errors"

	"relayedge/internal/clienthello"
)

// Alerts that are sent without a TLS session (RFC 8446, section 6; RFC 6066,
// section 3), each as a whole plain record.
var (
	// alertAccessDenied answers a refusal at accept. The handshake itself never
	// sends it, so a client's log tells a refusal from a fault, and no client takes
	// it for a reason to try a lower version.
	alertAccessDenied     = alert(49)
	alertDecodeError      = alert(50)
	alertInternalError    = alert(80)
	alertUnrecognizedName = alert(112)
)

func alert(description byte) []byte { return []byte{21, 3, 3, 0, 2, 2, description} }

// awaitHello reads the ClientHello of a connection whose TLS is the relay's, and
// routes by it. What was read is left for the relay, byte for byte. While the
// client is silent nothing is held but what it has sent.
func (s *session) awaitHello() Reason {
	var hello clienthello.Reader
	for {
		if _, err := s.wire.fill(); err != nil {
			return handshakeFailure(err, nil)
		}
		done, err := hello.Add(s.wire.ahead)
		s.wire.drop()
		switch {
		case errors.Is(err, clienthello.ErrNotTLS):
			answerPlain(s.wire, [5]byte(hello.Bytes()))
			return NotTLS
		case errors.Is(err, clienthello.ErrTooLong):
			s.wire.Write(alertInternalError) // crypto/tls's own answer
			return TLSHandshakeFailed
		case err != nil:
			s.wire.Write(alertDecodeError)
			return TLSHandshakeFailed
		case !done:
			continue
		}
		route := s.terms.routes.find(hello.Hello().ServerName)
		if route == nil {
			s.wire.Write(alertUnrecognizedName)
			return UnknownServerName
		}
		s.upstream, s.serverName = route.upstream, hello.Hello().ServerName
		s.wire.unread(hello.Bytes())
		return ""
	}
}
