package admission

import (
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wide returns limits under which only what a test narrows can refuse.
func wide() Limits {
	return Limits{MaxConnections: 1_000_000, ConnectionBurstPerIP: 1, ConnectionBurstPerIPv648: 1}
}

func newGate(t testing.TB, l Limits) *Gate {
	t.Helper()
	g, err := NewGate(l)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func setLimits(t testing.TB, g *Gate, l Limits) {
	t.Helper()
	if err := g.SetLimits(l); err != nil {
		t.Fatal(err)
	}
}

// mustAdmit admits addr or ends the test.
func mustAdmit(t testing.TB, g *Gate, addr netip.Addr, now time.Time) *Lease {
	t.Helper()
	l, reason := g.Admit(addr, now)
	if reason != "" || l == nil {
		t.Fatalf("Admit(%v) = %v, %q, want a lease", addr, l, reason)
	}
	return l
}

// mustRefuse has addr refused with the reason want or ends the test.
func mustRefuse(t testing.TB, g *Gate, addr netip.Addr, now time.Time, want Reason) {
	t.Helper()
	if l, reason := g.Admit(addr, now); reason != want || l != nil {
		t.Fatalf("Admit(%v) = %v, %q, want no lease and %q", addr, l, reason, want)
	}
}

// wantHeld compares what g holds at now.
func wantHeld(t testing.TB, g *Gate, now time.Time, connections, hosts, sites int) {
	t.Helper()
	if s := g.Stats(now); s.Connections != connections || s.Hosts != hosts || s.Sites != sites {
		t.Fatalf("the gate holds %d connections, %d hosts, %d sites, want %d, %d, %d",
			s.Connections, s.Hosts, s.Sites, connections, hosts, sites)
	}
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range texts {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// stepWall returns t as read after the wall clock was stepped by d: the wall
// reading moves by whole seconds and the monotonic one stays. No public way leads
// there, so it writes the seconds into the value and then checks what it made.
func stepWall(t testing.TB, now time.Time, d time.Duration) time.Time {
	t.Helper()
	stepped := now
	*(*uint64)(unsafe.Pointer(&stepped)) += uint64(d/time.Second) << 30
	if moved := stepped.Round(0).Sub(now.Round(0)); moved != d || stepped.Sub(now) != 0 {
		t.Fatalf("the wall clock moved by %v and the monotonic one by %v, want %v and 0", moved, stepped.Sub(now), d)
	}
	return stepped
}
