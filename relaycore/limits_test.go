package relaycore

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/proxy"
	"relayedge/relaycore/wire"
)

// row is one row of a table of spec/003, driven through connections behind a
// front end that the test plays, and behind the edge. run gets the limit's value
// and checks it there, one below and one above.
type row struct {
	name   string
	at     []int // values of the limit
	change func(c *Config, limit int)
	edge   func(l *proxy.Limits, limit int) // a limit that the edge holds, so behind it alone
	run    func(w *world, limit int)
}

func (r row) fronts(limit int) []front {
	if r.edge == nil {
		return bothFronts
	}
	fr := edgeFront
	fr.limits = func(l *proxy.Limits) { r.edge(l, limit) }
	return []front{fr}
}

// client is an address that nobody else has.
func client(i int) string { return fmt.Sprintf("198.51.%d.%d:1", 100+i/250, 1+i%250) }

// counts checks a limit on how many: try number 0 to limit-1 succeed, the next
// one does not, and is counted once.
func (w *world) counts(limit int, reason Reason, try func(i int) (refused bool)) {
	w.t.Helper()
	for i := range limit {
		if try(i) {
			w.t.Fatalf("number %d of %d is refused", i+1, limit)
		}
		w.wantOnly(reason, 0)
	}
	if !try(limit) {
		w.t.Fatalf("number %d of %d is not refused", limit+1, limit)
	}
	w.wantOnly(reason, 1)
}

// lasts checks a limit on time: alive a nanosecond before it, ended at it.
func (w *world) lasts(p *peer, limit time.Duration, reason Reason) {
	w.t.Helper()
	start := time.Now()
	time.Sleep(limit - time.Nanosecond)
	p.quiet()
	w.wantOnly(reason, 0)
	if _, text, at := p.end(); text != string(reason) || at.Sub(start) != limit {
		w.t.Fatalf("closed with %q after %v", text, at.Sub(start))
	}
	w.wantOnly(reason, 1)
}

// turnedAway says whether a client gets no answer at all.
func (w *world) turnedAway(client string) bool {
	p := w.reach(client)
	if _, err := p.nc.Write([]byte(upgradeRequest)); err != nil {
		return true
	}
	n, err := p.nc.Read(make([]byte, 4096))
	return n == 0 && (err == io.EOF || w.edge != nil && errors.Is(err, syscall.ECONNRESET))
}

// refusedFor says whether a request was refused, for the limit given.
func (w *world) refusedFor(got answer, limit wire.Limit) bool {
	w.t.Helper()
	if got.limit != 0 && got.limit != limit || got.fault != 0 {
		w.t.Fatalf("%+v", got)
	}
	return got.limit == limit
}

// refusedMail says whether a message was refused, for the limit given.
func (w *world) refusedMail(got, limit wire.Limit) bool {
	w.t.Helper()
	if got != 0 && got != limit {
		w.t.Fatalf("refused for %v", got)
	}
	return got == limit
}

// full says whether a request was refused because all places are taken.
func (w *world) full(got answer) bool {
	w.t.Helper()
	switch got.limit {
	case wire.LimitPendingReserve:
		return true
	case wire.LimitPendingPerSource, wire.LimitPendingBlindPerSource, wire.LimitPendingPerConnection, wire.LimitPendingBlindPerConnection:
		return true // the caps that max_pending_circuit_targets bounds
	}
	return w.refusedFor(got, wire.LimitPendingTargets)
}

// perSource checks a cap of a source, filled by connections that ask each for so many.
func (w *world) perSource(mode wire.Mode, limit, each int, name wire.Limit) {
	w.t.Helper()
	var p *peer
	for i := range limit {
		if i%each == 0 {
			p = w.as("[2001:db8:7:"+fmt.Sprint(i/each)+"::1]:1", i)
		}
		if got := p.request(mode, 1, tokenOf(i)); got != (answer{}) {
			w.t.Fatalf("number %d of %d: %+v", i+1, limit, got)
		}
	}
	p = w.as("[2001:db8:7:ffff::1]:1", limit)
	if got := p.request(mode, 1, tokenOf(limit)); got.limit != name {
		w.t.Fatalf("number %d of %d: %+v", limit+1, limit, got)
	}
	if n := w.rejected(ReasonPendingTargets); n != 1 {
		w.t.Fatalf("%d refused", n)
	}
	other := wire.Blinded
	if mode == wire.Blinded {
		other = wire.Named
	}
	if p.request(other, 1, tokenOf(limit)) != (answer{}) || w.as(client(0), limit+1).request(mode, 1, tokenOf(limit)) != (answer{}) {
		w.t.Fatal("a request of the other kind, or of another source, is refused")
	}
}

