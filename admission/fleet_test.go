package admission_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"relayedge/admission"
	"relayedge/admission/fleettest"
)

const (
	fleetLease = 3 * time.Second
	beatEvery  = 250 * time.Millisecond
)

// fleetEdge is an edge of a fleet in one process, without a network.
type fleetEdge struct {
	id     string
	gate   *admission.Gate
	fleet  *admission.Fleet
	leases map[netip.Addr][]*admission.Lease
	late   []admission.Beat // that were sent, and have not reached the store
}

func (e *fleetEdge) open() (n int) {
	for _, leases := range e.leases {
		n += len(leases)
	}
	return n
}

// fleetWorld are the edges and their store. Its clock is the edges' too.
type fleetWorld struct {
	limits admission.Limits
	lease  time.Duration
	ledger *fleettest.Ledger
	edges  []*fleetEdge
	now    time.Time
	made   int
}

// newFleetWorld has a fleet whose store knows that there are no other edges.
func newFleetWorld(limits admission.Limits, lease time.Duration, edges int) *fleetWorld {
	w := &fleetWorld{limits: limits, lease: lease, ledger: fleettest.NewLedger(lease), now: time.Now().Add(time.Second)}
	for range edges {
		w.join()
	}
	w.settle(4)
	w.age()
	return w
}

func (w *fleetWorld) join() *fleetEdge {
	gate, fleet, err := admission.NewFleetGate(w.limits, admission.FleetOptions{Secret: []byte("secret"), Lease: w.lease})
	if err != nil {
		panic(err)
	}
	w.made++
	e := &fleetEdge{id: fmt.Sprint("edge", w.made), gate: gate, fleet: fleet, leases: make(map[netip.Addr][]*admission.Lease)}
	w.edges = append(w.edges, e)
	return e
}

func name(e *fleetEdge, b admission.Beat) string { return fmt.Sprint(e.id, ".", b.Life) }

// beat has an edge beat until it has told and heard all.
func (w *fleetWorld) beat(e *fleetEdge) {
	for range 1000 {
		b := e.fleet.Beat(w.now)
		if !e.fleet.Done(w.now, w.ledger.Beat(name(e, b), b, w.now)) {
			return
		}
	}
	panic("the beats find no end")
}

// settle has all edges beat so often, at the usual distance.
func (w *fleetWorld) settle(times int) {
	for range times {
		w.now = w.now.Add(beatEvery)
		for _, e := range w.edges {
			w.beat(e)
		}
	}
}

// age has all edges beat for a lease, after which the store knows that there are no others.
func (w *fleetWorld) age() {
	for range 2 {
		w.now = w.now.Add(w.lease / 2)
		for _, e := range w.edges {
			w.beat(e)
		}
	}
}

func (w *fleetWorld) admit(e *fleetEdge, addr netip.Addr) admission.Reason {
	l, reason := e.gate.Admit(addr, w.now)
	if reason == "" {
		e.leases[addr] = append(e.leases[addr], l)
	}
	return reason
}

func (w *fleetWorld) release(e *fleetEdge, addr netip.Addr) {
	if leases := e.leases[addr]; len(leases) > 0 {
		leases[0].Release()
		e.leases[addr] = leases[1:]
	}
}

// open counts the connections of an address over all edges, or all of them for the zero Addr.
func (w *fleetWorld) open(addr netip.Addr) (n int) {
	for _, e := range w.edges {
		if addr.IsValid() {
			n += len(e.leases[addr])
		} else {
			n += e.open()
		}
	}
	return n
}

func capsOnly(all, host, site int) admission.Limits {
	return admission.Limits{
		MaxConnections: all, MaxConnectionsPerIP: host, MaxConnectionsPerIPv648: site,
		ConnectionBurstPerIP: 1, ConnectionBurstPerIPv648: 1,
	}
}

var fleetAddrs = []netip.Addr{
	netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
	netip.MustParseAddr("2001:db8:1:1::1"), netip.MustParseAddr("2001:db8:1:2::1"), {},
}

