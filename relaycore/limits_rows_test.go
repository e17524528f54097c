package relaycore

import (
	"fmt"
	"io"
	"math"
	"net/netip"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/proxy"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// steadyCharge is what a steady message is charged in the mailbox.
var steadyCharge = int(mailbox.Charge(mailbox.SteadySize))

// configurable is the first table of spec/003.
var configurable = []row{
	{name: "max_connections", at: []int{1, 2, 3},
		change: func(c *Config, n int) {
			c.Limits.MaxConnections, c.Limits.MaxConnectionsPerIP, c.Limits.MaxConnectionsPerIPv648 = n, 0, 0
		},
		run: func(w *world, n int) {
			w.counts(n, ReasonMaxConnections, func(i int) bool { return w.turnedAway(client(i)) })
		}},
	{name: "max_connections_per_ip", at: []int{1, 2, 64},
		change: func(c *Config, n int) { c.Limits.MaxConnectionsPerIP = n },
		run: func(w *world, n int) {
			w.counts(n, ReasonPerIPCap, func(int) bool { return w.turnedAway("203.0.113.1:1") })
		}},
	{name: "max_connections_per_ipv6_48", at: []int{1, 2, 256},
		change: func(c *Config, n int) { c.Limits.MaxConnectionsPerIPv648 = n },
		run: func(w *world, n int) {
			w.counts(n, ReasonPerPrefixCap, func(i int) bool { return w.turnedAway(fmt.Sprintf("[2001:db8:7:%x::1]:1", i)) })
		}},
	{name: "rate_limit_bps", at: []int{1024, 65536, 1 << 20}, // a message of the length of the burst, and 256 more
		change: func(c *Config, n int) { c.Limits.RateLimitBPS, c.Limits.MaxMessageBytes = n, 64<<10 },
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			p.pongs.Store(false) // they cost too
			burst := max(n, 64<<10)
			time.Sleep(time.Duration(burst/n+1) * time.Second) // the bucket is full
			synctest.Wait()
			send := func(size int) {
				for size > 0 {
					cost := min(size, 64<<10)
					if rest := size - cost; rest > 0 && rest < 1024 {
						cost -= 1024 // so that the last one costs enough for a message
					}
					p.send(wire.Send{Payload: make([]byte, cost-messageOverhead-wire.SendHead)})
					size -= cost
				}
				synctest.Wait()
			}
			send(burst)
			w.wantOnly(ReasonRateLimit, 0)
			p.quietErrors()
			start := time.Now()
			p.send(wire.Keepalive{}) // 257 more
			p.hello()
			w.wantOnly(ReasonRateLimit, w.rejected(ReasonRateLimit))
			if want := time.Duration(math.Ceil(257 / float64(n) * 1e9)); time.Since(start) < want || time.Since(start) > want+time.Microsecond || w.rejected(ReasonRateLimit) == 0 {
				w.t.Fatalf("read again after %v, want %v", time.Since(start), want)
			}
		}},
	{name: "max_message_bytes", at: []int{65536, 65537, 4 << 20},
		change: func(c *Config, n int) { c.Limits.MaxMessageBytes = n },
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			for _, size := range []int{n - 1, n} {
				p.send(wire.Send{Payload: make([]byte, size-wire.SendHead)})
				want[wire.Error](p)
			}
			w.wantOnly(ReasonOversizedFrame, 0)
			p.write(masked(0x82, make([]byte, n+1))[:14]) // its header says enough
			if _, text, _ := p.end(); text != "oversized_frame" {
				w.t.Fatal(text)
			}
			w.wantOnly(ReasonOversizedFrame, 1)
		}},
	{name: "connection_timeout_secs", at: []int{60, 61, 300},
		change: func(c *Config, n int) { c.Limits.ConnectionTimeoutSecs = n },
		run:    func(w *world, n int) { w.lasts(w.as(client(0), 1), secs(n), ReasonIdleTimeout) }},
	{name: "identification_timeout_secs", at: []int{1, 2, 15, 300},
		change: func(c *Config, n int) {
			c.Limits.IdentificationTimeoutSecs, c.Limits.ConnectionTimeoutSecs = n, 301
		},
		run: func(w *world, n int) { w.lasts(w.behind(client(0)), secs(n), ReasonIdentification) }},
	{name: "max_pending_circuit_targets", at: []int{1, 2, 40},
		change: func(c *Config, n int) { pendingAtMost(&c.Limits, n); c.Limits.PendingIdentityReservePercent = 0 },
		run: func(w *world, n int) {
			p, q := w.as(client(0), 1), w.as(client(0), 2)
			w.counts(n, ReasonPendingTargets, func(i int) bool {
				if i%2 == 0 {
					return w.full(p.request(wire.Named, 1, tokenOf(i)))
				}
				return w.full(q.request(wire.Blinded, 1, tokenOf(i)))
			})
		}},
	{name: "pending_identity_reserve_percent", at: []int{0, 1, 25, 90},
		change: func(c *Config, n int) {
			pendingAtMost(&c.Limits, 100)
			c.Limits.PendingIdentityReservePercent, c.Limits.BlindAskBurst = n, 200
		},
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			w.counts(100-n, ReasonPendingTargets, func(i int) bool { return w.full(p.request(wire.Blinded, 1, tokenOf(i))) })
			for i := range n {
				if got := w.as(client(0), 2+i/32).request(wire.Named, 1, tokenOf(i)); got != (answer{}) {
					w.t.Fatalf("named request %d of %d: %+v", i, n, got)
				}
			}
		}},
	{name: "max_pending_per_connection", at: []int{1, 2, 32},
		change: func(c *Config, n int) { c.Limits.MaxPendingPerConnection = n },
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			w.counts(n, ReasonPendingTargets, func(i int) bool {
				return w.refusedFor(p.request(wire.Named, 1, tokenOf(i)), wire.LimitPendingPerConnection)
			})
			if p.request(wire.Blinded, 1, tokenOf(0)) != (answer{}) || w.as(client(0), 2).request(wire.Named, 1, tokenOf(0)) != (answer{}) {
				w.t.Fatal("a blinded request, or one of another connection, is refused")
			}
		}},
	{name: "max_pending_blind_per_connection", at: []int{1, 2, 1024},
		change: func(c *Config, n int) { c.Limits.MaxPendingBlindPerConnection, c.Limits.BlindAskBurst = n, 2000 },
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			w.counts(n, ReasonPendingTargets, func(i int) bool {
				return w.refusedFor(p.request(wire.Blinded, 1, tokenOf(i)), wire.LimitPendingBlindPerConnection)
			})
			if p.request(wire.Named, 1, tokenOf(0)) != (answer{}) || w.as(client(0), 2).request(wire.Blinded, 1, tokenOf(5000)) != (answer{}) {
				w.t.Fatal("a named request, or one of another connection, is refused")
			}
		}},
	{name: "blind_ask_burst", at: []int{1, 2, 64},
		change: func(c *Config, n int) { c.Limits.BlindAskBurst = n },
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			for i := range n {
				if got := p.request(wire.Blinded, 1, tokenOf(i)); got != (answer{}) {
					w.t.Fatalf("%+v", got)
				}
			}
			if got := p.request(wire.Blinded, 1, tokenOf(n)); got != (answer{limit: wire.LimitBlindAskRate, retry: 1}) {
				w.t.Fatalf("%+v", got)
			}
			for range 3 { // a code that it holds is free
				if got := p.request(wire.Blinded, 1, tokenOf(0)); got != (answer{}) {
					w.t.Fatalf("%+v", got)
				}
			}
			// spec/003: also counted as pending_targets.
			if w.rejected(ReasonBlindAskRate) != 1 || w.rejected(ReasonPendingTargets) != 1 {
				w.t.Fatal("not counted twice")
			}
			w.wantNothingBut(ReasonBlindAskRate, ReasonPendingTargets)
		}},
	{name: "blind_ask_refill_per_sec", at: []int{1, 2, 8},
		change: func(c *Config, n int) { c.Limits.BlindAskRefillPerSec, c.Limits.BlindAskBurst = n, 1 },
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			p.request(wire.Blinded, 1, tokenOf(0))
			time.Sleep(time.Second/time.Duration(n) - time.Nanosecond)
			if got := p.request(wire.Blinded, 1, tokenOf(1)); got.limit != wire.LimitBlindAskRate {
				w.t.Fatalf("%+v", got)
			}
			time.Sleep(time.Nanosecond)
			if got := p.request(wire.Blinded, 1, tokenOf(1)); got != (answer{}) {
				w.t.Fatalf("%+v", got)
			}
		}},
	{name: "max_pending_per_source", at: []int{1, 2, 1024},
		change: func(c *Config, n int) { c.Limits.MaxPendingPerSource = n },
		run: func(w *world, n int) {
			w.perSource(wire.Named, n, 32, wire.LimitPendingPerSource)
		}},
	{name: "max_pending_blind_per_source", at: []int{1, 2, 4096},
		change: func(c *Config, n int) { c.Limits.MaxPendingBlindPerSource, c.Limits.BlindAskBurst = n, 2000 },
		run: func(w *world, n int) {
			w.perSource(wire.Blinded, n, 1024, wire.LimitPendingBlindPerSource)
		}},
	{name: "max_circuits_per_connection", at: []int{1, 2, 20},
		change: func(c *Config, n int) { c.Limits.MaxCircuitsPerConnection = n },
		run: func(w *world, n int) {
			hub := w.as(client(0), 1)
			w.counts(n, ReasonCircuitCap, func(i int) bool {
				p := w.as(client(1+i), 2+i)
				hub.request(wire.Blinded, 1, tokenOf(i))
				return w.refusedFor(p.request(wire.Blinded, 1, tokenOf(i)), wire.LimitCircuitsPerMember)
			})
			// Across reconnects: what its identity still is a member of counts.
			hub.nc.Close()
			synctest.Wait()
			if got := len(w.s.dir.circuits.byIdentity[identity(hub.key)]); got != n {
				w.t.Fatalf("%d circuits are held after it has left, want %d", got, n)
			}
		}},
	{name: "max_circuits", at: []int{2, 3, 4, 5, 20},
		change: func(c *Config, n int) { circuitsAtMost(&c.Limits, n); c.Limits.MaxCircuitsPerSource = n },
		run: func(w *world, n int) {
			w.counts(n/2, ReasonCircuitCap, func(i int) bool {
				// A side of each pair is the one source's, so that it is the heaviest.
				p, q := w.as(client(1+i), 2*i), w.as("203.0.113.1:1", 2*i+1)
				p.request(wire.Named, 1, identity(q.key))
				got := q.request(wire.Named, 1, identity(p.key))
				return w.refusedFor(got, wire.LimitCircuits)
			})
		}},
	{name: "max_circuits_per_source", at: []int{2, 3, 4, 20},
		change: func(c *Config, n int) { c.Limits.MaxCircuitsPerSource = n },
		run: func(w *world, n int) {
			w.counts(n, ReasonCircuitCap, func(i int) bool {
				p, q := w.as(client(1+i), 2*i), w.as("203.0.113.1:1", 2*i+1)
				p.request(wire.Named, 1, identity(q.key))
				return w.refusedFor(q.request(wire.Named, 1, identity(p.key)), wire.LimitCircuitsPerSource)
			})
		}},
	{name: "offline_queue_max_total_bytes", at: []int{32*steadyCharge - 1 + 1<<16, 32*steadyCharge + 1<<16, 32*steadyCharge + 1<<16 + 1},
		change: func(c *Config, n int) {
			l := &c.Limits
			l.MaxMessageBytes, l.OfflineQueueMaxBytesPerRecipient, l.OfflineQueueMaxTotalBytes = 1<<16, 1<<16, n
		},
		run: func(w *world, n int) {
			w.counts(n/steadyCharge, ReasonQueueOverflow, func(i int) bool {
				p := w.as(client(i), 2*i) // a source each
				return w.refusedMail(p.posts(w.absent(p, 2*i+1, i), i, mailbox.SteadySize), wire.LimitMailboxTotal)
			})
		}},
	{name: "offline_queue_max_bytes_per_recipient", at: []int{32*steadyCharge - 1 + 1<<16, 32*steadyCharge + 1<<16, 32*steadyCharge + 1<<16 + 1},
		change: func(c *Config, n int) {
			c.Limits.MaxMessageBytes, c.Limits.OfflineQueueMaxBytesPerRecipient = 1<<16, n
		},
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			circuit := w.absent(p, 2, 7)
			w.counts(n/steadyCharge, ReasonQueueOverflow, func(i int) bool {
				return w.refusedMail(p.posts(circuit, i, mailbox.SteadySize), wire.LimitMailboxBytes)
			})
			if p.posts(w.absent(p, 3, 8), 1, mailbox.SteadySize) != 0 {
				w.t.Fatal("a message for another is refused")
			}
		}},
	{name: "tls_handshake_timeout_secs", at: []int{1, 2, 10, 120},
		edge: func(l *proxy.Limits, n int) { l.TLSHandshakeTimeoutSecs = n },
		run: func(w *world, n int) {
			w.edge.binds = "tls_handshake_timeout"
			nc := w.edge.connect(client(0))
			nc.Write([]byte{0x16}) // the hello's first byte
			time.Sleep(secs(n) - time.Nanosecond)
			synctest.Wait()
			if ended := w.edge.reads("ended_total"); len(ended) > 0 {
				w.t.Fatalf("ended: %v", ended)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if ended := w.edge.reads("ended_total"); len(ended) != 1 || ended[w.edge.binds] != 1 {
				w.t.Fatalf("ended: %v", ended)
			}
			if got, err := io.ReadAll(nc); len(got) > 0 || err != nil {
				w.t.Fatalf("%q, %v", got, err)
			}
			if heard := w.s.count.connections.Load(); heard != 0 {
				w.t.Fatalf("the relay has heard of %d connections", heard)
			}
		}},
	{name: "outbound_budget_bytes", at: []int{16 << 20, 16<<20 + 1, 1 << 30},
		change: func(c *Config, n int) { c.Limits.OutboundBudgetBytes = n },
		run: func(w *world, n int) {
			a, b := w.as(client(0), 1), w.as(client(1), 2)
			w.spends(w.s.outboundBudget, n, a, b, func(c *session) *account { return &c.out.account })
			if w.rejected(ReasonOutboundShed) != 1 {
				w.t.Fatal("nobody was shed")
			}
		}},
	{name: "buffer_budget_bytes", at: []int{4 << 20, 4<<20 + 1, 512 << 20},
		change: func(c *Config, n int) { c.Limits.BufferBudgetBytes = n },
		run: func(w *world, n int) {
			a, b := w.as(client(0), 1), w.as(client(1), 2)
			w.spends(w.s.bufferBudget, n, a, b, func(c *session) *account { return &c.buffers })
			w.wantOnly(ReasonBufferShed, 1)
		}},
	{name: "ttl_secs", at: []int{3600, 3601, 259200},
		change: func(c *Config, n int) { c.OfflineQueue.TTLSecs = n },
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			if p.posts(w.absent(p, 3, 7), 1, 10) != 0 {
				w.t.Fatal("refused")
			}
			p.knock(idOf(2), "hello")
			p.nc.Close()
			// The time zero finds what is there, and takes nothing away.
			held := func() int { return w.s.mail.store.Stats(time.Time{}).Messages }
			time.Sleep(secs(n) - time.Nanosecond)
			synctest.Wait()
			if st := w.s.dir.stats(); st.knocks != 1 || held() != 1 {
				w.t.Fatalf("%+v, %d messages", st, held())
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if st := w.s.dir.stats(); st.knocks != 0 || held() != 0 {
				w.t.Fatalf("%+v, %d messages", st, held())
			}
			w.as(client(0), 3).quiet()
		}},
	{name: "knock_budget_bytes", at: []int{81920, 81920 + wire.AskSize - 1, 81920 + wire.AskSize},
		change: func(c *Config, n int) { c.OfflineQueue.KnockBudgetBytes = n },
		run: func(w *world, n int) {
			w.counts(n/wire.AskSize, ReasonKnockEvicted, func(i int) bool {
				before := w.rejected(ReasonKnockEvicted)
				p := w.as(client(i), i)
				p.knock(idOf(1000+i), "hello")
				return w.rejected(ReasonKnockEvicted) > before
			})
		}},
}

