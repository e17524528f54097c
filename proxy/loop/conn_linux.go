package loop

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a TCP or unix socket. In the hands of a goroutine it is a net.Conn and
// a syscall.Conn, with one reader and one writer at a time; in those of a handler
// it is a Stream. Addresses are *net.TCPAddr, or *net.UnixAddr without a name.
type Conn struct {
	loop  *Loop // whose poller watches it; guarded by mu
	peer  netip.AddrPort
	local netip.AddrPort // zero: it has not been asked for
	unix  bool

	mu      sync.Mutex // held while the descriptor is used: it may be closed from anywhere
	fd      int
	closed  bool
	slot    slot    // in the poller's table; zero: it is not watched
	handler Handler // nil: a goroutine has the connection
	waits   *waits  // of a goroutine that has waited
	missed  Event   // told while a goroutine had the connection that had not waited yet
	bulk    bool    // more came at once, lately, than is read ahead
	ahead   *ahead  // what was read ahead; nil: nothing

	pending int32 // the loop's goroutine's: its place among the batch's writes, from 1; 0: none
}

// waits are what a goroutine needs that waits for a connection.
type waits struct {
	readable, writable chan struct{} // each holds one signal
	closed             chan struct{}
	readBy, writeBy    *deadline
}

// waiting requires mu. It returns what a goroutine waits by, and has the poller
// watch the connection.
func (c *Conn) waiting() (*waits, error) {
	if c.waits == nil {
		c.waits = &waits{
			readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), closed: make(chan struct{}),
			readBy: newDeadline(), writeBy: newDeadline(),
		}
		if c.closed {
			close(c.waits.closed)
		}
		c.waits.tell(c.missed)
		c.missed = Event{}
	}
	if c.closed || c.slot != (slot{}) {
		return c.waits, nil
	}
	return c.waits, c.loop.epoll().watch(c)
}

// taker tells an event to the goroutine that has the connection, or returns the
// handler that has it.
func (c *Conn) taker(l *Loop, e Event) Handler {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.loop != l {
		return nil // what a loop found before the connection became another's
	}
	switch {
	case c.handler != nil:
	case c.waits != nil:
		c.waits.tell(e)
	default:
		c.missed = c.missed.with(e)
	}
	return c.handler
}

func (w *waits) tell(e Event) {
	if e.Readable || e.Ended {
		signal(w.readable)
	}
	if e.Writable || e.Ended {
		signal(w.writable)
	}
}

// endWaits requires mu. Nobody waits for the connection as a goroutine did.
func (c *Conn) endWaits() {
	if c.waits != nil {
		c.waits.readBy.drop()
		c.waits.writeBy.drop()
	}
	c.waits, c.missed = nil, Event{}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// hand gives the connection to a handler, and has the poller report how it is.
func (c *Conn) hand(l *Loop, h Handler) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.endWaits()
	c.handler = h
	if c.slot != (slot{}) && c.loop == l {
		return l.epoll().again(c)
	}
	if c.slot != (slot{}) {
		c.loop.epoll().forget(c)
	}
	c.loop = l
	return l.epoll().watch(c)
}

func (c *Conn) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handler = nil
	if !c.closed && c.slot != (slot{}) {
		c.loop.epoll().forget(c)
	}
}

func (c *Conn) handledBy() Handler {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handler
}

func (c *Conn) lend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handler = nil
}

func (c *Conn) TryRead(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	if c.ahead != nil {
		return c.readAhead(p)
	}
	return c.read(p)
}

