package admission_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"relayedge/admission"
	"relayedge/admission/fleettest"
)

// The formulas of docs/fleet.md.

// mostOpen is how many connections there can be of a cap that n edges share, of
// whom each of joined has come when there were so many.
func mostOpen(most, n int, joined []int) int {
	bound := max(most, n)
	for _, edges := range joined {
		bound += max(1, most/(2*edges))
	}
	return bound
}

// mostNew is how many new connections there can be in a length of time.
func mostNew(rate, burst, n int, length time.Duration) float64 {
	return float64(burst) + float64(rate)*length.Seconds() + float64((n-1)*max(1, burst/n))
}

// Each edge that comes to a fleet, and each that comes back to a store which has
// forgotten everybody, can add what it has without a claim, and no more.
func TestFleetOvershootOfNewcomers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 100).Draw(t, "per host")
		w := newFleetWorld(capsOnly(10_000, most, 0), fleetLease, rapid.IntRange(1, 4).Draw(t, "edges"))
		a := fleetAddrs[0]
		var joined []int // by how many edges each of them divides what needs no claim
		edge := func() *fleetEdge { return rapid.SampledFrom(w.edges).Draw(t, "edge") }
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(*rapid.T) {
				e := edge()
				for range rapid.IntRange(1, 60).Draw(t, "newcomers") {
					w.admit(e, a)
				}
			},
			"release": func(*rapid.T) {
				e := edge()
				for range rapid.IntRange(1, 60).Draw(t, "ends") {
					w.release(e, a)
				}
			},
			"beat":  func(*rapid.T) { w.beat(edge()) },
			"beats": func(*rapid.T) { w.settle(1) },
			"join": func(t *rapid.T) {
				if len(w.edges) == 8 {
					t.Skip("they are enough")
				}
				e := w.join()
				w.beat(e)
				joined = append(joined, e.fleet.Edges())
			},
			"the store forgets": func(*rapid.T) {
				w.ledger = fleettest.NewLedger(w.lease)
				var back []int
				for _, e := range w.edges {
					back = append(back, e.fleet.Edges())
				}
				// Whoever is the last to come back finds what the others have told.
				slices.Sort(back)
				joined = append(joined, back[:len(back)-1]...)
			},
			"": func(t *rapid.T) {
				if got, bound := w.open(a), mostOpen(most, len(w.edges), joined); got > bound {
					t.Fatalf("%d connections over %d edges, the cap is %d, want at most %d", got, len(w.edges), most, bound)
				}
			},
		})
		// It does not last: as soon as so many have ended, nobody gets in before the
		// sum is below the cap, and then up to it.
		w.settle(3)
		w.age()
		for _, e := range w.edges {
			for range 1000 {
				if w.open(a) <= most-1 {
					break
				}
				w.release(e, a)
			}
		}
		for range 12 {
			for _, e := range w.edges {
				for range most {
					w.admit(e, a)
				}
			}
			w.settle(1)
		}
		if got, want := w.open(a), most; most >= len(w.edges) && got != want {
			t.Fatalf("%d connections in the end, the cap is %d", got, want)
		}
	})
}

// A store that has forgotten everybody, or has just been set up, gives nobody a
// claim to what an edge may hold that it has not heard of yet: not to one that it
// knew, however often that asks before the others do, and not to a newcomer.
func TestFleetStoreThatHasForgotten(t *testing.T) {
	const most, n = 96, 3
	for _, newcomer := range []bool{false, true} {
		w := newFleetWorld(capsOnly(10_000, most, 0), fleetLease, n)
		a := fleetAddrs[0]
		first := w.edges[0]
		fill := func(e *fleetEdge, beats int) {
			for range beats {
				for range most {
					w.admit(e, a)
				}
				w.beat(e)
			}
		}
		for range 4 {
			for _, e := range w.edges[1:] {
				fill(e, 1)
			}
			w.beat(first)
		}
		if got := w.open(a); got != most {
			t.Fatalf("%d connections, want %d", got, most)
		}
		w.ledger = fleettest.NewLedger(fleetLease)
		joined := n // as the edge divides it
		if newcomer {
			first, joined = w.join(), 1
		}
		w.beat(first)
		fill(first, 10)
		if got, want := w.open(a), mostOpen(most, n, []int{joined}); got != want {
			t.Errorf("newcomer %v: %d connections when the store had forgotten the others, want %d", newcomer, got, want)
		}
		// When all that live have told it, it is as any other.
		w.age()
		for w.open(a) > 0 {
			for _, e := range w.edges {
				w.release(e, a)
			}
		}
		w.settle(2)
		for range 4 {
			w.settle(1)
			fill(first, 1)
		}
		if got := w.open(a); got != most {
			t.Errorf("newcomer %v: %d connections in the end, want %d", newcomer, got, most)
		}
	}
}

