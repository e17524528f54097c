package relaycore

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// reload puts the start's config with a change in force.
func (w *world) reload(change func(*Config)) {
	w.t.Helper()
	cfg := w.s.start
	if change != nil {
		change(&cfg)
	}
	r, err := w.s.Prepare(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	start := time.Now()
	r.Apply()
	if took := time.Since(start); took != 0 {
		w.t.Errorf("a reload took %v", took)
	}
}

// What only a start takes is refused by its key, what is out of range by its
// own, and nothing changes.
func TestPrepareRefuses(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ProxyProtocol = true
	s, err := NewServer(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	was := s.inForce.Load()
	for _, row := range []struct {
		says   string
		change func(*Config)
	}{
		{"in_process", func(c *Config) { c.InProcess = true }},
		{"bind", func(c *Config) { c.Bind = "127.0.0.1:7778" }},
		{"allow_public", func(c *Config) { c.AllowPublic = true }},
		{"proxy_protocol", func(c *Config) { c.ProxyProtocol = false }},
		{"require_channel_binding", func(c *Config) { c.RequireChannelBinding = false }},
		{"channel_binding_tlv", func(c *Config) { c.ChannelBindingTLV = 229 }},
		{"limits.max_connections: 0 is out of range", func(c *Config) { c.Limits.MaxConnections = 0; c.Limits.RateLimitBPS = 2048 }},
		{"trust_proxy_from: is empty", func(c *Config) { c.TrustProxyFrom = nil }},
	} {
		next := cfg
		row.change(&next)
		if r, err := s.Prepare(next); r != nil || err == nil || !strings.HasPrefix(err.Error(), row.says) {
			t.Errorf("%s: %v", row.says, err)
		}
	}
	next := cfg
	next.Limits.MaxConnections, next.Limits.OutboundBudgetBytes, next.DrainSecs = 700, 16<<20, 1
	next.Metrics.Enabled, next.Control.Socket = false, "" // the command's, which the relay does not look at
	if _, err := s.Prepare(next); err != nil {
		t.Error(err)
	}
	if s.inForce.Load() != was || s.gate.Limits().MaxConnections != cfg.Limits.MaxConnections || s.outboundBudget.limit.Load() != 1<<30 {
		t.Error("preparing has changed something")
	}
}

// A lowered cap evicts nobody and binds newcomers until enough have left; a
// raised one holds at once.
func TestLoweredCapOfConnections(t *testing.T) {
	caps := func(n int) func(*Config) {
		return func(c *Config) {
			c.Limits.MaxConnections, c.Limits.MaxConnectionsPerIP, c.Limits.MaxConnectionsPerIPv648 = n, 0, 0
		}
	}
	bubble(t, func(c *Config) { fronted(c); caps(10)(c) }, func(t *testing.T, w *world) {
		var open []*peer
		for i := range 10 {
			open = append(open, w.as(client(i), i))
		}
		w.reload(caps(5))
		if got := w.s.gate.Limits().MaxConnections; got != 5 {
			t.Errorf("the cap is %d", got)
		}
		for len(open) > 4 {
			if !w.turnedAway(client(50)) {
				t.Fatalf("one comes in beside %d", len(open))
			}
			for _, p := range open {
				p.quiet()
			}
			open[0].nc.Close()
			open = open[1:]
			synctest.Wait()
		}
		open = append(open, w.as(client(60), 60))
		if !w.turnedAway(client(61)) {
			t.Fatal("a sixth comes in")
		}
		w.reload(caps(8))
		for i := range 3 {
			open = append(open, w.as(client(70+i), 70+i))
		}
		if !w.turnedAway(client(80)) {
			t.Fatal("a ninth comes in")
		}
		for _, p := range open {
			p.quiet()
		}
	})
}

// A session keeps the times and the largest message that it was welcomed with.
func TestSessionKeepsItsWelcome(t *testing.T) {
	bubble(t, func(c *Config) {
		fronted(c)
		c.Limits.MaxMessageBytes = 1 << 20
		c.Limits.ConnectionTimeoutSecs, c.Limits.IdentificationTimeoutSecs = 300, 20
	}, func(t *testing.T, w *world) {
		old, unproven, after := w.as(client(1), 1), w.behind(client(2)), 65536
		w.reload(func(c *Config) {
			c.Limits.MaxMessageBytes = after
			c.Limits.ConnectionTimeoutSecs, c.Limits.IdentificationTimeoutSecs = 60, 10
		})
		newer := w.behind(client(3))
		if got := newer.hello(); got.MaxMessageBytes != uint32(after) || got.ConnectionTimeoutSecs != 60 || got.IdentificationTimeoutSecs != 10 {
			t.Errorf("a newcomer is told %+v", got)
		}
		if got := unproven.hello(); got.MaxMessageBytes != uint32(1<<20) || got.ConnectionTimeoutSecs != 300 || got.IdentificationTimeoutSecs != 20 {
			t.Errorf("who came before is told %+v", got)
		}
		newer.publishAs(keyOf(3), []byte("bundle"))
		begin := time.Now()
		if _, text, at := unproven.end(); text != string(ReasonIdentification) || at.Sub(begin) != 20*time.Second {
			t.Errorf("ended with %q after %v", text, at.Sub(begin))
		}
		if _, text, at := newer.end(); text != string(ReasonIdleTimeout) || at.Sub(begin) != 60*time.Second {
			t.Errorf("the newcomer ended with %q after %v", text, at.Sub(begin))
		}

		// The old one may still send what the new limit forbids.
		other := w.as(client(4), 4)
		circuit := w.pairUp(old, other)
		old.send(wire.Send{Circuit: circuit, ID: messageID(1), Payload: make([]byte, after+1000)})
		if got := want[wire.Message](other); len(got.Payload) != after+1000 {
			t.Errorf("%d bytes came", len(got.Payload))
		}
		want[wire.MessageAck](old)
		other.send(wire.Send{Circuit: circuit, ID: messageID(2), Payload: make([]byte, after+1000)})
		if code, _, _ := other.end(); code != websocket.CodeTooBig {
			t.Errorf("the newcomer's message ended it with %d", code)
		}
		want[wire.CircuitClosed](old)
		begin = time.Now()
		if _, text, at := old.end(); text != string(ReasonIdleTimeout) || at.Sub(begin) != 300*time.Second {
			t.Errorf("the old one ended with %q after %v", text, at.Sub(begin))
		}
	})
}

// The byte rate in force binds everybody.
func TestByteRateIsLive(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		a, b := w.as(client(1), 1), w.as(client(2), 2)
		circuit := w.pairUp(a, b)
		send := func(n int) time.Duration {
			begin := time.Now()
			for i := range 3 {
				a.send(wire.Send{Circuit: circuit, ID: messageID(i), Payload: make([]byte, n)})
				want[wire.Message](b)
				want[wire.MessageAck](a)
			}
			return time.Since(begin)
		}
		if took := send(65000); took != 0 {
			t.Errorf("unthrottled, it took %v", took)
		}
		w.reload(func(c *Config) { c.Limits.RateLimitBPS, c.Limits.MaxMessageBytes = 1024, 65536 })
		if took := send(65000); took < 30*time.Second {
			t.Errorf("throttled, it took %v", took)
		}
		w.reload(nil)
		time.Sleep(150 * time.Second) // what it owes, it owes as time
		if took := send(65000); took != 0 {
			t.Errorf("unthrottled again, it took %v", took)
		}
	})
}

