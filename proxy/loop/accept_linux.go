package loop

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// acceptBatch is how many newcomers a loop takes before its connections have
	// their turn.
	acceptBatch = 64
	// refusalPause is how long a listener is left alone that brought nobody but
	// those who were refused: the kernel's queue fills, and a batch costs less than
	// its connections one by one.
	refusalPause = time.Millisecond
)

// Accepts are what a loop makes of a listener's newcomers.
type Accepts struct {
	// Take decides about a newcomer, which it closes or hands to somebody, and
	// reports whether it was taken. A connection that was not taken must not be used
	// after Take: its memory is the next newcomer's.
	Take func(c *Conn) (taken bool)
	// Failed is told of an accept that failed, and returns how long to wait before
	// the next; less than 0: the listener is given up.
	Failed func(error) time.Duration
}

// acceptor is a listening socket that a loop watches.
type acceptor struct {
	loop    *Loop
	socket  syscall.RawConn // the listener's, which may be closed at any time
	unix    bool
	takes   Accepts
	spare   *Conn // the next newcomer
	slot    slot
	paused  bool // it is not in the poller
	held    bool // its owner has paused it
	queued  bool // its turn comes by Again
	closed  bool
	timer   Timer
	take    func(fd uintptr) // accepts into what follows: a closure for each would be an allocation
	fd      int
	errno   syscall.Errno
	address unix.RawSockaddrAny
	local   netip.AddrPort // zero: each connection has its own
}

// Accept has the loop take the newcomers of a listener: a TCP or unix listener of
// the net package, or one that embeds it. It returns what stops that, which may
// be called from any goroutine but the loop's; after it Take is not called. The
// listener stays the caller's to close, and to pause if it has OnPause. If it is
// closed before the stop, Failed is told of net.ErrClosed, unless there is nobody
// to accept.
func (l *Loop) Accept(listener net.Listener, takes Accepts) (stop func(), err error) {
	a := &acceptor{loop: l, takes: takes, unix: listener.Addr().Network() == "unix"}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
		if at := tcp.AddrPort(); !at.Addr().IsUnspecified() {
			a.local = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		}
	}
	source, ok := listener.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a loop cannot watch a %T", listener)
	}
	if a.socket, err = source.SyscallConn(); err != nil {
		return nil, err
	}
	a.take = func(fd uintptr) { a.fd, a.errno = accept4(int(fd), &a.address) }
	a.timer.Owner = a
	a.spare = &Conn{loop: l, unix: a.unix}
	p := l.epoll()
	p.mu.Lock()
	a.slot = slot{index: firstListenerSlot - int32(len(p.acceptors))}
	p.acceptors = append(p.acceptors, a)
	p.mu.Unlock()
	if err := a.watch(); err != nil {
		a.end()
		return nil, err
	}
	if held, ok := listener.(interface{ OnPause(func(paused bool)) }); ok {
		held.OnPause(a.hold)
	}
	return func() {
		over := make(chan struct{})
		l.Post(func() {
			a.end()
			close(over)
		})
		select {
		case <-over:
		case <-l.done:
		}
	}, nil
}

// holdPatience is how long a pause waits for a loop that is in the middle of a turn.
const holdPatience = 5 * time.Second

// hold has nobody taken while the listener is paused by whoever owns it, who
// may have told another process to go on with the same queue. When it returns, all
// newcomers before have been decided about.
func (a *acceptor) hold(held bool) {
	done := make(chan struct{})
	a.loop.Post(func() {
		defer close(done)
		if a.closed || a.held == held {
			return
		}
		a.held = held
		if held {
			a.loop.ClearTimer(&a.timer)
			a.leave()
			a.paused = true
		} else {
			a.Expire()
		}
	})
	select {
	case <-done:
	case <-a.loop.done:
	case <-time.After(holdPatience):
	}
}

// end takes the listener out of the poller. Its place in the table stays empty.
func (a *acceptor) end() {
	if a.closed {
		return
	}
	a.closed = true
	a.loop.ClearTimer(&a.timer)
	p := a.loop.epoll()
	p.mu.Lock()
	p.acceptors[firstListenerSlot-a.slot.index] = nil
	p.mu.Unlock()
	a.leave()
}

