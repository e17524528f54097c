package relaycore

import (
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"net/netip"

	"relayedge/admission"
)

// source stands for the address, or the IPv6 /48, that a session's client has:
// a keyed hash, which says only whether two clients share one.
type source uint64

// key is the source as the ledgers take it.
func (s source) key() netip.Prefix {
	var b [16]byte
	binary.BigEndian.PutUint64(b[8:], uint64(s))
	return netip.PrefixFrom(netip.AddrFrom16(b), 128)
}

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

// prefix is the source of addr as the mailbox takes it, which knows it again
// after a restart.
func (s *sources) prefix(addr netip.Addr) netip.Prefix { return admission.Source(addr, s.embedded) }

// payer returns who pays for the bytes of a session from src: its source, or the
// session alone where sources are not known.
func (s *sources) payer(src source) source {
	if !s.known {
		return source(rand.Uint64())
	}
	return src
}