// Over all edges, no length of time has more new connections of a host than the
// burst, what the rate gives, and what the edges may spend before they hear of each other.
func TestFleetHoldsTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "edges")
		rate := rapid.IntRange(1, 40).Draw(t, "rate")
		burst := rapid.IntRange(1, 150).Draw(t, "burst")
		w := newFleetWorld(admission.Limits{MaxConnections: 100_000, ConnectionRatePerIP: rate, ConnectionBurstPerIP: burst, ConnectionBurstPerIPv648: 1}, 1000*time.Hour, n)
		a := fleetAddrs[0]
		var admitted []time.Time
		edge := func() *fleetEdge { return rapid.SampledFrom(w.edges).Draw(t, "edge") }
		come := func(e *fleetEdge, times int) {
			for range times {
				if w.admit(e, a) == "" {
					admitted = append(admitted, w.now)
					w.release(e, a)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"come":     func(*rapid.T) { come(edge(), rapid.IntRange(1, 200).Draw(t, "times")) },
			"come all": func(*rapid.T) { e := edge(); come(e, 200) },
			"beat":     func(*rapid.T) { w.beat(edge()) },
			"beats":    func(*rapid.T) { w.settle(1) },
			"a reply is lost": func(t *rapid.T) {
				e := edge()
				b := e.fleet.Beat(w.now)
				w.ledger.Beat(name(e, b), b, w.now)
				come(e, 3)
				e.fleet.Failed(w.now)
			},
			"a beat is lost": func(*rapid.T) {
				e := edge()
				e.fleet.Beat(w.now)
				e.fleet.Failed(w.now)
			},
			"wait": func(*rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				for i, first := range admitted {
					length := w.now.Sub(first)
					if got := len(admitted) - i; float64(got) > mostNew(rate, burst, n, length) {
						t.Fatalf("%d new connections in %v, want at most %.1f", got, length, mostNew(rate, burst, n, length))
					}
				}
			},
		})
		// When the debt is paid, nothing is left of it anywhere.
		for range 2 { // what was lost on the way is charged at the first beat that arrives
			w.now = w.now.Add(time.Hour)
			w.settle(2)
		}
		if left := w.ledger.Size(); left != n {
			t.Fatalf("%d entries are left of %d edges", left, n)
		}
	})
}

// A host that comes to one edge alone has the whole burst and the whole rate there.
func TestFleetGivesOneEdgeTheWholeRate(t *testing.T) {
	const rate, burst = 20, 128
	for _, n := range []int{1, 3, 8} {
		w := newFleetWorld(admission.Limits{MaxConnections: 100_000, ConnectionRatePerIP: rate, ConnectionBurstPerIP: burst, ConnectionBurstPerIPv648: 1}, fleetLease, n)
		e, a, start, in := w.edges[0], fleetAddrs[0], w.now, 0
		for w.now.Sub(start) < time.Minute {
			for range 200 {
				if w.admit(e, a) == "" {
					in++
					w.release(e, a)
				}
			}
			w.settle(1)
		}
		// The bucket is never empty, which is what the others might spend; and the first
		// connections are charged when they are told.
		spare := (n+1)*rate/4 + 2*n
		if want := burst + 60*rate; in > want+1 || in < want-spare {
			t.Errorf("%d edges: %d new connections in a minute at one of them, want %d, and up to %d less", n, in, want, spare)
		}
	}
}

// A reload on all edges binds newcomers by the caps that it brings.
func TestFleetReload(t *testing.T) {
	w := newFleetWorld(capsOnly(1000, 32, 0), fleetLease, 2)
	a := fleetAddrs[0]
	fill := func() int {
		for range 8 {
			for _, e := range w.edges {
				for range 100 {
					w.admit(e, a)
				}
			}
			w.settle(1)
		}
		return w.open(a)
	}
	if got := fill(); got != 32 {
		t.Fatalf("%d connections, want 32", got)
	}
	for _, most := range []int{50, 10, 0} {
		limits := capsOnly(1000, most, 0)
		for _, e := range w.edges {
			if err := e.gate.SetLimits(limits); err != nil {
				t.Fatal(err)
			}
		}
		want := map[int]int{50: 50, 10: 50, 0: 1000}[most] // nobody is evicted; without a cap, all there may be
		if got := fill(); got != want {
			t.Errorf("%d connections under a cap of %d, want %d", got, most, want)
		}
	}
}

