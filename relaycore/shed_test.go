package relaycore

import (
	"encoding/binary"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// scene is who attacks from where.
type scene struct {
	name     string
	fronts   []front
	change   func(*Config)
	attacker func(i int) string // address of the attackers' connection number i
}

// scenes are the ways in which sources can be known, or not.
var scenes = []scene{
	{"one source", bothFronts, proxied, func(int) string { return "203.0.113.1:1" }},
	{"many sources", []front{headerFront}, proxied, func(i int) string { return fmt.Sprintf("203.0.113.%d:1", i+1) }},
	{"no address", []front{headerFront}, proxied, func(int) string { return "" }},
	{"without a front end", []front{headerFront}, func(*Config) {}, func(i int) string { return fmt.Sprintf("203.0.113.%d:1", i+1) }},
	{"sources that are not known", []front{headerFront}, func(c *Config) { c.Limits.MaxConnectionsPerIP = 0 }, func(i int) string { return fmt.Sprintf("203.0.113.%d:1", i+1) }},
}

// small sets the least budgets for messages of 1 MiB.
func small(c *Config) {
	big(c)
	c.RequireChannelBinding = false
	c.Limits.MaxMessageBytes = 1 << 20
	c.Limits.OutboundBudgetBytes = 16 << 20
	c.Limits.BufferBudgetBytes = 4 << 20
}

// come is a client at an address, behind a front end if there is one, that has
// said hello.
func (w *world) come(client string) *peer {
	w.t.Helper()
	switch {
	case w.s.start.ProxyProtocol:
		return w.behind(client)
	case w.edge != nil:
		return w.unknown(client)
	}
	p := w.dial(client).upgrade()
	p.hello()
	return p
}

// from is a member with an address, behind a front end if there is one.
func (w *world) from(client string, seed byte) *peer {
	w.t.Helper()
	p := w.come(client)
	p.publish(seed)
	return p
}

// honest is a pair whose messages must arrive, whatever others do.
type honest struct {
	from, to *peer
	circuit  uint64
	n        int
}

func (w *world) honest() *honest {
	h := &honest{from: w.from("198.51.100.7:1", 200), to: w.from("198.51.100.8:1", 201)}
	h.circuit = w.pairUp(h.from, h.to)
	return h
}

// talk has one message of so many bytes arrive, at once.
func (h *honest) talk(payload int) {
	w := h.from.w
	w.t.Helper()
	start := time.Now()
	h.n++
	h.from.send(wire.Send{Circuit: h.circuit, ID: messageID(h.n), Payload: make([]byte, payload)})
	if got := want[wire.Message](h.to); got.ID != messageID(h.n) || len(got.Payload) != payload {
		w.t.Fatalf("message %x came in place of %d", got.ID[:8], h.n)
	}
	if got := want[wire.MessageAck](h.from); got.ID != messageID(h.n) {
		w.t.Fatalf("%x was acknowledged in place of %d", got.ID[:8], h.n)
	}
	if took := time.Since(start); took != 0 {
		w.t.Fatalf("a message took %v", took)
	}
}

// within checks that what is held fits the budgets, now that all is quiet.
func (w *world) within() {
	w.t.Helper()
	synctest.Wait()
	for _, b := range []*budget{w.s.outboundBudget, w.s.bufferBudget} {
		if held, counts := b.sums(); held > b.limit.Load() || counts != held {
			w.t.Fatalf("%s: %d bytes are held, %d count", b.why.reason, held, counts)
		}
	}
}

// wantNothingBut checks that no reason beside the given ones was counted.
func (w *world) wantNothingBut(those ...Reason) {
	w.t.Helper()
next:
	for _, r := range reasons {
		for _, each := range those {
			if r == each {
				continue next
			}
		}
		if n := w.rejected(r); n != 0 {
			w.t.Errorf("rejections_total{reason=%q} is %d", r, n)
		}
	}
}

// spec/003: outbound_budget_bytes. Recipients that read nothing, of whatever
// sources, cannot hold more than the budget, and cost nobody else anything.
func TestOutboundBudget(t *testing.T) {
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			behindEach(t, costly(sc.fronts), func(c *Config) { sc.change(c); small(c) }, func(t *testing.T, w *world) {
				good := w.honest()
				const pairs, rounds = 6, 5
				var senders, recipients []*peer
				var circuits []uint64
				for i := range pairs {
					a, b := w.from(sc.attacker(2*i), byte(2*i)), w.from(sc.attacker(2*i+1), byte(2*i+1))
					circuits = append(circuits, w.pairUp(a, b))
					b.stopReading()
					senders, recipients = append(senders, a), append(recipients, b)
				}
				for n := range rounds {
					for i, a := range senders {
						// A sender may be shed itself.
						a.nc.Write(masked(0x82, wire.Send{Circuit: circuits[i], ID: messageID(n), Payload: make([]byte, 1<<20-wire.SendHead)}.Append(nil)))
						good.talk(1226)
						w.within()
					}
				}
				// 30 MiB came; what was taken and is not held went with who held it.
				shed, found := w.rejected(ReasonOutboundShed), w.rejected(ReasonGlobalOutbound)
				if shed < 3 || found < shed {
					t.Errorf("%d were shed, %d found the budget spent", shed, found)
				}
				w.wantNothingBut(ReasonOutboundShed, ReasonGlobalOutbound)
				if held, _ := w.s.outboundBudget.sums(); held < 4<<20 {
					t.Errorf("%d bytes are held: more were shed than needed", held)
				}
				for _, b := range recipients {
					b.resume()
				}
				for _, a := range senders {
					a.nc.Close()
				}
				good.talk(1 << 19)
			})
		})
	}
}

