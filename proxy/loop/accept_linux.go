package loop

import (
	"fmt"
	"net"
	"net/netip"
	"os"
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
	fd      int // a duplicate of the listener's
	unix    bool
	takes   Accepts
	spare   *Conn // the next newcomer
	slot    slot
	paused  bool
	closed  bool
	timer   Timer
	address unix.RawSockaddrAny
	local   netip.AddrPort // zero: each connection has its own
}

// Accept has the loop take the newcomers of a listener: a TCP or unix listener of
// the net package, or one that embeds it. It returns what stops that, which may
// be called from any goroutine but the loop's; after it Take is not called. The
// listener stays the caller's to close.
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
	raw, err := source.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		a.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("fcntl", failed)
	}
	a.timer.Owner = a
	a.spare = &Conn{loop: l, unix: a.unix}
	p := l.epoll()
	p.mu.Lock()
	a.slot = slot{index: firstListenerSlot - int32(len(p.acceptors))}
	p.acceptors = append(p.acceptors, a)
	p.mu.Unlock()
	if err := a.resume(); err != nil {
		a.end()
		return nil, err
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

// end gives the duplicate back. The place in the table stays empty.
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
	epollControl(p.fd, unix.EPOLL_CTL_DEL, a.fd, 0, a.slot)
	unix.Close(a.fd)
}

// pause leaves the listener alone for a while. Removing it from the poller is
// what is allowed where several loops wait for the same newcomers.
func (a *acceptor) pause(d time.Duration) {
	if !a.paused {
		a.paused = true
		epollControl(a.loop.epoll().fd, unix.EPOLL_CTL_DEL, a.fd, 0, a.slot)
	}
	a.loop.SetTimer(&a.timer, a.loop.now.Add(d))
}

// resume watches the listener. Newcomers that are not taken are reported again.
func (a *acceptor) resume() error {
	a.paused = false
	return a.loop.epoll().add(a.fd, unix.EPOLLIN|unix.EPOLLEXCLUSIVE, a.slot)
}

// Expire ends a pause.
func (a *acceptor) Expire() {
	if err := a.resume(); err != nil {
		a.pause(time.Second)
		return
	}
	a.accept()
}

// accept takes a batch of newcomers.
func (a *acceptor) accept() {
	taken, refused := 0, 0
	for range acceptBatch {
		if a.closed || a.paused {
			return
		}
		fd, errno := accept4(a.fd, &a.address)
		if errno == unix.EAGAIN {
			if refused > 0 && taken == 0 {
				a.pause(refusalPause)
			}
			return
		}
		if errno != 0 {
			wait := a.takes.Failed(&net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", errno)})
			if wait < 0 {
				a.end()
			} else {
				a.pause(wait)
			}
			return
		}
		c := a.spare
		c.fd, c.closed, c.local, c.peer = fd, false, a.local, netip.AddrPort{}
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
	a.loop.Again(a)
}

// Ready goes on with the newcomers that were left.
func (a *acceptor) Ready(Stream, Event) { a.accept() }

// Panicked: Take contains its panics.
func (a *acceptor) Panicked(cause any) { panic(cause) }

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
