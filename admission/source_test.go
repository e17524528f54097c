package admission

import (
	"net/netip"
	"testing"
)

func TestKeys(t *testing.T) {
	nat64 := prefixes("64:ff9b::/96")
	tests := []struct {
		name, addr string
		embedded   []netip.Prefix
		host, site string // "": the zero Prefix
		source     string
	}{
		// spec/003: connections are grouped by IPv4 address or by IPv6 /64, and by /48;
		// a source is an IPv4 address or an IPv6 /48.
		{"IPv4", "192.0.2.10", nat64, "192.0.2.10/32", "", "192.0.2.10/32"},
		{"IPv6", "2001:db8:1:2:3:4:5:6", nat64, "2001:db8:1:2::/64", "2001:db8:1::/48", "2001:db8:1::/48"},
		{"the last address of a /64", "2001:db8:1:2:ffff:ffff:ffff:ffff", nat64, "2001:db8:1:2::/64", "2001:db8:1::/48", "2001:db8:1::/48"},
		{"the last /64 of a /48", "2001:db8:1:ffff::1", nat64, "2001:db8:1:ffff::/64", "2001:db8:1::/48", "2001:db8:1::/48"},
		{"the next /48", "2001:db8:2::1", nat64, "2001:db8:2::/64", "2001:db8:2::/48", "2001:db8:2::/48"},
		{"mapped", "::ffff:192.0.2.10", nat64, "192.0.2.10/32", "", "192.0.2.10/32"},
		{"mapped, in hexadecimal", "::ffff:c000:20a", nat64, "192.0.2.10/32", "", "192.0.2.10/32"},
		{"mapped, with a zone", "::ffff:192.0.2.10%eth0", nat64, "192.0.2.10/32", "", "192.0.2.10/32"},
		{"link-local with a zone", "fe80::1%eth0", nat64, "fe80::/64", "fe80::/48", "fe80::/48"},
		{"link-local with a numeric zone", "fe80::1%2", nat64, "fe80::/64", "fe80::/48", "fe80::/48"},
		{"link-local without", "fe80::1", nat64, "fe80::/64", "fe80::/48", "fe80::/48"},
		{"NAT64", "64:ff9b::c000:20a", nat64, "192.0.2.10/32", "", "192.0.2.10/32"},
		{"NAT64, dotted", "64:ff9b::192.0.2.10", nat64, "192.0.2.10/32", "", "192.0.2.10/32"},
		{"NAT64 with a zone", "64:ff9b::192.0.2.10%eth0", nat64, "192.0.2.10/32", "", "192.0.2.10/32"},
		{"NAT64 that is not listed", "64:ff9b::192.0.2.10", nil, "64:ff9b::/64", "64:ff9b::/48", "64:ff9b::/48"},
		{"beside the NAT64 prefix", "64:ff9b::1:192.0.2.10", nat64, "64:ff9b::/64", "64:ff9b::/48", "64:ff9b::/48"},
		{"local NAT64, a short prefix", "64:ff9b:1:2:3:4:192.0.2.10", prefixes("2001:db8::/32", "64:ff9b:1::/48"), "192.0.2.10/32", "", "192.0.2.10/32"},
		{"an embedded prefix does not touch IPv4", "192.0.2.10", prefixes("192.0.2.0/24"), "192.0.2.10/32", "", "192.0.2.10/32"},
		{"IPv4-compatible stays IPv6", "::192.0.2.10", nat64, "::/64", "::/48", "::/48"},
		{"unspecified IPv4", "0.0.0.0", nat64, "0.0.0.0/32", "", "0.0.0.0/32"},
		{"unspecified IPv6", "::", nat64, "::/64", "::/48", "::/48"},
		{"loopback", "::1", nat64, "::/64", "::/48", "::/48"},
		{"none", "", nat64, "", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var addr netip.Addr
			if tt.addr != "" {
				addr = netip.MustParseAddr(tt.addr)
			}
			host, site := Keys(addr, tt.embedded)
			if want := prefixOf(tt.host); host != want {
				t.Errorf("host = %v, want %v", host, want)
			}
			if want := prefixOf(tt.site); site != want {
				t.Errorf("site = %v, want %v", site, want)
			}
			if got, want := Source(addr, tt.embedded), prefixOf(tt.source); got != want {
				t.Errorf("source = %v, want %v", got, want)
			}
		})
	}
}

func prefixOf(s string) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(s)
}

func FuzzKeys(f *testing.F) {
	for _, s := range []string{"192.0.2.10", "::ffff:192.0.2.10", "64:ff9b::1.2.3.4", "fe80::1", "::", "2001:db8:1:2:3:4:5:6"} {
		b, _ := netip.MustParseAddr(s).MarshalBinary()
		f.Add(b, "", byte(96))
		f.Add(b, "eth0", byte(32))
	}
	f.Fuzz(func(t *testing.T, raw []byte, zone string, bits byte) {
		addr, ok := netip.AddrFromSlice(raw)
		if !ok {
			return
		}
		if addr.Is6() {
			addr = addr.WithZone(zone)
		}
		host, site := Keys(addr, nil)
		plain := addr.WithZone("").Unmap()
		if !host.Contains(plain) || host != host.Masked() {
			t.Fatalf("%v: host %v", addr, host)
		}
		if plain.Is4() {
			if host.Bits() != 32 || site.IsValid() {
				t.Fatalf("%v: host %v, site %v", addr, host, site)
			}
		} else if host.Bits() != 64 || site.Bits() != 48 || !site.Contains(host.Addr()) || site != site.Masked() {
			t.Fatalf("%v: host %v, site %v", addr, host, site)
		}
		for _, spelling := range []netip.Addr{plain, netip.AddrFrom16(plain.As16()), netip.AddrFrom16(plain.As16()).WithZone("z")} {
			if h, s := Keys(spelling, nil); h != host || s != site {
				t.Fatalf("%v: %v and %v, but spelled %v: %v and %v", addr, host, site, spelling, h, s)
			}
		}
		// Inside an embedded prefix only the last 32 bits tell.
		embedded, err := plain.Prefix(int(bits) % 97 % (plain.BitLen() + 1))
		if err != nil {
			t.Fatal(err)
		}
		host, site = Keys(addr, []netip.Prefix{embedded})
		want := plain
		if all := plain.As16(); plain.Is6() {
			want = netip.AddrFrom4([4]byte(all[12:]))
		}
		if wantHost, wantSite := Keys(want, nil); host != wantHost || site != wantSite {
			t.Fatalf("%v in %v: host %v, site %v, want %v, %v", addr, embedded, host, site, wantHost, wantSite)
		}
	})
}
