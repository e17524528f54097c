package upstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/testlog"
)

// running runs the checks until the test's end.
func running(t *testing.T, u *Upstream) {
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { u.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
}

func checking(addresses ...string) Config {
	cfg := withAddresses(addresses...)
	cfg.HealthCheckSecs = 10
	return cfg
}

// A check says what it is as the relay's header asks for, ends its side, takes
// a greeting, and closes without a reset.
func TestCheckSaysWhatItIs(t *testing.T) {
	for clientAddress, want := range map[string]string{
		"proxy-v2": "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00",
		"proxy-v1": "PROXY UNKNOWN\r\n",
		"none":     "",
	} {
		t.Run(clientAddress, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				relay := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777"))
				defer relay.Close()
				cfg := checking("127.0.0.1:7777")
				cfg.ClientAddress = clientAddress
				cfg.CustomTLVs = map[string]string{"224": "for clients alone"}
				var ours *memconn.Conn
				u := New("relay", cfg, discard, func(ctx context.Context, _, _ string) (net.Conn, error) {
					c, err := relay.Dial(ctx, netip.AddrPort{})
					ours = c
					return c, err
				})
				running(t, u)
				c, err := relay.Accept()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write([]byte("220 relay ready\r\n")); err != nil {
					t.Error(err)
				}
				got, err := io.ReadAll(c)
				if err != nil || string(got) != want {
					t.Errorf("the relay reads %q, %v; want %q", got, err, want)
				}
				synctest.Wait()
				if _, err := ours.Write(nil); errors.Is(err, net.ErrClosed) {
					t.Error("closed before the relay has closed its side")
				}
				c.Close()
				synctest.Wait()
				if err := ours.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
					t.Error("not closed after the relay's end")
				}
			})
		})
	}
}

// A relay that never closes its side holds a check for a second.
func TestCheckEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelays()
		u := New("relay", checking("a:1"), discard, r.dial)
		running(t, u)
		time.Sleep(time.Second)
		synctest.Wait()
		began := time.Now()
		r.peers[0].Read(make([]byte, 100))
		if _, err := io.ReadAll(r.peers[0]); err != nil {
			t.Error(err)
		}
		for time.Since(began) < time.Second+time.Millisecond {
			if _, err := r.peers[0].Write([]byte("x")); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("the check is still there")
	})
}

// Checks come every ten seconds give or take one, one after the other.
func TestCheckInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		u := New("relay", checking("a:1"), discard, func(context.Context, string, string) (net.Conn, error) {
			at = append(at, time.Now())
			return nil, syscall.ECONNREFUSED
		})
		began := time.Now()
		running(t, u)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(at) < 54 || len(at) > 67 || at[0].Sub(began) > time.Second {
			t.Errorf("%d checks in ten minutes, the first after %v", len(at), at[0].Sub(began))
		}
		differ := false
		for i := range at[1:] {
			between := at[i+1].Sub(at[i])
			if between < 9*time.Second || between > 11*time.Second {
				t.Errorf("%v between two checks", between)
			}
			differ = differ || between != at[1].Sub(at[0])
		}
		if !differ {
			t.Error("the times between checks are all the same")
		}
	})
}

// A check that gets no answer ends in connect_timeout_secs, and none begins
// before.
func TestChecksDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := checking("a:1")
		cfg.HealthCheckSecs, cfg.ConnectTimeoutSecs = 1, 5
		inFlight, most, n := 0, 0, 0
		u := New("relay", cfg, discard, func(ctx context.Context, _, _ string) (net.Conn, error) {
			inFlight++
			n++
			most = max(most, inFlight)
			<-ctx.Done()
			inFlight--
			return nil, ctx.Err()
		})
		running(t, u)
		time.Sleep(time.Minute)
		synctest.Wait()
		if most != 1 || n < 9 || n > 11 {
			t.Errorf("%d checks in a minute, %d at once", n, most)
		}
	})
}

// One failure marks an address down, however long it lasts; one success marks
// it up, and so does a dial. The log has a line for each.
func TestChecksTellHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelays()
		var log testlog.Log
		u := New("relay", checking("a:1", "b:1"), slog.New(slog.NewTextHandler(&log, nil)), r.dial)
		running(t, u)
		r.set("a:1", syscall.ECONNREFUSED)
		time.Sleep(time.Hour)
		if s := u.Status(); s[0].Up || !s[1].Up || !u.Up() {
			t.Errorf("status %+v", s)
		}
		r.set("b:1", syscall.ECONNREFUSED)
		time.Sleep(12 * time.Second) // a tenth more than the interval, and the goodbye before
		if u.Up() {
			t.Error("up without an address")
		}
		r.set("a:1", nil)
		r.set("b:1", nil)
		time.Sleep(time.Minute)
		if s := u.Status(); !s[0].Up || !s[1].Up {
			t.Errorf("status %+v", s)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		want := []string{"go to its other addresses until", "are turned away until", "answers again", "answers again"}
		if len(lines) != len(want) {
			t.Fatalf("the log:\n%s", log.String())
		}
		for i := range want {
			if !strings.Contains(lines[i], want[i]) || !strings.Contains(lines[i], "address=") {
				t.Errorf("line %d: %s", i, lines[i])
			}
		}
	})
}

