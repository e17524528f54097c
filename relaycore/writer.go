package relaycore

import (
	"encoding/binary"
	"errors"
	"time"

	"relayedge/internal/socket"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// writeSize is how much one write takes, unless one frame is larger.
const writeSize = 32 << 10

var writeBuffers = socket.NewPool(writeSize)

// offer queues a frame that the relay itself makes. Such frames cannot wait: a
// session whose queue is full for one is a slow consumer.
func (c *session) offer(f *frame) {
	q := &c.out
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		f.free()
		return
	}
	if !q.fits(f) {
		q.mu.Unlock()
		f.free()
		c.end(endSlowConsumer)
		return
	}
	q.push(f, nil)
	start := q.wakes()
	q.mu.Unlock()
	if start {
		c.startWriter()
	}
	c.server.outboundBudget.makeRoom()
}

// knock brings another client's knock, if there is room to spare: nobody's
// knocks may cost their target its session. It reports whether there was.
func (c *session) knock(m wire.Knock) bool {
	if !c.out.hasRoomToSpare() {
		return false
	}
	c.tell(m)
	return true
}

// backlog has the writer look for what waits in the relay's stores for this client.
func (c *session) backlog() {
	if c.out.hasBacklog() {
		c.startWriter()
	}
}

// tell offers a message of the relay.
func (c *session) tell(m wire.Frame) { c.offer(message(m)) }

// ping queues a ping, unless one is queued already: its time counts from when
// it is written.
func (c *session) ping() {
	q := &c.out
	q.mu.Lock()
	busy := q.pinging
	q.pinging = true
	q.mu.Unlock()
	if busy {
		return
	}
	c.pingNumber++
	f := newFrame()
	f.ping = c.pingNumber
	f.buf = binary.BigEndian.AppendUint64(websocket.AppendHeader(f.buf, websocket.Ping, 8), f.ping)
	c.offer(f)
}

// answerPing owes the client a pong. Pongs that wait share one small frame, so
// pings cannot fill the queue.
func (c *session) answerPing(payload []byte) {
	q := &c.out
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	q.owePong(payload)
	start := q.wakes()
	q.mu.Unlock()
	if start {
		c.startWriter()
	}
	c.server.outboundBudget.makeRoom()
}

// delivery is what became of a message for another session.
type delivery int

const (
	queued   delivery = iota
	departed          // the recipient has left
	stuck             // the recipient made no room in time
)

// deliver queues f for another session. Where there is no room it waits for
// some, in the order of the senders, and c is not read meanwhile.
//
// Until f is queued, c holds it. Room in the budget is made before, so that a
// recipient that is shed for it has left when its queue is looked at.
func (c *session) deliver(to *session, f *frame) delivery {
	own := &c.out.account
	own.add(cap(f.buf))
	if c.server.outboundBudget.makeRoom() {
		c.server.count.reject(ReasonGlobalOutbound)
		if c.over() {
			c.discard(f)
			return departed
		}
	}
	q := &to.out
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		c.discard(f)
		return departed
	}
	if q.first == nil && q.fits(f) {
		q.push(f, own)
		start := q.wakes()
		q.mu.Unlock()
		if start {
			to.startWriter()
		}
		return queued
	}
	w := &waiter{f: f, from: own, prev: q.last, settled: make(chan struct{})}
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.mu.Unlock()
	c.weigh(true)
	defer c.weigh(false)

	timer := time.NewTimer(queueWait)
	defer timer.Stop()
	late := false
	select {
	case <-w.settled:
	case <-timer.C:
		late = true
	case <-c.done:
	}
	q.mu.Lock()
	select {
	case <-w.settled:
		late = false
	default:
		q.unlink(w)
	}
	q.mu.Unlock()
	if w.queued {
		return queued
	}
	c.discard(f)
	if late {
		to.end(endSlowConsumer)
		return stuck
	}
	return departed
}

// discard frees a frame that this session holds.
func (c *session) discard(f *frame) {
	c.out.account.add(-cap(f.buf))
	f.free()
}

func (c *session) startWriter() { c.server.running.Go(c.write) }

// write writes what is queued and ends when nothing is left. At most one runs
// for a session.
func (c *session) write() {
	defer c.contain()
	failed := true
	defer func() {
		if failed {
			c.out.abandon()
		}
	}()
	// Many writers that wait for their sockets hold many buffers.
	c.out.account.add(writeSize)
	defer c.out.account.add(-writeSize)
	c.server.outboundBudget.makeRoom()
	buf := writeBuffers.Get()
	defer writeBuffers.Put(buf)
	for {
		b, backlog := c.out.take((*buf)[:0])
		var err error
		switch {
		case backlog:
			err = c.hand(*buf)
		case b == nil:
			failed = false
			return
		default:
			if err = c.io.WriteAll(b, writerStall); err == nil {
				c.out.written(time.Now())
			}
		}
		if err != nil {
			if errors.Is(err, socket.ErrStalled) {
				c.end(endWriterStall)
			} else {
				c.end(gone)
			}
			return
		}
	}
}
