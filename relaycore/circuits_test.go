package relaycore

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// A named request brings its knock to a target that is connected, once.
func TestKnock(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		content := bytes.Repeat([]byte("knock"), 1024)
		a.send(wire.Ask{RequestID: 1, Mode: wire.Named, Key: identity(b.key), Content: content})
		if got := want[wire.Knock](b); got.Asker != identity(a.key) || !bytes.Equal(got.Content, content) {
			t.Fatal("another knock came")
		}
		a.ask(2, identity(b.key)) // for what is pending: not delivered a second time
		b.quiet()
		a.ask(3, identity(newKey(9))) // nobody is there
		a.quiet()
		if st := w.s.dir.stats(); st.pending != 2 {
			t.Fatalf("%d requests are pending", st.pending)
		}
	})
}

func TestAskRefused(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.dial("192.0.2.1:1").upgrade()
		p.hello()
		blinded := wire.Ask{RequestID: 5, Mode: wire.Blinded, Content: make([]byte, wire.AskSize)}
		refused := func(fault wire.Fault) {
			t.Helper()
			if got := want[wire.Error](p); got.Frame != wire.TypeAsk || got.RequestID != 5 || got.Fault != fault {
				t.Fatalf("%+v", got)
			}
		}
		p.ask(5, identity(newKey(2)))
		refused(wire.FaultOrder)
		p.send(blinded)
		refused(wire.FaultOrder)
		if n := w.s.count.blindUnproven.Load(); n != 1 {
			t.Fatalf("%d blinded requests counted as unproven", n)
		}
		p.publish(1)
		p.ask(5, identity(p.key))
		refused(wire.FaultTarget)
		if st := w.s.dir.stats(); st.pending != 0 {
			t.Fatal("a refused request is pending")
		}
		if n := w.s.count.blindUnproven.Load(); n != 1 {
			t.Fatalf("%d blinded requests counted as unproven", n)
		}
	})
}

func TestPublishOrderAndIdentity(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.dial("192.0.2.1:1").upgrade()
		p.send(wire.NewPublish(newKey(1), nil, [32]byte{}, [32]byte{}))
		if got := want[wire.Error](p); got.Fault != wire.FaultOrder {
			t.Fatalf("%+v", got)
		}
		p.hello()
		p.publish(1)
		p.publish(1) // again: as before
		p.send(wire.NewPublish(newKey(2), nil, p.nonce, [32]byte{}))
		if got := want[wire.Error](p); got.Fault != wire.FaultOtherIdentity {
			t.Fatalf("%+v", got)
		}
		w.wantOnly(ReasonKeyAuth, 0)
		if st := w.s.dir.stats(); st.connected != 1 || st.identities != 1 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestHelloVersion(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.dial("192.0.2.1:1").upgrade()
		p.send(wire.Hello{Version: 2})
		if got := want[wire.Error](p); got.Frame != wire.TypeHello || got.Fault != wire.FaultVersion {
			t.Fatalf("%+v", got)
		}
		if code, _, _ := p.end(); code != websocket.CodeProtocolError {
			t.Fatalf("closed with %d", code)
		}
	})
}

// The newest connection has the identity; the older one is closed and its circuits with it.
func TestReplaced(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		old, b := w.member(1), w.member(2)
		circuit := w.pairUp(old, b)
		old.ask(3, identity(newKey(7)))
		synctest.Wait()
		newer := w.member(1)
		if code, text, _ := old.end(); code != codeReplaced || text != "replaced" {
			t.Fatalf("closed with %d %q", code, text)
		}
		if got := want[wire.CircuitClosed](b); got.Circuit != circuit || got.Reason != wire.EndedLeft {
			t.Fatalf("%+v", got)
		}
		if st := w.s.dir.stats(); st != (directoryStats{connected: 2, identities: 2, askers: 1, knocks: 1, contacts: 1}) {
			t.Fatalf("%+v", st)
		}
		w.pairUp(newer, b)
		for _, r := range reasons {
			w.wantOnly(r, 0)
		}
	})
}

