package admission_test

import (
	"net/netip"
	"testing"
	"time"

	"relayedge/admission"
)

// What a decision costs in a fleet, beside BenchmarkAdmitRelease and BenchmarkRefuse.
func BenchmarkFleet(b *testing.B) {
	limits := admission.DefaultLimits()
	limits.ConnectionRatePerIP, limits.ConnectionBurstPerIP = 100_000, 1_000_000
	world := func() (*fleetWorld, *fleetEdge) {
		w := newFleetWorld(limits, fleetLease, 3)
		for i := range 1000 { // hosts that the fleet knows
			for range 16 {
				w.admit(w.edges[i%3], netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
			}
			if i%100 == 0 {
				w.settle(1)
			}
		}
		w.settle(2)
		return w, w.edges[0]
	}
	b.Run("admit and release", func(b *testing.B) {
		w, e := world()
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			i++
			l, reason := e.gate.Admit(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8 & 15), byte(i)}), w.now.Add(time.Duration(i)*time.Microsecond))
			if reason != "" {
				b.Fatal(reason)
			}
			l.Release()
		}
	})
	b.Run("refuse for want of a claim", func(b *testing.B) {
		w, e := world()
		for w.admit(e, fleetAddrs[0]) == "" {
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, reason := e.gate.Admit(fleetAddrs[0], w.now); reason != admission.PerIPCap {
				b.Fatal(reason)
			}
		}
	})
	b.Run("a beat of a thousand hosts", func(b *testing.B) {
		w, e := world()
		for b.Loop() {
			w.beat(e)
		}
	})
}
