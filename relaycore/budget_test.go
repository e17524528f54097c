package relaycore

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

// holders makes sessions that hold so much each.
func holders(b *budget, shares ...held) []*session {
	var out []*session
	for _, h := range shares {
		c := &session{source: h.from}
		c.buffers.open(b, c, h.from)
		c.buffers.add(h.bytes)
		out = append(out, c)
	}
	return out
}

type held struct {
	from  source
	bytes int
}

// spec/003: the heaviest connection of the source holding the most pays.
func TestHeaviest(t *testing.T) {
	for _, tc := range []struct {
		name   string
		limit  int
		shares []held
		gone   []int // written off already
		want   int   // -1: nobody
	}{
		{"nobody is there", 10, nil, nil, -1},
		{"it fits", 10, []held{{1, 4}, {2, 6}}, nil, -1},
		{"one byte more", 10, []held{{1, 4}, {2, 7}}, nil, 1},
		{"the source counts, not the connection", 10, []held{{1, 5}, {2, 2}, {2, 3}, {2, 2}}, nil, 2},
		{"one source", 10, []held{{1, 2}, {1, 8}, {1, 3}}, nil, 1},
		{"the heaviest is about to free its own", 10, []held{{1, 50}, {2, 4}, {2, 5}, {3, 3}}, []int{0}, 2},
		{"what is left fits", 10, []held{{1, 50}, {2, 4}, {3, 3}}, []int{0}, -1},
		{"all are gone", 10, []held{{1, 50}}, []int{0}, -1},
	} {
		b := newBudget(tc.limit, gone)
		sessions := holders(b, tc.shares...)
		for _, i := range tc.gone {
			sessions[i].buffers.writeOff()
		}
		if spent := b.spent(); spent != (tc.want >= 0) {
			t.Errorf("%s: spent is %v", tc.name, spent)
		}
		condemned, _ := b.condemn().(*session)
		got := slices.Index(sessions, condemned)
		if got != tc.want {
			t.Errorf("%s: number %d goes, want %d", tc.name, got, tc.want)
		}
		if got >= 0 {
			if _, live := sessions[got].buffers.balance(); live {
				t.Errorf("%s: who goes still counts", tc.name)
			}
		}
	}
}

// What is given back is what was charged, whoever holds it and whatever is
// written off meanwhile.
func TestAccountsAreExact(t *testing.T) {
	b := newBudget(1, gone)
	accounts := make([]account, 4)
	for i := range accounts {
		accounts[i].open(b, nil, source(i%3))
	}
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for range 2000 {
				n := rand.IntN(5000)
				from, to := &accounts[rand.IntN(4)], &accounts[rand.IntN(4)]
				from.add(n)
				from.move(to, n)
				to.add(-n)
			}
		})
	}
	running.Go(func() {
		for i := range 3 {
			accounts[i].writeOff()
			accounts[i].writeOff()
		}
	})
	running.Wait()
	if held, counts := b.sums(); held != 0 || counts != 0 {
		t.Fatalf("%d bytes are held, %d count", held, counts)
	}
	for i := range accounts {
		if n, live := accounts[i].balance(); n != 0 || live != (i == 3) {
			t.Fatalf("account %d: %d bytes, live %v", i, n, live)
		}
	}

	// One by one: what counts follows.
	step := func(what string, held, counts int64) {
		t.Helper()
		gotHeld, gotCounts := b.sums()
		if gotHeld != held || gotCounts != counts || b.counts.Load() != counts || b.spent() != (counts > 1) {
			t.Fatalf("%s: %d are held, %d count", what, gotHeld, gotCounts)
		}
	}
	accounts[3].add(3)
	step("three", 3, 3)
	accounts[3].move(&accounts[0], 2)
	step("two moved to one that is written off", 3, 1)
	accounts[0].move(&accounts[3], 1)
	step("and one back", 3, 2)
	accounts[3].writeOff()
	step("all written off", 3, 0)
	accounts[0].add(-1)
	accounts[3].add(-2)
	step("and freed", 0, 0)
}

// spec/003: a source is an IPv4 address or an IPv6 /48; every connection looks
// like one address where max_connections_per_ip is 0, unless proxy_protocol
// tells the clients apart.
func TestSources(t *testing.T) {
	for _, tc := range []struct {
		a, b string // "": no address
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"192.0.2.1", "64:ff9b::192.0.2.1", true},
		{"2001:db8:1:2::1", "2001:db8:1:3::9", true},
		{"2001:db8:1:2::1", "2001:db8:2:2::1", false},
		{"", "", true},
		{"", "192.0.2.1", false},
	} {
		addr := func(s string) (a netip.Addr) {
			if s != "" {
				a = netip.MustParseAddr(s)
			}
			return a
		}
		for _, mode := range []struct {
			proxy bool
			perIP int
			known bool
		}{{false, 64, true}, {true, 0, true}, {true, 64, true}, {false, 0, false}} {
			cfg := DefaultConfig()
			cfg.ProxyProtocol, cfg.Limits.MaxConnectionsPerIP = mode.proxy, mode.perIP
			s, err := NewServer(cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			if same := s.sources.of(addr(tc.a)) == s.sources.of(addr(tc.b)); same != (tc.same || !mode.known) {
				t.Errorf("%q and %q with proxy_protocol %v, max_connections_per_ip %d: one source is %v", tc.a, tc.b, mode.proxy, mode.perIP, same)
			}
		}
	}
	// The key is each server's own.
	one, _ := NewServer(DefaultConfig(), nil)
	two, _ := NewServer(DefaultConfig(), nil)
	a := netip.MustParseAddr("192.0.2.1")
	if one.sources.of(a) == two.sources.of(a) {
		t.Error("two servers hash alike")
	}
}

// Where addresses tell nobody apart, each session pays for itself.
func TestPayers(t *testing.T) {
	for _, known := range []bool{true, false} {
		s := sources{known: known}
		one, two := s.payer(7), s.payer(7)
		if same := one == two; same != known {
			t.Errorf("sources are known: %v; two sessions of one source pay together: %v", known, same)
		}
	}
}

// BenchmarkCondemn is the choice among 10,000 sessions of 5,000 sources, and the
// charge that brings the chosen one back.
func BenchmarkCondemn(b *testing.B) {
	budget := newBudget(1, gone)
	for i := range 10000 {
		holders(budget, held{source(i % 5000), 1 + rand.IntN(1<<20)})
	}
	for b.Loop() {
		c, _ := budget.condemn().(*session)
		if c == nil {
			b.Fatal("nobody pays")
		}
		budget.mu.Lock()
		c.buffers.off = false
		budget.ledger.Add(&c.buffers.holding, c.buffers.bytes)
		budget.mu.Unlock()
	}
}

// BenchmarkCharge is what a charge and its return cost beside 10,000 sessions.
func BenchmarkCharge(b *testing.B) {
	budget := newBudget(1<<40, gone)
	sessions := make([]*session, 0, 10000)
	for i := range 10000 {
		sessions = append(sessions, holders(budget, held{source(i % 5000), 1 + rand.IntN(1<<20)})...)
	}
	for i := 0; b.Loop(); i++ {
		a := &sessions[i%len(sessions)].buffers
		a.add(2048)
		a.add(-2048)
	}
}
