package main_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"relayedge/internal/testca"
	"relayedge/internal/testredis"
)

// redisSection is that of edges which share a store and a secret, with more keys.
func redisSection(t testing.TB, store *testredis.Server, more ...string) string {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("not a secret ", 4)), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := append([]string{fmt.Sprintf("url: \"redis://%s\", secret_file: %q", store.Addr, secret)}, more...)
	return "redis: {" + strings.Join(keys, ", ") + "}\n"
}

// visit shakes hands with an edge and is answered, which brings the session's ticket.
func visit(t testing.TB, address string, cfg *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		return tls.ConnectionState{}, err
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return tls.ConnectionState{}, err
	}
	return conn.(*tls.Conn).ConnectionState(), nil
}

// A session that one edge made is taken up by another, and what is behind it does not
// stand in the store.
func TestSessionsOfAFleet(t *testing.T) {
	t.Parallel()
	store := testredis.Start(t)
	policy := echoBehind(t) + redisSection(t, store) + `
listeners: [{name: public, bind: "127.0.0.1:0"}]
`
	a, b := runEdge(t, policy), runEdge(t, policy)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		if err := eventually(func() error {
			cfg := &tls.Config{ServerName: "localhost", InsecureSkipVerify: true, MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
			if _, err := visit(t, a.listeners["public"], cfg); err != nil {
				t.Fatal(err)
			}
			state, err := visit(t, b.listeners["public"], cfg)
			if err != nil {
				t.Fatal(err)
			}
			if !state.DidResume {
				return errors.New("the session is not resumed at the other edge")
			}
			return nil
		}); err != nil {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
	}
	if !slices.ContainsFunc(store.Keys(), func(key string) bool { return strings.HasSuffix(key, ":tickets:secrets") }) {
		t.Errorf("the secrets are not in the store: %q", store.Keys())
	}
}

// One edge orders, the CA comes to the other one, and both serve what was issued.
func TestACertificateOfAFleet(t *testing.T) {
	t.Parallel()
	store := testredis.Start(t)
	one, other := loopback4(t), loopback4(t)
	ca := testca.Start(t, testca.Options{TLSPort: portOf(t, other), HTTPPort: portOf(t, other)})
	rest := redisSection(t, store) + acmePolicy(ca, "redis", "127.0.0.1:0", "tls-alpn-01", "a.example.org")
	at := func(bind string) string {
		return fmt.Sprintf("listeners: [{name: public, bind: %q}]\nupstreams: {relay: {addresses: [\"127.0.0.1:1\"], health_check_secs: 0}}\n", bind) + rest
	}
	release := ca.Hold()
	orders := startEdge(t, at(one))
	if err := eventually(func() error {
		if !slices.ContainsFunc(store.Keys(), func(key string) bool { return strings.HasSuffix(key, "!order_a.example.org") }) {
			return errors.New("nobody orders")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	answers := startEdge(t, at(other))
	release()
	for _, address := range []string{one, other} {
		if err := eventually(func() error {
			conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", address, &tls.Config{ServerName: "a.example.org", InsecureSkipVerify: true})
			if err != nil {
				return fmt.Errorf("no certificate: %w\n%s", err, orders.stderr.String())
			}
			defer conn.Close()
			return conn.ConnectionState().PeerCertificates[0].VerifyHostname("a.example.org")
		}); err != nil {
			t.Fatal(err)
		}
	}
	orders.shows(t, `relayedge_acme_orders_total{result="obtained"} 1`)
	answers.shows(t, `relayedge_acme_orders_total{result="obtained"} 0`, `relayedge_acme_orders_total{result="failed"} 0`)
	if n := ca.Orders(); n != 1 {
		t.Errorf("%d orders", n)
	}
	for _, key := range store.Keys() {
		if store.Ask("TYPE", key) == "string" && strings.Contains(store.Ask("GET", key).(string), "-----BEGIN") {
			t.Errorf("%s is in clear", key)
		}
	}
}

// Without its store an edge starts all the same, and says what it lacks.
func TestAFleetWithoutItsStore(t *testing.T) {
	t.Parallel()
	store := testredis.Start(t)
	store.Stop()
	ca := testca.Start(t, testca.Options{TLSPort: 1, HTTPPort: 1})
	e := startEdge(t, "listeners: [{name: public, bind: \"127.0.0.1:0\"}]\n"+redisSection(t, store)+acmePolicy(ca, "redis", "127.0.0.1:0", "tls-alpn-01", "a.example.org"))
	for _, words := range []string{"nothing is ordered, since it could not be kept: storage redis cannot be used", "the ticket keys of all edges cannot be had"} {
		if err := eventually(func() error {
			if !strings.Contains(e.stderr.String(), words) {
				return fmt.Errorf("it does not say %q:\n%s", words, e.stderr.String())
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	e.shows(t, "relayedge_store_away 1")
	store.Start()
	e.shows(t, "relayedge_store_away 0")
	if err := eventually(func() error {
		for _, words := range []string{"the storage can be read again", "the ticket keys of all edges are to be had again"} {
			if !strings.Contains(e.stderr.String(), words) {
				return fmt.Errorf("it does not say %q:\n%s", words, e.stderr.String())
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
