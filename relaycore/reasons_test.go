package relaycore

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/relaycore/wire"
)

// provoked is one row of the third table of spec/003: what makes the relay count
// a reason. by names a row of the first two tables, with its first value, that does.
var provoked = []struct {
	reason Reason
	by     string
	change func(*Config)
	run    func(w *world)
}{
	{reason: ReasonMaxConnections, by: "max_connections"},
	{reason: ReasonPerIPCap, by: "max_connections_per_ip"},
	{reason: ReasonPerPrefixCap, by: "max_connections_per_ipv6_48"},
	{reason: ReasonRateLimit, by: "rate_limit_bps"},
	{reason: ReasonOversizedFrame, by: "max_message_bytes"},
	{reason: ReasonHandshakeTimeout, run: func(w *world) {
		w.reach(client(0)).write([]byte(upgradeRequest[:40]))
		time.Sleep(headTime)
	}},
	{reason: ReasonIdleTimeout, by: "connection_timeout_secs"},
	{reason: ReasonIdentification, by: "identification_timeout_secs"},
	{reason: ReasonAuthRate, run: func(w *world) {
		p := w.as(client(0), 1) // a hello and a publish
		for range 4 {
			p.hello()
		}
		w.wantOnly(ReasonAuthRate, 0)
		p.send(wire.Hello{Version: wire.Version})
	}},
	{reason: ReasonKeyAuth, run: func(w *world) {
		p := w.behind(client(0))
		p.send(wire.NewPublish(keyOf(1), nil, [32]byte{1}, [32]byte{}))
	}},
	{reason: ReasonPendingTargets, by: "max_pending_per_connection"},
	{reason: ReasonPendingEvicted, change: func(c *Config) { pendingAtMost(&c.Limits, 2); c.Limits.PendingIdentityReservePercent = 0 }, run: func(w *world) {
		p := w.as(client(0), 1)
		p.request(wire.Named, 1, tokenOf(1))
		p.request(wire.Blinded, 1, tokenOf(2))
		w.wantOnly("", 0)
		w.as(client(1), 2).request(wire.Named, 1, tokenOf(3))
	}},
	{reason: ReasonBlindAskRate, by: "blind_ask_burst"},
	{reason: ReasonCircuitCap, by: "max_circuits"},
	{reason: ReasonCircuitEvicted, change: func(c *Config) { circuitsAtMost(&c.Limits, 2) }, run: func(w *world) {
		w.pairUp(w.as(client(0), 1), w.as(client(0), 2))
		w.wantOnly("", 0)
		w.pairUp(w.as(client(1), 3), w.as(client(2), 4))
	}},
	{reason: ReasonKnockQuota, change: func(c *Config) { c.Limits.MaxPendingPerConnection = 200 }, run: func(w *world) {
		p := w.as(client(0), 1)
		for i := range knocksPerAsker {
			p.request(wire.Named, 1, tokenOf(i))
		}
		w.wantOnly("", 0)
		p.request(wire.Named, 1, tokenOf(knocksPerAsker))
	}},
	{reason: ReasonKnockEvicted, by: "knock_budget_bytes"},
	{reason: ReasonQueueOverflow, by: "Steady-size (1,226-byte) offline messages per recipient"},
	{reason: ReasonSlowConsumer, by: "Wait for space in a recipient's queue"},
	{reason: ReasonWriterStall, by: "Writer stall"},
	{reason: ReasonOutboundShed, by: "outbound_budget_bytes"},
	{reason: ReasonGlobalOutbound, run: func(w *world) {
		a, b := w.as(client(0), 1), w.as(client(1), 2)
		circuit := w.pairUp(a, b)
		synctest.Wait()
		// Somebody holds nearly all that the budget has, so that a message finds it spent.
		c := w.s.dir.members[identity(w.as(client(2), 3).key)]
		synctest.Wait()
		rest := int(w.s.outboundBudget.limit.Load()-w.s.outboundBudget.counts.Load()) - 2*memconn.BufferSize
		c.out.account.add(rest)
		defer c.out.account.add(-rest)
		a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 4*memconn.BufferSize)})
		want[wire.MessageAck](a)
		synctest.Wait()
		if w.rejected(ReasonOutboundShed) != 1 {
			w.t.Error("nobody was shed for it")
		}
	}},
	{reason: ReasonBufferShed, by: "buffer_budget_bytes"},
	{reason: ReasonTaskPanic, run: func(w *world) {
		p, other := w.as(client(0), 1), w.as(client(1), 2)
		synctest.Wait()
		w.s.dir.members[identity(p.key)].parser = nil
		p.write([]byte{0x82})
		p.end()
		other.hello()
	}},
	{reason: ReasonProxyHeader, run: func(w *world) {
		p := w.reachUnnamed()
		p.write([]byte(upgradeRequest))
		p.gone()
	}},
	{reason: ReasonProxyNotLoopback, run: func(w *world) { w.reachFromFar().gone() }},
	{reason: ReasonUnknownFrame, run: func(w *world) {
		p := w.as(client(0), 1)
		p.write(masked(0x82, []byte{0x05}))
		p.end()
	}},
}

// The rows of spec/003's third table, in its order.
func TestReasonsTable(t *testing.T) {
	var names []Reason
	for _, r := range provoked {
		names = append(names, r.reason)
		run, change := r.run, r.change
		for _, other := range slices.Concat(configurable, fixed) {
			if r.by != "" && other.name == r.by {
				n := other.at[0]
				run = func(w *world) { other.run(w, n) }
				change = func(c *Config) {
					if other.change != nil {
						other.change(c, n)
					}
				}
			}
		}
		if run == nil || (r.run == nil) == (r.by == "") {
			t.Errorf("%s is provoked by nobody, or by two", r.reason)
			continue
		}
		t.Run(string(r.reason), func(t *testing.T) {
			eachFront(t, func(c *Config) {
				fronted(c)
				if change != nil {
					change(c)
				}
			}, func(t *testing.T, w *world) {
				run(w)
				synctest.Wait()
				if w.rejected(r.reason) == 0 {
					t.Error("it is not counted")
				}
				if r.by == "" {
					if n := w.rejected(r.reason); n != 1 {
						t.Errorf("it is counted %d times", n)
					}
				}
			})
		})
	}
	if !slices.Equal(names, reasons) {
		t.Errorf("the rows are %v", names)
	}
}
