package relaycore

import (
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/wire"
)

// blindPair opens a blinded conversation between two members.
func (w *world) blindPair(a, b *peer, token int) uint64 {
	w.t.Helper()
	if got := a.request(wire.Blinded, 1, tokenOf(token)); got != (answer{}) {
		w.t.Fatalf("%+v", got)
	}
	got := b.request(wire.Blinded, 2, tokenOf(token))
	if other := a.answered(1); got.circuit == 0 || other.circuit != got.circuit {
		w.t.Fatalf("%+v, and %+v for the first", got, other)
	}
	return got.circuit
}

// stay sends keep-alives for a while.
func (w *world) stay(d time.Duration, peers ...*peer) {
	for ; d > 0; d -= 50 * time.Second {
		for _, p := range peers {
			p.send(wire.Keepalive{})
		}
		time.Sleep(min(d, 50*time.Second))
	}
	synctest.Wait()
}

// blindCounts checks the counters of blinded requests.
func (w *world) blindCounts(accepted, matched, busy, expired, ended uint64) {
	w.t.Helper()
	synctest.Wait()
	c := &w.s.count
	got := [...]uint64{c.blindAccepted.Load(), c.blindMatched.Load(), c.blindBusy.Load(), c.blindExpired.Load(), c.blindEndedAtPublish.Load()}
	if want := [...]uint64{accepted, matched, busy, expired, ended}; got != want {
		w.t.Errorf("accepted, matched, busy, expired, ended at publish are %v, want %v", got, want)
	}
}

// The second connection to ask under a token completes the pair; a third one is
// refused as busy; messages go both ways, and the filler to nobody.
func TestBlinded(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b, c := w.member(1), w.member(2), w.member(3)
		a.request(wire.Blinded, 1, tokenOf(7))
		b.quiet()
		if got := a.request(wire.Blinded, 11, tokenOf(7)); got != (answer{}) { // again: the newest id counts
			t.Fatalf("%+v", got)
		}
		open := b.request(wire.Blinded, 2, tokenOf(7))
		if got := a.answered(11); got.circuit == 0 || got.circuit != open.circuit {
			t.Fatalf("%+v and %+v", open, got)
		}
		if got := c.request(wire.Blinded, 3, tokenOf(7)); got.fault != wire.FaultBusy {
			t.Fatalf("%+v", got)
		}
		if got := b.request(wire.Blinded, 4, tokenOf(7)); got.circuit != open.circuit { // a member's own
			t.Fatalf("%+v", got)
		}
		w.blindCounts(1, 1, 1, 0, 0)
		a.send(wire.Send{Circuit: open.circuit, ID: messageID(1), Payload: []byte("hi")})
		if got := want[wire.Message](b); got.ID != messageID(1) || got.Stored {
			t.Fatalf("%+v", got)
		}
		want[wire.MessageAck](a)
		if st := w.s.dir.stats(); st.pending != 0 || st.circuits != 1 || st.knocks != 0 || st.askers != 0 {
			t.Fatalf("%+v", st)
		}
		if n := w.s.count.circuits.Load(); n != 1 {
			t.Fatalf("%d circuits counted", n)
		}
	})
}

// A token's key is no identity: a named request for the same 32 bytes is another matter.
func TestModesDoNotMeet(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		if got := a.request(wire.Blinded, 1, identity(b.key)); got != (answer{}) {
			t.Fatalf("%+v", got)
		}
		if got := b.request(wire.Named, 2, identity(a.key)); got != (answer{}) {
			t.Fatalf("%+v", got)
		}
		if st := w.s.dir.stats(); st.pending != 2 || st.circuits != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// spec/003: a blinded conversation ends at once when its last member leaves.
func TestBlindedEndsWithItsLastMember(t *testing.T) {
	for _, tc := range []struct {
		name  string
		leave func(p *peer, circuit uint64)
	}{
		{"by closing the circuit", func(p *peer, circuit uint64) { p.send(wire.Close{Circuit: circuit}) }},
		{"by closing the connection", func(p *peer, _ uint64) { p.nc.Close() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				a, b := w.member(1), w.member(2)
				circuit := w.blindPair(a, b, 7)
				tc.leave(a, circuit)
				b.quiet() // the conversation goes on
				if st := w.s.dir.stats(); st.circuits != 1 {
					t.Fatalf("%+v", st)
				}
				b.send(wire.Send{Circuit: circuit, ID: messageID(1)})
				if got := want[wire.MessageAck](b); got.ID != messageID(1) { // it waits for a
					t.Fatalf("%+v", got)
				}
				if got := b.request(wire.Blinded, 9, tokenOf(7)); got.circuit != circuit {
					t.Fatalf("%+v", got)
				}
				tc.leave(b, circuit)
				synctest.Wait()
				if st := w.s.dir.stats(); st.circuits != 0 {
					t.Fatalf("%+v", st)
				}
				// The token can be used again.
				w.blindPair(w.member(3), w.member(4), 7)
			})
		})
	}
}