// spec/003: buffer_budget_bytes. The same for messages that never end.
func TestBufferBudget(t *testing.T) {
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			behindEach(t, sc.fronts, func(c *Config) { sc.change(c); small(c) }, func(t *testing.T, w *world) {
				good := w.honest()
				const attackers = 10
				for i := range attackers {
					p := w.from(sc.attacker(i), byte(i))
					whole := masked(0x82, wire.Send{Payload: make([]byte, 1<<20-wire.SendHead)}.Append(nil))
					p.nc.Write(whole[:len(whole)-1])
					good.talk(1226)
					good.talk(100 << 10) // more than one read, so it is buffered too
					w.within()
				}
				if shed := w.rejected(ReasonBufferShed); shed != attackers-3 {
					t.Errorf("%d were shed", shed)
				}
				w.wantNothingBut(ReasonBufferShed)
			})
		})
	}
}

// A source pays for all its connections together: many that hold little each
// weigh more than one that holds much. Where sources are not known it is the
// other way round.
func TestSourcesPayTogether(t *testing.T) {
	for _, tc := range []struct {
		name   string
		client string
		change func(*Config)
		pays   string
	}{
		{"known", "203.0.113.1:1", proxied, "the many"},
		{"no address", "", proxied, "the many"},
		{"not known", "203.0.113.1:1", func(c *Config) { c.Limits.MaxConnectionsPerIP = 0 }, "the one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *Config) { tc.change(c); small(c) }, func(t *testing.T, w *world) {
				announce := func(p *peer, size, part int) {
					b := binary.BigEndian.AppendUint64([]byte{0x82, 0x80 | 127}, uint64(size))
					p.nc.Write(append(b, make([]byte, 4+part)...))
					synctest.Wait()
				}
				one := w.from("198.51.100.7:1", 200)
				announce(one, 900<<10, 900<<10-1)
				for i := range 10 {
					announce(w.from(tc.client, byte(i)), 500<<10, 500<<10-1)
				}
				w.within()
				if w.rejected(ReasonBufferShed) == 0 {
					t.Fatal("nobody was shed")
				}
				// The one's message comes wholly, or never.
				alive := "the one"
				if _, err := one.nc.Write([]byte{0}); err == nil {
					synctest.Wait()
					if w.rejected(ReasonUnknownFrame) == 1 {
						alive = "the many"
					}
				}
				if alive != tc.pays {
					t.Fatalf("%s paid", alive)
				}
			})
		})
	}
}