// A PUBLISH that the older connection sent before it lost the identity does not win it back.
func TestReplacedForGood(t *testing.T) {
	d := newDirectory(DefaultConfig(), true, new(counters), time.Now())
	defer d.close()
	var old, newer session
	id := identity(newKey(1))
	f := &wire.Publish{Identity: id}
	d.join(&old, f, time.Now())
	if replaced, _, ok := d.join(&newer, f, time.Now()); !ok || replaced != &old {
		t.Fatal("the newest connection does not have the identity")
	}
	if replaced, _, ok := d.join(&old, f, time.Now()); ok || replaced != nil || d.members[id] != &newer {
		t.Fatal("the older connection has the identity again")
	}
}

// A session that has had its message holds no memory for it.
func TestMessageIsForgotten(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.member(1)
		p.send(wire.Send{Payload: make([]byte, 1<<20)})
		want[wire.Error](p)
		synctest.Wait()
		if held := w.s.dir.members[identity(p.key)].parser.Buffered(); held != 0 {
			t.Fatalf("%d bytes are held", held)
		}
	})
}

func TestMessages(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b, c := w.member(1), w.member(2), w.member(3)
		circuit := w.pairUp(a, b)
		a.send(wire.Send{Circuit: circuit, ID: messageID(1), Payload: []byte("to b")})
		if got := want[wire.Message](b); got.Circuit != circuit || got.ID != messageID(1) || string(got.Payload) != "to b" || got.Stored {
			t.Fatalf("%+v", got)
		}
		want[wire.MessageAck](a)
		b.send(wire.Ack{IDs: []wire.MessageID{messageID(1)}})
		b.send(wire.Send{Circuit: circuit, ID: messageID(2)})
		if got := want[wire.Message](a); got.ID != messageID(2) || len(got.Payload) != 0 {
			t.Fatalf("%+v", got)
		}
		want[wire.MessageAck](b)

		// Nobody else is in the circuit, and no other circuit is there.
		c.send(wire.Send{Circuit: circuit, ID: messageID(3)})
		if got := want[wire.Error](c); got.Fault != wire.FaultNoCircuit || got.MessageID != messageID(3) {
			t.Fatalf("%+v", got)
		}
		c.send(wire.Close{Circuit: circuit})
		c.send(wire.Close{Circuit: circuit + 1})
		a.send(wire.Send{Circuit: circuit + 1, ID: messageID(4)})
		if got := want[wire.Error](a); got.Fault != wire.FaultNoCircuit || got.MessageID != messageID(4) {
			t.Fatalf("%+v", got)
		}
		if n := w.s.count.relayMessages.Load(); n != 2 {
			t.Fatalf("%d messages counted", n)
		}
		if n := w.s.count.relayBytes.Load(); n != 2*wire.SendHead+4 {
			t.Fatalf("%d bytes counted", n)
		}

		// Who left gets nothing more, and the sender no acknowledgement.
		b.nc.Close()
		if got := want[wire.CircuitClosed](a); got.Circuit != circuit || got.Reason != wire.EndedLeft {
			t.Fatalf("%+v", got)
		}
		a.send(wire.Send{Circuit: circuit, ID: messageID(5)})
		if got := want[wire.Error](a); got.Fault != wire.FaultNoCircuit || got.MessageID != messageID(5) {
			t.Fatalf("%+v", got)
		}
		a.quiet()
		c.quiet()
		if n := w.s.count.circuits.Load(); n != 1 {
			t.Fatalf("%d circuits counted", n)
		}
	})
}

func TestCloseCircuit(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		circuit := w.pairUp(a, b)
		a.ask(8, identity(b.key)) // it is open: the same circuit again
		if got := want[wire.CircuitOpen](a); got.Circuit != circuit || got.RequestID != 8 {
			t.Fatalf("%+v", got)
		}
		b.quiet()
		a.send(wire.Close{Circuit: circuit})
		if got := want[wire.CircuitClosed](b); got.Circuit != circuit || got.Reason != wire.EndedClosed {
			t.Fatalf("%+v", got)
		}
		a.quiet()
		if again := w.pairUp(a, b); again == circuit {
			t.Fatal("the circuit's number came back")
		}
	})
}

