package proxy

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// socket is a TCP connection as the stream engine wants it: reads that hold no
// buffer while they wait, and writes whose patience is measured from the last
// byte that was taken.
type socket interface {
	net.Conn
	CloseWrite() error
	// readReady waits until there is something to read and only then takes a
	// buffer, which is the caller's to put back. It keeps the read deadline.
	readReady() (*buffer, int, error)
	// writeAll writes all of p; it fails with errStalled once no byte was taken
	// for patience.
	writeAll(p []byte, patience time.Duration) error
	// hurry ends all waiting for the peer to take bytes: a write that waits
	// fails, and those to come take what the peer takes at once. It may be
	// called beside a write.
	hurry()
}

// errStalled: the peer took no byte for as long as it may.
var errStalled = errors.New("the peer takes no bytes")

const bufferSize = 32 << 10

type buffer [bufferSize]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func getBuffer() *buffer  { return buffers.Get().(*buffer) }
func putBuffer(b *buffer) { buffers.Put(b) }

// newSocket wraps a connection: the system calls of a TCP socket where there
// is one, the net.Conn contract alone elsewhere.
func newSocket(c net.Conn) socket {
	if s := rawSocket(c); s != nil {
		return s
	}
	return &plainSocket{halfCloser: c.(halfCloser)}
}

type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// plainSocket keeps a socket's contract with a net.Conn alone. Its reads hold
// their buffer while they wait, and a stall is noticed within twice the
// patience, because a net.Conn does not tell when it took its last byte.
type plainSocket struct {
	halfCloser
	hurried atomic.Bool
}

// hurriedPatience stands for "at once" where a write has to be given some time.
const hurriedPatience = 10 * time.Millisecond

func (s *plainSocket) readReady() (*buffer, int, error) {
	b := getBuffer()
	n, err := s.Read(b[:])
	if n > 0 {
		return b, n, nil
	}
	putBuffer(b)
	return nil, 0, err
}

func (s *plainSocket) writeAll(p []byte, patience time.Duration) error {
	for {
		s.SetWriteDeadline(time.Now().Add(patience))
		if s.hurried.Load() {
			s.SetWriteDeadline(time.Now().Add(hurriedPatience))
		}
		n, err := s.Write(p)
		p = p[n:]
		switch {
		case err == nil:
			return s.SetWriteDeadline(time.Time{})
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case n == 0 || s.hurried.Load():
			return errStalled
		}
	}
}

func (s *plainSocket) hurry() {
	s.hurried.Store(true)
	s.SetWriteDeadline(time.Now())
}
