package relaycore

import (
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/internal/memconn"
	"relayedge/relaycore/wire"
)

// What a sender holds while it waits for room is the sender's: its frame, the
// message that it came from, and the buffer of the read.
func TestWaitingIsCharged(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		circuit, n := w.stuffed(a, b, 1<<20)
		from, to := w.s.dir.members[identity(a.key)], w.s.dir.members[identity(b.key)]
		balances := func() (out, buffers, queue int64) {
			synctest.Wait()
			out, _ = from.out.account.balance()
			buffers, _ = from.buffers.balance()
			queue, _ = to.out.account.balance()
			return out, buffers, queue
		}
		out, buffers, before := balances()
		if out != 0 || buffers != readSize {
			t.Fatalf("%d and %d bytes are charged before it waits", out, buffers)
		}
		if least := int64(n) << 20; before < least || before > least*9/8+writeSize {
			t.Fatalf("%d bytes are charged for a queue of %d messages of 1 MiB", before, n)
		}
		a.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, 1<<20)})
		out, buffers, queue := balances()
		if out < 1<<20 || out > 9<<17 || buffers < 1<<20+readSize || queue != before {
			t.Fatalf("%d and %d bytes are charged while it waits, %d for the queue", out, buffers, queue)
		}
		b.resume()
		for range n + 1 {
			want[wire.Message](b)
		}
		want[wire.MessageAck](a)
		if out, buffers, queue := balances(); out != 0 || buffers != readSize || queue != 0 {
			t.Fatalf("%d, %d and %d bytes are charged after it", out, buffers, queue)
		}
	})
}

// readable is a connection that can say when bytes are there. It is not asked.
type readable struct{ *memconn.Conn }

func (readable) SyscallConn() (syscall.RawConn, error) { return struct{ syscall.RawConn }{}, nil }

// A session that may not be read for a while keeps what was read, charged.
func TestPausedReaderIsCharged(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		for _, buffer := range []bool{true, false} {
			near, far := memconn.Pipe(netip.MustParseAddrPort("203.0.113.1:1"), netip.MustParseAddrPort("127.0.0.1:7777"))
			c := w.s.newSession(readable{far}, new(admission.Lease), about{}, time.Now(), nil)
			c.pausedUntil = time.Now().Add(time.Second)
			done := make(chan bool)
			go func() { done <- c.hold(buffer) }()
			synctest.Wait()
			want := int64(0)
			if buffer {
				want = readSize
			}
			if got, _ := c.buffers.balance(); got != want {
				t.Errorf("%d bytes are charged, want %d", got, want)
			}
			if !<-done {
				t.Error("the session has ended")
			}
			if got, _ := c.buffers.balance(); got != 0 {
				t.Errorf("%d bytes are charged after it", got)
			}
			near.Close()
			far.Close()
		}
	})
}

// So does a sender that waits for room in another's queue.
func TestWaitingSenderIsCharged(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		w.stuffed(a, b, 1226)
		near, far := memconn.Pipe(netip.MustParseAddrPort("203.0.113.1:1"), netip.MustParseAddrPort("127.0.0.1:7777"))
		defer near.Close()
		defer far.Close()
		c := w.s.newSession(readable{far}, new(admission.Lease), about{}, time.Now(), nil)
		done := make(chan delivery)
		go func() { done <- c.deliver(w.s.dir.members[identity(b.key)], message(wire.Message{})) }()
		synctest.Wait()
		if got, _ := c.buffers.balance(); got != readSize {
			t.Errorf("%d bytes are charged", got)
		}
		c.end(gone)
		if got := <-done; got != departed {
			t.Errorf("the delivery ended with %d", got)
		}
		if got, _ := c.buffers.balance(); got != 0 {
			t.Errorf("%d bytes are charged after it", got)
		}
	})
}

// A writer that waits for its socket holds a buffer of its own. Who has ended
// counts no more.
func TestWriterIsCharged(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *world) {
		a, b := w.from("203.0.113.1:1", 1), w.from("203.0.113.2:1", 2)
		circuit := w.pairUp(a, b)
		b.stopReading()
		a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 4*memconn.BufferSize)})
		want[wire.MessageAck](a)
		synctest.Wait()
		c := w.s.dir.members[identity(b.key)]
		c.out.mu.Lock()
		held := int64(cap(c.out.taken.buf) + writeSize)
		c.out.mu.Unlock()
		if got, _ := c.out.account.balance(); got != held {
			t.Errorf("%d bytes are charged, want %d", got, held)
		}
		// Somebody holds nearly all; the buffer of another's writer is what is too much.
		const most = 16<<20 - 1<<20
		c.out.account.add(most)
		defer c.out.account.add(-most)
		d := w.s.dir.members[identity(a.key)]
		rest := int(w.s.outboundBudget.limit.Load() - w.s.outboundBudget.counts.Load())
		d.out.account.add(rest - writeSize/2)
		defer d.out.account.add(-(rest - writeSize/2))
		a.hello()
		w.wantOnly(ReasonOutboundShed, 1)
		if _, live := c.out.account.balance(); live {
			t.Error("it still counts")
		}
		a.nc.Close()
		synctest.Wait()
		if _, live := d.out.account.balance(); live {
			t.Error("who has left still counts")
		}
		b.resume()
	})
}
