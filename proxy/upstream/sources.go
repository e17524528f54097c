package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"relayedge/internal/keyfault"
	"relayedge/internal/sockopt"
)

// maxSources bounds the source addresses of an upstream.
const maxSources = 65536

// sourceTries is how many source addresses one dial goes through: they are taken
// in turn, so that they run out of ports at about the same time, and finding out
// that one has none costs the kernel a walk through all of its ports.
const sourceTries = 8

type family string

const (
	ipv4 family = "IPv4"
	ipv6 family = "IPv6"
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// sources are the addresses that dials come from, in turn. A network stands for
// its addresses; of an IPv4 network, not for its first and last, which no host has.
type sources struct {
	ranges map[family][]addressRange
	turn   atomic.Uint64
}

// addressRange is a run of addresses that begin with the same bits.
type addressRange struct {
	first netip.Addr
	n     int
}

// newSources reads the networks; its error is a fault of the key source_addresses.
func newSources(networks []netip.Prefix) (*sources, error) {
	s := &sources{ranges: make(map[family][]addressRange)}
	total := 0
	for i, p := range networks {
		host := p.Addr().BitLen() - p.Bits()
		if host >= bits.Len(maxSources) {
			return nil, tooManySources(i)
		}
		if what := noSource(p); what != "" {
			return nil, keyfault.New(fmt.Sprintf("source_addresses[%d]", i), "%s is %s, and nothing to connect from; write addresses of this machine, or leave the key out: the system chooses then", p, what)
		}
		r := addressRange{p.Addr(), 1 << host}
		if p.Addr().Is4() && host >= 2 {
			r = addressRange{p.Addr().Next(), 1<<host - 2}
		}
		if total += r.n; total > maxSources {
			return nil, tooManySources(i)
		}
		f := familyOf(p.Addr())
		s.ranges[f] = append(s.ranges[f], r)
	}
	return s, nil
}

// noSource says what a network is whose addresses no connection can come from.
// The kernel binds to them and then chooses by itself, as if nothing was written.
func noSource(p netip.Prefix) string {
	a := p.Addr()
	switch {
	case a.IsUnspecified():
		return "no address at all"
	case a.IsMulticast():
		return "multicast"
	case a.BitLen()-p.Bits() < 2 && p.Contains(netip.AddrFrom4([4]byte{255, 255, 255, 255})):
		return "broadcast"
	}
	return ""
}

func tooManySources(i int) error {
	return keyfault.New(fmt.Sprintf("source_addresses[%d]", i), "makes more than %d addresses in all; write smaller networks", maxSources)
}

func (s *sources) count(f family) int {
	n := 0
	for _, r := range s.ranges[f] {
		n += r.n
	}
	return n
}

// at gives the i-th address of a family, from 0 to its count.
func (s *sources) at(f family, i int) netip.Addr {
	for _, r := range s.ranges[f] {
		if i < r.n {
			return offset(r.first, i)
		}
		i -= r.n
	}
	return netip.Addr{}
}

// offset adds i to an address; the network's size has made sure that it stays inside.
func offset(a netip.Addr, i int) netip.Addr {
	b := a.As16()
	for at := len(b) - 1; i > 0; at-- {
		i += int(b[at])
		b[at] = byte(i)
		i >>= 8
	}
	if a.Is4() {
		return netip.AddrFrom16(b).Unmap()
	}
	return netip.AddrFrom16(b)
}

// errNoSource: the target is of a family of which no source address is written.
var errNoSource = errors.New("source_addresses has none of the family of this target; add one")

// dial connects from the next source that has a port left. It tries
// sourceTries of them, and of each family each once.
func (s *sources) dial(ctx context.Context, options sockopt.Options, network, address string) (net.Conn, error) {
	turn := int(s.turn.Add(1) % (1 << 30))
	tries := min(sourceTries, max(s.count(ipv4), s.count(ipv6)))
	for try := 0; ; try++ {
		conn, err := s.dialFrom(ctx, options, network, address, turn, try)
		if err == nil || try+1 >= tries || !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return conn, err
		}
	}
}

// dialFrom binds each socket that the dial makes to the address that is next of
// the socket's family: a name may have addresses of both.
func (s *sources) dialFrom(ctx context.Context, options sockopt.Options, network, address string, turn, try int) (net.Conn, error) {
	dialer := options.Dialer()
	set := dialer.Control
	dialer.Control = func(network, address string, raw syscall.RawConn) error {
		if err := set(network, address, raw); err != nil {
			return err
		}
		f := ipv6
		if network == "tcp4" {
			f = ipv4
		}
		n := s.count(f)
		switch {
		case n == 0:
			return errNoSource
		case try >= n: // every one of this family has been tried
			return syscall.EADDRNOTAVAIL
		}
		source := s.at(f, (turn+try)%n)
		var bound error
		if err := raw.Control(func(fd uintptr) { bound = sockopt.BindSource(int(fd), source) }); err != nil {
			return err
		}
		if bound != nil { // it is not of this machine, most likely
			return fmt.Errorf("source address %s: %w", source, bound)
		}
		return nil
	}
	return dialer.DialContext(ctx, network, address)
}
