package relaycore

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// spec/003: a missing or late PROXY header is proxy_header; the time is for the whole of it.
func TestProxyHeaderTime(t *testing.T) {
	head := header(t, "192.0.2.10:51000")
	for _, tc := range []struct {
		name    string
		pieces  []string
		every   time.Duration
		arrives bool
	}{
		{"nothing", nil, 0, false},
		{"drip", strings.Split(string(head), ""), time.Second, false},
		{"last byte just in time", []string{string(head[:16]), string(head[16:])}, proxyHeaderTime - time.Nanosecond, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, proxied, func(t *testing.T, w *world) {
				start := time.Now()
				p := w.dial(frontEnd)
				go func() {
					for i, piece := range tc.pieces {
						if i > 0 {
							time.Sleep(tc.every)
						}
						if _, err := p.nc.Write([]byte(piece)); err != nil {
							return
						}
					}
				}()
				if tc.arrives {
					time.Sleep(proxyHeaderTime)
					p.upgrade()
					p.hello()
					w.wantOnly(ReasonProxyHeader, 0)
					return
				}
				var b [1]byte
				if _, err := p.nc.Read(b[:]); err == nil {
					t.Fatal("something came")
				}
				if got := time.Since(start); got != proxyHeaderTime {
					t.Fatalf("closed after %v", got)
				}
				synctest.Wait()
				w.wantOnly(ReasonProxyHeader, 1)
				time.Sleep(10 * time.Second)
			})
		})
	}
}

// spec/003: complete request headers within 5 seconds, from the end of the PROXY header.
func TestRequestHeadTime(t *testing.T) {
	for _, tc := range []struct {
		name string
		wait time.Duration
		ok   bool
	}{
		{"at its value", headTime, false},
		{"just below", headTime - time.Nanosecond, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, proxied, func(t *testing.T, w *world) {
				p := w.dial(frontEnd)
				time.Sleep(4 * time.Second)
				p.write(header(t, "192.0.2.10:51000"))
				synctest.Wait()
				begun := time.Now()
				p.write([]byte(upgradeRequest[:40]))
				time.Sleep(tc.wait)
				synctest.Wait()
				p.nc.Write([]byte(upgradeRequest[40:]))
				status := p.response().StatusCode
				if tc.ok {
					if status != http.StatusSwitchingProtocols {
						t.Fatal(status)
					}
					w.wantOnly(ReasonHandshakeTimeout, 0)
					return
				}
				if status != http.StatusRequestTimeout || time.Since(begun) != headTime {
					t.Fatalf("status %d after %v", status, time.Since(begun))
				}
				w.wantOnly(ReasonHandshakeTimeout, 1)
			})
		})
	}
}

// spec/003: the WebSocket upgrade within 10 seconds. The client asks late and
// does not take the answer.
func TestUpgradeTime(t *testing.T) {
	for _, tc := range []struct {
		name string
		wait time.Duration
		ok   bool
	}{
		{"at its value", upgradeTime, false},
		{"just below", upgradeTime - time.Nanosecond, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				near, far := net.Pipe() // it holds no byte that is not read
				lease, _ := w.s.gate.Admit(netip.Addr{}, time.Now())
				w.s.count.open.Add(1)
				w.s.running.Go(func() { w.s.connection(far, lease, time.Now()) })
				time.Sleep(3 * time.Second)
				near.Write([]byte(upgradeRequest))
				time.Sleep(tc.wait - 3*time.Second)
				synctest.Wait()
				n, err := near.Read(make([]byte, 1024))
				if ok := err == nil && n > 0; ok != tc.ok {
					t.Fatalf("read: %d, %v", n, err)
				}
				near.Close()
				synctest.Wait()
				if tc.ok {
					w.wantOnly(ReasonHandshakeTimeout, 0)
				} else {
					w.wantOnly(ReasonHandshakeTimeout, 1)
				}
			})
		})
	}
}

