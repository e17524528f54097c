package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/spread"
	"relayedge/proxy/upstream"
)

// uncapped lets any number of clients in, from wherever they come.
func uncapped(l *Limits) {
	l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648, l.ConnectionRatePerIP, l.ConnectionRatePerIPv648 = 0, 0, 0, 0
}

// drained drains the edge and returns how long it took.
func (e *testEdge) drained() time.Duration {
	e.t.Helper()
	began := time.Now()
	e.stop()
	err := <-e.served
	if err != nil {
		e.t.Errorf("Serve: %v", err)
	}
	e.served <- nil
	return time.Since(began)
}

// What has not reached its relay has nothing to finish: it ends at once, however
// long the drain is.
func TestDrainOfTheUnserved(t *testing.T) {
	first := hello(t, "relay.example.org")
	half := first[:len(first)/2]
	silentRelay := func(c *edgeConfig) {
		c.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	for _, row := range []struct {
		state  string
		change func(*edgeConfig)
		from   netip.AddrPort
		says   []byte
	}{
		{"silent before its PROXY header", trusting("10.0.0.0/8"), balancerAddr, nil},
		{"half a PROXY header", trusting("10.0.0.0/8"), balancerAddr, []byte("PROXY TCP4 192.0.2.10")},
		{"silent after its PROXY header", trustingTLS, balancerAddr, []byte("PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n")},
		{"silent before its hello", terminating, aliceAddr, nil},
		{"half a hello", terminating, aliceAddr, half},
		{"a hello, and no answer to ours", terminating, aliceAddr, first},
		{"silent before its hello, in passthrough", passing, aliceAddr, nil},
		{"half a hello, in passthrough", passing, aliceAddr, half},
		{"its relay is being dialled", silentRelay, aliceAddr, []byte("hi")},
		{"its relay is being dialled, in passthrough", func(c *edgeConfig) { passing(c); silentRelay(c) }, aliceAddr, first},
	} {
		t.Run(row.state, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					row.change(c)
					c.limits.DrainSecs = 3600
				})
				client := e.dial(row.from)
				defer client.Close()
				mustWrite(t, client, row.says)
				e.wantOpen()
				if took := e.drained(); took != 0 {
					t.Errorf("the drain took %v", took)
				}
				e.wantEnd(Drain)
				if _, err := io.ReadAll(client); err != nil {
					t.Errorf("the client reads %v", err)
				}
				if up := e.server.upstreams["relay"]; !up.Up() || strings.Contains(e.logged(), "WARN") {
					t.Errorf("the drain is put down to the relay: %s", e.logged())
				}
			})
		})
	}
}

// A TLS client whose relay is being dialled gets a goodbye.
func TestDrainWhileDialling(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			terminating(c)
			c.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		raw := e.dial(aliceAddr)
		defer raw.Close()
		client := e.handshake(raw, nil)
		synctest.Wait()
		if took := e.drained(); took != 0 {
			t.Errorf("the drain took %v", took)
		}
		wantEOF(t, client)
		e.wantEnd(Drain)
	})
}

