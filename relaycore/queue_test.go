package relaycore

import (
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/socket"
	"relayedge/relaycore/wire"
)

// stuffed has b stop reading and fills its queue with messages from a, until
// exactly one more message of a would have to wait. It returns the circuit and
// how many messages were taken.
func (w *world) stuffed(a, b *peer, payload int) (circuit uint64, n int) {
	w.t.Helper()
	circuit = w.pairUp(a, b)
	b.stopReading()
	q := &w.s.dir.members[identity(b.key)].out
	full := func() bool {
		synctest.Wait()
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.frames == queueMessages || q.bytes+payload+wire.SendHead+10 > queueBytes
	}
	for !full() {
		a.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, payload)})
		if got := want[wire.MessageAck](a); got.ID != messageID(n) {
			w.t.Fatalf("message %d was acknowledged as %x", n, got.ID)
		}
		n++
	}
	return circuit, n
}

// crowded has b stop reading and fills more than half of its queue with messages
// from a, whose number it returns.
func (w *world) crowded(a, b *peer, circuit uint64) (n int) {
	w.t.Helper()
	b.stopReading()
	n = queueMessages/2 + memconn.BufferSize/1226 + 10
	for i := range n {
		a.send(wire.Send{Circuit: circuit, ID: messageID(i), Payload: make([]byte, 1226)})
		want[wire.MessageAck](a)
	}
	synctest.Wait() // the writer has written what it can
	return n
}

// spec/003: an outbound queue holds 256 messages and 16 MiB; a sender waits up
// to 5 seconds for space and is not read meanwhile; then the recipient is
// disconnected and the message goes to its mailbox.
func TestQueueWait(t *testing.T) {
	for _, tc := range []struct {
		name    string
		payload int
	}{
		{"messages", 1226},
		{"bytes", 1 << 20},
	} {
		t.Run(tc.name+", no space", func(t *testing.T) {
			bubble(t, big, func(t *testing.T, w *world) {
				a, b := w.member(1), w.member(2)
				circuit, n := w.stuffed(a, b, tc.payload)
				if tc.payload == 1<<20 && n > 18 {
					t.Fatalf("the queue took %d messages of 1 MiB", n)
				}
				start := time.Now()
				a.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, tc.payload)})
				a.send(wire.Hello{Version: wire.Version})
				a.quiet()
				time.Sleep(queueWait - time.Nanosecond)
				a.quiet()
				w.wantOnly(ReasonSlowConsumer, 0)
				// b's end and a's own goroutine tell a what became of it, in any order.
				var held, closed, read bool
				for range 3 {
					switch f := want[wire.Frame](a).(type) {
					case wire.MessageAck:
						held = f.ID == messageID(n)
					case wire.CircuitClosed:
						closed = f.Circuit == circuit && f.Reason == wire.EndedLeft
					case wire.Welcome:
						read = held
					}
				}
				if !held || !closed || !read {
					t.Fatalf("held %v, circuit closed %v, read on %v", held, closed, read)
				}
				if got := time.Since(start); got != queueWait {
					t.Fatalf("held after %v", got)
				}
				w.wantOnly(ReasonSlowConsumer, 1)
				b.resume()
				if code, _, _ := b.end(); code != 0 {
					t.Fatalf("a close frame with %d behind a full queue", code)
				}
				b = w.member(2)
				if got := want[wire.Message](b); !got.Stored || got.Sender != identity(a.key) || got.ID != messageID(n) || len(got.Payload) != tc.payload {
					t.Fatalf("message %x of %x came", got.ID, got.Sender)
				}
				b.quiet()
			})
		})
		t.Run(tc.name+", space just in time", func(t *testing.T) {
			bubble(t, big, func(t *testing.T, w *world) {
				a, b := w.member(1), w.member(2)
				circuit, n := w.stuffed(a, b, tc.payload)
				a.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, tc.payload)})
				time.Sleep(queueWait - time.Nanosecond)
				b.resume()
				if got := want[wire.MessageAck](a); got.ID != messageID(n) {
					t.Fatalf("%x acknowledged", got.ID)
				}
				for i := range n + 1 {
					if got := want[wire.Message](b); got.ID != messageID(i) {
						t.Fatalf("message %d came as number %d", got.ID[7], i)
					}
				}
				w.wantOnly(ReasonSlowConsumer, 0)
			})
		})
	}
}

