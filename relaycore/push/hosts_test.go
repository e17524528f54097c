package push

import (
	"net/netip"
	"strings"
	"testing"
)

// Which hosts an entry of allowed_hosts stands for.
func TestHosts(t *testing.T) {
	h, err := newHosts([]string{"push.example.org", "Push2.Example.org:8443", "*.up.example.net", "*.example.com:444"})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{
		"push.example.org:443":      true,
		"push.example.org:8443":     false,
		"a.push.example.org:443":    false,
		"example.org:443":           false,
		"push2.example.org:8443":    true,
		"push2.example.org:443":     false,
		"a.up.example.net:443":      true,
		"a.b.up.example.net:443":    true,
		"up.example.net:443":        false,
		"xup.example.net:443":       false,
		"a.example.com:444":         true,
		"a.example.com:443":         false,
		"a.up.example.net.evil:443": false,
		"evil:443":                  false,
	} {
		if h.allow(host) != want {
			t.Errorf("%s: %v", host, !want)
		}
	}
	if h, _ := newHosts(nil); h.allow("push.example.org:443") {
		t.Error("an empty list allows a host")
	}
}

func TestHostsRefused(t *testing.T) {
	for _, entry := range []string{
		"", "*", "*.", "a.*.b", "**.example.org", ".example.org", "example.org.", "a..b", "-a.org", "a-.org", "https://example.org", "example.org/", "user@example.org",
		"example.org:", "example.org:0", "example.org:0443", "example.org:65536", "example.org:https", "127.0.0.1", "*.1", "127.1", "2130706433", "0x7f000001", "a.0x1", "[::1]", "::1",
		"exämple.org", "exa mple.org", strings.Repeat("a", 64) + ".org", strings.Repeat("a.", 127) + "org",
	} {
		if h, err := newHosts([]string{"good.example", entry}); err == nil || !strings.HasPrefix(err.Error(), "allowed_hosts[1]: ") {
			t.Errorf("%q gives %v: %v", entry, h, err)
		}
	}
}

// What an endpoint may look like, and whom it calls.
func TestHostOf(t *testing.T) {
	for endpoint, want := range map[string]string{
		"https://push.example.org":                          "push.example.org:443",
		"https://push.example.org/up?token=s3cret&x=%2f":    "push.example.org:443",
		"https://Push.Example.ORG:443/UP":                   "push.example.org:443",
		"https://push.example.org:8443/":                    "push.example.org:8443",
		"https://" + strings.Repeat("a/", (1024-8)/2):       "a:443",
		"https://" + strings.Repeat("a/", (1024-8)/2) + "b": "",
		"":                                     "",
		"http://push.example.org/":             "",
		"HTTP://push.example.org/":             "",
		"ftp://push.example.org/":              "",
		"//push.example.org/":                  "",
		"push.example.org":                     "",
		"https:push.example.org":               "",
		"https:///path":                        "",
		"https://user@push.example.org/":       "",
		"https://user:pw@push.example.org/":    "",
		"https://push.example.org/#":           "",
		"https://push.example.org/#fragment":   "",
		"https://push.example.org:/":           "",
		"https://push.example.org:0/":          "",
		"https://push.example.org:99999/":      "",
		"https://push.example.org./":           "",
		"https://127.0.0.1/":                   "",
		"https://2130706433/":                  "",
		"https://0x7f.1/":                      "",
		"https://[::1]/":                       "",
		"https://[::ffff:127.0.0.1]:443/":      "",
		"https://push.example.org@127.0.0.1/":  "",
		"https://push.example.org /":           "",
		"https://push.example.org/a b":         "",
		"https://push.example.org/\r\nHost: x": "",
		"https://push.example.org/\x00":        "",
		"https://push.example.org/ü":           "",
		"https://push.example.org/%zz":         "",
		"https://püsh.example.org/":            "",
	} {
		got, err := hostOf(endpoint)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.80q: %q %v", endpoint, got, err)
		}
		if err != nil && (len(endpoint) > 3 && strings.Contains(err.Error(), endpoint) || strings.Contains(err.Error(), "push.example")) {
			t.Errorf("the error tells the endpoint: %v", err)
		}
	}
}

// Nothing but public addresses may be called: the first and the last of each
// range that is none, in every form that leads there, and its neighbours.
func TestPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "8.8.8.8": true, "9.255.255.255": true, "11.0.0.0": true,
		"0.0.0.0": false, "0.255.255.255": false, "10.0.0.0": false, "10.255.255.255": false,
		"100.63.255.255": true, "100.64.0.0": false, "100.127.255.255": false, "100.128.0.0": true,
		"126.255.255.255": true, "127.0.0.1": false, "127.255.255.255": false, "128.0.0.0": true,
		"169.253.255.255": true, "169.254.0.0": false, "169.254.169.254": false, "169.255.0.0": true,
		"172.15.255.255": true, "172.16.0.0": false, "172.31.255.255": false, "172.32.0.0": true,
		"192.0.0.0": false, "192.0.0.255": false, "192.0.2.1": false, "192.88.99.1": false, "192.0.3.0": true,
		"192.167.255.255": true, "192.168.0.0": false, "192.168.255.255": false, "192.169.0.0": true,
		"198.17.255.255": true, "198.18.0.0": false, "198.19.255.255": false, "198.20.0.0": true,
		"198.51.100.1": false, "203.0.113.1": false, "223.255.255.255": true,
		"224.0.0.1": false, "239.255.255.255": false, "240.0.0.0": false, "255.255.255.255": false,

		"2606:4700:4700::1111": true, "2a00::1": true,
		"::": false, "::1": false, "::127.0.0.1": false, "::8.8.8.8": false,
		"::ffff:8.8.8.8": true, "::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:169.254.169.254": false,
		"64:ff9b::8.8.8.8": true, "64:ff9b::127.0.0.1": false, "64:ff9b::10.0.0.1": false, "64:ff9b::a9fe:a9fe": false,
		"64:ff9b:1::8.8.8.8": false, "64:ff9b:1:ffff::1": false,
		"100::1": false, "2001::1": false, "2001:1ff:ffff::1": false, "2001:db8::1": false, "2001:200::1": true,
		"2002:7f00:1::": false, "2002:808:808::1": false, "3fff::1": false, "3fff:fff:ffff::1": false, "4000::1": false,
		"5f00::1": false, "fc00::1": false, "fdff::1": false, "fe80::1": false, "fe80::1%eth0": false, "2606:4700::1%eth0": false,
		"fec0::1": false, "ff02::1": false, "ff0e::1": false,
	} {
		if public(netip.MustParseAddr(text), nil) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
	if public(netip.Addr{}, nil) {
		t.Error("no address is public")
	}
	own := []netip.Prefix{netip.MustParsePrefix("2a00:64::/96")}
	for text, want := range map[string]bool{"2a00:64::8.8.8.8": true, "2a00:64::10.0.0.1": false, "2a00:65::10.0.0.1": true} {
		if public(netip.MustParseAddr(text), own) != want {
			t.Errorf("%s with a translator of the operator's own: %v", text, !want)
		}
	}
}
