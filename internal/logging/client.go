package logging

import (
	"log/slog"
	"net/netip"
)

// Client is the attribute that says whose connection a line is about. What it
// shows is decided by log.client_addresses, for all lines alike: nothing, the
// network (IPv4 /24, IPv6 /48), or the address, in its canonical form and
// without zone and port. The zero address, of a peer that has none, shows
// nothing. On a logger that is not of this package it shows nothing.
func Client(addr netip.Addr) slog.Attr {
	return slog.Any("client", client{addr})
}

type client struct{ addr netip.Addr }

// LogValue is empty, so that a handler which does not know the type writes nothing.
func (client) LogValue() slog.Value { return slog.GroupValue() }

// attr is what may be shown, or the zero Attr.
func (c client) attr(key, shows string) slog.Attr {
	addr := c.addr.Unmap().WithZone("")
	if !addr.IsValid() {
		return slog.Attr{}
	}
	switch shows {
	case "full":
		return slog.String(key, addr.String())
	case "prefix":
		return slog.String(key, Network(addr).String())
	}
	return slog.Attr{}
}

// Network is what log.client_addresses: prefix shows of a valid address: its IPv4
// /24 or its IPv6 /48.
func Network(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := 48
	if addr.Is4() {
		bits = 24
	}
	network, _ := addr.Prefix(bits) // the length fits the family
	return network
}