// fixed is the second table of spec/003.
var fixed = []row{
	{name: "Outbound queue per connection", at: []int{0, 1},
		run: func(w *world, n int) {
			a, b := w.as(client(0), 1), w.as(client(1), 2)
			payload, most := 1226, 256
			if n == 1 {
				payload, most = 1<<20-wire.SendHead, 16
			}
			w.stuffed(a, b, payload)
			q := &w.s.dir.members[identity(b.key)].out
			q.mu.Lock()
			frames, size := q.frames, q.bytes
			q.mu.Unlock()
			if n == 0 && frames != most || n == 1 && (size > 16<<20 || size <= 15<<20) {
				w.t.Fatalf("%d messages of %d bytes are queued", frames, size)
			}
			b.resume()
		}},
	{name: "Wait for space in a recipient's queue", at: []int{5},
		run: func(w *world, n int) {
			a, b := w.as(client(0), 1), w.as(client(1), 2)
			circuit, _ := w.stuffed(a, b, 1226)
			a.send(wire.Send{Circuit: circuit, ID: messageID(9999), Payload: make([]byte, 1226)})
			time.Sleep(secs(n) - time.Nanosecond)
			w.wantOnly(ReasonSlowConsumer, 0)
			time.Sleep(time.Nanosecond)
			w.wantOnly(ReasonSlowConsumer, 1)
			b.resume()
		}},
	{name: "Writer stall", at: []int{30},
		run: func(w *world, n int) {
			a, b := w.as(client(0), 1), w.as(client(1), 2)
			circuit := w.pairUp(a, b)
			b.stopReading()
			a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 8*memconn.BufferSize)})
			want[wire.MessageAck](a)
			time.Sleep(secs(n) - time.Nanosecond)
			w.wantOnly(ReasonWriterStall, 0)
			time.Sleep(4 * time.Second) // a plain connection is looked at now and then
			w.wantOnly(ReasonWriterStall, 1)
			b.resume()
		}},
	{name: "Offline messages per recipient", at: []int{1000},
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			circuit := w.absent(p, 2, 7)
			w.counts(n, ReasonQueueOverflow, func(i int) bool {
				return w.refusedMail(p.posts(circuit, i, i%64), wire.LimitMailboxMessages)
			})
		}},
	{name: "Steady-size (1,226-byte) offline messages per recipient", at: []int{500},
		run: func(w *world, n int) {
			p := w.as(client(0), 1)
			circuit := w.absent(p, 2, 7)
			w.counts(n, ReasonQueueOverflow, func(i int) bool {
				return w.refusedMail(p.posts(circuit, i, mailbox.SteadySize), wire.LimitMailboxSteady)
			})
			for i, size := range []int{mailbox.SteadySize - 1, mailbox.SteadySize + 1} {
				if p.posts(circuit, n+i, size) != 0 {
					w.t.Fatalf("a message of %d bytes is refused", size)
				}
			}
		}},
	{name: "Messages tracked for delivery", at: []int{100_000},
		run: func(w *world, n int) {
			// All but one are in flight to others.
			store, now := w.s.mail.store, time.Now()
			for i := range n - 1 {
				to, last := wire.Identity(tokenOf(1000+i/64)), i%64 == 63
				if i >= n/64*64-64 { // of few that are left nobody gets many
					to, last = wire.Identity(tokenOf(100_000+i)), true
				}
				m := mailbox.Message{Recipient: to, ID: messageID(i), Contact: true, Source: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)}
				if err := store.Put(m, now); err != nil {
					w.t.Fatal(err)
				}
				if last {
					if got, _ := store.Reader(to).Next(now); len(got) == 0 || len(got) != store.Stats(now).InFlight-i+len(got)-1 {
						w.t.Fatalf("%d are handed out, number %d among them", len(got), i)
					}
				}
			}
			p := w.as(client(0), 1)
			circuit := w.absent(p, 2, 7)
			for i := range 3 {
				if p.posts(circuit, i, 10) != 0 {
					w.t.Fatal("refused")
				}
			}
			q := w.as(client(1), 2)
			q.gets(idOf(1), 0, 1) // the last place
			r := w.as(client(2), 3)
			circuit = w.blindPair(p, r, 8)
			r.send(wire.Close{Circuit: circuit})
			synctest.Wait()
			if p.posts(circuit, 10, 10) != 0 {
				w.t.Fatal("refused")
			}
			r.quiet()
			if st := w.mailStats(); st.InFlight != n {
				w.t.Fatalf("%d in flight", st.InFlight)
			}
			for i := range 2 {
				q.acks(i, i+1)
				q.gets(idOf(1), i+1, i+2)
			}
			r.quiet()
			q.acks(2, 3) // and the relay's next keep-alive finds it room
			for range 10 {
				q.send(wire.Keepalive{})
				r.send(wire.Keepalive{})
				time.Sleep(pingMax / 10)
			}
			r.gets(idOf(1), 10, 11)
		}},
}
