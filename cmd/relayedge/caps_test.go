package main_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"relayedge/relaycore/client"
)

// echoBehind starts an echo service and returns the upstreams section of an edge
// before it.
func echoBehind(t testing.TB) string {
	t.Helper()
	s, err := serve("127.0.0.1:0", echo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return fmt.Sprintf("upstreams: {relay: {addresses: [%q], client_address: none}}\n", s.Addr())
}

var errRefused = errors.New("closed by the edge")

// enter connects from a local address, says what it is given (a PROXY header)
// and sees whether the edge lets it in: the connection, or errRefused.
func enter(ctx context.Context, from, address, says string) (net.Conn, error) {
	conn, err := dial(ctx, from, address, "")
	if err != nil {
		return nil, err
	}
	_, err = io.WriteString(conn, says+"x")
	var b [1]byte
	if err == nil {
		_, err = io.ReadFull(conn, b[:])
	}
	switch {
	case err == nil && b[0] == 'x':
		return conn, nil
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		err = errRefused
	}
	conn.Close()
	return nil, err
}

// Every cap of a small policy, reached by real sockets. The rows happen one
// after the other, and what was let in stays open.
func TestSmallCaps(t *testing.T) {
	t.Parallel()
	e := runEdge(t, echoBehind(t)+`
listeners:
  - {name: direct, bind: "127.0.0.1:0", tls: none}
  - {name: behind, bind: "127.0.0.1:0", tls: none, trust_proxy_from: [127.0.0.0/8]}
limits:
  max_connections: 9
  max_connections_per_ip: 2
  max_connections_per_ipv6_48: 3
  connection_rate_per_ip: 0
  connection_rate_per_ipv6_48: 0
  deny: [127.0.0.66/32, "2001:db8:bad::/48"]
`)
	header := func(family, source string) string {
		destination := map[string]string{"TCP4": "192.0.2.1", "TCP6": "2001:db8::1"}[family]
		return fmt.Sprintf("PROXY %s %s %s 1000 443\r\n", family, source, destination)
	}
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			conn.Close()
		}
	}()
	refusals := map[string]int{}
	for i, row := range []struct{ listener, from, says, reason string }{
		{"direct", "127.0.0.2", "", ""},
		{"direct", "127.0.0.2", "", ""},
		{"direct", "127.0.0.2", "", "per_ip_cap"},
		{"direct", "127.0.0.3", "", ""},
		{"direct", "127.0.0.66", "", "denied"},
		// The same host, named by a header and in other spellings.
		{"behind", "127.0.0.9", header("TCP4", "127.0.0.2"), "per_ip_cap"},
		{"behind", "127.0.0.9", header("TCP6", "::ffff:127.0.0.2"), "per_ip_cap"},
		{"behind", "127.0.0.9", header("TCP6", "64:ff9b::7f00:2"), "per_ip_cap"},
		{"behind", "127.0.0.9", header("TCP4", "127.0.0.66"), "denied"},
		{"behind", "127.0.0.9", header("TCP6", "2001:db8:bad:1::1"), "denied"},
		// A /64 is one host, a /48 one site.
		{"behind", "127.0.0.9", header("TCP6", "2001:db8:1:1::1"), ""},
		{"behind", "127.0.0.9", header("TCP6", "2001:db8:1:1:ffff::2"), ""},
		{"behind", "127.0.0.9", header("TCP6", "2001:db8:1:1::3"), "per_ip_cap"},
		{"behind", "127.0.0.9", header("TCP6", "2001:db8:1:2::1"), ""},
		{"behind", "127.0.0.9", header("TCP6", "2001:db8:1:3::1"), "per_prefix_cap"},
		{"behind", "127.0.0.9", header("TCP6", "2001:db8:2:1::1"), ""},
		// Whom the header does not name takes a global slot and nothing else.
		{"behind", "127.0.0.2", "PROXY UNKNOWN\r\n", ""},
		{"behind", "127.0.0.2", "GET / HTTP/1.1\r\n\r\n", "proxy_header"},
		{"direct", "127.0.0.4", "", ""},
		{"direct", "127.0.0.5", "", "max_connections"},
		{"behind", "127.0.0.9", header("TCP6", "2001:db8:3:1::1"), "max_connections"},
	} {
		conn, err := enter(t.Context(), row.from, e.listeners[row.listener], row.says)
		if row.reason == "" {
			if err != nil {
				t.Fatalf("row %d: %v", i, err)
			}
			open = append(open, conn)
			continue
		}
		if !errors.Is(err, errRefused) {
			t.Fatalf("row %d: %v, want %s", i, err, row.reason)
		}
		refusals[row.reason]++
		e.shows(t, fmt.Sprintf(`relayedge_rejections_total{reason=%q} %d`, row.reason, refusals[row.reason]))
	}
	e.shows(t, `relayedge_connections{listener="direct"} 4`, `relayedge_connections{listener="behind"} 5`)

	// A place is free as soon as its holder has gone.
	open[0].Close()
	if err := eventually(func() error {
		conn, err := enter(t.Context(), "127.0.0.2", e.listeners["direct"], "")
		if err == nil {
			open[0] = conn
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	for _, conn := range open {
		conn.Close()
	}
	e.shows(t, `relayedge_connections{listener="direct"} 0`, `relayedge_connections{listener="behind"} 0`)
}

// Exactly as many as may be are let in, however many come at once.
func TestCapUnderConcurrentDialers(t *testing.T) {
	t.Parallel()
	const dialers, most = 200, 40
	e := runEdge(t, echoBehind(t)+fmt.Sprintf(`
listeners: [{name: public, bind: "127.0.0.1:0", tls: none}]
limits: {max_connections: %d, max_connections_per_ip: 10, connection_rate_per_ip: 0}
`, most))
	for range 2 { // what the first round has left shows in the second
		var in, refused atomic.Int64
		var tried, held sync.WaitGroup
		tried.Add(dialers)
		for i := range dialers {
			held.Go(func() {
				conn, err := enter(t.Context(), fmt.Sprintf("127.0.1.%d", 1+i%20), e.listeners["public"], "")
				switch {
				case err == nil:
					in.Add(1)
					defer conn.Close()
				case errors.Is(err, errRefused):
					refused.Add(1)
				default:
					t.Error(err)
				}
				tried.Done()
				tried.Wait()
			})
		}
		held.Wait()
		if in.Load() != most || refused.Load() != dialers-most {
			t.Errorf("%d were let in and %d refused, want %d and %d", in.Load(), refused.Load(), most, dialers-most)
		}
		e.shows(t, `relayedge_connections{listener="public"} 0`)
	}
	e.shows(t, fmt.Sprintf(`relayedge_connections_total %d`, 2*dialers), fmt.Sprintf(`relayedge_ended_total{reason="client_closed"} %d`, 2*most))
}

func TestConnectionRate(t *testing.T) {
	t.Parallel()
	e := runEdge(t, echoBehind(t)+`
listeners: [{name: public, bind: "127.0.0.1:0", tls: none}]
limits: {connection_rate_per_ip: 1, connection_burst_per_ip: 3, observe: [max_connections_per_ip], max_connections_per_ip: 1}
`)
	const attempts = 12
	began, in := time.Now(), 0
	for range attempts {
		conn, err := enter(t.Context(), "127.0.0.2", e.listeners["public"], "")
		switch {
		case err == nil:
			in++
			defer conn.Close()
		case !errors.Is(err, errRefused):
			t.Fatal(err)
		}
	}
	if most := 3 + int(math.Ceil(time.Since(began).Seconds())); in < 3 || in > min(most, attempts) {
		t.Errorf("%d were let in, want 3 to %d", in, most)
	}
	// The cap of one connection is only observed: it lets in, and counts.
	e.shows(t, fmt.Sprintf(`relayedge_rejections_total{reason="connection_rate"} %d`, attempts-in),
		`relayedge_rejections_total{reason="per_ip_cap"} 0`, fmt.Sprintf(`relayedge_observed_total{reason="per_ip_cap"} %d`, in-1))
	// Another host has a bucket of its own.
	conn, err := enter(t.Context(), "127.0.0.3", e.listeners["public"], "")
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// The relay behind the edge counts by the client's address, not the edge's.
func TestRelayCapsTheClients(t *testing.T) {
	t.Parallel()
	e := runEdge(t, `
listeners: [{name: public, bind: "127.0.0.1:0"}]
relay: {in_process: true, bind: "127.0.0.1:0", drain_secs: 1, limits: {max_connections_per_ip: 1, identification_timeout_secs: 300}}
`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	session := func(from string) (*client.Session, error) {
		return client.Dial(ctx, "wss://"+e.listeners["public"]+"/relay", client.Options{
			TLS: &tls.Config{InsecureSkipVerify: true},
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				return dial(ctx, from, address, "")
			},
		})
	}
	first, err := session("127.0.0.2")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if again, err := session("127.0.0.2"); err == nil {
		again.Close()
		t.Error("a second session of the same address was let in")
	}
	e.shows(t, `relaycore_rejections_total{reason="per_ip_cap"} 1`, `relayedge_rejections_total{reason="per_ip_cap"} 0`)
	second, err := session("127.0.0.3")
	if err != nil {
		t.Fatalf("another address is not let in: %v", err)
	}
	defer second.Close()

	// At the end the relay takes its leave with 1001, and the edge passes it on.
	e.terminate(t)
	for _, s := range []*client.Session{first, second} {
		if _, err := s.Receive(ctx); err == nil || !strings.Contains(err.Error(), "StatusGoingAway") {
			t.Errorf("the session ends with %v, want StatusGoingAway", err)
		}
	}
	if code, err := e.ended(); code != 0 || err != nil {
		t.Errorf("relayedge ends with %d, %v", code, err)
	}
}
