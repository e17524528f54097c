//go:build unix

package relaycore

import (
	"io"
	"syscall"
)

const readinessWorks = true

// tryRead reads if bytes are there. It takes a buffer only for the attempt and
// keeps it only if it was used; false means to wait until the socket is readable.
func (s *socket) tryRead(fd uintptr) bool {
	buf := readPool.Get().(*readBuffer)
	for {
		n, err := syscall.Read(int(fd), buf[:])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			readPool.Put(buf)
			return false
		case err != nil:
			readPool.Put(buf)
			s.err = err
			return true
		case n == 0:
			readPool.Put(buf)
			s.err = io.EOF
			return true
		}
		s.buf, s.n = buf, n
		return true
	}
}

// tryWrite writes what the socket takes. False means to wait until it is writable.
func (w *writer) tryWrite(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), w.left)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return !w.wait
		case err != nil:
			w.err = err
			return true
		}
		w.n = n
		return true
	}
}
