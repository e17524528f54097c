package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"relayedge/admission"
	"relayedge/internal/memconn"
	"relayedge/proxy/upstream"
)

// changed is the edge's config after a change, which the edge's own does not see.
func (e *testEdge) changed(change func(*Config)) Config {
	c := e.config
	c.Listeners = slices.Clone(c.Listeners)
	c.Upstreams = maps.Clone(c.Upstreams)
	change(&c)
	return c
}

// reload puts a changed config in force.
func (e *testEdge) reload(change func(*Config)) {
	e.t.Helper()
	c := e.changed(change)
	next, err := e.server.Prepare(c)
	if err != nil {
		e.t.Fatal(err)
	}
	next.Apply()
	e.config = c
}

// limitInForce is what the metric says of a limit.
func (e *testEdge) limitInForce(key string) (value float64) {
	for _, f := range e.server.Families() {
		if f.Name == "limit" {
			f.Read(func(name string, v float64) {
				if name == key {
					value = v
				}
			})
		}
	}
	return value
}

// held is a client that got in, and its relay's end.
type held struct{ client, relay *memconn.Conn }

func (h held) close() {
	h.client.Close()
	h.relay.Close()
}

// talks checks that bytes pass both ways.
func (h held) talks(t *testing.T) {
	t.Helper()
	mustWrite(t, h.client, []byte("to the relay"))
	wantRead(t, h.relay, []byte("to the relay"))
	mustWrite(t, h.relay, []byte("to the client"))
	wantRead(t, h.client, []byte("to the client"))
}

// enter connects a client and reports whether it got in.
func (e *testEdge) enter(front *memconn.Listener, from netip.AddrPort) (held, bool) {
	e.t.Helper()
	refused := e.server.stats.refusals()
	client, err := front.Dial(context.Background(), from)
	if err != nil {
		e.t.Fatal(err)
	}
	synctest.Wait()
	if e.server.stats.refusals() != refused {
		client.Close()
		return held{}, false
	}
	relay, _, _ := e.accept()
	return held{client, relay}, true
}

// refusals is how many there were for any reason.
func (s *stats) refusals() (n uint64) {
	for _, c := range s.rejected {
		n += c.Load()
	}
	return n
}

// A lowered cap evicts nobody and binds newcomers from the first one on; a raised
// one lets them in at once. The counts are those of before.
func TestReloadedCaps(t *testing.T) {
	for name, set := range map[string]func(*Limits, int){
		"max_connections":             func(l *Limits, n int) { l.MaxConnections = n },
		"max_connections_per_ip":      func(l *Limits, n int) { l.MaxConnectionsPerIP = n },
		"max_connections_per_ipv6_48": func(l *Limits, n int) { l.MaxConnectionsPerIPv648 = n },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					c.limits.ConnectionRatePerIP, c.limits.ConnectionRatePerIPv648 = 0, 0
					c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = 0, 0
					set(&c.limits, 100)
				})
				var open []held
				grow := func() bool {
					h, in := e.enter(e.front, netip.MustParseAddrPort("[2001:db8::1]:5000"))
					if in {
						open = append(open, h)
					}
					return in
				}
				leave := func() {
					open[0].close()
					open = open[1:]
					synctest.Wait()
				}
				for grow() {
				}
				if len(open) != 100 {
					t.Fatalf("%d get in under a cap of 100", len(open))
				}
				e.reload(func(c *Config) { set(&c.Limits, 50) })
				if got := e.limitInForce(name); got != 50 {
					t.Errorf("the metric says %v", got)
				}
				for len(open) >= 50 {
					if grow() {
						t.Fatalf("a newcomer gets in beside %d, with a cap of 50", len(open)-1)
					}
					leave()
				}
				if !grow() || grow() {
					t.Error("the place that was freed is not had just once")
				}
				e.reload(func(c *Config) { set(&c.Limits, 80) })
				for grow() {
				}
				if len(open) != 80 {
					t.Errorf("%d are in after the cap was raised to 80", len(open))
				}
				for len(open) > 0 {
					open[0].talks(t)
					leave()
				}
			})
		})
	}
}

// What an address has used of its connection rate stays used.
func TestReloadKeepsRates(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.limits.ConnectionRatePerIP, c.limits.ConnectionBurstPerIP = 1, 3 })
		for range 3 {
			h, in := e.enter(e.front, aliceAddr)
			if !in {
				t.Fatal("refused within the burst")
			}
			h.close()
			e.reload(func(c *Config) {})
		}
		if _, in := e.enter(e.front, aliceAddr); in {
			t.Error("reloads have filled the bucket")
		}
		time.Sleep(time.Second)
		h, in := e.enter(e.front, aliceAddr)
		if !in {
			t.Fatal("refused after a second at one a second")
		}
		h.close()
	})
}

