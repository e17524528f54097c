package succession

import (
	"net/netip"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/handover"
)

// table is a gate with one connection of each of n hosts.
func table(t testing.TB, n int) *admission.Gate {
	l := admission.DefaultLimits()
	l.MaxConnections, l.ConnectionRatePerIP = n+100, 0
	gate, err := admission.NewGate(l)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, reason := gate.Admit(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), time.Now()); reason != "" {
			t.Fatal(reason)
		}
	}
	return gate
}

// BenchmarkHandover hands over the table of 100,000 hosts. The gap is what passes from
// the moment at which nobody is admitted until the next process admits; all is what
// is told before and in it.
func BenchmarkHandover(b *testing.B) {
	gate := table(b, 100_000)
	var gap, all time.Duration
	for b.Loop() {
		l := gate.Limits()
		next, err := admission.NewSuccessor(l, gate.Secret())
		if err != nil {
			b.Fatal(err)
		}
		old, fresh := newMember(gate), newMember(next)
		line, theirs, err := handover.Pair()
		if err != nil {
			b.Fatal(err)
		}
		nextLine, err := handover.LineOf(theirs)
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		latest := fresh.successor.Follow(nextLine, nil)
		heir := old.elder.Tell(line, nil)
		<-heir.Told()
		frozen := time.Now()
		old.elder.Retire()
		if err := fresh.successor.Await(latest, time.Minute); err != nil {
			b.Fatal(err)
		}
		fresh.successor.Open()
		gap += time.Since(frozen)
		all += time.Since(began)
		if got := next.Stats(time.Now()).Connections; got != 100_000 {
			b.Fatalf("%d connections have come", got)
		}
		nextLine.Close()
		<-old.resumed
	}
	b.ReportMetric(float64(gap.Microseconds())/float64(b.N), "gap-µs/op")
	b.ReportMetric(float64(all.Microseconds())/float64(b.N), "all-µs/op")
}