// spec/003: identification_timeout_secs, from accept; a hello alone does not count.
func TestIdentificationTime(t *testing.T) {
	const limit = 15 * time.Second
	bubble(t, nil, func(t *testing.T, w *world) {
		start := time.Now()
		p := w.dial("192.0.2.1:1000")
		time.Sleep(3 * time.Second)
		p.upgrade()
		time.Sleep(11 * time.Second)
		p.hello()
		code, text, at := p.end()
		if code != websocket.CodePolicy || text != "identification_timeout" || at.Sub(start) != limit {
			t.Fatalf("closed with %d %q after %v", code, text, at.Sub(start))
		}
		w.wantOnly(ReasonIdentification, 1)

		q := w.dial("192.0.2.1:1000").upgrade()
		q.hello()
		time.Sleep(limit - time.Nanosecond)
		q.publish(1)
		time.Sleep(time.Second)
		q.quiet()
		w.wantOnly(ReasonIdentification, 1)
	})
}

// spec/003: connection_timeout_secs. A whole message is activity: pongs and the
// bytes of a message that never ends are not.
func TestIdleTime(t *testing.T) {
	const limit = 300 * time.Second
	for _, tc := range []struct {
		name string
		act  func(w *world, p *peer)
		last time.Duration // of the latest activity
	}{
		{"silent but for pongs", func(*world, *peer) {}, 0},
		{"one byte each 50 s of an unfinished message", func(w *world, p *peer) {
			go func() {
				for first := byte(0x02); ; first = 0x00 {
					if _, err := p.nc.Write(masked(first, []byte{byte(wire.TypeSend)})); err != nil {
						return
					}
					time.Sleep(50 * time.Second)
				}
			}()
		}, 0},
		{"KEEPALIVE just in time", func(w *world, p *peer) {
			time.Sleep(limit - time.Nanosecond)
			p.send(wire.Keepalive{})
		}, limit - time.Nanosecond},
		{"pings of its own", func(w *world, p *peer) {
			go func() {
				for range 50 {
					if _, err := p.nc.Write(masked(0x89, []byte("x"))); err != nil {
						return
					}
					time.Sleep(10 * time.Second)
				}
			}()
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				p := w.member(1)
				start := time.Now()
				tc.act(w, p)
				code, text, at := p.end()
				if code != websocket.CodePolicy || text != "idle_timeout" || at.Sub(start) != tc.last+limit {
					t.Fatalf("closed with %d %q after %v", code, text, at.Sub(start))
				}
				w.wantOnly(ReasonIdleTimeout, 1)
				time.Sleep(time.Hour)
			})
		})
	}
	t.Run("one byte each 50 s of a frame that leaves no room for pongs", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, w *world) {
			p := w.member(1)
			p.pongs.Store(false)
			go func() {
				for _, c := range masked(0x82, make([]byte, 1000)) {
					if _, err := p.nc.Write([]byte{c}); err != nil {
						return
					}
					time.Sleep(50 * time.Second)
				}
			}()
			first := <-p.frames
			if _, text, at := p.end(); text != "idle_timeout" || at.Sub(first.at) != pongLate {
				t.Fatalf("closed with %q %v after the ping", text, at.Sub(first.at))
			}
			w.wantOnly(ReasonIdleTimeout, 1)
			time.Sleep(time.Hour)
		})
	})
	t.Run("KEEPALIVE each 38 s keeps a session", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, w *world) {
			p := w.member(1)
			for range 200 {
				time.Sleep(38 * time.Second)
				p.send(wire.Keepalive{})
			}
			p.quiet()
		})
	})
}

// spec/003: a ping every 25 to 35 seconds.
func TestPingInterval(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.member(1)
		last := time.Now()
		low, high := time.Hour, time.Duration(0)
		for range 200 {
			r := <-p.frames
			if r.op != websocket.Ping {
				t.Fatalf("opcode %x", r.op)
			}
			low, high = min(low, r.at.Sub(last)), max(high, r.at.Sub(last))
			last = r.at
			p.send(wire.Keepalive{})
		}
		if low < pingMin || high > pingMax || high-low < (pingMax-pingMin)/2 {
			t.Fatalf("pings came %v to %v apart", low, high)
		}
	})
}

