package admission

import (
	"net/netip"
	"testing"
)

func TestCaps(t *testing.T) {
	l := DefaultLimits()
	l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 3, 5
	l.Classes = []Class{
		{Name: "carrier", Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:1::/48")}, MaxConnectionsPerIP: new(40), MaxConnectionsPerIPv648: new(0)},
		{Name: "as all others", Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.8/32")}},
	}
	g, err := NewGate(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		addr string
		want Caps
	}{
		{"192.0.2.1", Caps{Host: 3}},
		{"::ffff:192.0.2.1", Caps{Host: 3}},
		{"2001:db8::1", Caps{Host: 3, Site: 5}},
		{"203.0.113.9", Caps{Host: 40}},
		{"64:ff9b::203.0.113.9", Caps{Host: 40}},
		{"203.0.113.8", Caps{Host: 3}},
		{"2001:db8:1::1%eth0", Caps{Host: 40}},
		{"", Caps{}},
	} {
		addr, _ := netip.ParseAddr(row.addr)
		if got := g.Caps(addr); got != row.want {
			t.Errorf("%s: %+v, want %+v", row.addr, got, row.want)
		}
	}
}