// leave takes the listener out of the poller; closing it has done so already.
func (a *acceptor) leave() {
	if !a.paused {
		a.socket.Control(func(fd uintptr) { a.loop.epoll().tell(unix.EPOLL_CTL_DEL, int(fd), 0, a.slot) })
	}
}

// pause leaves the listener alone for a while. Removing it from the poller is
// what is allowed where several loops wait for the same newcomers.
func (a *acceptor) pause(d time.Duration) {
	if !a.paused {
		a.leave()
		a.paused = true
	}
	if !a.held {
		a.loop.SetTimer(&a.timer, a.loop.now.Add(d))
	}
}

// resume ends a pause.
func (a *acceptor) resume() error {
	a.paused = false
	return a.watch()
}

// watch watches the listener. Newcomers that are not taken are reported again.
// From here all else is the loop's goroutine's.
func (a *acceptor) watch() error {
	var failed error
	err := a.socket.Control(func(fd uintptr) {
		failed = a.loop.epoll().add(int(fd), unix.EPOLLIN|unix.EPOLLEXCLUSIVE, a.slot)
	})
	return cmp.Or(err, failed)
}

// next takes a newcomer from the kernel. The listener's descriptor is held for as
// long as that takes, and not while somebody decides about the newcomer: closing
// a listener waits for whoever holds it.
func (a *acceptor) next() (fd int, err error) {
	if err := a.socket.Control(a.take); err != nil {
		return -1, net.ErrClosed
	}
	if a.errno != 0 {
		return -1, a.errno
	}
	return a.fd, nil
}

// Expire resumes, and takes who has come meanwhile.
func (a *acceptor) Expire() {
	switch err := a.resume(); {
	case err == nil:
		a.accept()
	case errors.Is(err, net.ErrClosed):
		a.failed(net.ErrClosed)
	default: // the kernel has no memory for it
		a.paused = true
		a.pause(time.Second)
	}
}

// failed asks what is to be done about an accept that failed.
func (a *acceptor) failed(err error) {
	network := "tcp"
	if a.unix {
		network = "unix"
	}
	if wait := a.takes.Failed(&net.OpError{Op: "accept", Net: network, Err: err}); wait < 0 {
		a.end()
	} else {
		a.pause(wait)
	}
}

// accept takes a batch of newcomers.
func (a *acceptor) accept() {
	taken, refused := 0, 0
	for range acceptBatch {
		if a.closed || a.paused || a.queued {
			return
		}
		fd, err := a.next()
		if err == unix.EAGAIN {
			if refused > 0 && taken == 0 {
				a.pause(refusalPause)
			}
			return
		}
		if err != nil {
			a.failed(err)
			return
		}
		c := a.spare
		c.open(fd)
		c.local = a.local
		if !a.unix {
			c.peer = addrPortOf(&a.address)
		}
		if a.takes.Take(c) {
			taken++
			a.spare = &Conn{loop: a.loop, unix: a.unix}
		} else {
			refused++
		}
	}
	// The kernel reports those that are left, but only if it is asked: see poller.
	a.queued = true
	a.loop.Again(a)
}

// Ready goes on with the newcomers that were left.
func (a *acceptor) Ready(Stream, Event) {
	a.queued = false
	a.accept()
}

// Panicked: Take contains its panics.
func (a *acceptor) Panicked(cause any) { panic(cause) }

// open makes of a connection that was refused and closed the next newcomer.
func (c *Conn) open(fd int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fd, c.closed, c.local, c.peer = fd, false, netip.AddrPort{}, netip.AddrPort{}
}

// addrPortOf reads a TCP socket's address, unmapped and without a zone.
func addrPortOf(any *unix.RawSockaddrAny) netip.AddrPort {
	switch any.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(asAddress(any))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), networkOrder(in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(asAddress(any))
		return netip.AddrPortFrom(netip.AddrFrom16(in.Addr).Unmap(), networkOrder(in.Port))
	}
	return netip.AddrPort{}
}

// localOf asks the kernel for the address of this end.
func localOf(fd int) netip.AddrPort {
	switch a, _ := unix.Getsockname(fd); a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
