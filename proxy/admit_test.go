package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/internal/memconn"
)

// A refused client is closed at once, before any TLS, and is counted; nothing
// is started or logged for it.
func TestRefusalCostsNothing(t *testing.T) {
	tests := []struct {
		reason Reason
		limits func(*Limits)
		from   netip.AddrPort
	}{
		{admission.MaxConnections, func(l *Limits) { l.MaxConnections, l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 1, 0, 0 }, strangerAddr},
		{admission.PerIPCap, func(l *Limits) { l.MaxConnectionsPerIP = 1 }, aliceAddr},
		{admission.ConnectionRate, func(l *Limits) { l.ConnectionRatePerIP, l.ConnectionBurstPerIP = 1, 1 }, aliceAddr},
		{admission.Denied, func(l *Limits) { l.Deny = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} }, strangerAddr},
	}
	for _, tt := range tests {
		t.Run(string(tt.reason), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					terminating(c)
					tt.limits(&c.limits)
				})
				_, raw, relay := e.tlsPair(nil)
				synctest.Wait()
				goroutines := runtime.NumGoroutine()
				const times = 1000
				for range times {
					c := e.dial(tt.from)
					if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
						t.Fatalf("read %d bytes, %v; want a plain close", n, err)
					}
					c.Close()
				}
				synctest.Wait()
				if n := e.ended(tt.reason); n != times {
					t.Errorf("%d of %d were counted", n, times)
				}
				if n := e.server.stats.rejected[tt.reason].Load(); n != times {
					t.Errorf("%d of %d stand in the rejections", n, times)
				}
				if n := runtime.NumGoroutine(); n > goroutines+10 { // the runtime has some of its own
					t.Errorf("%d goroutines more than before", n-goroutines)
				}
				if n := e.server.places.InFlight(); n != 0 {
					t.Errorf("%d handshakes were begun", n)
				}
				if log := e.logged(); log != "" {
					t.Errorf("logged: %s", log)
				}
				raw.Close()
				relay.Close()
			})
		})
	}
}

// After any number of refusals a freed slot is usable at once, and the gauges
// are what is open.
func TestRefusalsLeaveNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.limits.MaxConnectionsPerIP = 10 })
		type both struct{ client, relay *memconn.Conn }
		var held []both
		hold := func() {
			client, relay := e.pair()
			held = append(held, both{client, relay})
		}
		for range 10 {
			hold()
		}
		for range 20_000 {
			e.dial(aliceAddr).Close()
		}
		synctest.Wait()
		if n := e.server.listeners[0].open.Load(); n != 10 {
			t.Errorf("the gauge is %d, want 10", n)
		}
		time.Sleep(time.Minute) // the burst of connection_rate_per_ip
		for _, b := range held {
			b.client.Close()
			b.relay.Close()
		}
		synctest.Wait()
		held = nil
		for range 10 {
			hold()
		}
		for _, b := range held {
			b.client.Close()
			b.relay.Close()
		}
	})
}

// The accept loop lives through a lack of descriptors: it pauses, it does not
// spin, and it goes on.
func TestAcceptErrorsAreSurvived(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		t.Run(errno.Error(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, nil)
				for range 20 {
					e.front.SetAcceptError(errno)
				}
				began := time.Now()
				client, relay := e.pair()
				mustWrite(t, client, []byte("x"))
				wantRead(t, relay, []byte("x"))
				took := time.Since(began)
				if errno == syscall.ECONNABORTED {
					if took != 0 {
						t.Errorf("an aborted connection cost a pause of %v", took)
					}
				} else if took < 10*time.Second || took > 20*time.Second {
					t.Errorf("20 errors took %v, want pauses that double up to a second", took)
				}
				wantDescriptors := uint64(0)
				if errno == syscall.EMFILE || errno == syscall.ENFILE {
					wantDescriptors = 20
				}
				if n := e.server.stats.rejected[Descriptors].Load(); n != wantDescriptors {
					t.Errorf("descriptors counted %d times, want %d", n, wantDescriptors)
				}
				client.Close()
				relay.Close()
			})
		})
	}
}