// What is forwarded has drain_secs and ends then, whatever it is doing.
func TestDrainOfTheServed(t *testing.T) {
	write := func(w io.Writer) { // until it fails
		p := make([]byte, 8<<10)
		for {
			if _, err := w.Write(p); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	for _, row := range []struct {
		state   string
		limits  func(*Limits)
		do      func(all *sync.WaitGroup, client, relay halfCloser)
		listens bool // the client reads, and should hear a goodbye
	}{
		{"idle", nil, func(*sync.WaitGroup, halfCloser, halfCloser) {}, true},
		{"busy both ways", nil, func(all *sync.WaitGroup, client, relay halfCloser) {
			all.Go(func() { write(client) })
			all.Go(func() { write(relay) })
			all.Go(func() { io.Copy(io.Discard, relay) })
		}, true},
		{"the client has ended its side", nil, func(all *sync.WaitGroup, client, relay halfCloser) {
			client.CloseWrite()
			all.Go(func() { write(relay) })
		}, true},
		{"the relay has ended its side", nil, func(all *sync.WaitGroup, client, relay halfCloser) {
			relay.CloseWrite()
			all.Go(func() { write(client) })
			all.Go(func() { io.Copy(io.Discard, relay) })
		}, true},
		{"the client reads nothing", nil, func(all *sync.WaitGroup, client, relay halfCloser) {
			all.Go(func() { relay.Write(make([]byte, 1<<20)) })
		}, false},
		{"the relay reads nothing", nil, func(all *sync.WaitGroup, client, relay halfCloser) {
			all.Go(func() { client.Write(make([]byte, 1<<20)) })
		}, true},
		{"neither reads", nil, func(all *sync.WaitGroup, client, relay halfCloser) {
			all.Go(func() { client.Write(make([]byte, 1<<20)) })
			all.Go(func() { relay.Write(make([]byte, 1<<20)) })
		}, false},
		{"the client is not read from for its rate", func(l *Limits) { l.RateLimitBPS, l.RateLimitBurstBytes = 1024, 65536 }, func(all *sync.WaitGroup, client, relay halfCloser) {
			all.Go(func() { client.Write(make([]byte, 1<<20)) })
			all.Go(func() { io.Copy(io.Discard, relay) })
		}, true},
	} {
		for _, secs := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s, drain_secs %d", row.state, secs), func(t *testing.T) {
				limits := func(l *Limits) {
					l.DrainSecs, l.WriterStallSecs, l.HalfCloseTimeoutSecs = secs, 3600, 3600
					if row.limits != nil {
						row.limits(l)
					}
				}
				both(t, limits, func(t *testing.T, e *testEdge, client, relay halfCloser) {
					var all sync.WaitGroup
					row.do(&all, client, relay)
					var heard error
					if row.listens {
						all.Go(func() { _, heard = io.Copy(io.Discard, client) })
					}
					e.wantOpen()
					took := e.drained()
					// memconn gives a goodbye that cannot be written ten milliseconds.
					if least := time.Duration(secs) * time.Second; took < least || took > least+20*time.Millisecond {
						t.Errorf("the drain took %v", took)
					}
					e.wantEnd(Drain)
					if row.listens {
						synctest.Wait()
						// Nil is the end by close_notify where there is TLS; without that, the end is unexpected.
						if heard != nil {
							t.Errorf("the client reads to its end: %v", heard)
						}
					}
					if c, ok := client.(interface{ NetConn() net.Conn }); ok {
						c.NetConn().Close() // a client that waits for a write cannot say goodbye
					}
					client.Close()
					relay.Close()
					all.Wait()
				})
			})
		}
	}
}

// A relay that takes no PROXY header cannot hold up a drain either.
func TestDrainWhileIntroducing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ours, relay := memconn.Pipe(netip.MustParseAddrPort("127.0.0.1:40000"), relayAddr)
		mustWrite(t, ours, make([]byte, memconn.BufferSize))
		e := newEdge(t, func(c *edgeConfig) {
			c.limits.DrainSecs = 2
			c.dial = func(context.Context, string, string) (net.Conn, error) { return ours, nil }
		})
		client := e.dial(aliceAddr)
		e.wantOpen()
		if took := e.drained(); took != 2*time.Second {
			t.Errorf("the drain took %v", took)
		}
		e.wantEnd(Drain)
		client.Close()
		relay.Close()
	})
}

// The closes behind drain_secs are spread out evenly, over as long as is told at most.
func TestDrainSpread(t *testing.T) {
	for _, row := range []struct {
		sessions, secs int
		step           time.Duration
	}{
		{100, 30, spread.Step},
		{100, 0, 0},
		{400, 1, time.Second / 400}, // no longer than drain_secs itself
		{2001, 30, drainSpread / 2001},
	} {
		if underRace && row.sessions > 1000 {
			continue // as many sessions take long there
		}
		t.Run(fmt.Sprintf("%d in %d", row.sessions, row.secs), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					uncapped(&c.limits)
					c.limits.DrainSecs = row.secs
				})
				var all sync.WaitGroup
				ends := make([]time.Time, row.sessions)
				for i := range row.sessions {
					client := e.dial(source(i))
					relay, _, _ := e.accept()
					all.Go(func() {
						io.ReadAll(client)
						ends[i] = time.Now()
						client.Close()
						relay.Close()
					})
				}
				began := time.Now()
				took := e.drained()
				all.Wait()
				at := make(map[time.Duration]int)
				inOrder := true
				for i := range ends {
					at[ends[i].Sub(began)]++
					inOrder = inOrder && (i == 0 || !ends[i].Before(ends[i-1]))
				}
				start := time.Duration(row.secs) * time.Second
				last := start + time.Duration(row.sessions-1)*row.step
				for i := range row.sessions {
					if when := start + time.Duration(i)*row.step; row.step > 0 && at[when] != 1 {
						t.Fatalf("%d were closed at %v", at[when], when)
					}
				}
				if row.step > 0 && inOrder {
					t.Error("they were closed in the order in which they came")
				}
				if took != last {
					t.Errorf("the drain took %v, want %v", took, last)
				}
				if n := e.ended(Drain); n != row.sessions {
					t.Errorf("%d of %d ended by the drain", n, row.sessions)
				}
				log := e.logged()
				for _, line := range []string{
					fmt.Sprintf(`msg="draining the edge" open=%d not_served_yet=0 drain_secs=%d`, row.sessions, row.secs),
					fmt.Sprintf(`msg="drain_secs are over: closing what is still open, spread out" open=%d`, row.sessions),
				} {
					if strings.Count(log, line) != 1 {
						t.Errorf("%s is not there once: %s", line, log)
					}
				}
			})
		})
	}
}

