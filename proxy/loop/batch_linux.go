package loop

import (
	"bytes"
	"io"
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// aheadBytes is how much of a connection is read with those of others. Who has
	// more reads the rest alone: it saves no calls, and in a larger buffer none.
	aheadBytes = 4 << 10
	// keptBytes is how much may wait for the end of a turn.
	keptBytes = eventBatch * aheadBytes
)

// batch makes the reads and the writes of a turn by a ring. Where there are few,
// each is a call of its own, which costs less than to enter the ring.
type batch struct {
	loop  *Loop
	ring  *ring
	worth int // from how many calls on they are made together
	on    bool

	memory   []byte  // mapped: what is read ahead, then what is to be written
	reads    []*Conn // in the order of aheads
	aheads   [eventBatch]ahead
	writes   []pending
	kept     int // bytes, of the memory for writes
	flushing bool
	results  [eventBatch]int32
}

// ahead is what was read from a connection before its handler has asked.
type ahead struct {
	bytes []byte
	full  bool  // there may be more behind them
	err   error // instead of bytes
}

// pending is what is to be written to a connection.
type pending struct {
	conn  *Conn // nil: its mover has been told
	mover Mover
	bytes []byte
	done  bool // it has been written, as far as n, or err
	n     int
	err   error
}

// newBatch makes so many calls of a turn together, or more. It fails where the
// kernel makes none together.
func newBatch(l *Loop, worth int) (*batch, error) {
	r, err := openRing(eventBatch)
	if err != nil {
		return nil, err
	}
	memory, err := mapMemory(eventBatch*aheadBytes + keptBytes)
	if err != nil {
		r.close()
		return nil, err
	}
	return &batch{
		loop: l, ring: r, worth: worth, memory: memory,
		reads: make([]*Conn, 0, eventBatch), writes: make([]pending, 0, eventBatch),
	}, nil
}

func (b *batch) close() {
	b.ring.close()
	unix.Munmap(b.memory)
}

func (b *batch) begin(events []occurrence) {
	if b.on = len(events) >= b.worth; !b.on {
		return
	}
	for _, e := range events {
		// A connection that another goroutine uses is read alone: none is waited for
		// while others are held.
		if c, ok := e.conn.(*Conn); ok && e.event.Readable && c.mu.TryLock() {
			if c.readsAhead(b.loop) {
				b.reads = append(b.reads, c)
			} else {
				c.mu.Unlock()
			}
		}
	}
	if len(b.reads) >= b.worth {
		b.read()
	}
	for _, c := range b.reads {
		c.mu.Unlock()
	}
}

// readsAhead requires mu. It reports whether what is there for c is read at once
// when its handler is told, and is not likely to be more than is read ahead.
func (c *Conn) readsAhead(l *Loop) bool {
	m, ok := c.handler.(Mover)
	return ok && !c.closed && c.loop == l && c.ahead == nil && !c.bulk && m.Reads(c)
}

// read requires the mu of all.
func (b *batch) read() {
	for i, c := range b.reads {
		b.ring.add(opRecv, c.fd, b.memory[i*aheadBytes:(i+1)*aheadBytes], i)
	}
	b.make(len(b.reads))
	for i, c := range b.reads {
		n := b.results[i]
		if n == notMade {
			continue
		}
		a := &b.aheads[i]
		*a = ahead{}
		switch {
		case n > 0:
			a.bytes, a.full = b.memory[i*aheadBytes:][:n], n == aheadBytes
		case n == 0:
			a.err = io.EOF
		default:
			a.err = syscall.Errno(-n)
		}
		c.ahead = a
	}
}

// make makes the calls that were added to the ring. A ring that fails is used no more.
func (b *batch) make(calls int) {
	if b.ring.make(b.results[:calls]) != nil {
		b.on, b.worth = false, math.MaxInt
	}
}