// A class has its own cap over all edges; an observed cap counts what it would
// have refused, and lets it in.
func TestFleetClassesAndObserved(t *testing.T) {
	limits := capsOnly(1000, 10, 0)
	limits.Classes = []admission.Class{{Name: "wide", Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32")}, MaxConnectionsPerIP: new(40)}}
	w := newFleetWorld(limits, fleetLease, 3)
	fill := func(want ...int) {
		t.Helper()
		for range 8 {
			for _, e := range w.edges {
				for _, a := range fleetAddrs[:2] {
					for range 50 {
						w.admit(e, a)
					}
				}
			}
			w.settle(1)
		}
		if got := []int{w.open(fleetAddrs[0]), w.open(fleetAddrs[1])}; !slices.Equal(got, want) {
			t.Errorf("%d connections, want %d", got, want)
		}
	}
	fill(10, 40)
	limits.Observe = []string{"max_connections_per_ip"}
	for _, e := range w.edges {
		if err := e.gate.SetLimits(limits); err != nil {
			t.Fatal(err)
		}
	}
	observed := w.edges[0].gate.Observed(admission.PerIPCap)
	if w.admit(w.edges[0], fleetAddrs[0]) != "" || w.edges[0].gate.Observed(admission.PerIPCap) != observed+1 {
		t.Error("an observed cap refuses, or does not count what it would have refused")
	}
}

// Alone, the gate of a fleet that must not be alone refuses everybody but the denied by that.
func TestFleetRefusesAlone(t *testing.T) {
	limits := capsOnly(10, 10, 0)
	limits.Deny = []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32")}
	gate, fleet, err := admission.NewFleetGate(limits, admission.FleetOptions{Lease: fleetLease, RefuseAlone: true})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for addr, want := range map[netip.Addr]admission.Reason{fleetAddrs[0]: admission.StoreUnavailable, fleetAddrs[1]: admission.Denied, {}: admission.StoreUnavailable} {
		if _, got := gate.Admit(addr, now); got != want {
			t.Errorf("Admit(%v) = %q, want %q", addr, got, want)
		}
	}
	b := fleet.Beat(now)
	fleet.Done(now, fleettest.NewLedger(fleetLease).Beat("a", b, now))
	if _, reason := gate.Admit(fleetAddrs[0], now); reason != "" {
		t.Errorf("in the fleet: %s", reason)
	}
}

// A decision of a gate in a fleet allocates no more than one without, and a
// refusal nothing, however it is refused.
func TestFleetAllocatesNothing(t *testing.T) {
	limits := capsOnly(1000, 8, 0)
	limits.ConnectionRatePerIP, limits.ConnectionBurstPerIP = 1, 30
	w := newFleetWorld(limits, fleetLease, 2)
	e, a := w.edges[0], fleetAddrs[0]
	for _, state := range []string{"without a claim", "with one", "tight"} {
		for w.admit(e, a) == "" {
		}
		if n := testing.AllocsPerRun(100, func() {
			if _, reason := e.gate.Admit(a, w.now); reason != admission.PerIPCap {
				t.Fatal(reason)
			}
		}); n != 0 {
			t.Errorf("%s: a refusal allocates %v times", state, n)
		}
		w.settle(1)
	}
	if n := testing.AllocsPerRun(100, func() {
		l, reason := e.gate.Admit(netip.Addr{}, w.now)
		if reason != "" {
			t.Fatal(reason)
		}
		l.Release()
	}); n != 1 {
		t.Errorf("an admission allocates %v times, want 1: the lease", n)
	}
}

// What an edge knows and asks is bounded, whoever floods it.
func TestFleetIsBounded(t *testing.T) {
	w := newFleetWorld(capsOnly(10_000_000, 2, 0), fleetLease, 2)
	e := w.edges[0]
	most := 0
	for i := range 40_000 {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		w.admit(e, a)
		w.admit(e, a)
		if i%700 == 0 {
			for {
				b := e.fleet.Beat(w.now)
				most = max(most, len(b.Asks))
				if !e.fleet.Done(w.now, w.ledger.Beat(name(e, b), b, w.now)) {
					break
				}
			}
		}
	}
	w.settle(2)
	if most > 256 {
		t.Errorf("a beat asks %d times", most)
	}
	if got := e.fleet.Claims(); got > 1<<14 || got < 1<<13 {
		t.Errorf("the edge has claims of %d keys, want 16384 at most, and not much less", got)
	}
}
