package hostport

import "net/netip"

// carriers is what carriers number their own networks with (RFC 6598).
var carriers = netip.MustParsePrefix("100.64.0.0/10")

// Private reports whether an address is none of the internet's: loopback, of a
// link, or of a network that is numbered by itself (RFC 1918, RFC 4193, RFC 6598).
// An IPv4-mapped address is to be unmapped before.
func Private(addr netip.Addr) bool {
	return addr.IsLoopback() || addr.IsPrivate() || addr.IsLinkLocalUnicast() || carriers.Contains(addr)
}