// Who needs the bytes and is the heaviest goes itself.
func TestNewcomerIsTheHeaviest(t *testing.T) {
	bubble(t, func(c *Config) { proxied(c); small(c); c.Limits.BufferBudgetBytes = 1 << 20 }, func(t *testing.T, w *world) {
		good := w.honest()
		p := w.from("203.0.113.1:1", 1)
		p.nc.Write(masked(0x82, make([]byte, 1<<20)))
		if code, _, _ := p.end(); code != 0 {
			t.Fatalf("closed with %d", code)
		}
		w.wantOnly(ReasonBufferShed, 1)
		good.talk(1226)
	})
}

// A sender that is the heaviest itself goes, and its message with it.
func TestSenderIsTheHeaviest(t *testing.T) {
	bubble(t, func(c *Config) { small(c); c.Limits.MaxMessageBytes, c.Limits.BufferBudgetBytes = 4<<20, 64<<20 }, func(t *testing.T, w *world) {
		good := w.honest()
		a := w.from("203.0.113.1:1", 1)
		for i := range 5 {
			b := w.from("203.0.113.1:1", byte(10+i))
			circuit := w.pairUp(a, b)
			b.stopReading()
			a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 5<<19)})
			want[wire.MessageAck](a)
		}
		w.wantOnly("", 0)
		circuit := w.pairUp(a, good.to)
		a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 4<<20-wire.SendHead)})
		a.end()
		if got := want[wire.CircuitClosed](good.to); got.Circuit != circuit {
			t.Fatalf("%+v", got)
		}
		good.to.quiet()
		good.talk(1226)
		w.wantNothingBut(ReasonOutboundShed, ReasonGlobalOutbound)
		if n := w.rejected(ReasonOutboundShed); n != 1 {
			t.Errorf("%d were shed", n)
		}
	})
}

// Answers that nobody reads are bounded too.
func TestBudgetOfAnswers(t *testing.T) {
	// The budget is spent amid a session's answers, not by its writer's buffer.
	bubble(t, func(c *Config) { proxied(c); small(c); c.Limits.OutboundBudgetBytes += 128 << 10 }, func(t *testing.T, w *world) {
		good := w.honest()
		frame := masked(0x82, wire.Send{Circuit: 1}.Append(nil))
		var flood []byte
		for range 3000 {
			flood = append(flood, frame...)
		}
		for i := range 80 {
			p := w.from(fmt.Sprintf("203.0.113.%d:1", i+1), byte(i))
			p.stopReading()
			// The relay stops reading once its answers pile up.
			p.nc.SetWriteDeadline(time.Now().Add(time.Millisecond))
			p.nc.Write(flood)
			w.within()
		}
		if w.rejected(ReasonOutboundShed) == 0 {
			t.Fatalf("nobody was shed, %d bytes are held", w.s.outboundBudget.counts.Load())
		}
		w.wantNothingBut(ReasonOutboundShed)
		good.talk(1226)
	})
}

// The last words of a session that has ended already do not outlast the budget.
func TestLastWordsAreShed(t *testing.T) {
	bubble(t, func(c *Config) { small(c) }, func(t *testing.T, w *world) {
		a, b := w.from("203.0.113.1:1", 1), w.from("203.0.113.2:1", 2)
		circuit := w.pairUp(a, b)
		b.stopReading()
		for n := range 12 {
			a.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, 1<<20-wire.SendHead)})
			want[wire.MessageAck](a)
		}
		start := time.Now()
		w.from("203.0.113.2:1", 2) // takes b's place
		want[wire.CircuitClosed](a)
		synctest.Wait()
		if held, _ := w.s.outboundBudget.sums(); held < 12<<20 {
			t.Fatalf("the older connection was cut at once, %d bytes are held", held)
		}
		c, d := w.from("203.0.113.3:1", 3), w.from("203.0.113.4:1", 4)
		circuit = w.pairUp(c, d)
		d.stopReading()
		for n := range 8 {
			c.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, 1<<20-wire.SendHead)})
			want[wire.MessageAck](c)
			w.within()
		}
		if time.Since(start) != 0 {
			t.Fatal("somebody has waited")
		}
		d.resume()
		for range 8 {
			want[wire.Message](d)
		}
		w.wantNothingBut(ReasonGlobalOutbound)
		b.resume()
	})
}

