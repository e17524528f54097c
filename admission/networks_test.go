package admission

import (
	"net/netip"
	"testing"
)

func TestNetworks(t *testing.T) {
	for _, none := range []Networks{{}, NewNetworks(nil)} {
		if !none.Empty() || none.Contains(v4) || none.Contains(nobody) {
			t.Error("a set of no network is not empty")
		}
	}
	n := NewNetworks(prefixes("10.0.0.0/8", "::ffff:192.0.2.0/120", "fe80::/10", "::1/128"))
	if n.Empty() {
		t.Error("a set of networks is empty")
	}
	for _, addr := range addrs("10.1.2.3", "::ffff:10.1.2.3", "::ffff:10.1.2.3%eth0", "192.0.2.10", "::ffff:c000:20a", "fe80::1%eth0", "0:0:0:0:0:0:0:1") {
		if !n.Contains(addr) {
			t.Errorf("%v is not held", addr)
		}
	}
	for _, addr := range append(addrs("11.0.0.1", "192.0.3.1", "::10.1.2.3", "::2", "0.0.0.0", "64:ff9b::10.1.2.3"), netip.Addr{}) {
		if n.Contains(addr) {
			t.Errorf("%v is held", addr)
		}
	}
}