// A connection lives by the terms that it came in under, and the next one by
// those in force.
func TestReloadBindsNewcomers(t *testing.T) {
	for _, tt := range []struct {
		name          string
		change        func(*Config)
		before, after time.Duration // life of a client that says nothing
	}{
		{"connection_timeout_secs", func(c *Config) { c.Limits.ConnectionTimeoutSecs = 60 }, 300 * time.Second, 60 * time.Second},
		{"first_byte_timeout_secs", func(c *Config) { c.Limits.FirstByteTimeoutSecs = 70 }, 300 * time.Second, 70 * time.Second},
		{"half_close_timeout_secs", func(c *Config) { c.Limits.HalfCloseTimeoutSecs = 30 }, 120 * time.Second, 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) { c.limits.HalfCloseTimeoutSecs = 120 })
				wait := func(h held) (life time.Duration) {
					began := time.Now()
					if tt.name == "half_close_timeout_secs" {
						h.client.CloseWrite()
					}
					for range 400 {
						synctest.Wait()
						if e.server.openByListener()["public"] == 0 {
							return time.Since(began)
						}
						time.Sleep(time.Second)
					}
					return 0
				}
				old, _ := e.enter(e.front, aliceAddr)
				e.reload(tt.change)
				before := wait(old)
				old.close()
				next, in := e.enter(e.front, aliceAddr)
				if !in {
					t.Fatal("refused")
				}
				after := wait(next)
				next.close()
				if before != tt.before || after != tt.after {
					t.Errorf("who came before lives %v, want %v; the next one %v, want %v", before, tt.before, after, tt.after)
				}
			})
		})
	}
}

// deny_file is read at every reload; a class and refuse_with bind the next client.
func TestReloadedRefusals(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		list := filepath.Join(t.TempDir(), "deny")
		write := func(text string) {
			if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("# nobody\n")
		e := newEdge(t, func(c *edgeConfig) { c.limits.DenyFile = list })
		first, in := e.enter(e.front, aliceAddr)
		if !in {
			t.Fatal("refused")
		}
		write("192.0.2.0/24\n")
		e.reload(func(c *Config) {})
		if _, in := e.enter(e.front, aliceAddr); in {
			t.Error("who is on the list gets in")
		}
		first.talks(t)
		write("")
		e.reload(func(c *Config) {
			c.Limits.Classes = []admission.Class{{Name: "one", Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, MaxConnectionsPerIP: new(1)}}
			c.Listeners[0].RefuseWith = "reset"
		})
		refused := e.dial(aliceAddr)
		if _, err := refused.Read(make([]byte, 1)); err == nil || err.Error() == "EOF" {
			t.Errorf("the refusal is %v, want a reset", err)
		}
		first.close()
		synctest.Wait()
		second, in := e.enter(e.front, aliceAddr)
		if !in {
			t.Fatal("refused")
		}
		second.close()
	})
}

// Listeners come and go, and change their names: the connections stay, and are
// counted for their listener to the end.
func TestReloadedListeners(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		second := memconn.Listen(netip.MustParseAddrPort("198.51.100.5:8443"))
		first, _ := e.enter(e.front, aliceAddr)
		want := func(want map[string]int64) {
			t.Helper()
			synctest.Wait()
			if got := e.server.openByListener(); !maps.Equal(got, want) {
				t.Errorf("open: %v, want %v", got, want)
			}
		}
		e.reload(func(c *Config) {
			other := c.Listeners[0]
			other.Name, other.Socket = "second", second
			c.Listeners = append(c.Listeners, other)
		})
		want(map[string]int64{"public": 1, "second": 0})
		added, in := e.enter(second, aliceAddr)
		if !in {
			t.Fatal("the listener that came refuses")
		}
		e.reload(func(c *Config) { c.Listeners[1].Name = "renamed" })
		want(map[string]int64{"public": 1, "renamed": 1})

		e.reload(func(c *Config) { c.Listeners = c.Listeners[:1] })
		if _, err := second.Dial(t.Context(), aliceAddr); err == nil {
			t.Error("the listener that went still listens")
		}
		want(map[string]int64{"public": 1, "renamed": 1})
		added.talks(t)
		first.talks(t)
		added.close()
		want(map[string]int64{"public": 1})

		// Another socket under the name of before, in one step.
		third := memconn.Listen(netip.MustParseAddrPort("198.51.100.6:443"))
		gone := e.front
		e.reload(func(c *Config) { c.Listeners[0].Socket = third })
		if _, err := gone.Dial(t.Context(), aliceAddr); err == nil {
			t.Error("the socket of before still listens")
		}
		moved, in := e.enter(third, aliceAddr)
		if !in {
			t.Fatal("the socket that came refuses")
		}
		want(map[string]int64{"public": 2})
		first.close()
		moved.close()
		want(map[string]int64{"public": 0})
	})
}

