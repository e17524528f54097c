package main_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Whatever a client does, neither the log, at its most talkative, nor the metrics
// say the name that it asked for, nor more of its address than the policy
// allows; what is allowed stands on every line about its connection, be it the
// edge's or the relay's.
func TestClientsInLogsAndMetrics(t *testing.T) {
	for _, row := range []struct {
		addresses   string
		from, named string // as they are told; empty: not at all
	}{
		{"none", "", ""},
		{"prefix", "127.0.0.0/24", "203.0.113.0/24"},
		{"full", "127.0.0.77", "203.0.113.9"},
	} {
		t.Run(row.addresses, func(t *testing.T) {
			t.Parallel()
			clientsInLogsAndMetrics(t, row.addresses, row.from, row.named)
		})
	}
}

func clientsInLogsAndMetrics(t *testing.T, addresses, tellsFrom, tellsNamed string) {
	const from, named = "127.0.0.77", "203.0.113.9"
	e := runEdge(t, `
listeners:
  - {name: direct, bind: "127.0.0.1:0"}
  - {name: behind, bind: "127.0.0.1:0", trust_proxy_from: [127.0.0.77/32]}
  - {name: distrusting, bind: "127.0.0.1:0", trust_proxy_from: [192.0.2.0/24]}
relay: {in_process: true, bind: "127.0.0.1:0"}
limits: {max_connections_per_ip: 1, deny: [203.0.113.0/24]}
log: {level: debug, client_addresses: `+addresses+`}
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
		for _, secret := range []string{from, named, ":" + port, "private.example", "127.0.0.0/24", "203.0.113.0/24"} {
			allowed := secret == tellsFrom || secret == tellsNamed
			if strings.Contains(e.stderr.String(), secret) && !allowed || strings.Contains(metrics, secret) {
				t.Errorf("a client that %s is told of: %s\n%s", row.does, secret, e.stderr.String())
			}
		}
	}
	e.terminate(t)
	if _, err := e.ended(); err != nil {
		t.Error(err)
	}
	var edge, relay []string
	said := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^.*level=DEBUG msg="(.*?)"(.*)$`).FindAllStringSubmatch(e.stderr.String(), -1) {
		id := regexp.MustCompile(` id=([0-9a-f]{32}) `).FindStringSubmatch(m[2] + " ")
		if id == nil {
			t.Errorf("a line about a connection has no id: %s", m[0])
			continue
		}
		client := regexp.MustCompile(` client=(\S+)`).FindStringSubmatch(m[2])
		switch {
		case client != nil:
			said[client[1]] = true
		case addresses != "none":
			t.Errorf("a line about a connection says nothing of its client: %s", m[0])
		}
		if strings.Contains(m[2], "part=relay") {
			relay = append(relay, id[1])
		} else {
			edge = append(edge, id[1])
		}
	}
	want := map[string]bool{}
	if addresses != "none" {
		want = map[string]bool{tellsFrom: true, tellsNamed: true}
	}
	if !maps.Equal(said, want) {
		t.Errorf("clients are told as %v, want %v", said, want)
	}
	if len(relay) == 0 || len(edge) <= len(relay) {
		t.Errorf("the edge told of %d connections, the relay of %d", len(edge), len(relay))
	}
	for _, id := range relay {
		if !slices.Contains(edge, id) {
			t.Errorf("the relay tells of %s, the edge of %v", id, edge)
		}
	}
}

// What a relay sends that nobody has asked for stands in no log: it may be about
// another client, and there may be much of it.
func TestRelaysInLogs(t *testing.T) {
	t.Parallel()
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	go func() {
		for {
			conn, err := relay.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nX-Secret: private.example\r\n\r\n")
					io.Copy(io.Discard, conn)
				}
			}()
		}
	}()
	e := runEdge(t, `
listeners: [{name: web, bind: "127.0.0.1:0", protocol: http, tls: none}]
upstreams: {relay: {addresses: ["`+relay.Addr().String()+`"], client_address: x-real-ip, health_check_secs: 0}}
log: {level: debug}
`)
	conn, err := dial(t.Context(), "127.0.0.77", e.listeners["web"], "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for range 3 { // the connection to the relay is a new one each time
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != "ok" {
			t.Errorf("%q, %v", body, err)
		}
	}
	conn.Close()
	e.terminate(t)
	if _, err := e.ended(); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(e.stderr.String()) {
		if !strings.HasPrefix(line, "time=") || strings.Contains(line, "private.example") {
			t.Errorf("the log says %q", line)
		}
	}
}
