package relaycore

import (
	"slices"
	"sync"
	"time"

	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// What one session's queue holds at most, what is being written included.
const (
	queueMessages = 256
	queueBytes    = 16 << 20
	// queueCrowded is when a session whose own answers pile up is not read.
	queueCrowded = queueMessages / 2
)

// frame is one WebSocket frame on its way out.
type frame struct {
	buf  []byte
	next *frame
	ping uint64 // number of the ping that it is; 0: none
}

// framePoolMax is the largest buffer that goes back to the pool.
const framePoolMax = 8 << 10

var framePool = sync.Pool{New: func() any { return &frame{buf: make([]byte, 0, 2<<10)} }}

func newFrame() *frame {
	f := framePool.Get().(*frame)
	f.buf, f.next, f.ping = f.buf[:0], nil, 0
	return f
}

func (f *frame) free() {
	if cap(f.buf) <= framePoolMax {
		framePool.Put(f)
	}
}

// message makes a frame of a binary message.
func message(m wire.Frame) *frame {
	f := newFrame()
	// The header's length depends on the body's, so the body goes after the
	// longest header that it can have and the header in front of it.
	const room = 10
	f.buf = m.Append(append(f.buf, make([]byte, room)...))
	size := len(f.buf) - room
	at := room - websocket.HeaderSize(size)
	websocket.AppendHeader(f.buf[at:at], websocket.Binary, size)
	n := copy(f.buf, f.buf[at:])
	f.buf = f.buf[:n]
	return f
}

// sentPing is a ping that has no pong yet.
type sentPing struct {
	number  uint64
	written time.Time // when its last byte was taken by the socket; zero: not yet
}

// waiter is a frame that waits for room in another session's queue.
type waiter struct {
	f          *frame
	from       *account // the sender's, which holds f meanwhile
	prev, next *waiter
	settled    chan struct{} // closed when the frame was queued or the queue closed
	queued     bool          // valid once settled is closed
}

// outbound is what waits to be written to one session. Room that becomes free
// goes to the waiters in the order in which they came.
type outbound struct {
	account account // not guarded by mu

	mu          sync.Mutex
	head, tail  *frame
	taken       *frame // being written
	frames      int    // queued and being written
	bytes       int
	first, last *waiter
	pong        *frame // pongs that are owed and not queued yet, in one piece; nil: none
	pinging     bool   // a ping is queued and not written
	pings       []sentPing
	more        bool          // something may wait in the relay's stores
	turn        bool          // of the stores: something queued was taken since more is set
	writing     bool          // a writer runs
	closed      bool          // takes nothing more
	roomy       chan struct{} // closed when the queue is no longer crowded; nil: nobody waits
	idle        chan struct{} // closed when the writer has ended; nil: nobody waits
}

func (q *outbound) fits(f *frame) bool {
	return q.frames < queueMessages && q.bytes+len(f.buf) <= queueBytes
}

// push queues f, which from holds, or nobody yet.
func (q *outbound) push(f *frame, from *account) {
	if from == nil {
		q.account.add(cap(f.buf))
	} else {
		from.move(&q.account, cap(f.buf))
	}
	if q.tail == nil {
		q.head = f
	} else {
		q.tail.next = f
	}
	q.tail = f
	q.frames++
	q.bytes += len(f.buf)
}

// wakes reports whether the caller must start a writer, and notes that it will.
func (q *outbound) wakes() bool {
	start := !q.writing
	q.writing = true
	return start
}

// hasBacklog notes that something may wait in the relay's stores, and reports
// whether the caller must start a writer.
func (q *outbound) hasBacklog() (start bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if !q.more {
		q.more, q.turn = true, false // what is queued by now goes first, a batch of it
	}
	return q.wakes()
}

func (q *outbound) unlink(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
}

// grant queues what the waiters hold, as far as there is room.
func (q *outbound) grant() {
	for w := q.first; w != nil && q.fits(w.f); w = q.first {
		q.unlink(w)
		q.push(w.f, w.from)
		w.queued = true
		close(w.settled)
	}
}

// pongBytes is what the pongs that are owed may take: 16 of the longest, which
// fit in a fresh frame's buffer.
const pongBytes = 16 * (2 + websocket.MaxControl)

// owePong adds a pong to those that are owed. Where they would take too much,
// the earlier ones are dropped: the latest ping is the one that must be answered
// (RFC 6455, section 5.5.3).
func (q *outbound) owePong(payload []byte) {
	if q.pong == nil {
		q.pong = newFrame()
		q.account.add(cap(q.pong.buf))
	}
	f := q.pong
	if len(f.buf)+websocket.HeaderSize(len(payload))+len(payload) > pongBytes {
		f.buf = f.buf[:0]
	}
	f.buf = websocket.AppendFrame(f.buf, websocket.Pong, payload)
}

// queuePongs puts the pongs that are owed before everything else.
func (q *outbound) queuePongs() {
	f := q.pong
	if f == nil {
		return
	}
	f.next, q.pong = q.head, nil
	if q.head = f; q.tail == nil {
		q.tail = f
	}
	q.frames++
	q.bytes += len(f.buf)
}

// take moves queued frames into buf, as many as fit, and returns what to write.
// A frame that is too large for buf is returned alone, in its own memory; nil
// means that nothing is queued and the writer has ended; backlog, that it is the
// turn of what waits in the relay's stores. The two take turns, so that neither
// keeps the other waiting. The frames stay counted until written is called.
func (q *outbound) take(buf []byte) (b []byte, backlog bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queuePongs()
	if q.more && (q.turn || q.head == nil) {
		q.more = false
		return nil, true
	}
	if q.head == nil {
		q.rest()
		return nil, false
	}
	q.turn = true
	list, last := q.head, q.head
	if len(list.buf) > cap(buf) {
		b = list.buf
	} else {
		b = append(buf[:0], list.buf...)
		for last.next != nil && len(b)+len(last.next.buf) <= cap(buf) {
			last = last.next
			b = append(b, last.buf...)
		}
	}
	q.head, last.next, q.taken = last.next, nil, list
	for f := list; f != nil; f = f.next {
		if f.ping != 0 {
			// Its pong may be here before the write returns.
			q.pings = append(q.pings, sentPing{number: f.ping})
		}
	}
	if q.head == nil {
		q.tail = nil
	}
	return b, false
}

// release frees a list of frames.
func (q *outbound) release(list *frame) {
	if list == nil {
		return
	}
	freed := 0
	for f := list; f != nil; {
		next := f.next
		q.frames--
		q.bytes -= len(f.buf)
		freed += cap(f.buf)
		f.free()
		f = next
	}
	q.account.add(-freed) // once for all: the budget is everybody's
}

// written frees the frames that take returned last.
func (q *outbound) written(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wrote(now)
}

// writtenAll is written, and ends the writer if nothing is left to write. It
// reports whether it did.
func (q *outbound) writtenAll(now time.Time) (ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wrote(now)
	if q.head != nil || q.pong != nil || q.more {
		return false
	}
	q.rest()
	return true
}

// rest ends the writer.
func (q *outbound) rest() {
	q.writing = false
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

func (q *outbound) wrote(now time.Time) {
	for f := q.taken; f != nil; f = f.next {
		if f.ping != 0 {
			q.pinging = false
			if i := slices.IndexFunc(q.pings, func(p sentPing) bool { return p.number == f.ping }); i >= 0 {
				q.pings[i].written = now
			}
		}
	}
	q.release(q.taken)
	q.taken = nil
	q.grant()
	if q.roomy != nil && q.frames < queueCrowded {
		close(q.roomy)
		q.roomy = nil
	}
}

// crowded returns a channel that closes when the queue has room for answers
// again, or nil if it has.
func (q *outbound) crowded() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.frames < queueCrowded || q.closed {
		return nil
	}
	if q.roomy == nil {
		q.roomy = make(chan struct{})
	}
	return q.roomy
}

// hasRoomToSpare reports whether the queue is less than half full.
func (q *outbound) hasRoomToSpare() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.frames < queueCrowded && q.bytes < queueBytes/2
}

