package socket

import (
	"errors"
	"os"
	"sync"
	"time"
)

// ErrStalled: the peer took no byte for as long as it may, by WriteAll's
// patience, Hurry or CloseAt. What it took ends at an unknown byte.
var ErrStalled = errors.New("the peer takes no bytes")

// StallSlice is how exactly a stall is seen on a connection without readiness,
// which does not say when it took its latest byte.
const StallSlice = 100 * time.Millisecond

// hurriedPatience stands for "at once" where a write has to be given some time.
const hurriedPatience = 10 * time.Millisecond

// write is what WriteAll needs of memory on a connection with readiness. It is
// pooled, for an idle connection should not pay for it.
type write struct {
	left  []byte
	n     int
	err   error
	waits bool // until the connection takes something
	try   func(fd uintptr) bool
}

var writes = sync.Pool{New: func() any {
	w := new(write)
	w.try = w.tryWrite
	return w
}}

// WriteAll writes p. It fails with ErrStalled once no byte was taken for
// patience, and otherwise as the connection does.
func (s *Socket) WriteAll(p []byte, patience time.Duration) error {
	if s.raw == nil {
		return s.writePlain(p, patience)
	}
	w := writes.Get().(*write)
	w.left = p
	err := w.writeAll(s, patience)
	w.left, w.err, w.waits = nil, nil, false
	writes.Put(w)
	return err
}

// WriteNow writes what the connection takes of p without waiting, and returns how
// much that was. Why it was not all of it, WriteAll says of the rest. It is for
// connections with readiness; the others take nothing.
func (s *Socket) WriteNow(p []byte) (n int) {
	if s.raw == nil {
		return 0
	}
	w := writes.Get().(*write)
	w.left, w.n = p, 0
	if s.raw.Write(w.try) == nil {
		n = w.n
	}
	w.left, w.err = nil, nil
	writes.Put(w)
	return n
}

func (w *write) writeAll(s *Socket, patience time.Duration) error {
	for {
		w.n, w.err = 0, nil
		if err := s.raw.Write(w.try); err != nil {
			return stalled(err)
		}
		if w.left = w.left[w.n:]; w.err != nil || len(w.left) == 0 {
			return w.err
		}
		if !w.waits {
			w.waits = true
			defer s.rest()
		}
		if s.await(time.Now().Add(patience)) {
			return ErrStalled
		}
	}
}

// tryWrite writes what the connection takes. False means to wait until it is writable.
func (w *write) tryWrite(fd uintptr) (done bool) {
	var again bool
	w.n, again, w.err = writeNow(fd, w.left)
	return !again || !w.waits
}

// writePlain is WriteAll for a connection without readiness.
func (s *Socket) writePlain(p []byte, patience time.Duration) error {
	s.mu.Lock()
	hurried := s.hurried
	s.mu.Unlock()
	if hurried {
		patience = hurriedPatience
	}
	defer s.rest()
	for progress := time.Now(); ; {
		if s.await(earlier(progress.Add(patience), time.Now().Add(StallSlice))) && !hurried {
			return ErrStalled
		}
		n, err := s.Conn.Write(p)
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		if n > 0 {
			progress = time.Now()
		}
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case hurried || s.closed() || time.Since(progress) >= patience:
			return ErrStalled
		}
	}
}

// await lets the writer wait for the peer until t, or until CloseAt's moment if
// that is earlier. It reports whether Hurry has been called. Whoever called it
// calls rest in the end.
func (s *Socket) await(t time.Time) (hurried bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitBy = t
	s.SetWriteDeadline(earlier(t, s.closeBy))
	return s.hurried
}

// rest ends the writer's wait.
func (s *Socket) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitBy = time.Time{}
	s.SetWriteDeadline(s.closeBy)
}

// closed reports whether CloseAt's moment is over.
func (s *Socket) closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closeBy.IsZero() && !time.Now().Before(s.closeBy)
}

// Hurry ends all waiting for the peer: a WriteAll that waits fails, and those
// to come take what the peer takes at once.
func (s *Socket) Hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hurried = true
	// A deadline in the past lets nothing be tried: it is only for the write that waits.
	if !s.waitBy.IsZero() {
		s.waitBy = time.Unix(1, 0)
		s.SetWriteDeadline(s.waitBy)
	}
}

// CloseAt says when all writing ends, also for a WriteAll that waits already.
func (s *Socket) CloseAt(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeBy = t
	s.SetWriteDeadline(earlier(t, s.waitBy))
}

// earlier is the earlier of two moments, of which the zero one never comes.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// stalled is the error for a write that failed with err.
func stalled(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrStalled
	}
	return err
}
