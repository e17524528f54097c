package memconn

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// BufferSize is how many bytes one direction holds before a write waits.
const BufferSize = 64 << 10

// Conn is one end of a connection. It keeps the contract of net.TCPConn: a
// write that meets its deadline returns how many bytes were taken; reads
// deliver what was sent before the peer's CloseWrite or Close and then io.EOF;
// after the peer closed altogether, a write fails with syscall.ECONNRESET, after
// this end's own CloseWrite with syscall.EPIPE, each wrapped in a *net.OpError;
// a read or write after Close fails with net.ErrClosed.
type Conn struct {
	local, remote *net.TCPAddr
	peer          *Conn
	link          *link

	// Guarded by link.mu.
	in            buffer // what the peer sent and this end has not read
	ended         bool   // CloseWrite was called
	closed        bool   // Close or Reset was called
	reset         bool   // the peer called Reset
	writing       bool   // a Write has its turn; the bytes of two are never mixed
	abort         bool   // SetLinger(0): Close is Reset
	notify        func() // what Notify was given; nil after Close
	readDeadline  deadline
	writeDeadline deadline
}

// link is what both ends share. One lock and one condition for the pair keep a
// reset, which touches both directions, a single step.
type link struct {
	mu      sync.Mutex
	changed sync.Cond // L is &mu
}

// Pipe returns a connected pair: the first end has address a and peer b, the second the reverse.
func Pipe(a, b netip.AddrPort) (*Conn, *Conn) {
	l := new(link)
	l.changed.L = &l.mu
	addrA, addrB := net.TCPAddrFromAddrPort(a), net.TCPAddrFromAddrPort(b)
	first := &Conn{local: addrA, remote: addrB, link: l}
	second := &Conn{local: addrB, remote: addrA, link: l, peer: first}
	first.peer = second
	return first, second
}

// LocalAddr returns the address of this end, a *net.TCPAddr.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the peer, a *net.TCPAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Read takes what is there, and waits if nothing is. A deadline that is over
// fails it even if bytes are there, and leaves them for a later read.
func (c *Conn) Read(p []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	for {
		if !c.closed && len(p) > 0 && c.readDeadline.over() {
			return 0, c.fault("read", os.ErrDeadlineExceeded)
		}
		n, err := c.readNow(p)
		switch err {
		case nil, io.EOF:
			return n, err
		case syscall.EAGAIN:
			c.link.changed.Wait()
		default:
			return n, c.fault("read", err)
		}
	}
}

// readNow reads what is there, or says why nothing can be read, with
// syscall.EAGAIN if only because nothing has come. It is called with the lock
// held, and lets go of it if it has read.
func (c *Conn) readNow(p []byte) (int, error) {
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case len(p) == 0:
		return 0, nil
	case c.reset:
		return 0, syscall.ECONNRESET
	case c.in.len() > 0:
		n := c.in.take(p)
		c.link.changed.Broadcast()
		c.peer.tell()
		return n, nil
	case c.peer.ended || c.peer.closed:
		return 0, io.EOF
	}
	return 0, syscall.EAGAIN
}

// Write returns once all of p is in the buffer towards the peer.
func (c *Conn) Write(p []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	for c.writing {
		if err := c.refusesWrite(); err != nil {
			return 0, c.fault("write", err)
		}
		c.link.changed.Wait()
	}
	c.writing = true
	defer func() {
		c.writing = false
		c.link.changed.Broadcast()
		c.tell() // a TryWrite may have been turned away meanwhile
	}()
	n := 0
	for {
		if err := c.refusesWrite(); err != nil {
			return n, c.fault("write", err)
		}
		taken := c.peer.in.add(p[n:])
		if n += taken; taken > 0 {
			c.link.changed.Broadcast()
			c.peer.tell()
		}
		if n == len(p) {
			return n, nil
		}
		if taken == 0 { // else the lock was let go: what to wait for may be there
			c.link.changed.Wait()
		}
	}
}

// refusesWrite says why Write may write nothing, or nil.
func (c *Conn) refusesWrite() error {
	if !c.closed && c.writeDeadline.over() {
		return os.ErrDeadlineExceeded
	}
	return c.cannotWrite()
}