// held returns how many bytes are queued and being written.
func (q *outbound) held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// ponged takes a pong: it answers every ping up to its number. It reports
// whether there was such a ping.
func (q *outbound) ponged(number uint64) (asked bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, p := range q.pings {
		if p.number == number {
			q.pings = q.pings[i+1:]
			if len(q.pings) == 0 {
				q.pings = nil
			}
			return true
		}
	}
	return false
}

// overdue returns when the oldest ping that has no pong was written.
func (q *outbound) overdue() (written time.Time, waiting bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pings) == 0 || q.pings[0].written.IsZero() {
		return time.Time{}, false
	}
	return q.pings[0].written, true
}

// forgive lets the pongs' time begin at now: until then nobody could read them.
func (q *outbound) forgive(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.pings {
		if !q.pings[i].written.IsZero() {
			q.pings[i].written = now
		}
	}
}

// shut lets nothing more in. Waiters learn that theirs was not queued.
func (q *outbound) shut() {
	q.closed, q.more = true, false
	for w := q.first; w != nil; w = w.next {
		close(w.settled)
	}
	q.first, q.last = nil, nil
}

// forget frees what is queued, and the pongs that are owed.
func (q *outbound) forget() {
	q.queuePongs()
	q.release(q.head)
	q.head, q.tail = nil, nil
}

// drop lets nothing more in and frees what is queued. What is being written
// stays until the writer is done with it.
func (q *outbound) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut()
	q.forget()
}

// close lets nothing in but last, which is written behind what is queued. It
// reports whether the caller must start a writer, and returns a channel that
// closes when the last byte was written or given up.
func (q *outbound) close(last *frame) (start bool, done <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut()
	q.queuePongs() // what was asked for before the end is answered
	q.push(last, nil)
	q.idle = make(chan struct{})
	return q.wakes(), q.idle
}

// abandon ends the writer after an error: nothing more can be written.
func (q *outbound) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut()
	q.forget()
	q.release(q.taken)
	q.taken, q.writing = nil, false
	if q.roomy != nil {
		close(q.roomy)
		q.roomy = nil
	}
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}
