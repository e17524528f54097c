package socket

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Socket is a connection with one reader and one writer, which may be two
// goroutines. Hurry, CloseAt and the methods of the connection may be called
// beside them; only the connection's write deadline is the Socket's own from
// the first WriteAll on.
type Socket struct {
	net.Conn

	// Static.
	raw  syscall.RawConn // nil: plain Read and Write
	pool *Pool
	try  func(fd uintptr) bool // tryRead: a closure made for each read would be an allocation

	// The reader's.
	held *[]byte
	n    int
	err  error

	// Guarded by mu.
	mu      sync.Mutex
	hurried bool
	closeBy time.Time // CloseAt's
	waitBy  time.Time // when the writer's wait for the peer ends; zero: it does not wait
}

// New wraps a connection, whose reads take their buffers from pool.
func New(conn net.Conn, pool *Pool) *Socket {
	s := &Socket{Conn: conn, pool: pool}
	if !readinessWorks {
		return s
	}
	if sc, ok := conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			s.raw, s.try = raw, s.tryRead
		}
	}
	return s
}

// ByReadiness reports whether a read that waits holds no buffer.
func (s *Socket) ByReadiness() bool { return s.raw != nil }

// ReadReady waits for bytes and returns what came, at most a buffer of the
// pool. They are the caller's until Release, which has to come before the next
// ReadReady. The end of the stream is io.EOF; with an error nothing is held.
func (s *Socket) ReadReady() (p []byte, err error) {
	if s.raw == nil {
		s.held = s.pool.Get()
		s.n, err = s.Conn.Read(*s.held)
		if s.n == 0 {
			s.Release()
			return nil, err
		}
	} else {
		if err := s.raw.Read(s.try); err != nil { // the deadline, or closed
			return nil, err
		}
		if s.err != nil {
			return nil, s.err
		}
	}
	return (*s.held)[:s.n], nil
}

// Release gives back the buffer that ReadReady took, if there is one.
func (s *Socket) Release() {
	if s.held != nil {
		s.pool.Put(s.held)
		s.held = nil
	}
}

// tryRead reads if bytes are there. It takes a buffer for the attempt and
// keeps it if it was used; false means to wait until the connection is
// readable. The attempt has to stand inside the poller's callback: readiness
// that comes between a read outside and the wait would be lost.
func (s *Socket) tryRead(fd uintptr) (done bool) {
	s.held = s.pool.Get()
	var again bool
	s.n, again, s.err = readNow(fd, *s.held)
	if s.n > 0 {
		return true
	}
	s.Release()
	if !again && s.err == nil {
		s.err = io.EOF
	}
	return !again
}

// CloseWrite ends the sending side, where the connection can.
func (s *Socket) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
