package admission

import (
	"net/netip"
	"testing"
	"time"
)

// fullHandshakes returns 1,024 places that distinct sources hold.
func fullHandshakes(t testing.TB, now time.Time) *Handshakes {
	h := NewHandshakes(1024)
	for i := range 1024 {
		enter(t, h, sourceOf(i), now, nothing)
	}
	return h
}

func TestEnterAllocatesThePlaceAlone(t *testing.T) {
	now := time.Now()
	h := fullHandshakes(t, now)
	later, i := now.Add(time.Hour), 1024
	if n := testing.AllocsPerRun(2000, func() {
		i++
		enter(t, h, sourceOf(i), later, nothing)
		later = later.Add(time.Second) // all are over a second old in turn
	}); n != 1 {
		t.Errorf("a newcomer that evicts allocates %v times, want the place", n)
	}
	h = fullHandshakes(t, now)
	if n := testing.AllocsPerRun(1000, func() {
		if _, ok := h.Enter(sourceOf(5000), now, nothing); ok {
			t.Fatal("let in")
		}
	}); n != 0 {
		t.Errorf("a refusal allocates %v times", n)
	}
}

func BenchmarkHandshakes(b *testing.B) {
	now := time.Now()
	source := func(i int) netip.Prefix { return sourceOf(1024 + i&4095) }
	for _, bb := range []struct {
		name string
		most int
	}{{"enter and leave", 1025}, {"evict", 1024}, {"refuse", 1024}} {
		b.Run(bb.name, func(b *testing.B) {
			h := fullHandshakes(b, now)
			h.SetMost(bb.most)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				at := now
				if bb.name == "evict" {
					at = now.Add(time.Duration(i) * 2 * time.Second)
				}
				p, ok := h.Enter(source(i), at, nothing)
				if ok == (bb.name == "refuse") {
					b.Fatalf("let in: %v", ok)
				}
				if bb.name == "enter and leave" {
					p.Leave()
				}
			}
		})
	}
}