// The sum over the edges of a fleet that stays as it is never exceeds a cap, or
// the number of edges where that is higher, whatever becomes of their beats.
func TestFleetNeverExceedsItsCaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "edges")
		all := rapid.IntRange(1, 60).Draw(t, "max_connections")
		host := rapid.IntRange(0, min(40, all)).Draw(t, "per host")
		site := rapid.IntRange(0, min(50, all)).Draw(t, "per site")
		w := newFleetWorld(capsOnly(all, host, site), 1000*time.Hour, n)
		bound := func(what string, open, most int) {
			if most > 0 && open > max(most, n) {
				t.Fatalf("%d connections of %s over %d edges, the cap is %d", open, what, n, most)
			}
		}
		edge := func() *fleetEdge { return rapid.SampledFrom(w.edges).Draw(t, "edge") }
		addr := func() netip.Addr { return rapid.SampledFrom(fleetAddrs).Draw(t, "addr") }
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(*rapid.T) {
				e, a := edge(), addr()
				for range rapid.IntRange(1, 30).Draw(t, "newcomers") {
					w.admit(e, a)
				}
			},
			"release": func(*rapid.T) {
				e, a := edge(), addr()
				for range rapid.IntRange(1, 30).Draw(t, "ends") {
					w.release(e, a)
				}
			},
			"beat":  func(*rapid.T) { w.beat(edge()) },
			"beats": func(*rapid.T) { w.settle(1) },
			"one step of a beat": func(*rapid.T) {
				e := edge()
				b := e.fleet.Beat(w.now)
				e.fleet.Done(w.now, w.ledger.Beat(name(e, b), b, w.now))
			},
			"a beat is lost": func(*rapid.T) {
				e := edge()
				e.fleet.Beat(w.now)
				e.fleet.Failed(w.now)
			},
			"a beat comes late": func(*rapid.T) {
				e := edge()
				e.late = append(e.late, e.fleet.Beat(w.now))
				e.fleet.Failed(w.now)
			},
			"a late beat": func(*rapid.T) {
				e := edge()
				if len(e.late) == 0 {
					t.Skip("none is under way")
				}
				w.ledger.Beat(name(e, e.late[0]), e.late[0], w.now)
				e.late = e.late[1:]
			},
			"a reply is lost": func(*rapid.T) {
				e := edge()
				b := e.fleet.Beat(w.now)
				w.ledger.Beat(name(e, b), b, w.now)
				// In between it decides by what it knows.
				w.admit(e, addr())
				e.fleet.Failed(w.now)
			},
			"newcomers while a reply is under way": func(*rapid.T) {
				e, a := edge(), addr()
				b := e.fleet.Beat(w.now)
				r := w.ledger.Beat(name(e, b), b, w.now)
				for range 10 {
					w.admit(e, a)
				}
				e.fleet.Done(w.now, r)
			},
			"": func(t *rapid.T) {
				bound("all", w.open(netip.Addr{}), all)
				for _, a := range fleetAddrs[:4] {
					bound(a.String(), w.open(a), host)
				}
				bound("a site", w.open(fleetAddrs[2])+w.open(fleetAddrs[3]), site)
			},
		})
		// When all have gone, nothing is left.
		for _, e := range w.edges {
			for a := range e.leases {
				for len(e.leases[a]) > 0 {
					w.release(e, a)
				}
			}
		}
		w.settle(6)
		if left := w.ledger.Size(); left != n {
			t.Fatalf("%d entries are left of %d edges without connections", left, n)
		}
	})
}

// Whoever is refused once and comes again gets in as long as there is room
// anywhere, and no further: the sum is at the cap, just.
func TestFleetConvergesAtTheCap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "edges")
		most := rapid.IntRange(n, 100).Draw(t, "per host")
		comes := rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, n, rapid.ID[int]).Draw(t, "edges that it comes to")
		w := newFleetWorld(capsOnly(1000, most, 0), fleetLease, n)
		a := fleetAddrs[0]
		// Others have been there before, and some are still.
		for _, e := range w.edges {
			for range rapid.IntRange(0, 40).Draw(t, "before") {
				w.admit(e, a)
			}
			w.beat(e)
		}
		for _, e := range w.edges {
			for range rapid.IntRange(0, 40).Draw(t, "ended") {
				w.release(e, a)
			}
		}
		for range 12 {
			for _, i := range comes {
				for range 100 {
					w.admit(w.edges[i], a)
				}
			}
			w.settle(1)
		}
		if got := w.open(a); got != most {
			t.Fatalf("%d connections, the cap is %d", got, most)
		}
	})
}