// A check that our own want of ports or descriptors keeps from being made says
// nothing.
func TestChecksAndLocalCauses(t *testing.T) {
	for _, cause := range []error{syscall.EADDRNOTAVAIL, syscall.EMFILE, syscall.ENFILE} {
		for _, before := range []error{nil, syscall.ECONNREFUSED} {
			synctest.Test(t, func(t *testing.T) {
				r := newRelays()
				u := New("relay", checking("a:1"), discard, r.dial)
				running(t, u)
				r.set("a:1", before)
				time.Sleep(time.Minute)
				r.set("a:1", cause)
				time.Sleep(time.Minute)
				if u.Up() != (before == nil) {
					t.Errorf("%v after %v: up is %v", cause, before, u.Up())
				}
			})
		}
	}
}

// A reload changes what is checked, and how often, at once.
func TestChecksFollowTheConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelays()
		cfg := checking("a:1")
		u := New("relay", cfg, discard, r.dial)
		running(t, u)
		time.Sleep(time.Minute)
		r.took()
		cfg.HealthCheckSecs = 0
		u.SetConfig(cfg)
		time.Sleep(time.Hour)
		if got := r.took(); got != "" {
			t.Errorf("dialled %s", got)
		}
		cfg.HealthCheckSecs, cfg.Addresses = 10, []string{"b:1", "c:1"}
		u.SetConfig(cfg)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := r.took(); strings.Count(got, "b:1") != 1 || strings.Count(got, "c:1") != 1 || strings.Contains(got, "a:1") {
			t.Errorf("dialled %s", got)
		}
	})
}

// Which connections end when their address is lost, and when.
func TestLost(t *testing.T) {
	dead := func(r *relays, _ *Upstream, _ Config) { r.set("a:1", syscall.ECONNREFUSED) }
	removed := func(_ *relays, u *Upstream, cfg Config) {
		cfg.Addresses = []string{"b:1"}
		u.SetConfig(cfg)
	}
	tests := []struct {
		name, whenDown string
		happens        func(*relays, *Upstream, Config)
		least, most    time.Duration // until the connection is told; 0: never
	}{
		{"checks fail", "close", dead, 20 * time.Second, 34 * time.Second},
		{"checks fail", "keep", dead, 0, 0},
		{"removed", "close", removed, 0, time.Nanosecond},
		{"removed", "keep", removed, 0, 0},
		{"nothing", "close", func(*relays, *Upstream, Config) {}, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+tt.whenDown, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRelays()
				cfg := checking("a:1", "b:1")
				cfg.WhenDown = tt.whenDown
				u := New("relay", cfg, discard, r.dial)
				running(t, u)
				time.Sleep(time.Minute)
				told := map[string]time.Time{}
				var mu sync.Mutex
				listen := func(l *Link, name string) {
					l.OnLost(func() {
						mu.Lock()
						defer mu.Unlock()
						if _, twice := told[name]; twice {
							t.Errorf("%s is told twice", name)
						}
						told[name] = time.Now()
					})
				}
				links := map[string]*Link{}
				for range 2 {
					l := mustDial(t, u)
					links[l.Address] = l
					listen(l, l.Address)
				}
				gone := mustDial(t, u)
				for gone.Address != "a:1" {
					gone = mustDial(t, u)
				}
				listen(gone, "released")
				gone.Release()
				began := time.Now()
				tt.happens(r, u, cfg)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				mu.Lock()
				at, lost := told["a:1"]
				if lost != (tt.most > 0) || lost && (at.Sub(began) < tt.least || at.Sub(began) > tt.most) {
					t.Errorf("told: %v after %v", lost, at.Sub(began))
				}
				if len(told) > 1 {
					t.Errorf("told: %v", told)
				}
				mu.Unlock()
				// One that learns late is told at once.
				if tt.most > 0 {
					late := false
					links["a:1"].OnLost(func() { late = true })
					synctest.Wait()
					if !late {
						t.Error("not told after the fact")
					}
				}
				for _, l := range links {
					l.Release()
				}
			})
		})
	}
}

// Two failures in a row and a success in between, by a dial or a check, are no
// loss; failed dials alone are none either.
func TestNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelays()
		cfg := checking("a:1")
		cfg.WhenDown = "close"
		u := New("relay", cfg, discard, r.dial)
		l := mustDial(t, u)
		l.OnLost(func() { t.Error("lost") })
		a := u.addresses[0]
		for range 10 {
			u.noteCheck(a, syscall.ECONNREFUSED)
			u.noteCheck(a, syscall.ECONNREFUSED)
			mustDial(t, u).Release()
		}
		r.set("a:1", syscall.ECONNREFUSED)
		for range 10 {
			u.Dial(t.Context())
		}
		synctest.Wait()
		l.Release()
	})
}

// The checks of an upstream end when it is retired, before they began too.
func TestRetirementEndsTheChecks(t *testing.T) {
	for _, before := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			u := New("relay", checking("127.0.0.1:7777"), discard, func(context.Context, string, string) (net.Conn, error) {
				return nil, syscall.ECONNREFUSED
			})
			if before {
				u.Retire()
			}
			ended := make(chan struct{})
			go func() {
				u.Run(context.Background())
				close(ended)
			}()
			if !before {
				time.Sleep(time.Minute)
				u.Retire()
			}
			synctest.Wait()
			select {
			case <-ended:
			default:
				t.Fatalf("they go on; retired before they began: %v", before)
			}
		})
	}
}
