package main

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
)

func at(address string) net.Addr {
	if strings.HasPrefix(address, "/") {
		return &net.UnixAddr{Name: address, Net: "unix"}
	}
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
}

// Each warning comes for its reason and says what to do; a policy without any
// reason has none.
func TestWarnings(t *testing.T) {
	const off = "limits: {max_connections_per_ip: 0, connection_rate_per_ip: 0}\n"
	const observing = "limits: {observe: [max_connections_per_ip]}\n"
	enough := service.Descriptors{Limit: 1 << 20, Connections: 10000, Each: 2, Sockets: 1}
	for _, row := range []struct {
		name, limits, on string
		d                service.Descriptors
		want             []string // a word of each
	}{
		{"nothing to say", "", "192.0.2.1:443", enough, nil},
		{"a limit that is not known", "", "192.0.2.1:443", service.Descriptors{Connections: 10000, Each: 2}, nil},
		{"too few descriptors", "", "127.0.0.1:443", service.Descriptors{Limit: 1024, Connections: 10000, Each: 2, Sockets: 1}, []string{"LimitNOFILE=20065"}},
		{"no cap and no rate", off, "192.0.2.1:443", enough, []string{"limits.max_connections_per_ip or limits.connection_rate_per_ip"}},
		{"on all addresses", off, "[::]:443", enough, []string{"limits.max_connections_per_ip"}},
		{"on all of IPv4", off, "0.0.0.0:443", enough, []string{"limits.max_connections_per_ip"}},
		{"on loopback", off, "127.0.0.1:443", enough, nil},
		{"on mapped loopback", off, "[::ffff:127.0.0.1]:443", enough, nil},
		{"on a private network", off, "10.0.0.1:443", enough, nil},
		{"on a ULA", off, "[fd00::1]:443", enough, nil},
		{"on a carrier's network", off, "100.64.0.1:443", enough, nil},
		{"on a unix socket", off, "/run/edge.sock", enough, nil},
		{"a rate alone", "limits: {max_connections_per_ip: 0}\n", "[::]:443", enough, nil},
		{"a cap alone", "limits: {connection_rate_per_ip: 0}\n", "[::]:443", enough, nil},
		{"observed", observing, "[::]:443", enough, []string{"limits.observe"}},
		{"observed on loopback", observing, "[::1]:443", enough, nil},
		{"addresses on the log", "log: {client_addresses: full}\n", "127.0.0.1:443", enough, []string{"log.client_addresses: prefix"}},
		{"networks on the log", "log: {client_addresses: prefix}\n", "[::]:443", enough, nil},
		{"all at once", "limits: {max_connections_per_ip: 0, connection_rate_per_ip: 0, observe: [max_connections_per_ipv6_48]}\nlog: {client_addresses: full}\n", "[::]:443",
			service.Descriptors{Limit: 256, Connections: 10000, Each: 3}, []string{"LimitNOFILE=30064", "log.client_addresses", "limits.max_connections_per_ip", "limits.observe"}},
	} {
		p, err := policy.LoadBytes("p.yaml", []byte(row.limits+"listeners: [{name: public, bind: \"127.0.0.1:1\", tls: none}]"))
		if err != nil {
			t.Fatal(err)
		}
		got := warnings(p, []net.Addr{at(row.on)}, row.d)
		ok := len(got) == len(row.want)
		for i := range min(len(got), len(row.want)) {
			ok = ok && strings.Contains(got[i].Text, row.want[i])
		}
		if !ok {
			t.Errorf("%s: %v, want %q", row.name, got, row.want)
		}
	}
}