// Requests and circuits beyond a lowered cap stay; none is added.
func TestLoweredCapsOfTables(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		a, b, c := w.as(client(1), 1), w.as(client(2), 2), w.as(client(3), 3)
		circuit := w.pairUp(a, b)
		for i := range 4 {
			if got := a.request(wire.Named, uint64(10+i), idOf(100+i)); got != (answer{}) {
				t.Fatalf("%+v", got)
			}
		}
		w.reload(func(cfg *Config) { cfg.Limits.MaxPendingPerConnection, cfg.Limits.MaxCircuitsPerConnection = 2, 1 })
		if st := w.s.dir.stats(); st.pending != 4 || st.circuits != 1 {
			t.Errorf("after the reload: %+v", st)
		}
		if got := a.request(wire.Named, 20, idOf(200)); got.limit != wire.LimitPendingPerConnection {
			t.Errorf("a fifth: %+v", got)
		}
		c.request(wire.Named, 21, idOf(2))
		if got := b.request(wire.Named, 22, idOf(3)); got.limit != wire.LimitCircuitsPerMember {
			t.Errorf("a second circuit: %+v", got)
		}
		w.reload(nil)
		if got := a.request(wire.Named, 23, idOf(200)); got != (answer{}) {
			t.Errorf("after it was raised: %+v", got)
		}
		a.send(wire.Send{Circuit: circuit, ID: messageID(1), Payload: []byte("x")})
		want[wire.MessageAck](a)
	})
}

