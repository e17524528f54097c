package admission

import "net/netip"

const (
	hostBits = 64 // of an IPv6 address: what one network card or one tenant gets
	siteBits = 48 // of an IPv6 address: what one customer or one organisation gets
)

// Keys returns the host and the site of addr. IPv4-mapped addresses are
// unmapped first, zones are dropped, and an address inside one of the embedded
// prefixes is looked through to the IPv4 address in its last 32 bits. The site
// of an IPv4 address is the zero Prefix; both are zero for the zero Addr.
func Keys(addr netip.Addr, embedded []netip.Prefix) (host, site netip.Prefix) {
	return keysOf(lookThrough(bare(addr), embedded))
}

// Source returns the fair-share key of addr: an IPv4 address, or an IPv6 /48.
// It reads addr as Keys does, and is the zero Prefix for the zero Addr.
func Source(addr netip.Addr, embedded []netip.Prefix) netip.Prefix {
	host, site := Keys(addr, embedded)
	if site.IsValid() {
		return site
	}
	return host
}

// keysOf returns the keys of an address that is bare and looked through.
func keysOf(addr netip.Addr) (host, site netip.Prefix) {
	switch {
	case !addr.IsValid():
		return netip.Prefix{}, netip.Prefix{}
	case addr.Is4():
		return netip.PrefixFrom(addr, addr.BitLen()), netip.Prefix{}
	}
	// Prefix fails only for a length that the address does not have.
	host, _ = addr.Prefix(hostBits)
	site, _ = addr.Prefix(siteBits)
	return host, site
}

// bare takes off what can vary between spellings of one address: the zone, and
// the mapping of IPv4 into IPv6 that a dual-stack socket reports.
func bare(addr netip.Addr) netip.Addr {
	return addr.WithZone("").Unmap()
}

// lookThrough returns the IPv4 address in the last 32 bits of addr if one of
// the embedded prefixes holds addr, and else addr.
func lookThrough(addr netip.Addr, embedded []netip.Prefix) netip.Addr {
	for _, p := range embedded {
		if p.Contains(addr) {
			all := addr.As16()
			return netip.AddrFrom4([4]byte(all[12:]))
		}
	}
	return addr
}
