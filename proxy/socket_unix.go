//go:build unix

package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// tcpSocket reads and writes through the runtime's poller, with the system
// calls in its own hands.
type tcpSocket struct {
	*net.TCPConn
	raw syscall.RawConn
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
	return &tcpSocket{tcp, raw}
}

// readReady tries to read at once and gives the buffer back before it waits.
// The attempt has to stand inside the callback: readiness that arrives between
// a read outside and the wait would be lost.
func (s *tcpSocket) readReady() (b *buffer, n int, err error) {
	waitErr := s.raw.Read(func(fd uintptr) bool {
		b = getBuffer()
		n, err = retry(syscall.Read, fd, b[:])
		if err == syscall.EAGAIN {
			putBuffer(b)
			return false
		}
		return true
	})
	switch {
	case waitErr != nil: // the deadline, or closed; the buffer is back already
		return nil, 0, waitErr
	case err == nil && n == 0:
		err = io.EOF
	case err == nil:
		return b, n, nil
	}
	putBuffer(b)
	return nil, 0, err
}

func (s *tcpSocket) writeAll(p []byte, patience time.Duration) error {
	waited := false
	for len(p) > 0 {
		var n int
		var err error
		waitErr := s.raw.Write(func(fd uintptr) bool {
			n, err = retry(syscall.Write, fd, p)
			return err != syscall.EAGAIN || !waited
		})
		if waitErr != nil {
			err = waitErr
		}
		switch {
		case n > 0:
			p = p[n:]
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errStalled
		case err == syscall.EAGAIN && patience == 0:
			return errStalled
		case err != nil && err != syscall.EAGAIN:
			return err
		}
		if len(p) > 0 && patience > 0 {
			waited = true
			s.SetWriteDeadline(time.Now().Add(patience))
		}
	}
	if waited {
		s.SetWriteDeadline(time.Time{})
	}
	return nil
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
