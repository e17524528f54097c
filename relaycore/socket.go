package relaycore

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// readSize is how much one read takes. A session whose reading is paused keeps
// its buffer, so it is not larger than bulk transfer needs.
const readSize = 16 << 10

// writeSize is how much one write takes, unless one frame is larger.
const writeSize = 32 << 10

type readBuffer [readSize]byte

var readPool = sync.Pool{New: func() any { return new(readBuffer) }}

// socket is a session's connection. Where the operating system can say that
// bytes are there, no buffer is held while it waits for them.
type socket struct {
	// Static.
	conn net.Conn
	raw  syscall.RawConn // nil: plain Read and Write

	// The reader's.
	buf *readBuffer
	n   int
	err error
	try func(fd uintptr) bool

	// Guarded by mu.
	mu      sync.Mutex
	closeBy time.Time // the last moment of all writing, once the session ends
}

func (s *socket) init(nc net.Conn) {
	s.conn = nc
	if !readinessWorks {
		return
	}
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			s.raw = raw
			s.try = s.tryRead
		}
	}
}

// read waits for bytes or the read deadline. The buffer is the caller's until
// release. At the end of the stream it returns io.EOF.
func (s *socket) read() (buf []byte, n int, err error) {
	if s.raw == nil {
		s.buf = readPool.Get().(*readBuffer)
		n, err = s.conn.Read(s.buf[:])
		return s.buf[:], n, err
	}
	s.n, s.err = 0, nil
	if err := s.raw.Read(s.try); err != nil {
		return nil, 0, err
	}
	if s.err != nil {
		return nil, 0, s.err
	}
	return s.buf[:], s.n, nil
}

// release gives the buffer of the last read back.
func (s *socket) release() {
	if s.buf != nil {
		readPool.Put(s.buf)
		s.buf = nil
	}
}

// writer is what writing needs beside the session.
type writer struct {
	buf  []byte
	left []byte
	n    int
	err  error
	wait bool // wait until the socket takes something
	try  func(fd uintptr) bool
}

var writerPool = sync.Pool{New: func() any {
	w := &writer{buf: make([]byte, 0, writeSize)}
	w.try = w.tryWrite
	return w
}}

// stallSlice is how exactly a stall is seen on a connection that cannot say
// when it took its latest byte.
const stallSlice = 100 * time.Millisecond

// writeAll writes b. It returns os.ErrDeadlineExceeded when the socket took no
// byte for writerStall, or when closeAt's time is over.
func (w *writer) writeAll(s *socket, b []byte) error {
	if s.raw == nil {
		return writePlain(s, b)
	}
	w.left, w.wait = b, false
	for {
		w.n, w.err = 0, nil
		err := s.raw.Write(w.try)
		if err == nil {
			err = w.err
		}
		if w.left = w.left[w.n:]; err == nil && len(w.left) > 0 {
			w.wait = true
			s.writeBy(time.Now().Add(writerStall))
			continue
		}
		if w.wait {
			s.writeBy(time.Time{})
		}
		w.left = nil
		return err
	}
}

// writePlain is writeAll for a connection without readiness.
func writePlain(s *socket, b []byte) error {
	for progress := time.Now(); ; {
		now := time.Now()
		by := progress.Add(writerStall)
		if slice := now.Add(stallSlice); slice.Before(by) {
			by = slice
		}
		closing := s.writeBy(by)
		n, err := s.conn.Write(b)
		b = b[n:]
		switch {
		case len(b) == 0:
			return nil
		case n > 0:
			progress = time.Now()
		}
		if closing || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(progress) >= writerStall {
			return err
		}
	}
}

// writeBy sets the write deadline, or closeAt's where that is earlier; it
// reports whether it is.
func (s *socket) writeBy(t time.Time) (closing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closeBy.IsZero() && (t.IsZero() || s.closeBy.Before(t)) {
		t, closing = s.closeBy, true
	}
	s.conn.SetWriteDeadline(t)
	return closing
}

// closeAt says when all writing ends, also for a write that waits already.
func (s *socket) closeAt(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeBy = t
	s.conn.SetWriteDeadline(t)
}
