package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/testlog"
)

// relays are the stand-ins of several addresses, each of which does as it is told.
type relays struct {
	mu      sync.Mutex
	fail    map[string]error // nil: takes connections
	silent  map[string]bool
	dialled []string
	peers   []*memconn.Conn // the relays' ends
}

func newRelays() *relays {
	return &relays{fail: map[string]error{}, silent: map[string]bool{}}
}

func (r *relays) dial(ctx context.Context, network, address string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dialled = append(r.dialled, address)
	if r.silent[address] {
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		return nil, ctx.Err()
	}
	if err := r.fail[address]; err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	own, peer := memconn.Pipe(netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2"))
	r.peers = append(r.peers, peer)
	return own, nil
}

// set says what an address does from now on.
func (r *relays) set(address string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail[address] = err
}

// took returns what was dialled since it was called last.
func (r *relays) took() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.dialled, " ")
	r.dialled = nil
	return s
}

func withAddresses(addresses ...string) Config {
	c := validConfig()
	c.Addresses = addresses
	return c
}

var discard = slog.New(slog.DiscardHandler)

func mustDial(t *testing.T, u *Upstream) *Link {
	t.Helper()
	link, err := u.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func wantHeld(t *testing.T, u *Upstream, want ...int) {
	t.Helper()
	for i, s := range u.Status() {
		if s.Connections != want[i] {
			t.Errorf("%s has %d connections, want %d", s.Address, s.Connections, want[i])
		}
	}
}

// The address with the fewest connections is next, ties in turn, and a count
// comes back once.
func TestLeastConnections(t *testing.T) {
	r := newRelays()
	u := New("relay", withAddresses("a:1", "b:1", "c:1"), discard, r.dial)
	var links []*Link
	for range 30 {
		links = append(links, mustDial(t, u))
	}
	wantHeld(t, u, 10, 10, 10)
	for _, l := range links {
		if l.Address == "b:1" {
			l.Release()
			l.Release()
		}
	}
	wantHeld(t, u, 10, 0, 10)
	r.took()
	for range 10 {
		mustDial(t, u)
	}
	if got := r.took(); got != strings.TrimSpace(strings.Repeat("b:1 ", 10)) {
		t.Errorf("dialled %s", got)
	}

	// Ties rotate: without a connection held, every address gets its turns.
	u = New("relay", withAddresses("a:1", "b:1", "c:1"), discard, r.dial)
	for range 9 {
		mustDial(t, u).Release()
	}
	taken := r.took()
	for _, a := range []string{"a:1", "b:1", "c:1"} {
		if n := strings.Count(taken, a); n != 3 {
			t.Errorf("%s was taken %d times of 9", a, n)
		}
	}
}

// Dials in flight count: a slow address does not draw all newcomers.
func TestDialsInFlightCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelays()
		r.silent["a:1"], r.silent["b:1"] = true, true
		u := New("relay", withAddresses("a:1", "b:1"), discard, r.dial)
		var dials sync.WaitGroup
		for range 10 {
			dials.Go(func() { u.Dial(t.Context()) })
		}
		synctest.Wait()
		wantHeld(t, u, 5, 5)
		dials.Wait()
		wantHeld(t, u, 0, 0)
	})
}

// What fails is passed over at once, each address at most once; what is down
// comes last.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelays()
		cfg := withAddresses("a:1", "b:1", "c:1")
		cfg.HealthCheckSecs = 3600
		u := New("relay", cfg, discard, r.dial)
		began := time.Now()
		r.set("a:1", syscall.ECONNREFUSED)
		r.set("b:1", syscall.ECONNREFUSED)
		for range 10 {
			if l := mustDial(t, u); l.Address != "c:1" {
				t.Fatalf("went to %s", l.Address)
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("it took %v", time.Since(began))
		}
		// a and b were tried once each, then they were known to be down.
		if got := r.took(); strings.Count(got, "a:1") > 1 || strings.Count(got, "b:1") > 1 {
			t.Errorf("dialled %s", got)
		}
		// All down: each is tried once.
		r.set("c:1", syscall.ECONNREFUSED)
		_, err := u.Dial(t.Context())
		if !errors.Is(err, ErrUnavailable) || u.Up() {
			t.Errorf("Dial: %v; up: %v", err, u.Up())
		}
		got := strings.Fields(r.took())
		slices.Sort(got[1:])
		if len(got) != 3 || got[0] != "c:1" {
			t.Errorf("dialled %v; want the one that was up first, each once", got)
		}
		// One that answers again is up at once.
		r.set("b:1", nil)
		if l := mustDial(t, u); l.Address != "b:1" || !u.Up() {
			t.Errorf("went to %s", l.Address)
		}
	})
}

