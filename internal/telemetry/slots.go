package telemetry

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	maxConnections    = 8
	maxCommon         = maxConnections - 1 // one is kept for /metrics
	connectionTimeout = 30 * time.Second
)

// slots is a listener that has at most maxConnections open: Accept waits for a
// free slot first, so that who comes too many waits in the kernel's backlog. Who
// is accepted while maxCommon others are open gets the kept slot: it may be
// served /metrics alone, and takes a common slot, once one is free, for the rest.
type slots struct {
	net.Listener
	log       *slog.Logger
	open      chan struct{} // holds one for each connection, and for the one to be accepted
	closing   chan struct{}
	closeOnce sync.Once
	failing   bool // the last Accept failed; owned by the accept loop

	mu     sync.Mutex
	common int // common slots in use; guarded by mu
}

func newSlots(ln net.Listener, log *slog.Logger) *slots {
	return &slots{Listener: ln, log: log, open: make(chan struct{}, maxConnections), closing: make(chan struct{})}
}

func (s *slots) Accept() (net.Conn, error) {
	select {
	case s.open <- struct{}{}:
	case <-s.closing:
		return nil, net.ErrClosed
	}
	nc, err := s.Listener.Accept()
	if err != nil {
		<-s.open
		return nil, s.fail(err)
	}
	s.failing = false
	c := &conn{Conn: nc, slots: s}
	c.takeCommon()
	s.mu.Lock()
	defer s.mu.Unlock()
	c.timer = time.AfterFunc(connectionTimeout, func() { _ = c.Close() })
	return c, nil
}

// fail logs the first of failures in a row, and returns what net/http should
// make of it: after one that passes it tries again by itself, with pauses up to
// a second.
func (s *slots) fail(err error) error {
	select {
	case <-s.closing:
		return err
	default:
	}
	if !s.failing {
		s.log.Warn("Metrics endpoint cannot accept", "error", err)
	}
	s.failing = true
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err
	}
	switch errno {
	case syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EFAULT:
		return err // the socket itself is none
	}
	return passing{err}
}

// passing is an error of accept that a pause may mend. net/http knows only some
// as such: a lack of descriptors, but not one of memory, and no fault of the
// newcomer's network.
type passing struct{ error }

func (p passing) Unwrap() error { return p.error }
func (passing) Timeout() bool   { return false }
func (passing) Temporary() bool { return true }

func (s *slots) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	return s.Listener.Close()
}

// conn holds its slot until it is closed, by whomever or by its time.
type conn struct {
	net.Conn
	slots *slots

	// Guarded by slots.mu.
	timer  *time.Timer
	common bool
	closed bool
}

// takeCommon reports whether the connection has a common slot, and takes one if it can.
func (c *conn) takeCommon() bool {
	c.slots.mu.Lock()
	defer c.slots.mu.Unlock()
	if !c.common && !c.closed && c.slots.common < maxCommon {
		c.common = true
		c.slots.common++
	}
	return c.common
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.slots.mu.Lock()
	defer c.slots.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.timer.Stop()
		if c.common {
			c.slots.common--
		}
		<-c.slots.open
	}
	return err
}

// CloseWrite lets net/http end a reply before it closes on a request that was
// not read whole; the client would lose the reply to a RST otherwise.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