// big leaves the byte bucket out of a test.
func big(c *Config) { c.Limits.RateLimitBPS = 1 << 40 }

// Room goes to the senders in the order in which they came to wait for it, even
// where a later one's message would fit at once.
func TestQueueOrder(t *testing.T) {
	for _, payload := range []int{1226, 1 << 20} {
		bubble(t, big, func(t *testing.T, w *world) {
			a, b, c := w.member(1), w.member(2), w.member(3)
			second := w.pairUp(c, b)
			first, n := w.stuffed(a, b, payload)
			a.send(wire.Send{Circuit: first, ID: messageID(n), Payload: make([]byte, payload)})
			synctest.Wait()
			c.send(wire.Send{Circuit: second, ID: messageID(n + 1), Payload: make([]byte, 10)})
			synctest.Wait()
			b.resume()
			for i := range n + 2 {
				if got := want[wire.Message](b); got.ID != messageID(i) {
					t.Fatalf("message %x came as number %d", got.ID[:8], i)
				}
			}
			want[wire.MessageAck](a)
			want[wire.MessageAck](c)
		})
	}
}

// A sender whose session ends while it waits does not wait on.
func TestSenderEndsWhileItWaits(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		circuit, n := w.stuffed(a, b, 1226)
		a.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, 1226)})
		synctest.Wait()
		start := time.Now()
		w.s.dir.members[identity(a.key)].end(endDrain)
		if _, text, at := a.end(); text != "drain" || at != start {
			t.Fatalf("closed with %q after %v", text, at.Sub(start))
		}
	})
}

// spec/003: server-generated messages cannot wait; a queue that is full for them
// ends the session at once.
func TestQueueFullForServerMessage(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b, c := w.member(1), w.member(2), w.member(3)
		b.ask(8, identity(c.key))
		want[wire.Knock](c)
		w.stuffed(a, b, 1226)
		start := time.Now()
		c.ask(9, identity(b.key)) // b's CIRCUIT_OPEN is the relay's own message
		synctest.Wait()
		if time.Since(start) != 0 {
			t.Fatal("time has passed")
		}
		w.wantOnly(ReasonSlowConsumer, 1)
		if got := want[wire.CircuitClosed](a); got.Reason != wire.EndedLeft {
			t.Fatalf("%+v", got)
		}
		b.resume()
		b.end()
	})
}

// Knocks are others' doing: they never cost their target its session.
func TestKnocksDoNotEndTheirTarget(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		_, n := w.stuffed(a, b, 1226)
		for i := range 10 {
			w.member(byte(10+i)).ask(1, identity(b.key))
		}
		w.wantOnly(ReasonSlowConsumer, 0)
		b.resume()
		messages, knocks := 0, 0
		for range n + 10 {
			switch want[wire.Frame](b).(type) {
			case wire.Message:
				messages++
			case wire.Knock:
				knocks++
			}
		}
		if messages != n || knocks != 10 {
			t.Fatalf("%d messages, %d knocks", messages, knocks)
		}
		if st := w.s.dir.stats(); st.pending != 10 {
			t.Fatalf("%d requests are pending", st.pending)
		}
		w.member(30).ask(1, identity(b.key))
		want[wire.Knock](b)
	})
}