// spec/003: within 10 minutes after either member's connection closes.
func TestBlindedFades(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b, other := w.member(1), w.member(2), w.member(3)
		circuit := w.blindPair(a, b, 7)
		a.nc.Close()
		synctest.Wait()
		start := time.Now()
		w.stay(blindLinger-time.Nanosecond, b, other)
		b.quiet()
		if got := other.request(wire.Blinded, 1, tokenOf(7)); got.fault != wire.FaultBusy {
			t.Fatalf("%+v", got)
		}
		got := want[wire.CircuitClosed](b)
		if got.Circuit != circuit || got.Reason != wire.EndedLeft || time.Since(start) != blindLinger {
			t.Fatalf("%+v after %v", got, time.Since(start))
		}
		b.send(wire.Send{Circuit: circuit, ID: messageID(1)})
		want[wire.Error](b)
		if got := other.request(wire.Blinded, 2, tokenOf(7)); got != (answer{}) {
			t.Fatalf("%+v", got)
		}
		w.blindCounts(2, 1, 1, 0, 0)
	})
}

// spec/003: a blinded conversation ends when a member comes back on a new
// connection, at its PUBLISH, whether the older connection is still there or not.
func TestBlindedEndsAtPublish(t *testing.T) {
	for _, gone := range []bool{true, false} {
		bubble(t, nil, func(t *testing.T, w *world) {
			a, b := w.member(1), w.member(2)
			circuit := w.blindPair(a, b, 7)
			if gone {
				a.nc.Close()
				synctest.Wait()
				time.Sleep(time.Minute)
			}
			back := w.dial("127.0.0.1:0").upgrade()
			back.hello()
			b.quiet()
			back.publish(1)
			if got := want[wire.CircuitClosed](b); got.Circuit != circuit || got.Reason != wire.EndedLeft {
				t.Fatalf("%+v", got)
			}
			w.blindCounts(1, 1, 0, 0, 1)
			w.blindPair(back, b, 7)
			if got := w.s.dir.stats(); got.circuits != 1 {
				t.Fatalf("%+v", got)
			}
			back.publish(1) // once more on its own connection: nothing ends
			b.quiet()
			w.blindCounts(2, 2, 0, 0, 1)
		})
	}
}

// Blinded requests that nobody completes expire by themselves and are counted.
func TestBlindedExpires(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		a.request(wire.Blinded, 1, tokenOf(1))
		w.stay(requestLife/2, a, b)
		a.request(wire.Blinded, 2, tokenOf(1)) // again: it waits no longer for that
		w.stay(requestLife/2-time.Nanosecond, a, b)
		w.blindCounts(1, 0, 0, 0, 0)
		time.Sleep(time.Nanosecond)
		w.blindCounts(1, 0, 0, 1, 0)
		if got := b.request(wire.Blinded, 1, tokenOf(1)); got != (answer{}) {
			t.Fatalf("%+v", got)
		}
		b.nc.Close() // who leaves takes its requests along, which have not expired
		w.stay(2*requestLife, a)
		w.blindCounts(2, 0, 0, 1, 0)
	})
}

// A refused completion leaves the first request where it was.
func TestBlindedAtACircuitCap(t *testing.T) {
	bubble(t, func(c *Config) { c.Limits.MaxCircuitsPerConnection = 1 }, func(t *testing.T, w *world) {
		a, b, c := w.member(1), w.member(2), w.member(3)
		circuit := w.blindPair(a, b, 1)
		c.request(wire.Blinded, 5, tokenOf(2))
		if got := a.request(wire.Blinded, 6, tokenOf(2)); got.limit != wire.LimitCircuitsPerMember || got.retry != 30 {
			t.Fatalf("%+v", got)
		}
		// Who has left a conversation that goes on still holds its side of it.
		a.send(wire.Close{Circuit: circuit})
		if got := a.request(wire.Blinded, 7, tokenOf(2)); got.limit != wire.LimitCircuitsPerMember {
			t.Fatalf("%+v", got)
		}
		if got := a.request(wire.Blinded, 8, tokenOf(1)); got.fault != wire.FaultBusy {
			t.Fatalf("%+v", got)
		}
		b.send(wire.Close{Circuit: circuit})
		synctest.Wait()
		if got := a.request(wire.Blinded, 9, tokenOf(2)); got.circuit == 0 {
			t.Fatalf("%+v", got)
		}
		w.wantOnly(ReasonCircuitCap, 2)
	})
}
