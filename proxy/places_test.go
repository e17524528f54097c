package proxy

import (
	"crypto/tls"
	"io"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/internal/memconn"
	"relayedge/internal/proxyheader"
)

// silentCrowd opens n connections that never say a word; each stays until it is closed by the edge.
func silentCrowd(e *testEdge, n int, from func(i int) netip.AddrPort) []*memconn.Conn {
	conns := make([]*memconn.Conn, n)
	for i := range conns {
		conns[i] = e.dial(from(i))
	}
	synctest.Wait()
	return conns
}

// tryHandshake has aliceAddr try to get through to the relay.
func tryHandshake(e *testEdge, cfg *tls.Config) error {
	raw := e.dial(aliceAddr)
	defer raw.Close()
	err := tls.Client(raw, cfg).Handshake()
	if err == nil {
		relay, _, _ := e.accept()
		relay.Close()
	}
	return err
}

// Sources that hold one silent handshake each lock a newcomer out for a second
// and no longer, also where they come again as soon as they are evicted; one
// source that holds them all, not at all.
func TestSilentHandshakesLockNobodyOut(t *testing.T) {
	const places = 1024
	uncapped := func(kind string) func(c *edgeConfig) {
		return func(c *edgeConfig) {
			c.listener.TLS = kind
			c.limits.MaxHandshakes = places
			c.limits.MaxConnectionsPerIP, c.limits.ConnectionRatePerIP = 0, 0
		}
	}
	for _, kind := range []string{"terminate", "passthrough"} {
		t.Run(kind+"/one source", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, uncapped(kind))
				one := netip.MustParseAddr("198.18.0.1")
				silent := silentCrowd(e, places, func(i int) netip.AddrPort { return netip.AddrPortFrom(one, uint16(1024+i)) })
				began := time.Now()
				client := e.dial(aliceAddr)
				mustWrite(t, client, hello(t, "relay.example.org")[:10])
				synctest.Wait()
				if e.ended(HandshakeCap) != 1 || time.Since(began) != 0 {
					t.Errorf("%d made way after %v", e.ended(HandshakeCap), time.Since(began))
				}
				// A further one of that source has to wait for its own.
				again := e.dial(netip.AddrPortFrom(one, 1))
				wantEOF(t, again)
				if n := e.ended(HandshakeCap); n != 2 {
					t.Errorf("%d ended by handshake_cap", n)
				}
				if n := e.server.places.InFlight(); n != places {
					t.Errorf("%d places are taken", n)
				}
				closeAll(append(silent, client, again))
			})
		})
	}
	t.Run("as many sources", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, uncapped("terminate"))
			silent := silentCrowd(e, places, source)
			if err := tryHandshake(e, clientTLS("relay.example.org")); err == nil {
				t.Error("a newcomer took the place of a handshake that is a moment old")
			}
			time.Sleep(time.Second)
			if err := tryHandshake(e, clientTLS("relay.example.org")); err == nil {
				t.Error("a newcomer took the place of a handshake that is not over a second old")
			}
			time.Sleep(time.Nanosecond)
			if err := tryHandshake(e, clientTLS("relay.example.org")); err != nil {
				t.Errorf("after a second: %v", err)
			}
			closeAll(silent)
		})
	})
	t.Run("as many sources that come again", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, uncapped("terminate"))
			silent := silentCrowd(e, places, source)
			ticks := 0
			for e.ended(TLSHandshakeTimeout) < 3*places {
				waited := time.Duration(0)
				for tryHandshake(e, clientTLS("relay.example.org")) != nil {
					time.Sleep(100 * time.Millisecond)
					waited += 100 * time.Millisecond
				}
				if waited > 1100*time.Millisecond {
					t.Fatalf("a newcomer was locked out for %v", waited)
				}
				// Whoever is out is back at once, in the place that came free too.
				for i, c := range silent {
					if hasEnded(c) {
						c.Close()
						silent[i] = e.dial(source(i))
					}
				}
				synctest.Wait()
				time.Sleep(250 * time.Millisecond)
				ticks++
			}
			if ticks < 10 {
				t.Errorf("only %d newcomers were tried", ticks)
			}
			closeAll(silent)
		})
	})
}