// An accept error that does not pass ends Serve with it.
func TestAcceptErrorForGood(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		e.front.SetAcceptError(syscall.EBADF)
		err := <-e.served
		if !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), "listener public") {
			t.Errorf("Serve: %v", err)
		}
		e.served <- nil // for the end of the test
	})
}

// Every way in which a relay fails to answer is told apart, ends the client in
// its time, and gives its slot back.
func TestFailedDial(t *testing.T) {
	tests := []struct {
		name   string
		dial   func(ctx context.Context) error
		after  time.Duration
		reason Reason
	}{
		{"refused", func(context.Context) error { return syscall.ECONNREFUSED }, 0, UpstreamUnavailable},
		{"unreachable", func(context.Context) error { return syscall.EHOSTUNREACH }, 0, UpstreamUnavailable},
		{"no local port", func(context.Context) error { return syscall.EADDRNOTAVAIL }, 0, LocalPorts},
		{"no descriptor", func(context.Context) error { return syscall.EMFILE }, 0, Descriptors},
		{"silent", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 5 * time.Second, UpstreamTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					c.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
						return nil, &net.OpError{Op: "dial", Net: "tcp", Err: tt.dial(ctx)}
					}
				})
				const clients = 300
				var all []*memconn.Conn
				for i := range clients {
					all = append(all, e.dial(source(i)))
				}
				if tt.after > 0 {
					time.Sleep(tt.after - time.Nanosecond)
					e.wantOpen()
					time.Sleep(time.Nanosecond)
				}
				synctest.Wait()
				if n := e.ended(tt.reason); n != clients {
					t.Errorf("%d of %d ended as %s", n, clients, tt.reason)
				}
				for _, c := range all {
					if _, err := c.Read(make([]byte, 1)); err != io.EOF {
						t.Fatalf("the client reads %v, want its end", err)
					}
					c.Close()
				}
				e.wantNothingHeld()
				if lines := strings.Count(e.logged(), "\n"); lines > 1 {
					t.Errorf("%d lines were logged for one fault:\n%s", lines, e.logged())
				}
				wantUp := tt.reason == LocalPorts || tt.reason == Descriptors // these say nothing of the relay
				if up := e.server.upstreams["relay"].Up(); up != wantUp {
					t.Errorf("up: %v", up)
				}
			})
		})
	}
}

// A relay that takes the connection and resets it, and one that never reads.
func TestRelayThatDoesNotServe(t *testing.T) {
	t.Run("resets", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, nil)
			const clients = 100
			for i := range clients {
				c := e.dial(source(i))
				relay, err := e.relay.Accept()
				if err != nil {
					t.Fatal(err)
				}
				relay.(*memconn.Conn).Reset()
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Error("the client reads on")
				}
				c.Close()
			}
			synctest.Wait()
			if n := e.ended(Reset); n != clients {
				t.Errorf("%d of %d ended as reset", n, clients)
			}
		})
	})
	t.Run("never reads", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, nil)
			const clients = 50
			var writing sync.WaitGroup
			for i := range clients {
				c := e.dial(source(i))
				writing.Go(func() {
					c.Write(make([]byte, 1<<20))
					c.Close()
				})
			}
			time.Sleep(2 * time.Minute)
			writing.Wait()
			if n := e.ended(WriterStall); n != clients {
				t.Errorf("%d of %d ended as writer_stall", n, clients)
			}
		})
	})
}

// At SIGTERM new clients are refused at once, open ones get drain_secs, and
// the rest is ended; what ends earlier is not waited for.
func TestDrain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		leaves, leavesRelay := e.pair()
		stays, staysRelay := e.pair()
		began := time.Now()
		e.stop()
		synctest.Wait()
		if _, err := e.front.Dial(context.Background(), aliceAddr); err == nil {
			t.Error("a new client got in")
		}
		if e.server.Ready() == nil {
			t.Error("it says that it is ready")
		}
		time.Sleep(10 * time.Second)
		mustWrite(t, leaves, []byte("still served"))
		wantRead(t, leavesRelay, []byte("still served"))
		leaves.Close()
		wantEOF(t, leavesRelay) // so that it is the client who has ended it
		leavesRelay.Close()
		err := <-e.served
		if took := time.Since(began); err != nil || took != 30*time.Second {
			t.Errorf("Serve returned %v after %v", err, took)
		}
		if e.ended(Drain) != 1 || e.ended(ClientClosed) != 1 {
			t.Errorf("%d ended by drain, %d by themselves", e.ended(Drain), e.ended(ClientClosed))
		}
		stays.Close()
		staysRelay.Close()
		e.served <- nil
	})
}

