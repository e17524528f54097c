package main_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"relayedge/admission/redisstore"
	"relayedge/internal/testredis"
)

// fleetPolicy is the policy of edges that share what they count, on a store.
func fleetPolicy(t testing.TB, store *testredis.Server, rest string) string {
	t.Helper()
	// An edge that a slow machine keeps from the store lets nobody in: so the cap holds
	// even then, and those who are refused come again.
	return echoBehind(t) + redisSection(t, store, "on_failure: {connections: refuse}") + `
listeners: [{name: public, bind: "127.0.0.1:0", tls: none}]
` + rest
}

// runFleet runs so many edges, and returns when each counts with all.
func runFleet(t testing.TB, n int, policy string) (edges []*edge) {
	t.Helper()
	for range n {
		edges = append(edges, runEdge(t, policy))
	}
	for _, e := range edges {
		e.shows(t, fmt.Sprintf("relayedge_fleet_edges %d", n))
	}
	return edges
}

// callers are the clients of some edges, who come again when they are refused, and
// stay when they are let in.
type callers struct {
	*testing.T
	mu   sync.Mutex
	held map[string]map[net.Conn]bool // by the address that they come from
	work sync.WaitGroup
	ctx  context.Context // of those who come; nil: none do
	stop context.CancelFunc
}

// come has one client for each address come to the edges in turn, again and again.
func (c *callers) come(edges []*edge, clients int, from func(i int) string) {
	if c.ctx == nil {
		c.ctx, c.stop = context.WithCancel(c.Context())
	}
	ctx := c.ctx
	for i := range clients {
		c.work.Go(func() {
			for turn := i; ctx.Err() == nil; turn++ {
				conn, err := enter(ctx, from(i), edges[turn%len(edges)].listeners["public"], "")
				switch {
				case err == nil:
					c.keep(from(i), conn)
					return
				case !errors.Is(err, errRefused) && ctx.Err() == nil:
					c.Error(err)
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond): // as a client does who is refused
				}
			}
		})
	}
}

// leave has those go home who are not let in yet.
func (c *callers) leave() {
	c.stop()
	c.work.Wait()
	c.ctx = nil
}

func (c *callers) keep(from string, conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[from] == nil {
		c.held[from] = make(map[net.Conn]bool)
	}
	c.held[from][conn] = true
}

// inside returns how many are let in from an address.
func (c *callers) inside(from string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held[from])
}

// end closes so many connections from an address; fewer where there are not so many.
func (c *callers) end(from string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.held[from] {
		if n == 0 {
			return
		}
		n--
		conn.Close()
		delete(c.held[from], conn)
	}
}

// lost closes what an edge took with it.
func (c *callers) lost(e *edge) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, held := range c.held {
		for conn := range held {
			if conn.RemoteAddr().String() == e.listeners["public"] {
				conn.Close()
				delete(held, conn)
				n++
			}
		}
	}
	return n
}

// reaches waits until just so many are let in from an address. More is a failure.
func (c *callers) reaches(from string, want int) {
	c.Helper()
	if err := eventually(func() error {
		got := c.inside(from)
		if got > want {
			c.Fatalf("%d connections from %s, the cap is %d", got, from, want)
		}
		if got < want {
			return fmt.Errorf("%d connections from %s, want %d", got, from, want)
		}
		return nil
	}); err != nil {
		c.Fatal(err)
	}
}

// connections are those that the edges count.
func connections(t testing.TB, edges []*edge) (n int) {
	t.Helper()
	for _, e := range edges {
		_, body, err := get(e.metrics)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^relayedge_connections\{listener="public"\} (\d+)$`).FindStringSubmatch(body)
		if m == nil {
			t.Fatalf("no connections in the metrics:\n%s", body)
		}
		open, _ := strconv.Atoi(m[1])
		n += open
	}
	return n
}

// Three edges hold a host to one cap, from the first connection on, while it comes
// to all of them at once and a thousand others do too; a dead edge's part comes
// back; and at the end the store has forgotten everybody.
func TestFleetHoldsOneCap(t *testing.T) {
	t.Parallel()
	const most, others, each = 64, 1000, 3
	store := testredis.Start(t)
	edges := runFleet(t, 3, fleetPolicy(t, store, fmt.Sprintf(`
limits: {max_connections: 9000, max_connections_per_ip: %d, connection_rate_per_ip: 0, drain_secs: 0}
`, most)))
	const hot = "127.0.9.9"
	one := &callers{T: t, held: make(map[string]map[net.Conn]bool)}
	many := &callers{T: t, held: make(map[string]map[net.Conn]bool)}
	one.come(edges, 3*most, func(int) string { return hot })
	other := func(i int) string { return fmt.Sprintf("127.1.%d.%d", i%others/200, i%others%200+1) }
	many.come(edges, others*each, other)
	one.reaches(hot, most)
	many.work.Wait() // everybody else is let in
	for i := range others {
		if n := many.inside(other(i)); n != each {
			t.Fatalf("%d connections from %s, want %d", n, other(i), each)
		}
	}
	// Of those others the store knows nothing.
	if n := store.Ask("HLEN", "relayedge:{fleet}:totals").(int64); n > 2 {
		t.Errorf("the store counts %d keys, want one host and all connections at most", n)
	}
	for i := range others {
		many.end(other(i), each)
	}

	// Whatever ends makes room for just as many, wherever they come.
	for _, n := range []int{1, 20, 40} {
		one.end(hot, n)
		one.come(edges, n, func(int) string { return hot })
		one.reaches(hot, most)
	}
	if err := eventually(func() error {
		if n := connections(t, edges); n != most {
			return fmt.Errorf("the edges count %d connections, want %d", n, most)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}

	// One edge dies. Those who were there come to the others.
	dead := edges[0]
	edges = edges[1:]
	one.leave()
	dead.stop()
	began := time.Now()
	gone := one.lost(dead)
	one.come(edges, most, func(int) string { return hot })
	one.reaches(hot, most)
	took := time.Since(began)
	t.Logf("%d places of a dead edge were given back in %v", gone, took)
	// The rest is for a machine that is slow.
	if documented := redisstore.FleetLease + time.Second; took > documented+20*time.Second {
		t.Errorf("the places of a dead edge were given back in %v, want %v", took, documented)
	}
	one.leave()

	// A client that comes to one edge alone has the whole cap there.
	one.end(hot, most)
	one.come(edges[:1], 2*most, func(int) string { return hot })
	one.reaches(hot, most)
	one.leave()
	one.end(hot, most)

	// One says good-bye, the other does not.
	edges[0].terminate(t)
	if code, err := edges[0].ended(); code != 0 || err != nil {
		t.Errorf("relayedge ends with %d, %v", code, err)
	}
	edges[1].stop()
	forgets(t, store)
}

// forgets waits until the store counts for nobody. Records are no counts: the
// secrets of session tickets stay for edges to come.
func forgets(t testing.TB, store *testredis.Server) {
	t.Helper()
	if err := eventually(func() error {
		keys := slices.DeleteFunc(store.Keys(), func(key string) bool { return strings.HasPrefix(key, "relayedge:{records}:") })
		if len(keys) > 0 {
			return fmt.Errorf("the store still has %q", keys)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
