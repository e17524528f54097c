package relaycore

import (
	"hash/maphash"
	"net/netip"

	"relayedge/admission"
)

// source stands for the address, or the IPv6 /48, that a session's client has:
// a keyed hash, which says only whether two clients share one.
type source uint64

// sources makes them.
type sources struct {
	// Static.
	known    bool // whether addresses tell clients apart
	key      maphash.Seed
	embedded []netip.Prefix
}

// of returns the source of addr. Clients without an address are one source.
func (s *sources) of(addr netip.Addr) source {
	if !s.known {
		addr = netip.Addr{}
	}
	return source(maphash.Comparable(s.key, admission.Source(addr, s.embedded)))
}