// A reload that fails, for whatever reason, changes nothing: not the part of it
// that would have gone well either.
func TestRefusedReload(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tt := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"an upstream that is none": {func(c *Config) { c.Listeners[0].Upstream = "other" }, `listener public: no upstream is named "other"`},
		"a route to none":          {func(c *Config) { c.Listeners[0].ServerNames = map[string]string{"a.example.org": "other"} }, `no upstream is named "other"`},
		"no deny_file":             {func(c *Config) { c.Limits.DenyFile = missing }, "limits.deny_file: " + missing},
		"no client_ca_file":        {func(c *Config) { c.Listeners[0].TLS, c.Listeners[0].ClientCAFile = "terminate", missing }, "listener public: client_ca_file: open " + missing},
		"a limit of nothing":       {func(c *Config) { c.Limits.MaxConnections = 0 }, "max_connections"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, nil)
				open, _ := e.enter(e.front, aliceAddr)
				second := memconn.Listen(netip.MustParseAddrPort("198.51.100.5:8443"))
				defer second.Close()
				_, err := e.server.Prepare(e.changed(func(c *Config) {
					c.Limits.MaxConnectionsPerIP = 1
					other := c.Listeners[0]
					other.Name, other.Socket = "second", second
					c.Listeners = append(c.Listeners, other)
					delete(c.Upstreams, "spare")
					tt.change(c)
				}))
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%v, want %q", err, tt.says)
				}
				if got := e.limitInForce("max_connections_per_ip"); got != float64(e.config.Limits.MaxConnectionsPerIP) {
					t.Errorf("max_connections_per_ip is %v", got)
				}
				if got := e.server.openByListener(); !maps.Equal(got, map[string]int64{"public": 1}) {
					t.Errorf("open: %v", got)
				}
				next, in := e.enter(e.front, aliceAddr)
				if !in {
					t.Fatal("the next client is refused")
				}
				for _, h := range []held{open, next} {
					h.talks(t)
					h.close()
				}
			})
		})
	}
}

// An upstream whose addresses change sends newcomers to the next ones; its
// connections to those that go, and those of an upstream that goes, end by
// when_down alone.
func TestReloadedUpstreams(t *testing.T) {
	for _, goes := range []string{"address", "upstream"} {
		for _, whenDown := range []string{"keep", "close"} {
			t.Run(goes+"/"+whenDown, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					next := memconn.Listen(netip.MustParseAddrPort("127.0.0.2:7777"))
					defer next.Close()
					e := newEdge(t, func(c *edgeConfig) {
						c.upstream.WhenDown = whenDown
						c.dials = map[string]upstream.DialFunc{"127.0.0.2:7777": func(ctx context.Context, _, _ string) (net.Conn, error) {
							return next.Dial(ctx, netip.MustParseAddrPort("127.0.0.1:40001"))
						}}
					})
					old, _ := e.enter(e.front, aliceAddr)
					e.reload(func(c *Config) {
						up := c.Upstreams["relay"]
						up.Addresses = []string{"127.0.0.2:7777"}
						if goes == "upstream" {
							c.Upstreams = map[string]upstream.Config{"next": up}
							c.Listeners[0].Upstream = "next"
						} else {
							c.Upstreams["relay"] = up
						}
					})
					client := e.dial(aliceAddr)
					conn, err := next.Accept()
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if whenDown == "keep" {
						old.talks(t)
					} else if e.ended(UpstreamUnavailable) != 1 {
						t.Error("the connection to the address that went has not ended")
					}
					for name, up := range e.server.upstreamsUp() {
						if want := map[string]string{"address": "relay", "upstream": "next"}[goes]; name != want || !up {
							t.Errorf("the metric tells of %s: %v", name, up)
						}
					}
					client.Close()
					conn.Close()
					old.close()
				})
			})
		}
	}
}

// A client that was shaking hands while its upstream went is led to where the
// policy in force leads it.
func TestReloadInTheMiddleOfAHandshake(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			terminating(c)
			c.listener.ServerNames = map[string]string{"relay.example.org": "relay"}
		})
		raw := e.dial(aliceAddr)
		mustWrite(t, raw, []byte{22}) // the first byte of its hello
		synctest.Wait()
		e.reload(func(c *Config) {
			c.Upstreams = map[string]upstream.Config{"next": c.Upstreams["relay"]}
			c.Listeners[0].Upstream, c.Listeners[0].ServerNames = "next", map[string]string{"relay.example.org": "next"}
		})
		client := tls.Client(withoutFirst{raw, new(bool)}, clientTLS("relay.example.org"))
		if err := client.Handshake(); err != nil {
			t.Fatal(err)
		}
		relay, h, _ := e.accept()
		if !h.Source.IsValid() {
			t.Error("the relay is told of nobody")
		}
		relay.Close()
		client.Close()
	})
}

