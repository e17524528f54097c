package admission

import "net/netip"

// Keys returns the host and the site of addr. IPv4-mapped addresses are
// unmapped first, zones are dropped, and an address inside one of the embedded
// prefixes is looked through to the IPv4 address in its last 32 bits. The site
// of an IPv4 address is the zero Prefix; both are zero for the zero Addr.
func Keys(addr netip.Addr, embedded []netip.Prefix) (host, site netip.Prefix) { panic("stub") }

// Source returns the fair-share key of addr: an IPv4 address, or an IPv6 /48.
func Source(addr netip.Addr, embedded []netip.Prefix) netip.Prefix { panic("stub") }
