package proxy

import (
	"crypto/tls"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/proxyheader"
)

// resumes reports whether a new connection takes the cached session up, and caches its new one.
func resumes(e *testEdge, front *memconn.Listener, cfg *tls.Config) bool {
	e.t.Helper()
	raw, err := front.Dial(e.t.Context(), aliceAddr)
	if err != nil {
		e.t.Fatal(err)
	}
	client := e.handshake(raw, cfg)
	relay, h, _ := e.accept()
	mustWrite(e.t, relay, []byte("x")) // the ticket comes with it
	wantRead(e.t, client, []byte("x"))
	resumed := client.ConnectionState().DidResume
	if ssl, ok := h.Lookup(proxyheader.TypeSSL); !ok || len(ssl) == 0 {
		e.t.Error("no SSL TLV")
	}
	raw.Close()
	relay.Close()
	return resumed
}

// Sessions are resumed for 36 hours and, once the keys of their tickets are
// gone, not any more; a ticket is made with the newest key.
func TestTicketKeysRotate(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, terminating)
				fresh := func() *tls.Config {
					cfg := clientTLS("relay.example.org")
					cfg.MaxVersion, cfg.ClientSessionCache = version, oneSession{new(*tls.ClientSessionState)}
					return cfg
				}
				first := e.server.tickets.of("public")[0]
				old, late := fresh(), fresh()
				if resumes(e, e.front, old) || resumes(e, e.front, late) {
					t.Fatal("the first session is resumed")
				}
				time.Sleep(35 * time.Hour)
				if !resumes(e, e.front, old) {
					t.Error("a session of 35 hours ago is not resumed")
				}
				time.Sleep(14 * time.Hour) // 49: four keys have come since
				if slices.Contains(e.server.tickets.of("public"), first) {
					t.Error("the first key is still kept")
				}
				if resumes(e, e.front, late) {
					t.Error("a session of 49 hours ago is resumed")
				}
				// The one that was renewed 14 hours ago has a ticket of that time.
				if !resumes(e, e.front, old) {
					t.Error("a ticket of 14 hours ago is not taken: it was not made with the newest key")
				}
			})
		})
	}
}

func TestTicketsAreDerivedByListener(t *testing.T) {
	k := newTickets()
	a, b := k.of("a"), k.of("b")
	if len(a) != 1 || a[0] == b[0] || a[0] != k.of("a")[0] || a[0] == ([32]byte{}) {
		t.Error("listeners share their keys, or have none")
	}
	for range 10 {
		k.rotate()
	}
	kept := k.of("a")
	if len(kept) != ticketSecrets || slices.Contains(kept, a[0]) || kept[0] == kept[1] {
		t.Errorf("%d keys are kept", len(kept))
	}
	before := kept[0]
	k.rotate()
	if kept = k.of("a"); kept[1] != before {
		t.Error("the newest key is not the first")
	}
}

// A listener without a CA makes sessions that the one with a CA does not take up,
// and the other way round; at its own, a session is resumed and stays verified.
func TestSessionsStayAtTheirListener(t *testing.T) {
	ca, good := clientCertificate(t, "alice")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				open := memconn.Listen(netip.MustParseAddrPort("198.51.100.5:8443"))
				e := newEdge(t, func(c *edgeConfig) {
					terminating(c)
					c.listener.ClientCAFile = ca
					without := c.listener
					without.Name, without.ClientCAFile = "open", ""
					c.more = []Listener{{without, open}}
				})
				cfg := clientTLS("relay.example.org")
				cfg.MaxVersion, cfg.ClientSessionCache = version, oneSession{new(*tls.ClientSessionState)}
				cfg.Certificates = []tls.Certificate{good}
				if resumes(e, open, cfg) || resumes(e, e.front, cfg) || resumes(e, open, cfg) {
					t.Error("a session crosses from listener to listener")
				}
				if resumes(e, e.front, cfg) || !resumes(e, e.front, cfg) {
					t.Error("a session is not resumed at its own listener")
				}
				// The resumed session is still the client's.
				raw := e.dial(aliceAddr)
				client := e.handshake(raw, cfg)
				relay, h, _ := e.accept()
				value, _ := h.Lookup(proxyheader.TypeSSL)
				want := proxyheader.SSL{Verified: true, Resumed: true, CommonName: "alice", Version: proxyheader.VersionName(version), Cipher: proxyheader.CipherName(client.ConnectionState().CipherSuite)}
				if got := string(value); got != string(want.TLV().Value) {
					t.Errorf("SSL TLV %q, want %q", got, want.TLV().Value)
				}
				raw.Close()
				relay.Close()
				synctest.Wait()
			})
		})
	}
}

// The hybrid key exchange is on by default.
func TestPostQuantumByDefault(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, terminating)
		client, raw, relay := e.tlsPair(nil)
		if got := client.ConnectionState().CurveID; got != tls.X25519MLKEM768 {
			t.Errorf("key exchange %v", got)
		}
		raw.Close()
		relay.Close()
	})
}