// withoutFirst does not send the first byte, which has been sent already.
type withoutFirst struct {
	net.Conn
	sent *bool
}

func (c withoutFirst) Write(p []byte) (int, error) {
	if *c.sent {
		return c.Conn.Write(p)
	}
	*c.sent = true
	n, err := c.Conn.Write(p[1:])
	return n + 1, err
}

// Sessions are resumed across a reload, but not once other CAs vouch for clients.
func TestTicketsAcrossReload(t *testing.T) {
	ca, good := clientCertificate(t, "alice")
	other, _ := clientCertificate(t, "mallory")
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { terminating(c); c.listener.ClientCAFile = ca })
		cfg := clientTLS("relay.example.org")
		cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)}
		cfg.Certificates = []tls.Certificate{good}
		resumes(e, e.front, cfg)
		e.reload(func(c *Config) { c.Limits.MaxConnections = 5000 })
		if !resumes(e, e.front, cfg) {
			t.Error("no session is resumed after a reload")
		}
		e.server.renewTickets(e.server.tickets.rotate)
		if !resumes(e, e.front, cfg) {
			t.Error("no session is resumed after a reload and a change of keys")
		}
		both, err := os.ReadFile(ca)
		if err != nil {
			t.Fatal(err)
		}
		added, err := os.ReadFile(other)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(other, bytes.Join([][]byte{both, added}, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		e.reload(func(c *Config) { c.Listeners[0].ClientCAFile = other })
		if resumes(e, e.front, cfg) {
			t.Error("a session is resumed under other CAs")
		}
	})
}

// Reloads leave nothing behind: no goroutine, no generation of terms that is
// still held, and the health checks keep their time.
func TestManyReloads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		checks := 0
		e := newEdge(t, func(c *edgeConfig) {
			c.upstream.HealthCheckSecs = 3600
			dial := c.dial
			c.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				checks++
				return dial(ctx, network, address)
			}
		})
		time.Sleep(2 * time.Second) // the first check
		check, _, _ := e.accept()
		check.Close()
		h, _ := e.enter(e.front, aliceAddr)
		synctest.Wait()
		goroutines, dials := runtime.NumGoroutine(), checks
		var generations []weak.Pointer[terms]
		for i := range 300 {
			generations = append(generations, weak.Make(e.server.listeners[0].terms.Load()))
			e.reload(func(c *Config) {
				c.Limits.MaxConnections = 5000 + i
				if i%2 == 0 { // a listener and an upstream that the next reload takes away
					l := c.Listeners[0]
					l.Name, l.Socket = "second", memconn.Listen(netip.MustParseAddrPort("198.51.100.5:8443"))
					c.Listeners = append(c.Listeners[:1], l)
					up := c.Upstreams["relay"]
					up.HealthCheckSecs = 0
					c.Upstreams["second"] = up
				} else {
					c.Listeners = c.Listeners[:1]
					delete(c.Upstreams, "second")
				}
			})
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > goroutines+10 { // the runtime has some of its own
			t.Errorf("%d goroutines more than before", n-goroutines)
		}
		if checks != dials {
			t.Errorf("%d health checks in 0.3 s of reloads", checks-dials)
		}
		runtime.GC()
		alive := 0
		for _, g := range generations {
			if g.Value() != nil {
				alive++
			}
		}
		if alive != 1 {
			t.Errorf("%d generations of terms are held, want that of the open connection", alive)
		}
		h.talks(t)
		h.close()
	})
}

// An edge that drains takes no other policy, and one that was ready before opens
// no door.
func TestReloadOfADrain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		open, _ := e.enter(e.front, aliceAddr)
		second := memconn.Listen(netip.MustParseAddrPort("198.51.100.5:8443"))
		withSecond := e.changed(func(c *Config) {
			l := c.Listeners[0]
			l.Name, l.Socket = "second", second
			c.Listeners = append(c.Listeners, l)
		})
		ready, err := e.server.Prepare(withSecond)
		if err != nil {
			t.Fatal(err)
		}
		e.stop()
		synctest.Wait()
		if _, err := e.server.Prepare(e.config); err == nil {
			t.Error("a reload is taken while the edge drains")
		}
		ready.Apply()
		if _, err := second.Dial(t.Context(), aliceAddr); err == nil {
			t.Error("a listener is open while the edge drains")
		}
		open.talks(t)
		open.close()
	})
}