// A client that answers every ping and says nothing else lives as long as it may.
func TestPongsForHours(t *testing.T) {
	const limit = 86400
	bubble(t, func(c *Config) { c.Limits.ConnectionTimeoutSecs = limit }, func(t *testing.T, w *world) {
		p := w.member(1)
		start := time.Now()
		if _, text, at := p.end(); text != "idle_timeout" || at.Sub(start) != limit*time.Second {
			t.Fatalf("closed with %q after %v", text, at.Sub(start))
		}
	})
}

// spec/003: closed when the pong is 60 seconds late, counted from the ping's write.
func TestPongTime(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.member(1)
		p.pongs.Store(false)
		first := <-p.frames
		go func() {
			for range 10 {
				time.Sleep(20 * time.Second)
				p.nc.Write(masked(0x82, wire.Keepalive{}.Append(nil)))
				p.nc.Write(masked(0x8a, []byte("unasked"))) // answers nothing
			}
		}()
		if _, text, at := p.end(); text != "idle_timeout" || at.Sub(first.at) != pongLate {
			t.Fatalf("closed with %q %v after the ping", text, at.Sub(first.at))
		}
		w.wantOnly(ReasonIdleTimeout, 1)
		time.Sleep(time.Hour)
	})
	t.Run("just in time", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, w *world) {
			p := w.member(1)
			p.pongs.Store(false)
			first := <-p.frames
			time.Sleep(time.Until(first.at.Add(pongLate - time.Nanosecond)))
			p.write(masked(0x8a, first.payload))
			p.send(wire.Keepalive{})
			second := <-p.frames
			if _, _, at := p.end(); at.Sub(second.at) != pongLate {
				t.Fatalf("closed %v after the second ping", at.Sub(second.at))
			}
		})
	})
	t.Run("the latest pong answers the earlier pings", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, w *world) {
			p := w.member(1)
			p.pongs.Store(false)
			first, second := <-p.frames, <-p.frames
			p.write(masked(0x8a, second.payload))
			p.pongs.Store(true)
			time.Sleep(time.Until(first.at.Add(2 * pongLate)))
			p.quiet()
		})
	})
	t.Run("counted from the write", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, w *world) {
			a, b := w.member(1), w.member(2)
			b.pongs.Store(false)
			circuit := w.pairUp(a, b)
			time.Sleep(24 * time.Second)
			// Two messages that b's socket cannot hold stand before its ping.
			b.stopReading()
			for i := range 3 {
				a.send(wire.Send{Circuit: circuit, ID: messageID(i), Payload: make([]byte, 100<<10)})
			}
			time.Sleep(25 * time.Second)
			read := time.Now()
			b.resume()
			var ping received
			for ping.op != websocket.Ping {
				ping = <-b.frames
			}
			if ping.at.Before(read) {
				t.Fatal("the ping came before the messages were read")
			}
			b.send(wire.Keepalive{})
			if _, text, at := b.end(); text != "idle_timeout" || at.Sub(ping.at) != pongLate {
				t.Fatalf("closed with %q %v after the ping was written", text, at.Sub(ping.at))
			}
		})
	})
}

// spec/003: 6 hellos or key publishes, then one more every 10 seconds.
func TestAuthRate(t *testing.T) {
	for _, tc := range []struct {
		name string
		wait time.Duration
		ok   bool
	}{
		{"at once", 0, false},
		{"just too early", 10*time.Second - time.Nanosecond, false},
		{"after ten seconds", 10 * time.Second, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				p := w.member(1) // one hello, one publish
				for range 3 {
					p.hello()
				}
				p.publish(1)
				time.Sleep(tc.wait)
				if tc.ok {
					p.hello()
					w.wantOnly(ReasonAuthRate, 0)
					return
				}
				p.send(wire.Hello{Version: wire.Version})
				if code, text, _ := p.end(); code != websocket.CodePolicy || text != "auth_rate" {
					t.Fatalf("closed with %d %q", code, text)
				}
				w.wantOnly(ReasonAuthRate, 1)
			})
		})
	}
}

