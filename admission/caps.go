package admission

import "net/netip"

// Caps are how many connections the policy in force lets the host and the site of
// an address have; 0: there is no cap, or no site.
type Caps struct{ Host, Site int }

// Caps returns the caps of addr. Of a fleet they are those that all edges keep
// together.
func (g *Gate) Caps(addr netip.Addr) Caps {
	s := g.settings.Load()
	if !addr.IsValid() {
		return Caps{}
	}
	inner := lookThrough(bare(addr), s.limits.EmbeddedIPv4)
	scopes := s.of(inner)
	c := Caps{Host: scopes.host.most}
	if _, site := keysOf(inner); site.IsValid() {
		c.Site = scopes.site.most
	}
	return c
}