// A drain with nothing open does not wait.
func TestDrainOfNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		client, relay := e.pair()
		client.Close()
		relay.Close()
		began := time.Now()
		e.stop()
		e.served <- <-e.served
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v", took)
		}
	})
}

// A panic in one connection's task ends that connection and no other.
func TestPanicIsContained(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var faulty atomic.Bool
		e := newEdge(t, func(c *edgeConfig) {
			c.carry = func(s *session, serve func(*session)) {
				if !faulty.Load() {
					serve(s)
					return
				}
				defer s.finish()
				panic("a fault")
			}
		})
		other, otherRelay := e.pair()
		faulty.Store(true)
		client := e.dial(aliceAddr)
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Error("the client reads on")
		}
		synctest.Wait()
		if e.ended(TaskPanic) != 1 || !strings.Contains(e.logged(), "a fault") {
			t.Errorf("%d ended by panic; log: %s", e.ended(TaskPanic), e.logged())
		}
		mustWrite(t, other, []byte("x"))
		wantRead(t, otherRelay, []byte("x"))
		for _, c := range []io.Closer{client, other, otherRelay} {
			c.Close()
		}
	})
}

// Under 200 concurrent dialers just as many get in as the policy says, globally,
// per IPv4 address, per /64 and per /48; resets, half-closes, failed dials and
// failed handshakes in between change nothing of that, and all is given back.
func TestCapsAreExact(t *testing.T) {
	const dialers, most = 200, 6
	rounds := 50 // of 500 attempts, for each of four caps
	if testing.Short() || underRace {
		rounds = 10 // enough for every kind of end
	}
	for name, scope := range capScopes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failing atomic.Bool
				var open, peak atomic.Int64
				e := newEdge(t, func(c *edgeConfig) {
					terminating(c)
					c.carry = func(s *session, _ func(*session)) { // counted apart from the gate, within its admission and release
						defer s.finish()
						for now := open.Add(1); ; {
							if top := peak.Load(); now <= top || peak.CompareAndSwap(top, now) {
								break
							}
						}
						defer open.Add(-1)
						if f, ready := s.carry(nil); f != nil {
							f.forward(ready)
						}
					}
					scope.limit(&c.limits, most)
					c.limits.ConnectionRatePerIP, c.limits.ConnectionRatePerIPv648 = 0, 0
					dial, calls := c.dial, new(atomic.Int64)
					c.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
						if failing.Load() && calls.Add(1)%3 == 0 {
							return nil, syscall.ECONNREFUSED
						}
						return dial(ctx, network, address)
					}
				})
				var serving sync.WaitGroup
				serving.Go(func() {
					for {
						c, err := e.relay.Accept()
						if err != nil {
							return
						}
						serving.Go(func() {
							defer c.Close()
							c.Write([]byte("k"))
							io.Copy(io.Discard, c)
						})
					}
				})
				// each runs f on 200 connections of their own at once.
				each := func(f func(c *memconn.Conn, random *rand.Rand)) {
					var all sync.WaitGroup
					for i := range dialers {
						all.Go(func() {
							c, err := e.front.Dial(context.Background(), scope.from(i))
							if err != nil {
								t.Error(err)
								return
							}
							f(c, rand.New(rand.NewPCG(uint64(i), uint64(e.server.stats.accepted.Load()))))
						})
					}
					all.Wait()
					synctest.Wait()
				}
				for round := range rounds {
					var in atomic.Int64
					hold := make(chan struct{})
					go func() {
						synctest.Wait() // every dialer holds a connection or was refused
						close(hold)
					}()
					failing.Store(false)
					go func() { // in the middle of it all
						next, err := e.server.Prepare(e.changed(func(c *Config) { c.Limits.DrainSecs = round }))
						if err != nil {
							t.Error(err)
							return
						}
						next.Apply()
					}()
					each(func(c *memconn.Conn, random *rand.Rand) {
						secure := tls.Client(c, quickTLS("relay.example.org"))
						if n, _ := secure.Read(make([]byte, 1)); n == 1 {
							in.Add(1)
							<-hold
						}
						endSomehow(c, random)
					})
					if in.Load() != most {
						t.Fatalf("round %d: %d got in, want %d", round, in.Load(), most)
					}
					failing.Store(true)
					each(func(c *memconn.Conn, random *rand.Rand) {
						switch random.IntN(8) {
						case 0:
							tls.Client(c, quickTLS("relay.example.org")).Read(make([]byte, 1))
						case 1:
							tls.Client(c, quickTLS("unknown.example.net")).Read(make([]byte, 1))
						case 2:
							c.Write([]byte("\x16\x03\x01\x00\x05garbage"))
						}
						endSomehow(c, random)
					})
					for range dialers / 2 {
						e.dial(scope.from(0)).Close()
					}
					synctest.Wait()
				}
				if peak.Load() != most {
					t.Errorf("%d were open at once, want %d", peak.Load(), most)
				}
				for _, r := range []Reason{scope.reason, UpstreamUnavailable, UnknownServerName, TLSHandshakeFailed, ClientClosed} {
					if e.ended(r) == 0 {
						t.Errorf("none ended for %s: the load does not reach it", r)
					}
				}
				e.stop()
				e.served <- <-e.served
				e.relay.Close()
				serving.Wait()
			})
		})
	}
}

