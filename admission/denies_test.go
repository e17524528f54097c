package admission

import (
	"net/netip"
	"testing"
	"time"
)

// Denies and Admit read one list in one way, and only Admit charges.
func TestDenies(t *testing.T) {
	l := DefaultLimits()
	l.Deny = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("64:ff9b::c633:6401/128")}
	g, err := NewGate(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		addr string
		want bool
	}{
		{"192.0.2.1", true},
		{"::ffff:192.0.2.1", true},
		{"64:ff9b::c000:201", true}, // embeds 192.0.2.1
		{"64:ff9b::c633:6401", true},
		{"198.51.100.1", false}, // what the denied address embeds
		{"2001:db8::1", false},
	} {
		addr := netip.MustParseAddr(tt.addr)
		if got := g.Denies(addr); got != tt.want {
			t.Errorf("%s: denied %v", addr, got)
		}
		if st := g.Stats(time.Now()); st.Connections != 0 || st.Hosts != 0 {
			t.Errorf("%s: charged %+v", addr, st)
		}
		lease, reason := g.Admit(addr, time.Now())
		if got := reason == Denied; got != tt.want {
			t.Errorf("%s: Admit says %q", addr, reason)
		}
		lease.Release()
		g.Stats(time.Now().Add(time.Hour))
	}
	if g.Denies(netip.Addr{}) {
		t.Error("nobody is denied")
	}
}