// spends has the session of a hold a budget but for one byte less than what b's
// answer takes, then exactly, then one byte more: then a, the heaviest, goes.
func (w *world) spends(b *budget, limit int, heavy, other *peer, of func(*session) *account) {
	w.t.Helper()
	synctest.Wait()
	held := of(w.s.dir.members[identity(heavy.key)])
	rest := limit - int(b.counts.Load())
	held.add(rest - 1)
	added := rest - 1
	for _, over := range []bool{false, false, true} {
		if spent := b.makeRoom(); spent != over {
			w.t.Fatalf("%d of %d bytes: spent is %v", b.counts.Load(), limit, spent)
		}
		if !over {
			held.add(1)
			added++
		}
	}
	heavy.end()
	held.add(-added)
	other.hello()
	synctest.Wait() // who goes is counted when it has gone
}

// The rows of spec/003's first two tables, in its order.
func TestLimitsTables(t *testing.T) {
	const first = `max_connections max_connections_per_ip max_connections_per_ipv6_48 rate_limit_bps max_message_bytes
		connection_timeout_secs identification_timeout_secs max_pending_circuit_targets pending_identity_reserve_percent
		max_pending_per_connection max_pending_blind_per_connection blind_ask_burst blind_ask_refill_per_sec
		max_pending_per_source max_pending_blind_per_source max_circuits_per_connection max_circuits max_circuits_per_source
		offline_queue_max_total_bytes offline_queue_max_bytes_per_recipient tls_handshake_timeout_secs
		outbound_budget_bytes buffer_budget_bytes ttl_secs knock_budget_bytes`
	second := []string{
		"Outbound queue per connection", "Wait for space in a recipient's queue", "Writer stall", "Offline messages per recipient",
		"Steady-size (1,226-byte) offline messages per recipient", "Messages tracked for delivery",
	}
	for _, table := range []struct {
		rows []row
		want []string
	}{{configurable, strings.Fields(first)}, {fixed, second}} {
		var names []string
		for _, r := range table.rows {
			names = append(names, r.name)
			if len(r.at) == 0 {
				t.Errorf("%s is held at no value", r.name)
			}
		}
		if !slices.Equal(names, table.want) {
			t.Errorf("the rows are %q, want %q", names, table.want)
		}
	}
	for _, r := range slices.Concat(configurable, fixed) {
		for _, n := range r.at {
			t.Run(fmt.Sprintf("%s/%d", r.name, n), func(t *testing.T) {
				behindEach(t, r.fronts(n), func(c *Config) {
					fronted(c)
					if r.change != nil {
						r.change(c, n)
					}
				}, func(t *testing.T, w *world) { r.run(w, n) })
			})
		}
	}
}

// quietErrors throws away the refusals that have come.
func (p *peer) quietErrors() {
	p.w.t.Helper()
	for {
		select {
		case <-p.frames:
			continue
		default:
		}
		return
	}
}

// What WELCOME promises is what holds: the rows above hold each of these limits.
func TestWelcomeSaysWhatHolds(t *testing.T) {
	bubble(t, func(c *Config) {
		fronted(c)
		l := &c.Limits
		l.MaxMessageBytes, l.ConnectionTimeoutSecs, l.IdentificationTimeoutSecs, l.RateLimitBPS = 70001, 61, 7, 5000
		l.MaxPendingPerConnection, l.MaxCircuitsPerConnection = 11, 12
		l.MaxPendingBlindPerConnection, l.BlindAskBurst, l.BlindAskRefillPerSec = 13, 14, 15
	}, func(t *testing.T, w *world) {
		got := w.behind(client(0)).hello()
		want := wire.Welcome{
			Version: wire.Version, Nonce: got.Nonce, Binding: wire.BindingNone,
			MaxMessageBytes: 70001, ConnectionTimeoutSecs: 61, IdentificationTimeoutSecs: 7, RateLimitBPS: 5000,
			MaxPendingPerConnection: 11, MaxCircuitsPerConnection: 12,
			MaxPendingBlindPerConnection: 13, BlindAskBurst: 14, BlindAskRefillPerSec: 15,
		}
		if got != want {
			t.Fatalf("%+v", got)
		}
	})
}

// spec/003: with shares on, one user's flood leaves the others of its own source
// what is free, and never ends their sessions; they are one source.
func TestNeighboursShareOneAllowance(t *testing.T) {
	bubble(t, func(c *Config) { fronted(c); c.Limits.MaxPendingPerSource = 40 }, func(t *testing.T, w *world) {
		flood, neighbour := w.as("[2001:db8:7:1::1]:1", 1), w.as("[2001:db8:7:2::1]:1", 2)
		for i := range 50 {
			flood.request(wire.Named, 1, tokenOf(i))
		}
		for i := range 8 {
			if got := neighbour.request(wire.Named, 1, tokenOf(i)); got != (answer{}) {
				t.Fatalf("%+v", got)
			}
		}
		if got := neighbour.request(wire.Named, 1, tokenOf(8)); got.limit != wire.LimitPendingPerSource {
			t.Fatalf("%+v", got)
		}
		if got := w.as("[2001:db8:8:1::1]:1", 3).request(wire.Named, 1, tokenOf(8)); got != (answer{}) {
			t.Fatalf("%+v", got)
		}
	})
}