// A host that comes to one edge alone has the whole cap after three beats of all.
func TestFleetGivesOneEdgeTheWholeCap(t *testing.T) {
	for n := 1; n <= 8; n++ {
		for _, most := range []int{1, 2, 7, 64, 1000} {
			w := newFleetWorld(capsOnly(10_000, most, 0), fleetLease, n)
			random := rand.New(rand.NewPCG(1, uint64(n)))
			for range 3 {
				for range most {
					w.admit(w.edges[0], fleetAddrs[0])
				}
				random.Shuffle(n-1, func(i, j int) { w.edges[1+i], w.edges[1+j] = w.edges[1+j], w.edges[1+i] })
				w.settle(1)
			}
			for range most {
				w.admit(w.edges[0], fleetAddrs[0])
			}
			if got := w.open(fleetAddrs[0]); got != most {
				t.Errorf("%d edges: %d connections at one of them, the cap is %d", n, got, most)
			}
		}
	}
}

// What a dead edge held counts until its lease is over, and not a moment longer.
func TestFleetForgetsTheDead(t *testing.T) {
	w := newFleetWorld(capsOnly(1000, 64, 0), fleetLease, 3)
	a := fleetAddrs[0]
	for range 6 {
		for range 64 {
			w.admit(w.edges[0], a)
		}
		w.settle(1)
	}
	dead := w.edges[0]
	w.edges = w.edges[1:]
	over := w.now.Add(fleetLease) // its latest beat was at w.now
	fill := func() int {
		for range 100 {
			w.admit(w.edges[0], a)
		}
		return w.open(a)
	}
	for w.settle(1); w.now.Before(over); w.settle(1) {
		if got := fill(); got != 0 {
			t.Fatalf("%d connections while %d of a dead edge count", got, len(dead.leases[a]))
		}
	}
	for range 3 {
		fill()
		w.settle(1)
	}
	if got := fill(); got != 64 {
		t.Fatalf("%d connections after the lease, want 64", got)
	}
}

// An edge that has not reached the store for a lease is alone and has its own
// limits; when it comes back, what it holds counts at once.
func TestFleetAloneAndBack(t *testing.T) {
	w := newFleetWorld(capsOnly(1000, 10, 0), fleetLease, 2)
	a, e := fleetAddrs[0], w.edges[0]
	w.beat(e)
	fill := func(e *fleetEdge) int {
		for range 20 {
			w.admit(e, a)
		}
		return len(e.leases[a])
	}
	if got := fill(e); got != 2 {
		t.Fatalf("%d connections without a claim, want 2", got)
	}
	e.fleet.Beat(w.now)
	for range 2 {
		w.now = w.now.Add(fleetLease / 2)
		w.beat(w.edges[1])
	}
	if e.fleet.Failed(w.now) {
		t.Fatal("the edge is alone before its lease is over")
	}
	e.fleet.Beat(w.now)
	w.now = w.now.Add(time.Nanosecond)
	if !e.fleet.Failed(w.now) || e.fleet.Edges() != 0 {
		t.Fatal("the edge is not alone after its lease")
	}
	e.fleet.Beat(w.now)
	if e.fleet.Failed(w.now) {
		t.Error("it is told twice that the edge is alone")
	}
	if got := fill(e); got != 10 {
		t.Fatalf("%d connections alone, want 10", got)
	}
	w.settle(2)
	if got := w.ledger.Claim("edge1.1", key(w, a)); got != 10 {
		t.Errorf("the store counts %d connections of the edge that has come back, want 10", got)
	}
	if got := fill(w.edges[1]); got != 0 {
		t.Errorf("the other edge lets %d in beside 10", got)
	}
	w.release(e, a)
	for range 3 {
		w.settle(1)
		fill(w.edges[1])
	}
	if got := w.open(a); got != 10 {
		t.Errorf("%d connections, want 10", got)
	}
}

// key is what the edges tell of an address.
func key(w *fleetWorld, addr netip.Addr) (k admission.SharedKey) {
	gate, fleet, _ := admission.NewFleetGate(w.limits, admission.FleetOptions{Secret: []byte("secret")})
	fleet.Done(w.now, admission.Reply{Edges: 1})
	for range w.limits.MaxConnectionsPerIP {
		gate.Admit(addr, w.now)
	}
	asks := fleet.Beat(w.now).Asks
	i := slices.IndexFunc(asks, func(a admission.Ask) bool { return a.Key != k })
	return asks[i].Key
}

// Hosts with few connections cost the store nothing.
func TestFleetKeepsQuietAboutFew(t *testing.T) {
	w := newFleetWorld(capsOnly(1_000_000, 64, 256), fleetLease, 3)
	for i := range 30_000 {
		w.admit(w.edges[i%3], netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		w.admit(w.edges[i%3], netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 8), byte(i)}))
	}
	w.settle(3)
	if got := w.ledger.Size(); got != 3 {
		t.Errorf("%d entries for 60,000 hosts with one connection each over 3 edges", got)
	}
}