// spec/003: 30 seconds with nothing written while a message waits. A plain
// connection is looked at each socket.StallSlice.
func TestWriterStall(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		circuit := w.pairUp(a, b)
		b.stopReading()
		start := time.Now()
		a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 2*memconn.BufferSize)})
		want[wire.MessageAck](a)
		time.Sleep(writerStall - time.Nanosecond)
		synctest.Wait()
		w.wantOnly(ReasonWriterStall, 0)
		if got := want[wire.CircuitClosed](a); got.Reason != wire.EndedLeft {
			t.Fatalf("%+v", got)
		}
		if got := time.Since(start); got > writerStall+socket.StallSlice {
			t.Fatalf("closed after %v", got)
		}
		w.wantOnly(ReasonWriterStall, 1)
		b.resume()
		b.end()
	})
	// A client that takes something now and then is slow, not stalled.
	t.Run("slow", func(t *testing.T) {
		bubble(t, big, func(t *testing.T, w *world) {
			a, b := w.member(1), w.member(2)
			circuit := w.pairUp(a, b)
			b.stopReading()
			a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 1<<20)})
			want[wire.MessageAck](a)
			b.nc.SetReadDeadline(time.Time{}) // for the test's own reads
			for range 3 {
				time.Sleep(writerStall - time.Second)
				for got := 0; got < memconn.BufferSize; {
					n, err := b.nc.Read(make([]byte, memconn.BufferSize))
					if err != nil {
						t.Fatal(err)
					}
					got += n
				}
				a.send(wire.Keepalive{})
			}
			w.wantOnly(ReasonWriterStall, 0)
			b.nc.Close() // what is left begins inside a frame
			b.resume()
		})
	})
}

// A client whose own answers pile up is not read, rather than cut: a burst of
// small messages in one segment is no fault.
func TestBurstOfAnswers(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		circuit := w.pairUp(a, b)
		var burst []byte
		const n = 2000
		for i := range n {
			burst = append(burst, masked(0x82, wire.Send{Circuit: circuit, ID: messageID(i)}.Append(nil))...)
		}
		a.write(burst)
		for i := range n {
			if got := want[wire.MessageAck](a); got.ID != messageID(i) {
				t.Fatalf("%x acknowledged as number %d", got.ID[:8], i)
			}
			if got := want[wire.Message](b); got.ID != messageID(i) {
				t.Fatalf("%x came as number %d", got.ID[:8], i)
			}
		}
	})
}

// Pings of a client that does not read pile nothing up: the latest alone is answered.
func TestPingFlood(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		p := w.member(1)
		p.stopReading()
		q := &w.s.dir.members[identity(p.key)].out
		fill := make([]byte, 125)
		// The pongs fill the socket, then the slot, and never the queue.
		for range 1000 {
			p.write(masked(0x89, fill))
			p.send(wire.Keepalive{})
			q.mu.Lock()
			if q.frames > 2 {
				t.Fatalf("%d frames are queued", q.frames)
			}
			q.mu.Unlock()
		}
		p.write(masked(0x89, []byte("last")))
		synctest.Wait()
		p.resume()
		for {
			r := p.next()
			if r.op != 0xa {
				t.Fatalf("opcode %x", r.op)
			}
			if string(r.payload) == "last" {
				break
			}
		}
	})
}

// A client may answer a ping before the relay's own write of it has returned.
// Its pong counts all the same, and nothing is owed afterwards.
func TestPongBeforeTheWriteReturns(t *testing.T) {
	var q outbound
	q.account.open(newBudget(1<<20, gone), nil, 0)
	const number = 7
	f := newFrame()
	f.buf, f.ping = append(f.buf, "ping"...), number
	q.push(f, nil)
	if b, _ := q.take(make([]byte, 0, 1024)); string(b) != "ping" {
		t.Fatalf("%q is written", b)
	}
	if _, waiting := q.overdue(); waiting {
		t.Error("the pong's time runs before the ping is written")
	}
	if !q.ponged(number) {
		t.Error("the pong answers no ping")
	}
	q.written(time.Now())
	if _, waiting := q.overdue(); waiting {
		t.Error("a pong that came is waited for")
	}
	if q.ponged(number) {
		t.Error("a second pong answers the same ping")
	}
}