// A byte budget that is lowered sheds nobody by itself; the next byte does.
func TestLoweredByteBudget(t *testing.T) {
	bubble(t, func(c *Config) { fronted(c); c.Limits.MaxMessageBytes = 1 << 20 }, func(t *testing.T, w *world) {
		h := w.honest()
		a := w.as(client(1), 1)
		for n := range 2 {
			b := w.as(client(2+n), 2+n)
			circuit := w.pairUp(a, b)
			b.stopReading()
			for i := range 12 - n {
				a.send(wire.Send{Circuit: circuit, ID: messageID(i), Payload: make([]byte, 1<<20-100)})
				want[wire.MessageAck](a)
			}
		}
		synctest.Wait()
		w.reload(func(c *Config) {
			c.Limits.OutboundBudgetBytes, c.Limits.MaxMessageBytes, c.Limits.BufferBudgetBytes = 16<<20, 1<<20, 4<<20
		})
		time.Sleep(time.Second)
		w.wantOnly(ReasonOutboundShed, 0)
		h.talk(100)
		synctest.Wait()
		if n := w.rejected(ReasonOutboundShed); n != 1 {
			t.Errorf("%d sessions were shed", n)
		}
		w.within()
		want[wire.CircuitClosed](a)
		a.quiet() // the other one stays
		h.talk(100)
	})
}

// What is kept for a time is kept no longer than a shorter one from the reload
// on; a longer one holds for who comes.
func TestLivesChange(t *testing.T) {
	lives := func(identity, knock int) func(*Config) {
		return func(c *Config) { c.Limits.IdentityTTLSecs, c.OfflineQueue.TTLSecs = identity, knock }
	}
	const hour = 3600
	bubble(t, func(c *Config) { fronted(c); lives(10*hour, 10*hour)(c) }, func(t *testing.T, w *world) {
		a := w.as(client(1), 1)
		a.knock(idOf(9), "first")
		a.nc.Close() // away, for 10 hours
		time.Sleep(time.Hour)
		w.reload(lives(2*hour, 3*hour))
		b := w.as(client(2), 2)
		b.knock(idOf(9), "second")
		b.nc.Close()
		synctest.Wait()
		at := func(after time.Duration, identities, knocks int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if st := w.s.dir.stats(); st.identities != identities || st.knocks != knocks {
				t.Errorf("%+v, want %d identities and %d knocks", st, identities, knocks)
			}
		}
		at(2*time.Hour-time.Nanosecond, 2, 2)
		at(time.Nanosecond, 0, 2)
		at(time.Hour-time.Nanosecond, 0, 2)
		at(time.Nanosecond, 0, 0)
		w.reload(lives(5*hour, 3*hour))
		c := w.as(client(3), 3)
		c.nc.Close()
		synctest.Wait()
		w.reload(lives(8*hour, 3*hour))
		at(5*time.Hour-time.Nanosecond, 1, 0)
		at(time.Nanosecond, 0, 0)
	})
}

