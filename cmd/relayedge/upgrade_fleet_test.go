package main_test

import (
	"net"
	"testing"
	"time"

	"relayedge/internal/testredis"
)

// An edge of a fleet stays one edge of it over an upgrade: the others count neither
// fewer nor more connections, and the cap of all holds. If the newer process is
// killed, what it held is free when its lease is over.
func TestUpgradeInAFleet(t *testing.T) {
	t.Parallel()
	store := testredis.Start(t)
	policy := fleetPolicy(t, store, `
limits: {max_connections: 200, max_connections_per_ip: 8, connection_rate_per_ip: 0, drain_secs: 3600}
`)
	s, other := runSucceeded(t, policy), runEdge(t, policy)
	s.shows("relayedge_fleet_edges 2")
	other.shows(t, "relayedge_fleet_edges 2")
	const from = "127.0.0.2"
	var open []net.Conn
	// A client that is refused for want of a claim comes again.
	fill := func(n int) {
		t.Helper()
		for len(open) < n {
			open = append(open, s.soonEnters(from, "public"))
		}
	}
	full := func() {
		t.Helper()
		for range 3 {
			s.refused(from, "public", "")
			if conn, err := enter(t.Context(), from, other.listeners["public"], ""); err == nil {
				conn.Close()
				t.Fatal("the other edge lets in a ninth")
			}
			time.Sleep(50 * time.Millisecond) // so that beats are between them
		}
	}
	fill(5)
	for range 3 {
		if err := eventually(func() error {
			conn, err := enter(t.Context(), from, other.listeners["public"], "")
			if err == nil {
				t.Cleanup(func() { conn.Close() })
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	full()
	s.upgrade()
	s.shows("relayedge_fleet_edges 2")
	full()
	open[0].Close()
	open[1].Close()
	open = open[2:]
	fill(5)
	full()
	other.shows(t, "relayedge_fleet_edges 2")

	// Two of the five are the newer process's.
	s.kill(s.newest())
	open = open[:3]
	fill(5)
	for i, conn := range open {
		if err := carries(conn); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	s.shows("relayedge_fleet_edges 2")
	full()
}
