package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"relayedge/internal/status"
	"relayedge/internal/telemetry"
	"relayedge/proxy"
)

func TestCapped(t *testing.T) {
	host := func(network string, connections int) proxy.Holder {
		return proxy.Holder{Network: netip.MustParsePrefix(network), Connections: connections, Cap: connections}
	}
	site := func(network string, connections int) proxy.Holder {
		h := host(network, connections)
		h.Site = true
		return h
	}
	at := []proxy.Holder{
		site("2001:db8:1::/48", 256), host("203.0.113.9/32", 64), host("203.0.113.77/32", 64), host("198.51.100.1/32", 64),
		host("2001:db8:1:1::/64", 64), host("2001:db8:1:2::/64", 64), host("2001:db8:2:1::/64", 64),
	}
	networks := []status.Network{
		{Network: "2001:db8:1::/48", Hosts: 2, Sites: 1, Connections: 256}, // the site's hold those of the hosts
		{Network: "203.0.113.0/24", Hosts: 2, Connections: 128},
		{Network: "198.51.100.0/24", Hosts: 1, Connections: 64},
		{Network: "2001:db8:2::/48", Hosts: 1, Connections: 64},
	}
	for addresses, want := range map[string]status.Capped{
		"none":   {Hosts: 6, Sites: 1, Networks: []status.Network{}},
		"prefix": {Hosts: 6, Sites: 1, Shown: true, Networks: networks},
		"full":   {Hosts: 6, Sites: 1, Shown: true, Networks: networks},
	} {
		if got := capped(at, addresses); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", addresses, got, want)
		}
	}
	var many []proxy.Holder
	for i := range networksListed + 3 {
		many = append(many, host(fmt.Sprintf("203.0.%d.9/32", i), 64))
	}
	if got := capped(many, "prefix"); len(got.Networks) != networksListed || got.More != 3 || got.Hosts != networksListed+3 {
		t.Errorf("%d networks, %d more, %d hosts", len(got.Networks), got.More, got.Hosts)
	}
	if got := capped(nil, "prefix"); got.Networks == nil || len(got.Networks) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestLimitsOfTheStatus(t *testing.T) {
	f := telemetry.Family{Read: func(emit func(string, float64)) {
		emit("max_connections", 10000)
		emit("first_byte_timeout_secs", 0)
		emit("drain_secs", 0)
		emit("max_connections_per_ip", 0)
	}}
	got := limits(f, map[string]int{"max_connections": 7, "max_connections_per_ip": 3})
	want := []status.Limit{
		{Limit: "max_connections", Value: 10000, Used: new(int64(7))},
		{Limit: "first_byte_timeout_secs", Off: true},
		{Limit: "drain_secs"}, // at once, and not off
		{Limit: "max_connections_per_ip", Off: true, Used: new(int64(3))},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