// read requires mu. It reads from the socket.
func (c *Conn) read(p []byte) (int, error) {
	n, errno := read(c.fd, p)
	switch {
	case errno != 0:
		return 0, errno
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	c.bulk = n > aheadBytes
	return n, nil
}

func (c *Conn) TryWrite(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	n, errno := write(c.fd, p)
	if errno != 0 {
		return 0, errno
	}
	return n, nil
}

// Read waits until there is something to read.
func (c *Conn) Read(p []byte) (n int, err error) {
	err = c.wait(readWay, func() bool {
		n, err = c.TryRead(p)
		return err != ErrWouldBlock
	}, &err)
	return n, err
}

// Write writes all of p, or as much as it may until it fails.
func (c *Conn) Write(p []byte) (n int, err error) {
	err = c.wait(writeWay, func() bool {
		var m int
		m, err = c.TryWrite(p[n:])
		n += m
		return err != ErrWouldBlock && (err != nil || n == len(p))
	}, &err)
	return n, err
}

type way int

const (
	readWay way = iota
	writeWay
)

// wait tries until done. It returns what *result is then, or why it gave up. A
// deadline that has passed comes before what could be read or written: who sets
// one wants an end, whatever the peer does.
func (c *Conn) wait(w way, try func() bool, result *error) error {
	if by := c.deadlineOf(w); by != nil && by.isOver() {
		return c.fault(w, os.ErrDeadlineExceeded)
	}
	for {
		if try() {
			return c.fault(w, *result)
		}
		c.mu.Lock()
		waits, err := c.waiting()
		c.mu.Unlock()
		if err != nil {
			return c.fault(w, err)
		}
		ready, by := waits.readable, waits.readBy
		if w == writeWay {
			ready, by = waits.writable, waits.writeBy
		}
		if by.isOver() {
			return c.fault(w, os.ErrDeadlineExceeded)
		}
		select {
		case <-ready:
		case <-by.passed():
			return c.fault(w, os.ErrDeadlineExceeded)
		case <-waits.closed:
			return c.fault(w, net.ErrClosed)
		}
	}
}

// fault gives an error the form that those of the net package have.
func (c *Conn) fault(w way, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	op := "read"
	if w == writeWay {
		op = "write"
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: c.network(), Err: err}
}

func (c *Conn) network() string {
	if c.unix {
		return "unix"
	}
	return "tcp"
}

// CloseWrite ends the sending side.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return os.NewSyscallError("shutdown", unix.Shutdown(c.fd, unix.SHUT_WR))
}

// SetLinger(0) makes Close reset the connection; less than 0 is as if it had
// never been called.
func (c *Conn) SetLinger(seconds int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	linger := unix.Linger{Linger: int32(max(seconds, 0))}
	if seconds >= 0 {
		linger.Onoff = 1
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger))
}

// Close closes the socket, whoever has it. A handler is told nothing more.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed, c.handler, c.ahead = true, nil, nil
	if c.waits != nil {
		close(c.waits.closed)
	}
	c.endWaits()
	if c.slot != (slot{}) {
		c.loop.epoll().release(c)
	}
	closeDescriptor(c.fd)
	return nil
}

func (c *Conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline ends reads that a goroutine waits in; a handler's are not concerned.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(readWay, t) }

func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(writeWay, t) }

func (c *Conn) setDeadline(w way, t time.Time) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	if c.waits == nil && t.IsZero() {
		c.mu.Unlock()
		return nil
	}
	waits, err := c.waiting()
	c.mu.Unlock()
	if err != nil {
		return err
	}
	by := waits.readBy
	if w == writeWay {
		by = waits.writeBy
	}
	by.set(t)
	return nil
}

// Loop is the loop that watches the connection, or will.
func (c *Conn) Loop() *Loop {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loop
}

// PeerAddrPort is the peer of a TCP socket, unmapped, as accept told it.
func (c *Conn) PeerAddrPort() netip.AddrPort { return c.peer }

// LocalAddrPort is this end of a TCP socket, unmapped.
func (c *Conn) LocalAddrPort() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.local.IsValid() && !c.unix && !c.closed {
		c.local = localOf(c.fd)
	}
	return c.local
}

func (c *Conn) RemoteAddr() net.Addr { return c.address(c.peer) }
func (c *Conn) LocalAddr() net.Addr  { return c.address(c.LocalAddrPort()) }

func (c *Conn) address(a netip.AddrPort) net.Addr {
	if c.unix {
		return &net.UnixAddr{Net: "unix"}
	}
	return net.TCPAddrFromAddrPort(a)
}

// SyscallConn gives whoever wants to wait for readiness without a buffer what
// the net package's connections give.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return rawConn{c}, nil }

type rawConn struct{ c *Conn }

func (r rawConn) Control(f func(fd uintptr)) error {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if r.c.closed {
		return net.ErrClosed
	}
	f(uintptr(r.c.fd))
	return nil
}

func (r rawConn) Read(f func(fd uintptr) bool) error  { return r.until(readWay, f) }
func (r rawConn) Write(f func(fd uintptr) bool) error { return r.until(writeWay, f) }

func (r rawConn) until(w way, f func(fd uintptr) bool) error {
	var result error
	return r.c.wait(w, func() (done bool) {
		if err := r.Control(func(fd uintptr) { done = f(fd) }); err != nil {
			result = err
			return true
		}
		return done
	}, &result)
}

func (c *Conn) deadlineOf(w way) *deadline {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.waits == nil:
		return nil
	case w == readWay:
		return c.waits.readBy
	}
	return c.waits.writeBy
}
