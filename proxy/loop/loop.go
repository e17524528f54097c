package loop

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// BufferBytes is the size of each of a loop's buffers. Reads of less make bulk
// markedly dearer, and what one connection may do in a turn is bounded by it.
const BufferBytes = 64 << 10

// ErrWouldBlock is the answer of TryRead and TryWrite when nothing can be done
// without waiting.
const ErrWouldBlock = syscall.EAGAIN

// Stream is a connection that can be read and written without waiting.
type Stream interface {
	net.Conn
	// TryRead reads what is there. It fails with ErrWouldBlock if nothing is, and
	// with io.EOF at the end.
	TryRead(p []byte) (int, error)
	// TryWrite writes what fits, or fails with ErrWouldBlock if nothing does.
	TryWrite(p []byte) (int, error)
	CloseWrite() error
	SetLinger(seconds int) error
}

// Notifier is a Stream in memory. It calls f whenever it may have become
// readable or writable, from any goroutine.
type Notifier interface {
	Stream
	Notify(f func())
}

// Event says what a connection may be ready for. It may be wrong; a change that
// follows is reported again.
type Event struct {
	Readable, Writable bool
	// Ended: the peer has ended its stream, or the connection is broken, or there is
	// urgent data. Otherwise a read that does not fill its buffer has read all there is.
	Ended bool
}

func (e Event) with(f Event) Event {
	return Event{e.Readable || f.Readable, e.Writable || f.Writable, e.Ended || f.Ended}
}

// Handler is told what can be done for a connection, in the loop's goroutine. It
// must not wait.
type Handler interface {
	Ready(c Stream, e Event)
	// Panicked: Ready has panicked.
	Panicked(cause any)
}

// Loop is an event loop. Its methods are for its own goroutine, but for those
// that say otherwise.
type Loop struct {
	park  parker
	batch batcher // nil: each read and write is made alone
	wheel Wheel
	start time.Time
	now   time.Time // of the turn
	again []Handler
	spare []Handler // again's other array

	// In, Plain and Out are the loop's buffers, whose content ends with the call
	// that used them: bytes from a socket, bytes without TLS, and bytes for a socket.
	// Out grows to what one call collects in it.
	In, Plain, Out []byte

	busy     meter
	onWindow func() // nil: nobody wants to know

	mu       sync.Mutex
	posted   []func()
	ready    []*notified            // connections in memory that have something to report
	inMemory map[Notifier]*notified // those that handlers have
	stopped  bool
	done     chan struct{}
}

// parker is where a loop sleeps.
type parker interface {
	// run calls turn again and again: at once while it reports that there is more to
	// do, and otherwise when something has happened, until it reports the end.
	run(turn func([]occurrence) outcome)
	// wake has a sleeping loop take a turn. It may be called from any goroutine, but
	// not after close: what it writes to may be another's by then.
	wake()
	// arm has the loop take a turn at a time.
	arm(at time.Time)
	close()
}

type outcome int

const (
	sleep outcome = iota
	goOn
	end
)

// occurrence is an event for a connection that a poller watches.
type occurrence struct {
	conn     watched
	event    Event
	acceptor interface{ accept() } // instead: newcomers are there
}

type watched interface {
	Stream
	// taker returns whom a loop is to tell of an event; nil: it was told to the
	// goroutine that has the connection, or another loop has it.
	taker(*Loop, Event) Handler
}

func newLoop(p parker) *Loop {
	l := &Loop{park: p, start: time.Now(), In: make([]byte, BufferBytes), Plain: make([]byte, BufferBytes), done: make(chan struct{})}
	l.now = l.start
	return l
}

// Run runs the loop until Stop. It is called once, in the goroutine that becomes
// the loop's.
func (l *Loop) Run() {
	defer close(l.done)
	if l.batch != nil {
		defer l.batch.close()
	}
	defer l.park.close()
	l.park.run(l.turn)
}

// Stop ends the loop and returns when it has ended. Its connections are left as
// they are. It may be called from any other goroutine.
func (l *Loop) Stop() {
	l.mu.Lock()
	if !l.stopped {
		l.stopped = true
		l.park.wake()
	}
	l.mu.Unlock()
	<-l.done
}

// Post has f run in the loop's goroutine. It may be called from any goroutine;
// after Stop f is not run.
func (l *Loop) Post(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	// The loop sees the end under mu, so that it is not closed before the wake.
	if l.posted = append(l.posted, f); len(l.posted) == 1 {
		l.park.wake()
	}
}

// Again has the handler told in the next turn that it may go on, by Ready of no
// connection. Who asks several times is told as often.
func (l *Loop) Again(h Handler) { l.again = append(l.again, h) }

// Now is the time of the turn.
func (l *Loop) Now() time.Time { return l.now }

// SetTimer has the timer's owner told at a time, at most a millisecond after it.
func (l *Loop) SetTimer(t *Timer, at time.Time) { l.wheel.Set(t, at.Sub(l.start)) }

// ClearTimer takes the timer back, if it is set.
func (l *Loop) ClearTimer(t *Timer) { l.wheel.Clear(t) }

// turn does what can be done without waiting.
func (l *Loop) turn(events []occurrence) outcome {
	l.now = time.Now()
	window := l.busy.begin(l.now)
	if l.batch != nil {
		l.batch.begin(events)
	}
	for _, e := range events {
		if e.acceptor != nil {
			e.acceptor.accept()
			continue
		}
		if h := e.conn.taker(l, e.event); h != nil {
			l.tell(h, e.conn, e.event)
		}
	}
	if l.batch != nil {
		l.batch.end()
	}
	posted, ready, stopped := l.take()
	for _, n := range ready {
		n.report(l)
	}
	for _, f := range posted {
		f()
	}
	if len(l.again) > 0 {
		going := l.again
		l.again = l.spare[:0]
		for _, h := range going {
			l.tell(h, nil, Event{})
		}
		clear(going)
		l.spare = going[:0]
	}
	l.wheel.Advance(l.now.Sub(l.start))
	if stopped {
		return end
	}
	if window && l.onWindow != nil {
		l.onWindow()
	}
	if len(l.again) > 0 || l.hasPosts() {
		return goOn
	}
	if next, ok := l.wheel.Next(); ok {
		l.park.arm(l.start.Add(next))
	}
	l.busy.end(time.Now())
	return sleep
}

// take empties the queues that other goroutines fill.
func (l *Loop) take() (posted []func(), ready []*notified, stopped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	posted, ready = l.posted, l.ready
	l.posted, l.ready = nil, nil
	return posted, ready, l.stopped
}

func (l *Loop) hasPosts() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.posted) > 0 || len(l.ready) > 0
}

// tell contains a panic of a handler: it concerns what that handler carries.
func (l *Loop) tell(h Handler, c Stream, e Event) {
	defer func() {
		if cause := recover(); cause != nil {
			h.Panicked(cause)
		}
	}()
	h.Ready(c, e)
}

// tellWrote is tell for what a mover wrote.
func (l *Loop) tellWrote(m Mover, c Stream, n int, rest []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			m.Panicked(cause)
		}
	}()
	m.Wrote(c, n, rest, err)
}
