package memconn

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// firstPort is where the ports begin that Dial gives to callers without one.
const firstPort = 32768

// Listener is a net.Listener in memory with an unbounded backlog.
type Listener struct {
	addr    netip.AddrPort
	netAddr *net.TCPAddr

	mu      sync.Mutex
	changed sync.Cond // L is &mu
	// Guarded by mu.
	closed    bool
	backlog   []*Conn
	errs      []error
	dialDelay time.Duration
	ports     int // how many Dial gave out
}

// Listen returns a listener with the address addr.
func Listen(addr netip.AddrPort) *Listener {
	l := &Listener{addr: addr, netAddr: net.TCPAddrFromAddrPort(addr)}
	l.changed.L = &l.mu
	return l
}

// Dial connects to the listener from the address from; its port, if 0, is chosen.
// It fails with syscall.ECONNREFUSED once the listener is closed, and with the
// error of ctx when that ends first.
func (l *Listener) Dial(ctx context.Context, from netip.AddrPort) (*Conn, error) {
	l.mu.Lock()
	if from.Port() == 0 {
		from = netip.AddrPortFrom(from.Addr(), uint16(firstPort+l.ports%(1<<16-firstPort)))
		l.ports++
	}
	delay := l.dialDelay
	l.mu.Unlock()

	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, l.dialFault(from, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, l.dialFault(from, os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	client, server := Pipe(from, l.addr)
	l.backlog = append(l.backlog, server)
	l.changed.Broadcast()
	return client, nil
}

// SetDialDelay makes every Dial from here on take d, as a far or silent peer would.
func (l *Listener) SetDialDelay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialDelay = d
}

// SetAcceptError makes one Accept, the next or the one that waits, fail with
// err, even if connections wait; they stay for a later Accept. Several calls
// make several fail. A syscall.Errno is wrapped as the net package does, so that
// syscall.EMFILE looks like a real one.
func (l *Listener) SetAcceptError(err error) {
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError("accept4", errno)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
	l.changed.Broadcast()
}

// Accept returns the connection, a *Conn, that has waited longest.
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, l.fault("accept", net.ErrClosed)
		case len(l.errs) > 0:
			err := l.errs[0]
			l.errs = l.errs[1:]
			return nil, l.fault("accept", err)
		case len(l.backlog) > 0:
			c := l.backlog[0]
			l.backlog[0] = nil
			l.backlog = l.backlog[1:]
			return c, nil
		}
		l.changed.Wait()
	}
}

// Close refuses those who dial from here on and resets those who were not accepted yet.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.fault("close", net.ErrClosed)
	}
	l.closed = true
	for _, c := range l.backlog {
		c.Reset()
	}
	l.backlog = nil
	l.changed.Broadcast()
	return nil
}

// Addr returns the listener's address, a *net.TCPAddr.
func (l *Listener) Addr() net.Addr { return l.netAddr }

func (l *Listener) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: l.netAddr, Err: err}
}

func (l *Listener) dialFault(from netip.AddrPort, err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Source: net.TCPAddrFromAddrPort(from), Addr: l.netAddr, Err: err}
}