// readAhead requires mu. It is TryRead of what was read ahead.
func (c *Conn) readAhead(p []byte) (int, error) {
	a := c.ahead
	if a.err != nil {
		c.ahead = nil
		return 0, a.err
	}
	n := copy(p, a.bytes)
	if a.bytes = a.bytes[n:]; len(a.bytes) > 0 {
		return n, nil
	}
	c.ahead = nil
	if a.full && n < len(p) {
		more, err := c.read(p[n:])
		n += more
		c.bulk = n > aheadBytes
		if err != nil && err != ErrWouldBlock {
			c.ahead = &ahead{err: err} // it is told once
		}
	}
	return n, nil
}

func (b *batch) take(s Stream, p []byte, m Mover) bool {
	c, ok := s.(*Conn)
	if !ok {
		return false
	}
	if c.pending != 0 && !b.write(int(c.pending)-1) {
		m.Wrote(c, 0, p, nil)
		return true
	}
	if !b.on || b.flushing || len(p) > aheadBytes {
		return false
	}
	if len(b.writes) == cap(b.writes) || b.kept+len(p) > keptBytes {
		b.flush()
	}
	to := b.memory[eventBatch*aheadBytes+b.kept:][:len(p):len(p)]
	b.kept += copy(to, p)
	b.writes = append(b.writes, pending{conn: c, mover: m, bytes: to})
	c.pending = int32(len(b.writes))
	return true
}

func (b *batch) settle(s Stream) {
	if c, ok := s.(*Conn); ok && c.pending != 0 {
		b.write(int(c.pending) - 1)
	}
}

// write writes what is pending, unless that is done, and tells its mover. It
// reports whether the socket has taken all.
func (b *batch) write(i int) bool {
	w := b.writes[i]
	b.writes[i] = pending{}
	w.conn.pending = 0
	if !w.done {
		w.n, w.err = w.conn.TryWrite(w.bytes)
	}
	if w.err == ErrWouldBlock {
		w.n, w.err = 0, nil
	}
	b.loop.tellWrote(w.mover, w.conn, w.n, w.bytes[w.n:], w.err)
	return w.err == nil && w.n == len(w.bytes)
}

// flush writes all that is pending. What movers write when they are told is not
// kept, so that there is an end.
func (b *batch) flush() {
	b.flushing = true
	if len(b.writes) >= b.worth {
		b.send()
	}
	for i := range b.writes {
		if b.writes[i].conn != nil {
			b.write(i)
		}
	}
	b.writes, b.kept, b.flushing = b.writes[:0], 0, false
}

func (b *batch) send() {
	for i := range b.writes {
		w := &b.writes[i]
		if w.conn == nil || !w.conn.mu.TryLock() {
			continue
		}
		if w.conn.closed {
			w.conn.mu.Unlock()
			continue
		}
		w.done = true
		b.ring.add(opSend, w.conn.fd, w.bytes, i)
	}
	b.make(len(b.writes))
	for i := range b.writes {
		w := &b.writes[i]
		if !w.done {
			continue
		}
		w.conn.mu.Unlock()
		switch n := b.results[i]; {
		case n == notMade:
			w.done = false
		case n < 0:
			w.err = syscall.Errno(-n)
		default:
			w.n = int(n)
		}
	}
}

// end writes what is pending. What was read ahead and nobody has asked for stays
// with its connection: a mover that could not read it reads it when it can.
func (b *batch) end() {
	if !b.on && len(b.reads) == 0 && len(b.writes) == 0 {
		return
	}
	b.flush()
	b.on = false
	for i, c := range b.reads {
		c.mu.Lock()
		if c.ahead == &b.aheads[i] {
			c.ahead = b.aheads[i].kept()
		}
		c.mu.Unlock()
	}
	clear(b.reads)
	b.reads = b.reads[:0]
}

// kept is what is left of it in memory of its own; nil: nothing.
func (a *ahead) kept() *ahead {
	if a.err == ErrWouldBlock {
		return nil
	}
	return &ahead{bytes: bytes.Clone(a.bytes), full: a.full, err: a.err}
}