// hasEnded reports whether the edge has closed a connection; it takes a nanosecond.
func hasEnded(c *memconn.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Nanosecond))
	_, err := io.Copy(io.Discard, c)
	return !isTimeout(err)
}

func closeAll(conns []*memconn.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// A handshake that has made way holds nothing and is counted as such, whatever
// state it was in; the relay has not heard of it.
func TestEvictedHandshakeLeavesNothing(t *testing.T) {
	first := hello(t, "relay.example.org")
	states := map[string]func(c *memconn.Conn){
		"silent":            func(*memconn.Conn) {},
		"a part of a hello": func(c *memconn.Conn) { c.Write(first[:20]) },
		"a hello":           func(c *memconn.Conn) { c.Write(first) },
	}
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					terminating(c)
					c.limits.MaxHandshakes = 2
				})
				one := netip.MustParseAddr("198.18.0.1")
				conns := silentCrowd(e, 2, func(i int) netip.AddrPort { return netip.AddrPortFrom(one, uint16(1024+i)) })
				for _, c := range conns {
					state(c)
				}
				time.Sleep(time.Second + time.Nanosecond)
				if err := tryHandshake(e, clientTLS("relay.example.org")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if n := e.ended(HandshakeCap); n != 1 {
					t.Errorf("%d ended by handshake_cap", n)
				}
				if n := e.server.stats.rejected[HandshakeCap].Load(); n != 1 {
					t.Errorf("%d are counted as rejected", n)
				}
				if held := e.server.gate.Stats(time.Now()).Connections; held != 1 {
					t.Errorf("%d connections are held", held)
				}
				closeAll(conns)
			})
		})
	}
}

// The sources are those of the shares: an IPv6 /48 is one, and so are all
// spellings of an IPv4 address. Behind a balancer it is the named client's.
func TestPlacesAreTheSources(t *testing.T) {
	addr := func(s string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(s), 50000) }
	for _, tt := range []struct {
		name        string
		first, next string
		one         bool
	}{
		{"a /48", "2001:db8:1:1::1", "2001:db8:1:2::1", true},
		{"two /48s", "2001:db8:1::1", "2001:db8:2::1", false},
		{"mapped", "192.0.2.1", "::ffff:192.0.2.1", true},
		{"embedded", "192.0.2.1", "64:ff9b::192.0.2.1", true},
		{"neighbours", "192.0.2.1", "192.0.2.2", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, trusted := range []bool{false, true} {
				inBubble(t, func(t *testing.T) {
					e := newEdge(t, func(c *edgeConfig) {
						terminating(c)
						c.limits.MaxHandshakes = 2
						c.limits.EmbeddedIPv4 = admission.DefaultLimits().EmbeddedIPv4
						if trusted {
							c.listener.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
						}
					})
					var conns []*memconn.Conn
					connect := func(from string) {
						if !trusted {
							conns = append(conns, e.dial(addr(from)))
						} else {
							c := e.dial(addr("203.0.113.1"))
							header, err := proxyheader.AppendV2(nil, proxyheader.Header{Version: 2, Source: addr(from), Destination: edgeAddr}, false)
							if err != nil {
								t.Fatal(err)
							}
							mustWrite(t, c, header)
							conns = append(conns, c)
						}
						synctest.Wait()
					}
					connect(tt.first)
					time.Sleep(time.Nanosecond)
					connect(tt.next)
					connect("198.18.0.1") // lighter than one source that holds two
					if evicted := e.ended(HandshakeCap) == 1 && e.server.places.InFlight() == 2 && hasEnded(conns[0]); evicted != tt.one {
						t.Errorf("trusted %v: the oldest made way: %v", trusted, evicted)
					}
					closeAll(conns)
				})
			}
		})
	}
}
