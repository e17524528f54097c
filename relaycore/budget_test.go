package relaycore

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

// holders makes sessions that hold so much each.
func holders(b *budget, shares ...struct {
	from source
	held int
}) []*session {
	var out []*session
	for _, h := range shares {
		c := &session{source: h.from}
		c.buffers.budget = b
		c.buffers.add(h.held)
		out = append(out, c)
	}
	return out
}

func budgetOf(limit int64) *budget {
	return &budget{limit: limit, of: func(c *session) *account { return &c.buffers }}
}

// spec/003: the heaviest connection of the source holding the most pays.
func TestHeaviest(t *testing.T) {
	type share = struct {
		from source
		held int
	}
	for _, tc := range []struct {
		name   string
		limit  int64
		shares []share
		gone   []int // written off already
		want   int   // -1: nobody
	}{
		{"nobody is there", 10, nil, nil, -1},
		{"it fits", 10, []share{{1, 4}, {2, 6}}, nil, -1},
		{"one byte more", 10, []share{{1, 4}, {2, 7}}, nil, 1},
		{"the source counts, not the connection", 10, []share{{1, 5}, {2, 2}, {2, 3}, {2, 2}}, nil, 2},
		{"one source", 10, []share{{1, 2}, {1, 8}, {1, 3}}, nil, 1},
		{"the heaviest is about to free its own", 10, []share{{1, 50}, {2, 4}, {2, 5}, {3, 3}}, []int{0}, 2},
		{"what is left fits", 10, []share{{1, 50}, {2, 4}, {3, 3}}, []int{0}, -1},
		{"all are gone", 10, []share{{1, 50}}, []int{0}, -1},
	} {
		b := budgetOf(tc.limit)
		sessions := holders(b, tc.shares...)
		for _, i := range tc.gone {
			sessions[i].buffers.writeOff()
		}
		got := slices.Index(sessions, b.heaviest(slices.Values(sessions)))
		if got != tc.want {
			t.Errorf("%s: number %d goes, want %d", tc.name, got, tc.want)
		}
		if spent := b.spent(); spent != (tc.want >= 0) {
			t.Errorf("%s: spent is %v", tc.name, spent)
		}
	}
}

// What is given back is what was charged, whoever holds it and whatever is
// written off meanwhile.
func TestAccountsAreExact(t *testing.T) {
	b := budgetOf(1)
	accounts := make([]account, 4)
	for i := range accounts {
		accounts[i].budget = b
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
	if held, lost := b.held.Load(), b.lost.Load(); held != 0 || lost != 0 {
		t.Fatalf("%d bytes are held, %d written off", held, lost)
	}
	for i := range accounts {
		if n, live := accounts[i].balance(); n != 0 || live != (i == 3) {
			t.Fatalf("account %d: %d bytes, live %v", i, n, live)
		}
	}

	// One by one: what is spent follows.
	accounts[3].add(3)
	if !b.spent() {
		t.Fatal("3 of 1 are not too much")
	}
	accounts[3].move(&accounts[0], 2)
	if b.spent() || b.lost.Load() != 2 {
		t.Fatalf("%d written off", b.lost.Load())
	}
	accounts[0].move(&accounts[3], 1)
	if !b.spent() || b.lost.Load() != 1 {
		t.Fatalf("%d written off", b.lost.Load())
	}
	accounts[3].writeOff()
	if b.spent() || b.lost.Load() != 3 || b.held.Load() != 3 {
		t.Fatalf("%d written off", b.lost.Load())
	}
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

// BenchmarkHeaviest is the choice among 10,000 sessions of 5,000 sources.
func BenchmarkHeaviest(b *testing.B) {
	budget := budgetOf(1)
	var sessions []*session
	for i := range 10000 {
		c := &session{source: source(i % 5000)}
		c.buffers.budget = budget
		c.buffers.add(1 + rand.IntN(1<<20))
		sessions = append(sessions, c)
	}
	for b.Loop() {
		if budget.heaviest(slices.Values(sessions)) == nil {
			b.Fatal("nobody pays")
		}
	}
}
