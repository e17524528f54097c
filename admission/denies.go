package admission

import "net/netip"

// Denies reports whether the deny list holds addr, or what it embeds. It charges
// nothing. The zero addr is on no list.
func (g *Gate) Denies(addr netip.Addr) bool { return g.read(addr).denied }
