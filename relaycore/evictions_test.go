package relaycore

import (
	"fmt"
	"testing"
	"testing/synctest"

	"relayedge/relaycore/wire"
)

// spec/003: when the circuit table is full, a new pair from a lighter source
// tears down the heaviest source's newest pair, and both people in it are told.
func TestCircuitEvicted(t *testing.T) {
	bubble(t, func(c *Config) { fronted(c); circuitsAtMost(&c.Limits, 6) }, func(t *testing.T, w *world) {
		const heavy = "203.0.113.1:1"
		hub := w.as(heavy, 0)
		var others []*peer
		var circuits []uint64
		for i := range 3 {
			p := w.as(fmt.Sprintf("198.51.100.%d:1", i+1), 1+i)
			others = append(others, p)
			circuits = append(circuits, w.pairUp(hub, p))
		}
		// The heaviest source itself, and one that is as heavy, find no place.
		more := w.as(heavy, 10)
		others[0].ask(5, identity(more.key))
		want[wire.Knock](more)
		if got := more.request(wire.Named, 6, identity(others[0].key)); got.limit != wire.LimitCircuits || got.retry != 30 {
			t.Fatalf("%+v", got)
		}
		w.wantOnly(ReasonCircuitCap, 1)

		a, b := w.as("192.0.2.1:1", 20), w.as("192.0.2.2:1", 21)
		w.pairUp(a, b)
		for _, p := range []*peer{hub, others[2]} {
			if got := want[wire.CircuitClosed](p); got.Circuit != circuits[2] || got.Reason != wire.EndedEvicted {
				t.Fatalf("%+v", got)
			}
		}
		others[0].quiet()
		if n := w.rejected(ReasonCircuitEvicted); n != 1 {
			t.Fatalf("%d evicted", n)
		}
		hub.send(wire.Send{Circuit: circuits[2], ID: messageID(1)})
		if got := want[wire.Error](hub); got.Fault != wire.FaultNoCircuit {
			t.Fatalf("%+v", got)
		}
		// They pair again on their next request, once there is a place.
		hub.send(wire.Close{Circuit: circuits[0]})
		want[wire.CircuitClosed](others[0])
		w.pairUp(hub, others[2])
		w.wantNothingBut(ReasonCircuitCap, ReasonCircuitEvicted)
	})
}

// A blinded conversation that a member has left makes room like any other; who
// is there is told.
func TestFadingCircuitEvicted(t *testing.T) {
	bubble(t, func(c *Config) { fronted(c); circuitsAtMost(&c.Limits, 4) }, func(t *testing.T, w *world) {
		a, b := w.as("203.0.113.1:1", 1), w.as("203.0.113.1:1", 2)
		first := w.blindPair(a, b, 1)
		second := w.blindPair(a, b, 2)
		a.send(wire.Close{Circuit: second})
		w.pairUp(w.as("192.0.2.1:1", 3), w.as("192.0.2.2:1", 4))
		if got := want[wire.CircuitClosed](b); got.Circuit != second || got.Reason != wire.EndedEvicted {
			t.Fatalf("%+v", got)
		}
		a.quiet()
		a.send(wire.Send{Circuit: first, ID: messageID(1)})
		want[wire.Message](b)
		if n := w.s.dir.circuits.fading.n; n != 0 {
			t.Fatalf("%d fade", n)
		}
	})
}

// spec/003: max_circuits_per_source counts the sides of both members; where
// sources are not known it is off.
func TestCircuitsPerSource(t *testing.T) {
	for _, tc := range []struct {
		name  string
		a, b  string // where the two sides ask from
		known bool
		open  int
	}{
		{"both sides of one source", "203.0.113.1:1", "203.0.113.1:2", true, 2},
		{"one side", "203.0.113.1:1", "", true, 4},
		{"the other side", "", "203.0.113.1:1", true, 4},
		{"one /48", "[2001:db8:7:1::1]:1", "[2001:db8:7:2::1]:1", true, 2},
		{"sources that are not known", "203.0.113.1:1", "203.0.113.1:1", false, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *Config) {
				fronted(c)
				c.Limits.MaxCircuitsPerSource = 4
				if !tc.known {
					c.ProxyProtocol, c.Limits.MaxConnectionsPerIP = false, 0
				}
			}, func(t *testing.T, w *world) {
				other := 0
				at := func(client string) string {
					if client == "" {
						other++
						client = fmt.Sprintf("198.51.100.%d:1", other)
					}
					return client
				}
				opened := 0
				for i := range 6 {
					a, b := w.as(at(tc.a), 2*i), w.as(at(tc.b), 2*i+1)
					a.request(wire.Named, 1, identity(b.key))
					got := b.request(wire.Named, 2, identity(a.key))
					if got.circuit != 0 {
						opened++
					} else if got.limit != wire.LimitCircuitsPerSource {
						t.Fatalf("%+v", got)
					}
				}
				if opened != tc.open {
					t.Fatalf("%d are open, want %d", opened, tc.open)
				}
				w.wantOnly(ReasonCircuitCap, 6-opened)
			})
		})
	}
}

// An evicted request's asker is told so, if it reads, and is none the worse if not.
func TestPendingEvicted(t *testing.T) {
	bubble(t, func(c *Config) {
		fronted(c)
		pendingAtMost(&c.Limits, 8)
		c.Limits.PendingIdentityReservePercent = 0
	}, func(t *testing.T, w *world) {
		heavy, light := w.as("203.0.113.1:1", 0), w.as("192.0.2.1:1", 1)
		circuit := w.pairUp(light, heavy)
		for i := range 8 {
			heavy.request(wire.Named, uint64(100+i), idOf(50+i))
		}
		if got := light.request(wire.Blinded, 1, tokenOf(1)); got != (answer{}) {
			t.Fatalf("%+v", got)
		}
		if got := want[wire.RateLimited](heavy); got.RequestID != 100 || got.Limit != wire.LimitPendingTargets || got.RetryAfterSecs != 30 {
			t.Fatalf("%+v", got)
		}
		w.wantOnly(ReasonPendingEvicted, 1)
		n := w.crowded(light, heavy, circuit)
		w.as("192.0.2.2:1", 2).request(wire.Named, 1, idOf(90))
		w.as("192.0.2.3:1", 3).request(wire.Named, 1, idOf(90))
		heavy.resume()
		for range n {
			want[wire.Message](heavy)
		}
		heavy.quiet()
		synctest.Wait()
		if n := w.rejected(ReasonPendingEvicted); n < 3 {
			t.Fatalf("%d evicted", n)
		}
		w.wantNothingBut(ReasonPendingEvicted)
	})
}
