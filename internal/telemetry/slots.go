package telemetry

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	maxConnections    = 8 // one of them is kept for /metrics
	connectionTimeout = 30 * time.Second
)

// slots is a listener that has at most maxConnections open: Accept waits for a
// slot first, so that who comes too many waits in the kernel's backlog. One slot
// is kept; its holder may be served /metrics alone, and takes a common one for
// anything else.
type slots struct {
	net.Listener
	log    *slog.Logger
	common chan struct{}
	kept   chan struct{}

	closing   chan struct{}
	closeOnce sync.Once
	failing   bool // the last Accept failed; owned by the accept loop
}

func newSlots(ln net.Listener, log *slog.Logger) *slots {
	return &slots{
		Listener: ln, log: log,
		common: make(chan struct{}, maxConnections-1), kept: make(chan struct{}, 1), closing: make(chan struct{}),
	}
}

func (s *slots) Accept() (net.Conn, error) {
	var slot chan struct{}
	select {
	case s.common <- struct{}{}:
		slot = s.common
	default:
		select {
		case s.common <- struct{}{}:
			slot = s.common
		case s.kept <- struct{}{}:
			slot = s.kept
		case <-s.closing:
			return nil, net.ErrClosed
		}
	}
	nc, err := s.Listener.Accept()
	if err != nil {
		<-slot
		s.fail(err)
		return nil, err
	}
	s.failing = false
	c := &conn{Conn: nc, slots: s, slot: slot}
	c.timer = time.AfterFunc(connectionTimeout, func() { _ = c.Close() })
	return c, nil
}

// fail logs the first of failures in a row; the server tries again by itself.
func (s *slots) fail(err error) {
	select {
	case <-s.closing:
	default:
		if !s.failing {
			s.log.Warn("Metrics endpoint cannot accept", "err", err)
		}
	}
	s.failing = true
}

func (s *slots) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	return s.Listener.Close()
}

// conn holds its slot until it is closed, by whom ever or by its time.
type conn struct {
	net.Conn
	slots *slots
	timer *time.Timer

	mu     sync.Mutex
	slot   chan struct{} // guarded by mu
	closed bool          // guarded by mu
}

func (c *conn) Close() error {
	c.timer.Stop()
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		<-c.slot
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

// common reports whether the connection holds a common slot or could change to one.
func (c *conn) common() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if c.slot == c.slots.common {
		return true
	}
	select {
	case c.slots.common <- struct{}{}:
		<-c.slot
		c.slot = c.slots.common
		return true
	default:
		return false
	}
}
