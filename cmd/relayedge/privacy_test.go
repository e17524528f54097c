package main_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// Whatever a client does, neither the log, at its most talkative, nor the metrics
// say its address or the name that it asked for.
func TestNoClientInLogsAndMetrics(t *testing.T) {
	t.Parallel()
	const from, named = "127.0.0.77", "203.0.113.9"
	e := runEdge(t, `
listeners:
  - {name: direct, bind: "127.0.0.1:0"}
  - {name: behind, bind: "127.0.0.1:0", trust_proxy_from: [127.0.0.77/32]}
  - {name: distrusting, bind: "127.0.0.1:0", trust_proxy_from: [192.0.2.0/24]}
relay: {in_process: true, bind: "127.0.0.1:0"}
limits: {max_connections_per_ip: 1, deny: [203.0.113.0/24]}
log: {level: debug}
`)
	secure := func(conn net.Conn, name string) (net.Conn, error) {
		c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: name})
		return c, c.HandshakeContext(t.Context())
	}
	for _, row := range []struct {
		does     string
		listener string
		do       func(net.Conn) error
		reason   string
	}{
		{"asks the relay for a page", "direct", func(conn net.Conn) error {
			c, err := secure(conn, "localhost")
			if err == nil {
				_, _, err = request(c)
				io.Copy(io.Discard, c) // until the relay has ended it, first
			}
			return err
		}, "upstream_closed"},
		{"asks for another name", "direct", func(conn net.Conn) error { _, err := secure(conn, "private.example"); return err }, "unknown_server_name"},
		{"speaks no TLS", "direct", func(conn net.Conn) error { _, err := io.WriteString(conn, "EHLO private.example\r\n"); return err }, "not_tls"},
		{"sends no header", "behind", func(conn net.Conn) error { _, err := io.WriteString(conn, "EHLO private.example\r\n"); return err }, "proxy_header"},
		{"is named and denied", "behind", func(conn net.Conn) error {
			_, err := fmt.Fprintf(conn, "PROXY TCP4 %s 192.0.2.1 1 2\r\n", named)
			return err
		}, "denied"},
		{"is not trusted", "distrusting", func(net.Conn) error { return nil }, "proxy_untrusted"},
		{"is one too many", "direct", func(conn net.Conn) error {
			second, err := dial(t.Context(), from, e.listeners["direct"], "")
			if err == nil {
				defer second.Close()
				_, err = second.Read(make([]byte, 1))
			}
			return err
		}, "per_ip_cap"},
	} {
		conn, err := dial(t.Context(), from, e.listeners[row.listener], "")
		if err != nil {
			t.Fatal(err)
		}
		local := conn.LocalAddr().String()
		// Its end is told by the counter: what the client sees of it is its own.
		row.do(conn)
		conn.Close()
		e.shows(t, fmt.Sprintf("relayedge_ended_total{reason=%q} 1", row.reason), `relayedge_connections{listener="direct"} 0`, `relayedge_connections{listener="behind"} 0`)
		_, port, _ := net.SplitHostPort(local)
		_, metrics, err := get(e.metrics)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{from, named, ":" + port, "private.example"} {
			if strings.Contains(e.stderr.String(), secret) || strings.Contains(metrics, secret) {
				t.Errorf("a client that %s is told of: %s\n%s", row.does, secret, e.stderr.String())
			}
		}
	}
	if !strings.Contains(e.stderr.String(), "level=DEBUG") {
		t.Error("nothing was logged at the level debug, so this test has seen nothing")
	}
}