// cannotWrite says why nothing can be written at all, or nil.
func (c *Conn) cannotWrite() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.reset:
		return syscall.ECONNRESET
	case c.ended:
		return syscall.EPIPE
	case c.peer.closed:
		return syscall.ECONNRESET
	}
	return nil
}

// CloseWrite ends this direction: the peer reads what was sent, then io.EOF.
func (c *Conn) CloseWrite() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return c.fault("close", net.ErrClosed)
	}
	if c.reset {
		return c.fault("close", os.NewSyscallError("shutdown", syscall.ENOTCONN))
	}
	c.ended = true
	c.link.changed.Broadcast()
	c.peer.tell()
	c.tell() // a write that would have waited fails
	return nil
}

// Close ends both directions. What was sent stays readable for the peer; what
// was not read is gone.
func (c *Conn) Close() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return c.fault("close", net.ErrClosed)
	}
	c.shut(c.abort)
	return nil
}

// Reset closes the connection as a RST does: the peer loses what it has not
// read, and its reads and writes fail with syscall.ECONNRESET. It does nothing
// after Close.
func (c *Conn) Reset() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if !c.closed {
		c.shut(true)
	}
}

// shut closes this end. It is called with the lock held, once, and lets go of it
// in the end.
func (c *Conn) shut(reset bool) {
	c.closed = true
	c.notify = nil
	c.in = buffer{}
	if reset {
		c.peer.reset = true
		c.peer.in = buffer{}
	}
	c.readDeadline.clear()
	c.writeDeadline.clear()
	c.link.changed.Broadcast()
	c.peer.tell()
}

// SetLinger is net.TCPConn's as far as it can be told apart here: with 0, Close
// does what Reset does.
func (c *Conn) SetLinger(sec int) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return c.setFault()
	}
	c.abort = sec == 0
	return nil
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline also binds a Read that waits already. The zero time is no deadline.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline)
}

// SetWriteDeadline also binds a Write that waits already. The zero time is no deadline.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.writeDeadline)
}

func (c *Conn) setDeadlines(t time.Time, ds ...*deadline) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return c.setFault()
	}
	for _, d := range ds {
		d.set(t, c.link)
	}
	c.link.changed.Broadcast()
	return nil
}

// fault wraps err as the net package does.
func (c *Conn) fault(op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// setFault is the error of setting something on a closed connection.
func (c *Conn) setFault() error {
	return &net.OpError{Op: "set", Net: "tcp", Addr: c.local, Err: net.ErrClosed}
}

// deadline is an instant and the timer that wakes who waits for it.
type deadline struct {
	at    time.Time // zero: none
	timer *time.Timer
}

// over reports whether the instant has come. The clock decides, not the timer,
// so that a timer which was stopped too late can do no harm.
func (d *deadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) set(t time.Time, l *link) {
	d.clear()
	if t.IsZero() {
		return
	}
	// A time without a monotonic reading gets one here, so that the timer and
	// over agree even if the wall clock is set in between.
	left := time.Until(t)
	d.at = time.Now().Add(left)
	if left > 0 {
		d.timer = time.AfterFunc(left, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changed.Broadcast()
		})
	}
}

func (d *deadline) clear() {
	if d.timer != nil {
		d.timer.Stop()
	}
	*d = deadline{}
}

// buffer is the bytes under way in one direction, at most BufferSize.
type buffer struct {
	bytes []byte
	start int // bytes[:start] were read
}

func (b *buffer) len() int { return len(b.bytes) - b.start }

// add takes as much of p as there is room for.
func (b *buffer) add(p []byte) int {
	n := min(len(p), BufferSize-b.len())
	if b.start > 0 && len(b.bytes)+n > cap(b.bytes) {
		b.bytes = b.bytes[:copy(b.bytes, b.bytes[b.start:])]
		b.start = 0
	}
	b.bytes = append(b.bytes, p[:n]...)
	return n
}

// take moves the oldest bytes into p.
func (b *buffer) take(p []byte) int {
	n := copy(p, b.bytes[b.start:])
	b.start += n
	if b.len() == 0 {
		b.bytes, b.start = b.bytes[:0], 0
	}
	return n
}