// Far too much after a lowered limit goes step by step, with those who come.
func TestLoweredBudgetsOfTables(t *testing.T) {
	now := time.Now()
	k := newKnocks(mailbox.Config{TTLSecs: 3600, KnockBudgetBytes: 1 << 30}, true)
	for i := range 4 * mostMadeRoom {
		k.add(pair{numbered(i), numbered(i + 1)}, make([]byte, wire.AskSize), source(i%100), now)
	}
	k.bind(mailbox.Config{TTLSecs: 3600, KnockBudgetBytes: 81920}, now)
	if len(k.byPair) != 4*mostMadeRoom {
		t.Errorf("%d knocks are left by the change itself", len(k.byPair))
	}
	i, most := 10_000, 0
	for ; k.shares.Held() > k.budget && i < 10_010; i++ {
		most = max(most, k.add(pair{numbered(i), numbered(i + 1)}, make([]byte, wire.AskSize), source(i), now))
	}
	if most != mostMadeRoom || i > 10_005 {
		t.Errorf("one knock took out %d, and it fits after %d", most, i-10_000)
	}

	l := DefaultConfig().Limits
	ids := newIdentities(l)
	for i := range 4 * mostMadeRoom {
		ids.publish(numbered(i), nil, [64]byte{}, source(i%100))
	}
	for _, change := range []func(*Limits){
		func(l *Limits) { l.MaxIdentities = 2 * mostMadeRoom },
		func(l *Limits) {
			l.MaxIdentities = 2 * mostMadeRoom
			l.IdentityBudgetBytes = mostMadeRoom * recordOverhead
		},
	} {
		l := l
		change(&l)
		ids.bind(l, now)
		before := len(ids.byIdentity)
		most := 0
		for i := 20_000; (len(ids.byIdentity) > ids.most || ids.bytes.Held() > ids.budget) && i < 20_010; i++ {
			most = max(most, ids.publish(numbered(i+before), nil, [64]byte{}, source(i)))
		}
		if most > mostMadeRoom || len(ids.byIdentity) > ids.most || ids.bytes.Held() > ids.budget {
			t.Errorf("one identity took out %d; %d of %d are left, %d bytes of %d", most, len(ids.byIdentity), ids.most, ids.bytes.Held(), ids.budget)
		}
	}
}

// Whatever limits come in whatever order, no table grows beyond what they allow
// or it held already.
func TestTablesUnderChangingLimits(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			cfg := DefaultConfig()
			count := new(counters)
			count.init()
			d := newDirectory(cfg, seed%2 == 0, count, time.Now())
			defer d.close()
			d.tell = func(notices) {}
			var live []*session
			join := func() {
				c := &session{source: source(r.IntN(4)), member: &notYet}
				replaced, _, _ := d.join(c, &wire.Publish{Identity: numbered(r.IntN(12))}, time.Now())
				live = append(without(live, replaced), c)
			}
			for range 12 {
				join()
			}
			before := d.stats()
			for step := range 3000 {
				switch op := r.IntN(40); {
				case op == 0:
					l := &cfg.Limits
					pendingAtMost(l, 1+r.IntN(20))
					l.PendingIdentityReservePercent = r.IntN(91)
					l.MaxCircuits = 2 + r.IntN(12)
					l.MaxCircuitsPerSource, l.MaxCircuitsPerConnection = 2+r.IntN(l.MaxCircuits-1), 1+r.IntN(4)
					l.MaxIdentities = 1 + r.IntN(12)
					l.BlindAskBurst, l.BlindAskRefillPerSec = 1+r.IntN(9), 1+r.IntN(3)
					cfg.OfflineQueue.KnockBudgetBytes = 81920 + r.IntN(100_000)
					if err := cfg.Validate(); err != nil {
						t.Fatal(err)
					}
					d.bind(cfg, time.Now())
					if after := d.stats(); after != before {
						t.Fatalf("limits alone made %+v of %+v", after, before)
					}
				case op == 1:
					join()
				case op < 4 && len(live) > 6:
					c := live[r.IntN(len(live))]
					d.leave(c)
					live = without(live, c)
				case op == 4:
					time.Sleep(time.Duration(r.Int64N(int64(time.Minute))))
				default:
					f := &wire.Ask{RequestID: uint64(step), Mode: wire.Named + wire.Mode(r.IntN(2)), Key: numbered(r.IntN(12)), Content: make([]byte, wire.AskSize)}
					d.ask(live[r.IntN(len(live))], f, time.Now())
				}
				after := d.stats()
				if after.pending > max(before.pending, cfg.Limits.MaxPendingCircuitTargets) || 2*after.circuits > max(2*before.circuits, cfg.Limits.MaxCircuits) ||
					after.identities > max(before.identities, cfg.Limits.MaxIdentities) {
					t.Fatalf("step %d: %+v became %+v under %+v", step, before, after, cfg.Limits)
				}
				before = after
			}
			for _, c := range live {
				d.leave(c)
			}
		})
	}
}