// spec/003: a one-sided request is held for up to 10 minutes; asking again does not extend it.
func TestRequestLife(t *testing.T) {
	for _, tc := range []struct {
		name string
		wait time.Duration
		open bool
	}{
		{"at its value", requestLife, false},
		{"just below", requestLife - time.Nanosecond, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				a, b := w.member(1), w.member(2)
				keepAlive := func(d time.Duration) {
					for ; d > 0; d -= 100 * time.Second {
						a.send(wire.Keepalive{})
						b.send(wire.Keepalive{})
						time.Sleep(min(d, 100*time.Second))
					}
				}
				a.ask(1, identity(b.key))
				want[wire.Knock](b)
				keepAlive(requestLife / 2)
				a.ask(7, identity(b.key))
				keepAlive(tc.wait - requestLife/2)
				b.ask(2, identity(a.key))
				if tc.open {
					if got := want[wire.CircuitOpen](a); got.RequestID != 7 {
						t.Fatalf("opened for request %d, not the newest", got.RequestID)
					}
					want[wire.CircuitOpen](b)
					return
				}
				want[wire.Knock](a)
				b.quiet()
			})
		})
	}
}

// spec/003: a connection over its byte budget is throttled, not closed: each
// message costs its length and 256 bytes.
func TestRateLimit(t *testing.T) {
	const rate, burst = 64 << 10, 64 << 10
	bubble(t, func(c *Config) {
		c.Limits.RateLimitBPS = rate
		c.Limits.MaxMessageBytes = burst
	}, func(t *testing.T, w *world) {
		p := w.member(1)
		time.Sleep(10 * time.Second) // the bucket is full again
		cost := func(f wire.Frame) int { return len(f.Append(nil)) + messageOverhead }
		big := wire.Send{Payload: make([]byte, 32<<10)}
		spent := 0
		for spent+cost(big) <= burst {
			p.send(big)
			want[wire.Error](p)
			spent += cost(big)
		}
		w.wantOnly(ReasonRateLimit, 0)
		start := time.Now()
		p.send(big)
		want[wire.Error](p)
		p.hello()
		debt := spent + cost(big) - burst
		due := time.Duration(float64(debt) / rate * float64(time.Second))
		if got := time.Since(start); got < due || got > due+time.Microsecond {
			t.Fatalf("read again after %v, want %v", got, due)
		}
		p.quiet()
		if n := w.rejected(ReasonRateLimit); n < 1 {
			t.Fatal("the pause was not counted")
		}
	})
}

// While the relay does not read a client, that one is neither idle nor are its pongs late.
func TestThrottledIsNotIdle(t *testing.T) {
	bubble(t, func(c *Config) {
		c.Limits.RateLimitBPS, c.Limits.MaxMessageBytes, c.Limits.ConnectionTimeoutSecs = 1024, 64<<10, 60
	}, func(t *testing.T, w *world) {
		p := w.member(1)
		time.Sleep(30 * time.Second) // a ping came and was answered, or comes in the pause
		p.send(wire.Keepalive{})
		p.pongs.Store(false)
		big := wire.Send{Payload: make([]byte, 64<<10-wire.SendHead)}
		start := time.Now()
		for range 3 {
			p.send(big)
			want[wire.Error](p)
		}
		p.pongs.Store(true)
		p.hello()
		if paused := time.Since(start); paused < 2*time.Minute {
			t.Fatalf("read again after %v", paused)
		}
		time.Sleep(59 * time.Second)
		p.quiet()
		w.wantOnly(ReasonRateLimit, w.rejected(ReasonRateLimit))
	})
}
