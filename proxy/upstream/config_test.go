package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"relayedge/internal/keyfault"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestValidate(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprintf("127.0.0.1:%d", i+1)
	}
	addresses := func(a ...string) func(*Config) { return func(c *Config) { c.Addresses = a } }
	tlvs := func(m map[string]string) func(*Config) { return func(c *Config) { c.CustomTLVs = m } }
	from := func(address string, networks ...string) func(*Config) {
		return func(c *Config) { c.Addresses, c.SourceAddresses = []string{address}, prefixes(networks...) }
	}
	tests := []struct {
		change    func(*Config)
		key, says string // no key: valid
	}{
		{addresses("127.0.0.1:7777"), "", ""},
		{addresses("relay.internal:7777"), "", ""},
		{addresses("127.0.0.1:1", "[::1]:1", "unix:/run/relay.sock"), "", ""},
		{addresses(many[:64]...), "", ""},
		{addresses(many...), "addresses", "1 to 64"},
		{addresses(), "addresses", "1 to 64"},
		{addresses("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"), "addresses[2]", "stands twice"},
		{addresses("127.0.0.1:1", "127.0.0.1"), "addresses[1]", "host:port"},
		{addresses("127.0.0.1:00"), "addresses[0]", "1 to 65535"},
		{addresses("unix:"), "addresses[0]", "no path"},
		{addresses("unix:@relay"), "addresses[0]", "abstract"},

		{tlvs(map[string]string{"224": "a", "239": ""}), "", ""},
		{tlvs(map[string]string{"223": "a"}), "custom_tlvs.223", "224 to 239"},
		{tlvs(map[string]string{"240": "a"}), "custom_tlvs.240", "224 to 239"},
		{tlvs(map[string]string{"0xE0": "a"}), "custom_tlvs.0xE0", "plain number"},
		{tlvs(map[string]string{"+225": "a"}), "custom_tlvs.+225", "plain number"},
		{tlvs(map[string]string{"228": "a"}), "", ""},
		{func(c *Config) {
			c.CustomTLVs, c.ProxyTLVs = map[string]string{"228": "a"}, []string{"channel_binding"}
		}, "custom_tlvs.228", "channel binding"},
		{tlvs(map[string]string{"224": strings.Repeat("x", 2045)}), "", ""},
		{tlvs(map[string]string{"224": strings.Repeat("x", 2042), "225": "x"}), "custom_tlvs", "2049 bytes"},
		{func(c *Config) { c.CustomTLVs, c.ClientAddress = map[string]string{"224": "a"}, "proxy-v1" }, "custom_tlvs", "proxy-v2"},
		{func(c *Config) { c.CustomTLVs, c.ClientAddress = map[string]string{"224": "a"}, "none" }, "custom_tlvs", "proxy-v2"},

		{from("127.0.0.1:1", "127.0.0.0/16"), "", ""},
		{from("127.0.0.1:1", "127.0.0.0/15"), "source_addresses[0]", "65536"},
		{from("[::1]:1", "2001:db8::/112"), "", ""},
		{from("[::1]:1", "2001:db8::/112", "2001:db8::1:0/128"), "source_addresses[1]", "65536"},
		{from("[::1]:1", "2001:db8::/64"), "source_addresses[0]", "65536"},
		{from("[::1]:1", "::/0"), "source_addresses[0]", "65536"},
		{from("127.0.0.1:1", "127.0.0.1/32", "0.0.0.0/32"), "source_addresses[1]", "0.0.0.0/32 is no address at all"},
		{from("127.0.0.1:1", "0.0.0.0/24"), "source_addresses[0]", "no address at all"},
		{from("[::1]:1", "::/128"), "source_addresses[0]", "no address at all"},
		{from("127.0.0.1:1", "224.0.0.1/32"), "source_addresses[0]", "multicast"},
		{from("127.0.0.1:1", "239.255.255.0/24"), "source_addresses[0]", "multicast"},
		{from("[::1]:1", "ff02::1/128"), "source_addresses[0]", "multicast"},
		{from("127.0.0.1:1", "255.255.255.255/32"), "source_addresses[0]", "broadcast"},
		{from("127.0.0.1:1", "255.255.255.254/31"), "source_addresses[0]", "broadcast"},
		{from("[::1]:1", "127.0.0.1/32"), "source_addresses", "none is IPv6"},
		{from("[::ffff:127.0.0.1]:1", "127.0.0.1/32"), "", ""},
		{from("127.0.0.1:1", "2001:db8::/120"), "source_addresses", "none is IPv4"},
		{from("relay.internal:1", "2001:db8::/120"), "", ""},
		{from("unix:/run/s", "2001:db8::/120"), "", ""},
	}
	for i, tt := range tests {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c := validConfig()
			tt.change(&c)
			err := c.Validate()
			if tt.key == "" {
				if err != nil {
					t.Errorf("Validate: %v", err)
				}
				return
			}
			for _, each := range all(err) {
				if fault, ok := errors.AsType[*keyfault.Fault](each); ok && fault.Key == tt.key && strings.Contains(fault.Text, tt.says) {
					return
				}
			}
			t.Errorf("Validate: %v; want one of %s that says %q", err, tt.key, tt.says)
		})
	}
}

// all takes joined errors apart.
func all(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var each []error
	for _, e := range joined.Unwrap() {
		each = append(each, all(e)...)
	}
	return each
}

func TestCustomTLVsInOrder(t *testing.T) {
	c := validConfig()
	c.CustomTLVs = map[string]string{"239": "c", "224": "a", "230": "b"}
	var got strings.Builder
	for _, tlv := range c.customTLVs() {
		got.WriteString(fmt.Sprintf("%d%s ", tlv.Type, tlv.Value))
	}
	if got.String() != "224a 230b 239c " {
		t.Error(got.String())
	}
}

func TestTold(t *testing.T) {
	for client, want := range map[string]string{
		"proxy-v2": "told the client's address by PROXY v2", "proxy-v1": "told the client's address by PROXY v1",
		"none": "not told the client's address",
	} {
		if got := (Config{ClientAddress: client}).Told(); got != want {
			t.Errorf("%s: %q", client, got)
		}
	}
}

// The addresses of the networks, each once and in order; an IPv4 network has
// none at its ends.
func TestSources(t *testing.T) {
	s, err := newSources(prefixes("192.0.2.9/32", "198.51.100.0/30", "203.0.113.4/31", "192.0.0.0/17", "2001:db8::fffe/127"))
	if err != nil {
		t.Fatal(err)
	}
	if v4, v6 := s.count(ipv4), s.count(ipv6); v4 != 1+2+2+32766 || v6 != 2 {
		t.Errorf("%d IPv4 and %d IPv6 addresses", v4, v6)
	}
	for i, want := range []string{"192.0.2.9", "198.51.100.1", "198.51.100.2", "203.0.113.4", "203.0.113.5", "192.0.0.1"} {
		if got := s.at(ipv4, i).String(); got != want {
			t.Errorf("IPv4 %d is %s, want %s", i, got, want)
		}
	}
	if got := s.at(ipv4, s.count(ipv4)-1).String(); got != "192.0.127.254" {
		t.Errorf("the last is %s", got)
	}
	if got := s.at(ipv4, 5+256).String(); got != "192.0.1.1" {
		t.Errorf("past a byte: %s", got)
	}
	for i, want := range []string{"2001:db8::fffe", "2001:db8::ffff"} {
		if got := s.at(ipv6, i).String(); got != want {
			t.Errorf("IPv6 %d is %s, want %s", i, got, want)
		}
	}
}
