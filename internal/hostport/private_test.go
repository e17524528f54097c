package hostport

import (
	"net/netip"
	"testing"
)

func TestPrivate(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "127.255.255.255": true, "::1": true,
		"10.0.0.1": true, "11.0.0.0": false,
		"172.15.255.255": false, "172.16.0.0": true, "172.31.255.255": true, "172.32.0.0": false,
		"192.168.0.1": true, "192.169.0.0": false,
		"100.63.255.255": false, "100.64.0.0": true, "100.127.255.255": true, "100.128.0.0": false,
		"169.254.0.1": true, "fe80::1": true, "fd00::1": true, "fc00::1": true, "fe00::1": false,
		"198.51.100.1": false, "2001:db8::1": false, "0.0.0.0": false, "::": false,
	} {
		if got := Private(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
}