// quickTLS spares the hybrid key exchange, which is most of a hello's cost.
func quickTLS(name string) *tls.Config {
	cfg := clientTLS(name)
	cfg.CurvePreferences = []tls.CurveID{tls.X25519}
	return cfg
}

func endSomehow(c *memconn.Conn, random *rand.Rand) {
	switch random.IntN(3) {
	case 0:
		c.Reset()
	case 1:
		c.CloseWrite()
		io.Copy(io.Discard, c)
	}
	c.Close()
}

// capScopes are the caps, each with clients that share just its key.
var capScopes = map[string]struct {
	limit  func(l *Limits, n int)
	from   func(i int) netip.AddrPort
	reason Reason
}{
	"global": {func(l *Limits, n int) { l.MaxConnections, l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = n, 0, 0 }, source, admission.MaxConnections},
	"host":   {func(l *Limits, n int) { l.MaxConnectionsPerIP = n }, func(int) netip.AddrPort { return aliceAddr }, admission.PerIPCap},
	"/64": {func(l *Limits, n int) { l.MaxConnectionsPerIP = n }, func(i int) netip.AddrPort {
		return netip.MustParseAddrPort(fmt.Sprintf("[2001:db8:0:1::%x]:50000", i+1))
	}, admission.PerIPCap},
	"site": {func(l *Limits, n int) { l.MaxConnectionsPerIPv648 = n }, func(i int) netip.AddrPort {
		return netip.MustParseAddrPort(fmt.Sprintf("[2001:db8:0:%x::1]:50000", i+1))
	}, admission.PerPrefixCap},
}

// A cap of N admits N, never N+1, and a freed slot is usable at once.
func TestCapIsNotOffByOne(t *testing.T) {
	for name, scope := range capScopes {
		for _, n := range []int{1, 2, 6} {
			t.Run(fmt.Sprintf("%s %d", name, n), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					e := newEdge(t, func(c *edgeConfig) {
						scope.limit(&c.limits, n)
						c.limits.ConnectionRatePerIP, c.limits.ConnectionRatePerIPv648 = 0, 0
					})
					next := 0
					open := func() func() {
						client := e.dial(scope.from(next))
						next++
						relay, _, _ := e.accept()
						return func() {
							client.Close()
							relay.Close()
							synctest.Wait()
						}
					}
					var held []func()
					for range n {
						held = append(held, open())
					}
					for round := range 200 {
						extra := e.dial(scope.from(next))
						next++
						wantEOF(t, extra)
						extra.Close()
						if got := e.ended(scope.reason); got != round+1 {
							t.Fatalf("round %d: %d were refused as %s", round, got, scope.reason)
						}
						held[0]()
						held = append(held[1:], open())
					}
					for _, end := range held {
						end()
					}
				})
			})
		}
	}
}
