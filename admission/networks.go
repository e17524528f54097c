package admission

import (
	"fmt"
	"net/netip"

	"github.com/gaissmai/bart"
)

// Networks is a set of networks. It is matched by address, not by spelling:
// IPv4-mapped networks and addresses mean the IPv4 ones, and zones mean nothing.
// The zero Networks is empty.
type Networks struct {
	table *bart.Lite // nil: empty
}

// NewNetworks returns the set of the given networks.
func NewNetworks(networks []netip.Prefix) Networks {
	if len(networks) == 0 {
		return Networks{}
	}
	table := new(bart.Lite)
	for _, p := range networks {
		table.Insert(unmapPrefix(p))
	}
	return Networks{table}
}

// Contains reports whether one of the networks holds addr.
func (n Networks) Contains(addr netip.Addr) bool {
	return n.table != nil && addr.IsValid() && n.table.Lookup(bare(addr))
}

// Empty reports whether the set holds no network.
func (n Networks) Empty() bool { return n.table == nil }

// networkFault says what is wrong with a network, or nothing.
func networkFault(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return "not a network"
	case p != p.Masked():
		return fmt.Sprintf("%v has bits beyond its length, write %v", p, p.Masked())
	}
	return ""
}

// unmapPrefix returns the IPv4 network that an IPv4-mapped one means.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}