// Many clients at once that read nothing, so that TLS cannot say goodbye to any
// of them: none waits for another.
func TestDrainOfManyStalledClients(t *testing.T) {
	clients := 1000
	if underRace {
		clients = 200 // handshakes take long there
	}
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			terminating(c)
			uncapped(&c.limits)
			c.limits.DrainSecs, c.limits.WriterStallSecs = 1, 3600
		})
		var open []io.Closer
		payload := make([]byte, memconn.BufferSize+1)
		for i := range clients {
			raw := e.dial(source(i))
			cfg := clientTLS("relay.example.org")
			cfg.CurvePreferences = []tls.CurveID{tls.X25519} // the default takes long for so many
			e.handshake(raw, cfg)
			relay, _, _ := e.accept()
			go relay.Write(payload)
			open = append(open, raw, relay)
		}
		synctest.Wait()
		// memconn gives a goodbye that cannot be written ten milliseconds.
		const least = time.Second
		const most = 2*time.Second + 20*time.Millisecond
		if took := e.drained(); took < least || took > most {
			t.Errorf("the drain took %v, want at most %v", took, most)
		}
		if n := e.ended(Drain); n != clients {
			t.Errorf("%d of %d ended by the drain", n, clients)
		}
		for _, c := range open {
			c.Close()
		}
	})
}

// Who ends by itself while the rest is being closed is counted as that, and not waited for.
func TestDrainOfThoseWhoLeave(t *testing.T) {
	const sessions = 20
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { uncapped(&c.limits) })
		var open []io.Closer
		for i := range sessions {
			client := e.dial(source(i))
			relay, _, _ := e.accept()
			open = append(open, client, relay)
		}
		leave := 30*time.Second + 3*spread.Step/2
		time.AfterFunc(leave, func() {
			for _, c := range open {
				c.Close()
			}
		})
		if took := e.drained(); took != leave {
			t.Errorf("the drain took %v, want %v", took, leave)
		}
		drained, left := e.ended(Drain), e.ended(ClientClosed)+e.ended(UpstreamClosed)+e.ended(Reset)
		if drained != 2 || left != sessions-2 {
			t.Errorf("%d ended by the drain, %d by themselves", drained, left)
		}
	})
}

// Draining is told once no newcomer gets in, and nobody dials a relay any more.
func TestDraining(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var dials sync.WaitGroup
		e := newEdge(t, func(c *edgeConfig) {
			uncapped(&c.limits)
			c.upstreams = map[string]upstream.Config{}
			c.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				defer dials.Done()
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		const clients = 10
		dials.Add(clients)
		for i := range clients {
			client := e.dial(source(i))
			defer client.Close()
		}
		synctest.Wait()
		select {
		case <-e.server.Draining():
			t.Fatal("it drains before it is told to")
		default:
		}
		sessions := e.server.open()
		if len(sessions) != clients {
			t.Fatalf("%d sessions are open", len(sessions))
		}
		e.stop()
		<-e.server.Draining()
		if c, err := e.front.Dial(context.Background(), aliceAddr); err == nil {
			c.Close()
			t.Error("a newcomer gets in")
		}
		for _, s := range sessions {
			if !errors.Is(s.ctx.Err(), context.Canceled) {
				t.Error("a session still dials its relay")
			}
		}
		dials.Wait()
	})
}