// A message to a recipient that is shed for it goes to the recipient's mailbox.
func TestShedRecipient(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *world) {
		a, b := w.from("203.0.113.1:1", 1), w.from("203.0.113.2:1", 2)
		circuit := w.pairUp(a, b)
		b.stopReading()
		for n := range 20 {
			a.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, 1<<20-wire.SendHead)})
			synctest.Wait()
			if w.rejected(ReasonOutboundShed) == 0 {
				want[wire.MessageAck](a)
				continue
			}
			var held, closed bool
			for range 2 {
				switch f := want[wire.Frame](a).(type) {
				case wire.MessageAck:
					held = f.ID == messageID(n)
				case wire.CircuitClosed:
					closed = f.Circuit == circuit
				}
			}
			if !held || !closed {
				t.Fatalf("held %v, circuit closed %v", held, closed)
			}
			a.quiet()
			if st := w.s.mail.store.Stats(time.Now()); st.Messages != 1 {
				t.Fatalf("%+v", st)
			}
			b.resume()
			return
		}
		t.Fatal("20 MiB are in a budget of 16 MiB")
	})
}

// Before it has an identity a client may send nothing that is longer than the
// longest PUBLISH; once it has one, the limit is the policy's, also for what
// follows PUBLISH without waiting for the answer.
func TestUnprovenSendsLittle(t *testing.T) {
	header := func(first byte, size uint16) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{first, 0x80 | 126}, size), 0, 0, 0, 0)
	}
	for _, tc := range []struct {
		name  string
		bytes []byte
	}{
		{"one byte more", header(0x82, wire.MaxPublish+1)},
		{"in fragments", append(masked(0x02, make([]byte, wire.MaxPublish)), header(0x80, 126)...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				p := w.dial("192.0.2.1:1").upgrade()
				p.hello()
				p.write(tc.bytes)
				if code, text, _ := p.end(); code != websocket.CodeTooBig || text != "oversized_frame" {
					t.Fatalf("closed with %d %q", code, text)
				}
				w.wantOnly(ReasonOversizedFrame, 1)
			})
		})
	}
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.dial("192.0.2.1:1").upgrade()
		p.hello()
		key := newKey(1)
		p.write(append(masked(0x82, wire.NewPublish(key, make([]byte, wire.MaxBundle), p.nonce, [32]byte{}).Append(nil)),
			masked(0x82, wire.Send{Payload: make([]byte, wire.MaxPublish)}.Append(nil))...))
		want[wire.Published](p)
		if got := want[wire.Error](p); got.Fault != wire.FaultNoCircuit {
			t.Fatalf("%+v", got)
		}
	})
}

// The relay's own messages make room too, and who is shed takes nothing more
// from that moment on.
func TestAnswersMakeRoom(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *world) {
		a, b := w.from("203.0.113.1:1", 1), w.from("203.0.113.2:1", 2)
		circuit := w.pairUp(a, b)
		b.stopReading()
		a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 4*memconn.BufferSize)})
		want[wire.MessageAck](a)
		synctest.Wait()
		c := w.s.dir.members[identity(b.key)]
		rest := int(w.s.outboundBudget.limit.Load() - w.s.outboundBudget.counts.Load())
		c.out.account.add(rest)
		defer c.out.account.add(-rest)
		w.wantOnly("", 0)
		c.tell(wire.Published{}) // its writer runs already
		c.out.mu.Lock()
		closed, queued := c.out.closed, c.out.head != nil
		c.out.mu.Unlock()
		if !closed || queued {
			t.Errorf("closed %v, queued %v", closed, queued)
		}
		w.wantOnly(ReasonOutboundShed, 1)
		b.resume()
	})
}