// An address that does not answer leaves time for the next, within
// connect_timeout_secs in all.
func TestFailoverFromSilence(t *testing.T) {
	for _, tt := range []struct {
		silent int // addresses that do not answer, before one that does
		good   bool
		took   time.Duration
	}{
		{1, true, 2500 * time.Millisecond},
		{2, true, 5 * time.Second / 3 * 2},
		{6, false, 5 * time.Second}, // a second each, while there is one
		{1, false, 5 * time.Second},
	} {
		t.Run(fmt.Sprint(tt.silent, tt.good), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRelays()
				cfg := withAddresses()
				for i := range tt.silent {
					a := fmt.Sprintf("s%d:1", i)
					r.silent[a] = true
					cfg.Addresses = append(cfg.Addresses, a)
				}
				if tt.good {
					cfg.Addresses = append(cfg.Addresses, "good:1")
				}
				u := New("relay", cfg, discard, r.dial)
				u.turn = len(cfg.Addresses) - 1 // begin with the first
				began := time.Now()
				link, err := u.Dial(t.Context())
				if took := time.Since(began); took.Round(time.Millisecond) != tt.took.Round(time.Millisecond) {
					t.Errorf("it took %v, want %v", took, tt.took)
				}
				if tt.good && (err != nil || link.Address != "good:1") || !tt.good && !errors.Is(err, ErrTimeout) {
					t.Errorf("Dial: %v", err)
				}
			})
		})
	}
}

// Local causes leave every state as it is; descriptors end the search, ports do
// not: they are counted per target.
func TestLocalCausesAmongSeveral(t *testing.T) {
	r := newRelays()
	u := New("relay", withAddresses("a:1", "b:1"), discard, r.dial)
	r.set("a:1", syscall.EADDRNOTAVAIL)
	for range 4 {
		if l := mustDial(t, u); l.Address != "b:1" {
			t.Errorf("went to %s", l.Address)
		}
	}
	r.set("b:1", syscall.ECONNREFUSED)
	if _, err := u.Dial(t.Context()); !errors.Is(err, ErrLocalPorts) {
		t.Errorf("Dial: %v", err)
	}
	if s := u.Status(); !s[0].Up || s[1].Up {
		t.Errorf("status %+v", s)
	}
	r.set("a:1", syscall.EMFILE)
	r.took()
	if _, err := u.Dial(t.Context()); !errors.Is(err, ErrDescriptors) || r.took() != "a:1" {
		t.Errorf("Dial: %v", err)
	}
}

// Our own want is told by name, and in one line for all the clients of ten seconds.
func TestLocalCausesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelays()
		var log testlog.Log
		u := New("relay", withAddresses("a:1"), slog.New(slog.NewTextHandler(&log, nil)), r.dial)
		r.set("a:1", syscall.EADDRNOTAVAIL)
		for range 1000 { // 20 seconds
			u.Dial(t.Context())
			time.Sleep(20 * time.Millisecond)
		}
		if n := strings.Count(log.String(), "no port or descriptor left"); n != 2 || strings.Count(log.String(), "\n") != 2 {
			t.Errorf("the log:\n%s", log.String())
		}
	})
}

// A full queue of a unix socket is waited for, within the dial's time.
func TestUnixQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		u := New("relay", withAddresses("unix:/run/relay.sock"), discard, func(_ context.Context, network, address string) (net.Conn, error) {
			if network != "unix" || address != "/run/relay.sock" {
				t.Errorf("dialled %s %s", network, address)
			}
			if tries++; tries < 5 {
				return nil, &net.OpError{Op: "dial", Err: syscall.EAGAIN}
			}
			own, _ := memconn.Pipe(netip.AddrPort{}, netip.AddrPort{})
			return own, nil
		})
		began := time.Now()
		mustDial(t, u)
		if time.Since(began) != 4*busyPause {
			t.Errorf("it took %v", time.Since(began))
		}
		tries = -1 << 30
		began = time.Now()
		if _, err := u.Dial(t.Context()); !errors.Is(err, ErrTimeout) || time.Since(began) != 5*time.Second {
			t.Errorf("Dial: %v after %v", err, time.Since(began))
		}
	})
}

