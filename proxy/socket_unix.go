//go:build unix

package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// tcpSocket reads and writes through the runtime's poller, with the system
// calls in its own hands. What its attempts work on stands in it, because a
// closure for each would be an allocation for each message.
type tcpSocket struct {
	*net.TCPConn
	raw syscall.RawConn

	in       attempt // owned by the one reader
	out      attempt // owned by the one writer
	waits    bool    // the writer's too: its attempt may wait for the peer
	hurried  atomic.Bool
	tryRead  func(fd uintptr) bool
	tryWrite func(fd uintptr) bool
}

// attempt is what one system call is given and what came of it.
type attempt struct {
	b   *buffer // to read into
	p   []byte  // to write
	n   int
	err error
}

func rawSocket(c net.Conn) socket {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	s := &tcpSocket{TCPConn: tcp, raw: raw}
	s.tryRead, s.tryWrite = s.readOnce, s.writeOnce
	return s
}

// readOnce takes a buffer for one attempt and gives it back if there is
// nothing to read. The attempt has to stand inside the poller's callback:
// readiness that arrives between a read outside and the wait would be lost.
func (s *tcpSocket) readOnce(fd uintptr) (done bool) {
	s.in.b = getBuffer()
	s.in.n, s.in.err = retry(syscall.Read, fd, s.in.b[:])
	if s.in.n == 0 {
		putBuffer(s.in.b)
		s.in.b = nil
	}
	return s.in.err != syscall.EAGAIN
}

func (s *tcpSocket) readReady() (b *buffer, n int, err error) {
	if err := s.raw.Read(s.tryRead); err != nil { // the deadline, or closed
		return nil, 0, err
	}
	b, n, err = s.in.b, s.in.n, s.in.err
	s.in = attempt{}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return b, n, err
}

func (s *tcpSocket) writeOnce(fd uintptr) (done bool) {
	s.out.n, s.out.err = retry(syscall.Write, fd, s.out.p)
	return s.out.err != syscall.EAGAIN || !s.waits
}

func (s *tcpSocket) writeAll(p []byte, patience time.Duration) (err error) {
	s.waits = false
	if s.hurried.Load() {
		s.SetWriteDeadline(time.Time{}) // hurry's own, under which nothing is tried
	}
	defer func() {
		s.out = attempt{}
		if s.waits && err == nil {
			err = s.SetWriteDeadline(time.Time{})
		}
	}()
	for {
		s.out = attempt{p: p}
		if err := s.raw.Write(s.tryWrite); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return errStalled
			}
			return err
		}
		p = p[s.out.n:]
		switch {
		case len(p) == 0:
			return nil
		case s.out.err != nil && s.out.err != syscall.EAGAIN:
			return s.out.err
		}
		s.waits = true
		s.SetWriteDeadline(time.Now().Add(patience))
		if s.hurried.Load() { // looked at behind the deadline, which else could undo hurry's
			return errStalled
		}
	}
}

func (s *tcpSocket) hurry() {
	s.hurried.Store(true)
	s.SetWriteDeadline(time.Unix(1, 0))
}

// retry repeats a system call that a signal interrupted.
func retry(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (int, error) {
	for {
		n, err := call(int(fd), p)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}
