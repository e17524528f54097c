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
	if c.queue(f) {
		c.startWriter()
	}
}

// queue is offer without the writer: it reports whether the caller must start one.
func (c *session) queue(f *frame) (start bool) {
	q := &c.out
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		f.free()
		return false
	}
	if !q.fits(f) {
		q.mu.Unlock()
		f.free()
		c.end(endSlowConsumer)
		return false
	}
	q.push(f, nil)
	start = q.wakes()
	q.mu.Unlock()
	c.server.outboundBudget.makeRoom()
	return start
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
		c.owe(c)
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
			c.owe(to)
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
	c.settle() // it may be the recipient's own writer that is owed
	c.weigh(true)
	defer c.weigh(false)

	timer := time.NewTimer(queueWait)
	defer timer.Stop()
	late := false
	select {
	case <-w.settled:
	case <-timer.C:
		late = true
	case <-c.whenOver():
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

// startWriter starts a goroutine that writes, for who must start a writer.
func (c *session) startWriter() { c.server.running.Go(c.write) }

// reply is tell for the session's own reader: what answers a client's frames
// leaves at the end of the reader's turn, without a goroutine.
func (c *session) reply(m wire.Frame) {
	if c.queue(message(m)) {
		c.owe(c)
	}
}

// acknowledge is reply with a MESSAGE_ACK, which allocates nothing.
func (c *session) acknowledge(id wire.MessageID) {
	f := newFrame()
	f.buf = wire.MessageAck{ID: id}.Append(websocket.AppendHeader(f.buf, websocket.Binary, 1+len(id)))
	if c.queue(f) {
		c.owe(c)
	}
}

// owe notes that the reader of c must write for to. Whoever owes has to settle
// before he waits for anything.
func (c *session) owe(to *session) {
	to.nextOwed = nil
	if c.lastOwed == nil {
		c.firstOwed = to
	} else {
		c.lastOwed.nextOwed = to
	}
	c.lastOwed = to
}

// settle writes for all for whom the reader owes it.
func (c *session) settle() {
	for to := c.firstOwed; to != nil; to = c.firstOwed {
		// Off the list first: as soon as it has written, another may owe for it.
		c.firstOwed = to.nextOwed
		if c.firstOwed == nil {
			c.lastOwed = nil
		}
		to.writeNow()
	}
}

// writeNow writes one batch of what is queued, as much of it as the socket takes
// at once. A goroutine does whatever is left to do.
func (c *session) writeNow() {
	if !c.io.ByReadiness() {
		c.startWriter()
		return
	}
	defer c.contain()
	failed := true
	defer func() {
		if failed {
			c.out.abandon()
		}
	}()
	buf := writeBuffers.Get()
	b, backlog := c.out.take((*buf)[:0])
	switch {
	case backlog:
		c.server.running.Go(func() { c.writeOn(buf, nil, true) })
	case b == nil:
		writeBuffers.Put(buf)
	default:
		if n := c.io.WriteNow(b); n < len(b) {
			c.server.running.Go(func() { c.writeOn(buf, b[n:], false) })
			break
		}
		if c.out.writtenAll(time.Now()) {
			writeBuffers.Put(buf)
		} else {
			c.server.running.Go(func() { c.writeOn(buf, nil, false) })
		}
	}
	failed = false
}

// write writes what is queued and ends when nothing is left. At most one runs
// for a session.
func (c *session) write() { c.writeOn(writeBuffers.Get(), nil, false) }

// writeOn is write with a buffer, and with what take has returned before and is
// not done yet: b, or the turn of the backlog.
func (c *session) writeOn(buf *[]byte, b []byte, backlog bool) {
	defer c.contain()
	failed := true
	defer func() {
		if failed {
			c.out.abandon()
		}
	}()
	defer writeBuffers.Put(buf)
	// Many writers that wait for their sockets hold many buffers.
	c.out.account.add(writeSize)
	defer c.out.account.add(-writeSize)
	c.server.outboundBudget.makeRoom()
	for {
		if b == nil && !backlog {
			b, backlog = c.out.take((*buf)[:0])
		}
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
		b, backlog = nil, false
	}
}
