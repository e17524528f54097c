//go:build linux

package hostport

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// listener is a TCP listener that can be taken out of the runtime's poller.
type listener struct {
	address net.Addr

	mu     sync.RWMutex // held for reading while the descriptor is used
	polled *net.TCPListener
	fd     int // once polled is nil
	closed bool
}

// unpollable makes a listener of the net package's one that Unpoll works on.
func unpollable(ln net.Listener) net.Listener {
	if tcp, ok := ln.(*net.TCPListener); ok {
		return &listener{address: ln.Addr(), polled: tcp}
	}
	return ln
}

// Unpoll takes the listener out of the runtime's poller, for whoever waits for
// newcomers by other means: otherwise every connection that comes would wake a
// thread for nobody, and most of all those that a flood brings. Accept fails
// from here on.
func (l *listener) Unpoll() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.polled == nil || l.closed {
		return nil
	}
	raw, err := l.polled.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) { l.fd, errno = duplicate(fd) }); err != nil {
		return err
	}
	if errno != 0 {
		return os.NewSyscallError("fcntl", errno)
	}
	l.polled.Close()
	l.polled = nil
	return nil
}

func duplicate(fd uintptr) (int, syscall.Errno) {
	n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_DUPFD_CLOEXEC, 0)
	return int(n), errno
}

var errUnpolled = errors.New("its newcomers are taken by other means")

func (l *listener) Accept() (net.Conn, error) {
	l.mu.RLock()
	ln, closed := l.polled, l.closed
	l.mu.RUnlock()
	switch {
	case closed:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: net.ErrClosed}
	case ln == nil:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: errUnpolled}
	}
	return ln.Accept()
}

// File returns a duplicate of the descriptor, as that of a net.TCPListener does.
func (l *listener) File() (f *os.File, err error) {
	err = l.control(func(fd uintptr) {
		if fd, errno := duplicate(fd); errno == 0 {
			f = os.NewFile(uintptr(fd), "listener")
		} else {
			err = os.NewSyscallError("fcntl", errno)
		}
	})
	if f == nil {
		return nil, err
	}
	return f, nil
}

// Close closes the socket, whoever waits for its newcomers.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	if l.polled != nil {
		return l.polled.Close()
	}
	return os.NewSyscallError("close", syscall.Close(l.fd))
}

// SetDeadline ends waits of Accept, as that of a net.TCPListener does.
func (l *listener) SetDeadline(t time.Time) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.polled == nil {
		return errUnpolled
	}
	return l.polled.SetDeadline(t)
}

func (l *listener) Addr() net.Addr { return l.address }

// SyscallConn gives the descriptor, which stays open while it is used.
func (l *listener) SyscallConn() (syscall.RawConn, error) { return raw{l}, nil }

func (l *listener) control(f func(fd uintptr)) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.closed:
		return net.ErrClosed
	case l.polled == nil:
		f(uintptr(l.fd))
		return nil
	}
	raw, err := l.polled.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(f)
}

type raw struct{ l *listener }

func (r raw) Control(f func(fd uintptr)) error { return r.l.control(f) }

// Read and Write are for who waits by the runtime's poller, which Accept does.
func (raw) Read(func(uintptr) bool) error  { return syscall.EINVAL }
func (raw) Write(func(uintptr) bool) error { return syscall.EINVAL }
