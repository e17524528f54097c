package hostport

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestParseBind(t *testing.T) {
	tests := []struct {
		bind, host string
		port       uint16
		loopback   bool
		says       string // of the error
	}{
		{"127.0.0.1:8443", "127.0.0.1", 8443, true, ""},
		{"127.9.9.9:0", "127.9.9.9", 0, true, ""},
		{"[::1]:65535", "::1", 65535, true, ""},
		{"[::ffff:127.0.0.1]:1", "127.0.0.1", 1, true, ""},
		{"localhost:1", "127.0.0.1", 1, true, ""},
		{"0.0.0.0:1", "0.0.0.0", 1, false, ""},
		{"[::]:1", "::", 1, false, ""},
		{":1", "::", 1, false, ""},
		{"192.0.2.1:1", "192.0.2.1", 1, false, ""},
		{"[fe80::1%lo]:1", "fe80::1%lo", 1, false, ""},
		{"127.0.0.1", "", 0, false, "write host:port"},
		{"::1:8443", "", 0, false, "write host:port"},
		{"", "", 0, false, "write host:port"},
		{"127.0.0.1:", "", 0, false, "0 to 65535"},
		{"127.0.0.1:65536", "", 0, false, "0 to 65535"},
		{"127.0.0.1:-1", "", 0, false, "0 to 65535"},
		{"127.0.0.1:00", "", 0, false, "0 to 65535"},
		{"127.0.0.1:https", "", 0, false, "0 to 65535"},
		{"example.org:443", "", 0, false, "no IP address"},
		{"010.0.0.1:443", "", 0, false, "no IP address"},
	}
	for _, tt := range tests {
		b, err := ParseBind(tt.bind)
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q: %v; want %q", tt.bind, err, tt.says)
			}
			continue
		}
		if err != nil || b.Host != netip.MustParseAddr(tt.host) || b.Port != tt.port || b.Loopback() != tt.loopback {
			t.Errorf("%q: %+v, loopback %v, %v", tt.bind, b, b.Loopback(), err)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:7", "127.0.0.1:7", true},
		{"127.0.0.1:7", "127.0.0.1:8", false},
		{"127.0.0.1:7", "127.0.0.2:7", false},
		{"127.0.0.1:0", "127.0.0.1:0", false},
		{"0.0.0.0:7", "192.0.2.1:7", true},
		{"0.0.0.0:7", "[::1]:7", false},
		{"[::]:7", "192.0.2.1:7", true},
		{":7", "[2001:db8::1]:7", true},
		{"localhost:7", "127.0.0.1:7", true},
		{"[::ffff:10.0.0.1]:7", "10.0.0.1:7", true},
	} {
		a, errA := ParseBind(tt.a)
		b, errB := ParseBind(tt.b)
		if errA != nil || errB != nil || a.Overlaps(b) != tt.want || b.Overlaps(a) != tt.want {
			t.Errorf("%s and %s: %v, want %v", tt.a, tt.b, a.Overlaps(b), tt.want)
		}
	}
}

// An IPv4 bind is IPv4 alone, all of it too; [::] takes both.
func TestListenTakesItsFamily(t *testing.T) {
	for bind, families := range map[string][]string{
		"0.0.0.0:0": {"tcp4"}, "127.0.0.1:0": {"tcp4"}, "[::1]:0": {"tcp6"}, "[::]:0": {"tcp4", "tcp6"}, ":0": {"tcp4", "tcp6"},
	} {
		b, err := ParseBind(bind)
		if err != nil {
			t.Fatal(err)
		}
		ln, err := b.Listen()
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		for family, host := range map[string]string{"tcp4": "127.0.0.1", "tcp6": "::1"} {
			c, err := net.Dial(family, net.JoinHostPort(host, port))
			if taken := err == nil; taken != strings.Contains(strings.Join(families, " "), family) {
				t.Errorf("%s takes %s: %v", bind, family, taken)
			}
			if err == nil {
				c.Close()
			}
		}
		ln.Close()
	}
}

func TestListenSaysWhatToDo(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for bind, want := range map[string]string{
		ln.Addr().String(): "another process listens there",
		"192.0.2.1:1":      "this machine has no such address",
	} {
		b, err := ParseBind(bind)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Listen(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), bind) {
			t.Errorf("%s: %v; want %q", bind, err, want)
		}
	}
}

func TestCheckTarget(t *testing.T) {
	for target, says := range map[string]string{
		"127.0.0.1:7777": "", "[::1]:7777": "", "relay.internal:7777": "",
		"127.0.0.1": "host:port", ":7777": "host:port", "::1:7777": "host:port", "": "host:port",
		"127.0.0.1:0": "1 to 65535", "127.0.0.1:00": "1 to 65535", "127.0.0.1:07777": "1 to 65535",
		"127.0.0.1:65536": "1 to 65535", "127.0.0.1:http": "1 to 65535",
		"unix:/run/relay.sock": "", "unix:relay.sock": "", "unix:": "has no path",
		"unix:/run/\x00": "NUL", "unix:@relay": "abstract", "unix:/etc/relayedge/@relay": "abstract",
		"unix:/" + strings.Repeat("x", 106): "", "unix:/" + strings.Repeat("x", 107): "108 bytes",
	} {
		err := CheckTarget(target)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v; want %q", target, err, says)
		}
	}
}
