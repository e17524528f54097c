package upstream

import (
	"net/netip"
	"testing"
)

// The i-th address of a network, over the borders of its bytes.
func TestOffset(t *testing.T) {
	for _, tt := range []struct {
		base string
		i    int
		want string
	}{
		{"10.0.0.0", 0, "10.0.0.0"},
		{"10.0.0.1", 1, "10.0.0.2"},
		{"10.0.0.255", 1, "10.0.1.0"},
		{"10.0.255.255", 1, "10.1.0.0"},
		{"10.1.0.0", 65535, "10.1.255.255"},
		{"10.0.0.200", 300, "10.0.1.244"},
		{"2001:db8::", 65535, "2001:db8::ffff"},
		{"2001:db8::ffff", 1, "2001:db8::1:0"},
		{"2001:db8::ffff:ffff:ffff:fffe", 1, "2001:db8::ffff:ffff:ffff:ffff"},
	} {
		if got := offset(netip.MustParseAddr(tt.base), tt.i); got != netip.MustParseAddr(tt.want) {
			t.Errorf("%s + %d is %s, want %s", tt.base, tt.i, got, tt.want)
		}
	}
}

// What networks stand for: hosts' addresses, each family by itself.
func TestSourceRanges(t *testing.T) {
	for _, tt := range []struct {
		networks    []string
		family      family
		count       int
		first, last string
	}{
		{[]string{"127.0.0.2/32"}, ipv4, 1, "127.0.0.2", "127.0.0.2"},
		{[]string{"10.0.0.0/31"}, ipv4, 2, "10.0.0.0", "10.0.0.1"}, // RFC 3021
		{[]string{"10.0.0.0/30"}, ipv4, 2, "10.0.0.1", "10.0.0.2"},
		{[]string{"10.0.0.0/24"}, ipv4, 254, "10.0.0.1", "10.0.0.254"},
		{[]string{"10.0.0.0/16"}, ipv4, 65534, "10.0.0.1", "10.0.255.254"},
		{[]string{"2001:db8::/112"}, ipv6, 65536, "2001:db8::", "2001:db8::ffff"},
		{[]string{"127.0.0.2/32", "::1/128", "127.0.1.0/30"}, ipv4, 3, "127.0.0.2", "127.0.1.2"},
		{[]string{"127.0.0.2/32", "::1/128", "127.0.1.0/30"}, ipv6, 1, "::1", "::1"},
		{[]string{"127.0.0.2/32"}, ipv6, 0, "", ""},
	} {
		s, err := newSources(prefixes(tt.networks...))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.count(tt.family); got != tt.count {
			t.Errorf("%v: %d of %s, want %d", tt.networks, got, tt.family, tt.count)
		}
		if tt.count == 0 {
			continue
		}
		if got := s.at(tt.family, 0); got.String() != tt.first {
			t.Errorf("%v: the first is %s, want %s", tt.networks, got, tt.first)
		}
		if got := s.at(tt.family, tt.count-1); got.String() != tt.last {
			t.Errorf("%v: the last is %s, want %s", tt.networks, got, tt.last)
		}
		if got := s.at(tt.family, tt.count); got.IsValid() {
			t.Errorf("%v: behind the last is %s", tt.networks, got)
		}
	}
}
