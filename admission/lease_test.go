package admission

import (
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"
)

func TestReleaseOnce(t *testing.T) {
	g, now := newGate(t, wide()), time.Now()
	other := mustAdmit(t, g, v6, now)
	lease := mustAdmit(t, g, v6, now)
	for range 3 {
		lease.Release()
		wantHeld(t, g, now, 1, 1, 1)
	}
	// The row is another's by then; the spent lease must not touch it.
	other.Release()
	mustAdmit(t, g, v4, now)
	lease.Release()
	other.Release()
	wantHeld(t, g, now, 1, 1, 0)
	(*Lease)(nil).Release()
}

func TestReleaseOnceUnderConcurrency(t *testing.T) {
	g, now := newGate(t, wide()), time.Now()
	mustAdmit(t, g, v6, now)
	for range 100 {
		lease := mustAdmit(t, g, v6, now)
		var all sync.WaitGroup
		for range 8 {
			all.Go(lease.Release)
		}
		all.Wait()
	}
	wantHeld(t, g, now, 1, 1, 1)
}

func TestName(t *testing.T) {
	l := wide()
	l.MaxConnections, l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 4, 2, 3
	l.ConnectionRatePerIP, l.ConnectionBurstPerIP = 1, 2
	l.Deny = prefixes("10.0.0.0/8")
	g, now := newGate(t, l), time.Now()
	accept := func() *Lease { t.Helper(); return mustAdmit(t, g, nobody, now) }
	name := func(l *Lease, addr netip.Addr, want Reason) {
		t.Helper()
		if got := l.Name(addr, now); got != want {
			t.Fatalf("Name(%v) = %q, want %q", addr, got, want)
		}
	}
	a := accept()
	wantHeld(t, g, now, 1, 0, 0)
	name(a, netip.MustParseAddr("10.1.2.3"), Denied)
	wantHeld(t, g, now, 1, 0, 0)
	name(a, v6, "")
	wantHeld(t, g, now, 1, 1, 1)
	b, c, d := accept(), accept(), accept()
	mustRefuse(t, g, nobody, now, MaxConnections)
	name(b, v6, "") // the global slot is held already
	name(c, v6, PerIPCap)
	wantHeld(t, g, now, 4, 1, 1)
	name(c, hostOf(1, 9), "")
	name(d, hostOf(1, 10), PerPrefixCap)
	wantHeld(t, g, now, 4, 2, 1)
	b.Release()
	name(d, v6, ConnectionRate)
	wantHeld(t, g, now, 3, 2, 1)
	d.Release()
	wantHeld(t, g, now, 2, 2, 1)
	e := accept()
	name(e, nobody, "") // a header that names no client
	wantHeld(t, g, now, 3, 2, 1)
	for _, lease := range []*Lease{a, c, e} {
		lease.Release()
	}
	wantHeld(t, g, now.Add(time.Minute), 0, 0, 0)
}

func TestNamePanics(t *testing.T) {
	l := wide()
	l.Deny = prefixes("10.0.0.0/8")
	now := time.Now()
	tests := []struct {
		name  string
		first func(*Gate) *Lease
		want  string
	}{
		{"named", func(g *Gate) *Lease { l := mustAdmit(t, g, nobody, now); l.Name(v4, now); return l }, "admission: a lease is named twice"},
		{"named without a host", func(g *Gate) *Lease { l := mustAdmit(t, g, nobody, now); l.Name(nobody, now); return l }, "admission: a lease is named twice"},
		{"admitted by its address", func(g *Gate) *Lease { return mustAdmit(t, g, v4, now) }, "admission: a lease is named twice"},
		{"released", func(g *Gate) *Lease { l := mustAdmit(t, g, nobody, now); l.Release(); return l }, "admission: a lease is named after its release"},
		{"named and released", func(g *Gate) *Lease { l := mustAdmit(t, g, v4, now); l.Release(); return l }, "admission: a lease is named after its release"},
	}
	for _, tt := range tests {
		for _, addr := range addrs("192.0.2.1", "10.0.0.1") {
			t.Run(tt.name+", "+addr.String(), func(t *testing.T) {
				g := newGate(t, l)
				lease := tt.first(g)
				before := g.Stats(now)
				func() {
					defer func() {
						if got := recover(); got != tt.want {
							t.Errorf("panic %v, want %s", got, tt.want)
						}
					}()
					lease.Name(addr, now)
				}()
				// It took nothing and left the gate unlocked.
				wantHeld(t, g, now, before.Connections, before.Hosts, before.Sites)
				lease.Release()
				wantHeld(t, g, now, 0, 0, 0)
			})
		}
	}
}

func TestLeaseIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Lease{}); size > 24 {
		t.Errorf("a lease takes %d bytes", size)
	}
	if size := unsafe.Sizeof(row{}); size > 32 {
		t.Errorf("a row takes %d bytes", size)
	}
}