// spec/003: pending_targets, requests refused at the pending caps.
func TestPendingCaps(t *testing.T) {
	refused := func(t *testing.T, w *world, p *peer, id uint64, limit wire.Limit, retry uint32) {
		t.Helper()
		got := want[wire.RateLimited](p)
		if got.Frame != wire.TypeAsk || got.RequestID != id || got.Limit != limit || got.RetryAfterSecs != retry {
			t.Fatalf("%+v", got)
		}
	}
	t.Run("connection", func(t *testing.T) {
		bubble(t, func(c *Config) { c.Limits.MaxPendingPerConnection = 2 }, func(t *testing.T, w *world) {
			a, b := w.member(1), w.member(2)
			a.ask(1, identity(newKey(10)))
			time.Sleep(1500 * time.Millisecond)
			a.ask(2, identity(newKey(11)))
			a.quiet()
			a.ask(3, identity(newKey(12)))
			refused(t, w, a, 3, wire.LimitPendingPerConnection, 599)
			a.ask(4, identity(newKey(10))) // pending already: no place
			a.quiet()
			w.wantOnly(ReasonPendingTargets, 1)
			// A request that completes a pair waits for nothing, and needs no place.
			b.ask(5, identity(a.key))
			want[wire.Knock](a)
			a.ask(6, identity(b.key))
			want[wire.CircuitOpen](a)
			for range 6 {
				time.Sleep(100 * time.Second)
				a.send(wire.Keepalive{})
				b.send(wire.Keepalive{})
			}
			a.ask(7, identity(newKey(12))) // the oldest has expired
			a.quiet()
			w.wantOnly(ReasonPendingTargets, 1)
		})
	})
	t.Run("relay", func(t *testing.T) {
		bubble(t, func(c *Config) {
			pendingAtMost(&c.Limits, 2)
			c.Limits.PendingIdentityReservePercent = 0
			c.Limits.MaxConnectionsPerIP = 0
		}, func(t *testing.T, w *world) {
			a, b := w.member(1), w.member(2)
			a.ask(1, identity(newKey(10)))
			a.ask(2, identity(newKey(11)))
			a.quiet()
			b.ask(3, identity(newKey(12)))
			refused(t, w, b, 3, wire.LimitPendingTargets, 600)
			w.wantOnly(ReasonPendingTargets, 1)
			a.nc.Close() // its requests leave with it
			synctest.Wait()
			b.ask(4, identity(newKey(12)))
			b.quiet()
		})
	})
}

// spec/003: circuit_cap, requests refused at a circuit cap.
func TestCircuitCaps(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Limits)
		limit  wire.Limit
		open   int
	}{
		{"relay, even", func(l *Limits) { circuitsAtMost(l, 4) }, wire.LimitCircuits, 2},
		{"relay, odd", func(l *Limits) { circuitsAtMost(l, 5) }, wire.LimitCircuits, 2},
		{"member", func(l *Limits) { l.MaxCircuitsPerConnection = 2 }, wire.LimitCircuitsPerMember, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *Config) { tc.change(&c.Limits); c.Limits.MaxConnectionsPerIP = 0 }, func(t *testing.T, w *world) {
				hub := w.member(1)
				var circuits []uint64
				for i := range tc.open {
					circuits = append(circuits, w.pairUp(hub, w.member(byte(10+i))))
				}
				last := w.member(9)
				// Both ways: the cap is the asker's, then the other member's.
				hub.ask(1, identity(last.key))
				want[wire.Knock](last)
				last.ask(2, identity(hub.key))
				if got := want[wire.RateLimited](last); got.Limit != tc.limit || got.RequestID != 2 || got.RetryAfterSecs != 30 {
					t.Fatalf("%+v", got)
				}
				w.wantOnly(ReasonCircuitCap, 1)
				hub.send(wire.Close{Circuit: circuits[0]})
				synctest.Wait()
				last.ask(3, identity(hub.key)) // the other's request still waits
				want[wire.CircuitOpen](last)
				want[wire.CircuitOpen](hub)
				w.wantOnly(ReasonCircuitCap, 1)
			})
		})
	}
}
