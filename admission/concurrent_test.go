package admission

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ledger counts, outside the gate, who holds what: after an admission and
// before a release, so that it never counts more than the gate does.
type ledger struct {
	all   atomic.Int64
	hosts sync.Map // of *atomic.Int64, by netip.Prefix
	sites sync.Map
}

func (l *ledger) add(addr netip.Addr, n int64) (all, host, site int64) {
	h, s := Keys(addr, nil)
	count := func(m *sync.Map, p netip.Prefix) int64 {
		c, ok := m.Load(p)
		if !ok {
			c, _ = m.LoadOrStore(p, new(atomic.Int64))
		}
		return c.(*atomic.Int64).Add(n)
	}
	all, host = l.all.Add(n), count(&l.hosts, h)
	if s.IsValid() {
		site = count(&l.sites, s)
	}
	return all, host, site
}

// Under 200 dialers and 100,000 attempts no cap is exceeded by one, in one
// step or two, and the tables are empty in the end.
func TestCapsUnderConcurrency(t *testing.T) {
	const dialers, attempts = 200, 500
	l := Limits{
		MaxConnections: 60, MaxConnectionsPerIP: 7, MaxConnectionsPerIPv648: 14,
		ConnectionRatePerIP: 100_000, ConnectionBurstPerIP: 1000, ConnectionRatePerIPv648: 100_000, ConnectionBurstPerIPv648: 1_000_000,
	}
	g := newGate(t, l)
	var (
		counts  ledger
		reasons sync.Map
		all     sync.WaitGroup
	)
	for dialer := range dialers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(dialer), 1))
			var held []*Lease
			var by []netip.Addr
			release := func(i int) {
				counts.add(by[i], -1)
				held[i].Release()
				held[i].Release()
				held, by = append(held[:i], held[i+1:]...), append(by[:i], by[i+1:]...)
			}
			for range attempts {
				addr := hostOf(random.IntN(2), random.IntN(4))
				if random.IntN(3) == 0 {
					addr = netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(4))})
				}
				var lease *Lease
				var reason Reason
				if random.IntN(4) == 0 {
					if lease, reason = g.Admit(netip.Addr{}, time.Now()); reason == "" {
						if reason = lease.Name(addr, time.Now()); reason != "" {
							lease.Release()
						}
					}
				} else {
					lease, reason = g.Admit(addr, time.Now())
				}
				if reason != "" {
					reasons.Store(reason, true)
				} else {
					all, host, site := counts.add(addr, 1)
					if all > 60 || host > 7 || site > 14 {
						t.Errorf("%d connections, %d of the host, %d of the site, allowed are 60, 7, 14", all, host, site)
					}
					held, by = append(held, lease), append(by, addr)
				}
				if random.IntN(100) == 0 {
					if st := g.Stats(time.Now()); st.Connections < 0 || st.Connections > 60 {
						t.Errorf("the gate counts %d connections, allowed are 60", st.Connections)
					}
				}
				runtime.Gosched() // others come while it holds what it has
				for len(held) > 2 || len(held) > 0 && random.IntN(3) == 0 {
					release(random.IntN(len(held)))
				}
			}
			for len(held) > 0 {
				release(0)
			}
		})
	}
	all.Wait()
	for _, r := range []Reason{MaxConnections, PerIPCap, PerPrefixCap} {
		if _, ok := reasons.Load(r); !ok {
			t.Errorf("nobody was refused for %s: the test does not reach that cap", r)
		}
	}
	wantHeld(t, g, time.Now().Add(time.Hour), 0, 0, 0)
	g.hosts.check(t)
	g.sites.check(t)
}

// Of any number who come at once and stay, exactly the cap gets in.
func TestExactlyTheCapGetsIn(t *testing.T) {
	scopes := []struct {
		name  string
		limit func(*Limits)
		addr  func(i int) netip.Addr
	}{
		{"global", func(l *Limits) { l.MaxConnections = 37 }, func(i int) netip.Addr { return hostOf(i, i) }},
		{"IPv4 address", func(l *Limits) { l.MaxConnectionsPerIP = 37 }, func(int) netip.Addr { return v4 }},
		{"/64", func(l *Limits) { l.MaxConnectionsPerIP = 37 }, func(int) netip.Addr { return v6 }},
		{"/48", func(l *Limits) { l.MaxConnectionsPerIPv648 = 37 }, func(i int) netip.Addr { return hostOf(1, i) }},
		{"burst", func(l *Limits) { l.ConnectionRatePerIP, l.ConnectionBurstPerIP = 1, 37 }, func(int) netip.Addr { return v4 }},
	}
	for _, s := range scopes {
		for _, steps := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s in %d", s.name, steps), func(t *testing.T) {
				l := wide()
				s.limit(&l)
				g, now := newGate(t, l), time.Now()
				var (
					mu   sync.Mutex
					held []*Lease
					all  sync.WaitGroup
				)
				for i := range 200 {
					all.Go(func() {
						for range 5 {
							first := s.addr(i)
							if steps == 2 {
								first = netip.Addr{}
							}
							lease, reason := g.Admit(first, now)
							if reason == "" && steps == 2 {
								if reason = lease.Name(s.addr(i), now); reason != "" {
									lease.Release()
								}
							}
							if reason == "" {
								mu.Lock()
								held = append(held, lease)
								mu.Unlock()
							}
						}
					})
				}
				all.Wait()
				if len(held) != 37 {
					t.Errorf("%d got in, want 37", len(held))
				}
				for _, lease := range held {
					all.Go(lease.Release)
				}
				all.Wait()
				wantHeld(t, g, now.Add(time.Minute), 0, 0, 0)
			})
		}
	}
}

// A cap that is lowered holds from the moment SetLimits returns, also for
// those who had begun to ask before.
func TestLimitsHoldOnceSet(t *testing.T) {
	l := wide()
	g, now := newGate(t, l), time.Now()
	var (
		stop atomic.Bool
		all  sync.WaitGroup
	)
	for range 8 {
		all.Go(func() {
			for !stop.Load() {
				if lease, reason := g.Admit(v4, now); reason == "" {
					lease.Release()
				}
			}
		})
	}
	for range 300 {
		l.Deny = nil
		setLimits(t, g, l)
		l.Deny = prefixes("192.0.2.0/24")
		setLimits(t, g, l)
		// Whoever is in by now may still leave, but nobody comes.
		before := g.Stats(now).Connections
		for range 10 {
			after := g.Stats(now).Connections
			if after > before {
				t.Fatalf("%d connections after the network was denied, then %d", before, after)
			}
			before = after
		}
	}
	stop.Store(true)
	all.Wait()
	wantHeld(t, g, now, 0, 0, 0)
}
