package main_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
)

// HAProxy and nginx as what stands behind the edge: they take our header, with
// every TLV in it, and report the client's address, not the edge's.

// HAProxy verifies the checksum, and tells the authority and the unique id too.
func TestHAProxyReceivesOurHeader(t *testing.T) {
	t.Parallel()
	peer(t, "haproxy")
	address := loopback4(t)
	haproxy(t, haproxyReceiver(address), address)
	seen := map[string]bool{}
	testReceiver(t, address, func(t *testing.T, r report, serverName string) {
		if got := strings.Trim(r.authority, "-"); got != serverName {
			t.Errorf("authority = %q, want %q", got, serverName)
		}
		if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(r.uniqueID) || seen[r.uniqueID] {
			t.Errorf("unique_id = %q after %v", r.uniqueID, seen)
		}
		seen[r.uniqueID] = true
	})
}

func TestNginxReceivesOurHeader(t *testing.T) {
	t.Parallel()
	peer(t, "nginx")
	address := loopback4(t)
	nginx(t, nginxReceiver(address), address)
	testReceiver(t, address, func(*testing.T, report, string) {})
}

func testReceiver(t *testing.T, receiver string, more func(t *testing.T, r report, serverName string)) {
	needIPv6(t)
	e := runEdge(t, fmt.Sprintf(`
listeners:
  - {name: tls4, bind: "127.0.0.1:0"}
  - {name: tls6, bind: "[::1]:0"}
  - {name: tls46, bind: "[::]:0"}
  - {name: tls13, bind: "127.0.0.1:0", tls_min_version: "1.3"}
  - {name: plain4, bind: "127.0.0.1:0", tls: none}
  - {name: plain6, bind: "[::1]:0", tls: none}
  - {name: plain46, bind: "[::]:0", tls: none}
upstreams:
  relay:
    addresses: [%q]
    proxy_tlvs: [alpn, authority, ssl, unique_id, crc32c, channel_binding]
`, receiver))
	for _, row := range []struct{ listener, from, serverName string }{
		{"tls4", "127.0.0.7", "localhost"},
		{"tls4", "127.200.0.7", "localhost"},
		{"tls6", "::1", "localhost"},
		{"tls46", "127.0.0.7", "localhost"},
		{"tls46", "::1", "localhost"},
		{"tls13", "127.0.0.7", "localhost"},
		{"plain4", "127.0.0.7", ""},
		{"plain6", "::1", ""},
		{"plain46", "127.0.0.7", ""},
		{"plain46", "::1", ""},
	} {
		t.Run(row.listener+" from "+row.from, func(t *testing.T) {
			_, port, err := net.SplitHostPort(e.listeners[row.listener])
			if err != nil {
				t.Fatal(err)
			}
			host := "127.0.0.1"
			if netip.MustParseAddr(row.from).Is6() {
				host = "::1"
			}
			conn, err := dial(t.Context(), row.from, net.JoinHostPort(host, port), row.serverName)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			r := reported(t, conn)
			more(t, r, row.serverName)
		})
	}

	// What looks like a header and comes from the client is payload: no HTTP, and
	// nobody's address.
	conn, err := dial(t.Context(), "127.0.0.7", e.listeners["plain4"], "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n")
	if code, body, err := request(conn); err != nil || code != 400 {
		t.Errorf("a header within the stream gets status %d, %v: %s", code, err, body)
	}
}

// reported asks the receiver behind a connection and holds its report against
// the two ends of the connection as the client knows them.
func reported(t *testing.T, conn net.Conn) report {
	t.Helper()
	code, body, err := request(conn)
	if err != nil || code != 200 {
		t.Fatalf("status %d, %v: %s", code, err, body)
	}
	r, err := readReport(body)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.source.String(), conn.LocalAddr().String(); got != want {
		t.Errorf("the receiver takes the client for %s, want %s", got, want)
	}
	if got, want := r.destination.String(), conn.RemoteAddr().String(); got != want {
		t.Errorf("the receiver takes the client's destination for %s, want %s", got, want)
	}
	return r
}
