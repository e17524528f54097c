package proxy

import (
	"crypto/tls"
	"io"
	"log/slog"
	"testing"

	"relayedge/proxy/certs"
)

// A CA's validation (RFC 8737, section 3) is answered whatever the listener asks
// of its clients, and no relay hears of it.
func TestValidationEndsAtTheEdge(t *testing.T) {
	ca, _ := clientCertificate(t, "alice")
	store, err := certs.Open(certs.Config{SelfIssued: []string{"relay.example.org"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := store.Certificate(&tls.ClientHelloInfo{ServerName: "relay.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	open := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if certs.Validation(hello) && hello.ServerName == "relay.example.org" {
			return answer, nil
		}
		return nil, certs.ErrUnknownName
	}
	for _, tt := range []struct {
		name      string
		change    func(*ListenerConfig)
		protocols []string
		server    string
		want      Reason
	}{
		{"plain", func(*ListenerConfig) {}, []string{"acme-tls/1"}, "relay.example.org", ClientClosed},
		{"other protocols", func(l *ListenerConfig) { l.ALPN = []string{"irc"} }, []string{"acme-tls/1"}, "relay.example.org", ClientClosed},
		{"no protocols", func(l *ListenerConfig) { l.ALPN = nil }, []string{"acme-tls/1"}, "relay.example.org", ClientClosed},
		{"client certificates", func(l *ListenerConfig) { l.ClientCAFile = ca }, []string{"acme-tls/1"}, "relay.example.org", ClientClosed},
		{"TLS 1.3 alone", func(l *ListenerConfig) { l.TLSMinVersion = "1.3" }, []string{"acme-tls/1"}, "relay.example.org", ClientClosed},
		{"not open for the name", func(*ListenerConfig) {}, []string{"acme-tls/1"}, "chat.example.org", UnknownServerName},
		{"not exactly", func(*ListenerConfig) {}, []string{"acme-tls/1", "http/1.1"}, "relay.example.org", UnknownServerName},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) { terminating(c); tt.change(&c.listener); c.certs = open })
				raw := e.dial(aliceAddr)
				defer raw.Close()
				client := tls.Client(raw, &tls.Config{ServerName: tt.server, InsecureSkipVerify: true, NextProtos: tt.protocols})
				err := client.Handshake()
				if tt.want == ClientClosed {
					if err != nil || client.ConnectionState().NegotiatedProtocol != certs.ValidationProtocol {
						t.Errorf("%v, protocol %q", err, client.ConnectionState().NegotiatedProtocol)
					}
					if n, err := client.Read(make([]byte, 1)); n != 0 || err != io.EOF {
						t.Errorf("after the handshake: %d bytes, %v", n, err)
					}
				} else if err == nil {
					t.Error("the handshake is done")
				}
				e.wantEnd(tt.want)
			})
		})
	}
}
