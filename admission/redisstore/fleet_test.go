package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/testredis"
)

// testEdge is an edge of a fleet in this process, without sockets.
type testEdge struct {
	gate  *admission.Gate
	fleet *Fleet
	log   *lines
}

// patientLease is one that no machine is too slow for.
const patientLease = time.Minute

// startEdges runs so many edges of one fleet until the test's end, and returns
// when all of them count together. Their lease is the patient one where o has none.
func startEdges(t *testing.T, server *testredis.Server, n int, limits admission.Limits, o admission.FleetOptions) (edges []*testEdge) {
	t.Helper()
	o.Secret, o.Lease = []byte("secret"), cmp.Or(o.Lease, patientLease)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range n {
		gate, side, err := admission.NewFleetGate(limits, o)
		if err != nil {
			t.Fatal(err)
		}
		e := &testEdge{gate: gate, log: new(lines)}
		store, err := open(withDefaults(t, Config{URL: URL("redis://" + server.Addr)}), slog.New(slog.NewTextHandler(e.log, nil)), tuning{clock: serverClock, budget: budget})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		e.fleet = store.newFleet(side, serverClock, o.Lease)
		edges = append(edges, e)
		running.Go(func() { e.fleet.Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	server.Await("the edges count together", together(edges))
	// It has known them for so long that there can be no others.
	server.Ask("HSET", "relayedge:{fleet}:edges", "@", "1")
	return edges
}

func together(edges []*testEdge) func() bool {
	return func() bool {
		for _, e := range edges {
			if e.fleet.Edges() != len(edges) {
				return false
			}
		}
		return true
	}
}

func hostCap(most int) admission.Limits {
	return admission.Limits{MaxConnections: 1_000_000, MaxConnectionsPerIP: most, ConnectionBurstPerIP: 1, ConnectionBurstPerIPv648: 1}
}

func hostNumber(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// Three edges hold each of a thousand hosts to one cap, which come to all of them
// at once, go and come again; and in the end each of them has just the cap.
func TestFleetHoldsAThousandHosts(t *testing.T) {
	const hosts, most = 1000, 64
	server := testredis.Start(t)
	edges := startEdges(t, server, 3, hostCap(most), admission.FleetOptions{})
	var open [hosts]atomic.Int64 // no more than there are: counted after, and uncounted before
	var work sync.WaitGroup
	var all [3][hosts][]*admission.Lease
	for n, e := range edges {
		work.Go(func() {
			held := &all[n]
			for round := 0; ; round++ {
				full := 0
				for h := range hosts {
					for range 8 {
						l, reason := e.gate.Admit(hostNumber(h), time.Now())
						if reason != "" {
							break
						}
						held[h] = append(held[h], l)
						if now := open[h].Add(1); now > most {
							t.Errorf("%d connections of one host, the cap is %d", now, most)
							return
						}
					}
					if open[h].Load() == most {
						full++
					}
					// Some go, as long as it is not about the end.
					if leave := (h + round + n) % 7; round < 20 && leave < len(held[h]) {
						open[h].Add(-1)
						held[h][leave].Release()
						held[h] = append(held[h][:leave], held[h][leave+1:]...)
					}
				}
				if round > 20 && full == hosts {
					return
				}
				select {
				case <-t.Context().Done():
					return
				case <-time.After(20 * time.Millisecond): // as clients do who are refused
				}
			}
		})
	}
	work.Wait()
	if t.Failed() {
		return
	}
	for _, held := range all {
		for _, leases := range held {
			for _, l := range leases {
				l.Release()
			}
		}
	}
	// They have left; nothing is told of them any longer, soon.
	server.Await("the store has forgotten the hosts", func() bool {
		return server.Ask("EXISTS", "relayedge:{fleet}:totals", "relayedge:{fleet}:tight", "relayedge:{fleet}:changed", "relayedge:{fleet}:gone").(int64) == 0
	})
}

// A flood of addresses does not fill the store, and no address stands there.
func TestFleetFloodOfAddresses(t *testing.T) {
	server := testredis.Start(t)
	edges := startEdges(t, server, 3, hostCap(64), admission.FleetOptions{})
	said := server.Monitor()
	for i := range 100_000 {
		if _, reason := edges[i%3].gate.Admit(hostNumber(i), time.Now()); reason != "" {
			t.Fatal(reason)
		}
	}
	for range 70 {
		edges[0].gate.Admit(netip.MustParseAddr("203.0.113.77"), time.Now())
	}
	server.Await("the one that has many is told of", func() bool { return edges[0].fleet.Claims() == 1 })
	bytes := 0
	for _, key := range server.Keys() {
		bytes += int(server.Ask("MEMORY", "USAGE", key).(int64))
	}
	if bytes > 4096 {
		t.Errorf("%d bytes are stored for 100,000 addresses, want at most 4096", bytes)
	}
	t.Logf("%d bytes are stored", bytes)
	all := said()
	for _, secret := range []string{"203.0.113.77", "\xcb\x00\x71\x4d", `\xcb\x00qM`} {
		if strings.Contains(all, secret) {
			t.Errorf("the store is told %q", secret)
		}
	}
	if !strings.Contains(all, "fleet") {
		t.Error("the store was told nothing")
	}
}

// While the store is away each edge has the whole cap, after its lease; nobody
// waits; each change is one line; and what is open counts again when it is back.
func TestFleetStoreAway(t *testing.T) {
	for _, tt := range []struct {
		name       string
		gone, back func(*testredis.Server)
		refuse     bool
	}{
		{"stopped", (*testredis.Server).Stop, (*testredis.Server).Start, false},
		{"frozen", (*testredis.Server).Freeze, (*testredis.Server).Thaw, false},
		{"stopped, and refused then", (*testredis.Server).Stop, (*testredis.Server).Start, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := testredis.Start(t)
			edges := startEdges(t, server, 2, hostCap(16), admission.FleetOptions{RefuseAlone: tt.refuse, Lease: FleetLease})
			host, open := hostNumber(7), 0
			fill := func(e *testEdge) (reason admission.Reason) {
				for {
					if _, reason = e.gate.Admit(host, time.Now()); reason != "" {
						return reason
					}
					open++
				}
			}
			fill(edges[0])
			without := open // of a claim; with one, where a beat came between
			if without < 4 || without > 16 {
				t.Fatalf("%d connections, want the 4 that need no claim", without)
			}
			tt.gone(server)
			server.Await("the edges are alone", func() bool { return edges[0].fleet.Edges() == 0 && edges[1].fleet.Edges() == 0 })
			r1, r2 := fill(edges[0]), fill(edges[1])
			if tt.refuse {
				if open != without || r1 != admission.StoreUnavailable || r2 != admission.StoreUnavailable {
					t.Errorf("%d connections, then %s and %s, want %d and store_unavailable", open, r1, r2, without)
				}
			} else if open != 32 || r1 != admission.PerIPCap || r2 != admission.PerIPCap {
				t.Errorf("%d connections, then %s and %s, want 16 for each edge and per_ip_cap", open, r1, r2)
			}
			tt.back(server)
			server.Await("the edges count together", together(edges))
			for _, e := range edges {
				server.Await("it is told", func() bool { return e.log.count("limited over all edges") >= 2 })
				for text, want := range map[string]int{"other edges cannot be counted with": 1, "limited over all edges": 2} {
					if got := e.log.count(text); got != want {
						t.Errorf("%d lines say %q, want %d:\n%s", got, text, want, e.log)
					}
				}
			}
			if tt.refuse {
				return
			}
			server.Await("what is open counts again", func() bool {
				total := 0
				for _, n := range server.Ask("HVALS", "relayedge:{fleet}:totals").([]any) {
					var v int
					fmt.Sscan(fmt.Sprint(n), &v)
					total += v
				}
				return total == 32
			})
			if fill(edges[0]); open != 32 {
				t.Errorf("%d connections where 32 are twice the cap", open)
			}
		})
	}
}

// A store that loses what it knew, scripts included, is told again.
func TestFleetStoreForgets(t *testing.T) {
	server := testredis.Start(t)
	edges := startEdges(t, server, 2, hostCap(16), admission.FleetOptions{})
	host := hostNumber(7)
	open := 0
	fill := func(e *testEdge) {
		for {
			if _, reason := e.gate.Admit(host, time.Now()); reason != "" {
				return
			}
			open++
		}
	}
	server.Await("one edge has the whole cap", func() bool {
		fill(edges[0])
		return open == 16
	})
	claimed := func() bool {
		totals, _ := server.Ask("HVALS", "relayedge:{fleet}:totals").([]any)
		return len(totals) == 1 && fmt.Sprint(totals[0]) == "16"
	}
	for range 3 {
		server.Await("the store counts them", claimed)
		server.Ask("FLUSHALL")
		server.Ask("SCRIPT", "FLUSH")
	}
	server.Await("the store counts them", claimed)
	if fill(edges[1]); open > 16+4 { // what an edge has without a claim when it comes back
		t.Errorf("%d connections", open)
	}
	for _, e := range edges {
		if n := e.log.count("level=WARN"); n != 0 {
			t.Errorf("%d warnings:\n%s", n, e.log)
		}
	}
}