// Whose PROXY header is believed, and how long a drain takes, are live.
func TestTrustAndDrainAreLive(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		w.reload(func(c *Config) { c.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
		p := w.dial(frontEnd)
		if n, err := p.nc.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Error("a peer that is not trusted any more is let in")
		}
		w.wantOnly(ReasonProxyNotLoopback, 1)
		w.reload(func(c *Config) { c.DrainSecs = 40 })
		silent := w.as(client(1), 1)
		silent.stopReading()
		begin := time.Now()
		w.stop()
		if took := time.Since(begin); took > 40*time.Second {
			t.Errorf("the drain took %v", took)
		}
	})
}

// 300 reloads, and everybody is still there: sessions, circuits, requests, what
// was charged. Neither goroutines nor generations of limits pile up.
func TestManyReloads(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		const pairs = 50
		var a, b []*peer
		var circuit []uint64
		for i := range pairs {
			a, b = append(a, w.as(client(2*i), 2*i)), append(b, w.as(client(2*i+1), 2*i+1))
			circuit = append(circuit, w.pairUp(a[i], b[i]))
			a[i].request(wire.Named, 7, idOf(1000+i))
		}
		synctest.Wait()
		before, open, goroutines := w.s.dir.stats(), w.s.gate.Stats(time.Now()), runtime.NumGoroutine()
		memory := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		w.reload(nil)
		heap := memory()
		for i := range 300 {
			w.reload(func(c *Config) {
				c.Limits.MaxConnections, c.Limits.RateLimitBPS, c.Limits.ConnectionTimeoutSecs = 1000+i, 1<<30+i, 60+i
				c.TrustProxyFrom = append([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, c.TrustProxyFrom...)
			})
		}
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > goroutines+10 { // the runtime has some of its own
			t.Errorf("%d goroutines became %d", goroutines, after)
		}
		if grown := int64(memory()) - int64(heap); grown > 256<<10 {
			t.Errorf("%d bytes more are held", grown)
		}
		if after, now := w.s.dir.stats(), w.s.gate.Stats(time.Now()); after != before || now.Connections != open.Connections || now.Hosts != open.Hosts {
			t.Errorf("%+v, %+v became %+v, %+v", before, open, after, now)
		}
		for i := range pairs {
			a[i].send(wire.Send{Circuit: circuit[i], ID: messageID(i), Payload: []byte("still here")})
			want[wire.Message](b[i])
			want[wire.MessageAck](a[i])
		}
		for _, r := range reasons {
			if n := w.rejected(r); n != 0 {
				t.Errorf("rejections_total{reason=%q} is %d", r, n)
			}
		}
	})
}

// Reloads beside traffic: what is read of the policy is read safely.
func TestReloadBesideTraffic(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		stop := make(chan struct{})
		var reloading sync.WaitGroup
		reloading.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				w.reload(func(c *Config) { c.Limits.MaxConnections, c.Limits.OutboundBudgetBytes = 1000+i%50, 1<<29+i })
				time.Sleep(time.Microsecond)
			}
		})
		for i := range 100 {
			a, b := w.as(client(2*i), 2*i), w.as(client(2*i+1), 2*i+1)
			circuit := w.pairUp(a, b)
			a.send(wire.Send{Circuit: circuit, ID: messageID(i), Payload: make([]byte, 100)})
			want[wire.Message](b)
			want[wire.MessageAck](a)
			a.request(wire.Blinded, 1, tokenOf(i))
			a.nc.Close()
			b.nc.Close()
		}
		close(stop)
		reloading.Wait()
	})
}