// Addresses that stay keep their counts and health over a change of the config;
// links of one that goes give back what they hold.
func TestSetConfig(t *testing.T) {
	r := newRelays()
	cfg := withAddresses("a:1", "b:1")
	cfg.HealthCheckSecs = 3600
	u := New("relay", cfg, discard, r.dial)
	var links []*Link
	for range 4 {
		links = append(links, mustDial(t, u))
	}
	r.set("a:1", syscall.ECONNREFUSED)
	for range 3 {
		mustDial(t, u).Release()
	}
	cfg.Addresses = []string{"c:1", "a:1"}
	cfg.CustomTLVs = map[string]string{"224": "x"}
	u.SetConfig(cfg)
	want := []Status{{"c:1", true, 0}, {"a:1", false, 2}}
	if got := u.Status(); !slices.Equal(got, want) {
		t.Errorf("status %+v, want %+v", got, want)
	}
	if len(u.CustomTLVs()) != 1 {
		t.Error("the custom TLVs are not those of the new config")
	}
	for _, l := range links {
		l.Release()
	}
	wantHeld(t, u, 0, 0)
}

// Whatever dials, releases, fails and changes at once: in the end nothing is held.
func TestCountsUnderConcurrency(t *testing.T) {
	r := newRelays()
	cfg := withAddresses("a:1", "b:1", "c:1")
	u := New("relay", cfg, discard, r.dial)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 300 {
				switch rand.IntN(8) {
				case 0:
					r.set([]string{"a:1", "b:1"}[rand.IntN(2)], []error{nil, syscall.ECONNREFUSED}[rand.IntN(2)])
				case 1:
					c := cfg
					c.Addresses = cfg.Addresses[:1+rand.IntN(3)]
					u.SetConfig(c)
				default:
					if l, err := u.Dial(t.Context()); err == nil {
						l.OnLost(func() {})
						l.Release()
					}
				}
				for _, s := range u.Status() {
					if s.Connections < 0 {
						t.Errorf("%+v", s)
					}
				}
			}
		})
	}
	workers.Wait()
	u.SetConfig(cfg)
	wantHeld(t, u, 0, 0, 0)
}

// An address that is down and does not answer holds no more than sixteen dials;
// the others fail at once, and all get through as soon as it answers.
func TestSilentAddressHoldsFewDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelays()
		r.silent["192.0.2.1:1"] = true
		u := New("relay", withAddresses("192.0.2.1:1"), slog.New(slog.DiscardHandler), r.dial)
		dials := func(n int) (waited []time.Duration, wrong int) {
			var mu sync.Mutex
			var all sync.WaitGroup
			began := time.Now()
			for range n {
				all.Go(func() {
					_, err := u.Dial(t.Context())
					mu.Lock()
					defer mu.Unlock()
					waited = append(waited, time.Since(began))
					if time.Since(began) == 0 && !errors.Is(err, ErrUnavailable) || time.Since(began) > 0 && !errors.Is(err, ErrTimeout) {
						wrong++
					}
				})
			}
			all.Wait()
			return waited, wrong
		}
		// Until the first has failed, nobody knows.
		if waited, wrong := dials(100); slices.Min(waited) != 5*time.Second || wrong != 0 {
			t.Errorf("before it is known: %v, %d wrong errors", slices.Min(waited), wrong)
		}
		waited, wrong := dials(100)
		slices.Sort(waited)
		if wrong != 0 || waited[83] != 0 || waited[84] != 5*time.Second {
			t.Errorf("while it is down: %v, %d wrong errors", waited, wrong)
		}
		wantHeld(t, u, 0)
		r.silent["192.0.2.1:1"] = false
		for range 100 {
			mustDial(t, u)
		}
		wantHeld(t, u, 100)
	})
}
