package mailbox

import (
	"sync"
	"time"

	"relayedge/relaycore/wire"
)

// lockedBook is a book behind its lock, with what both stores do alike. Their own
// fields that go with it are guarded by mu too.
type lockedBook struct {
	mu   sync.Mutex
	book book
}

func (s *lockedBook) leave(r *Reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.close(r)
}

// Waits implements [Store].
func (s *lockedBook) Waits(recipient, sender wire.Identity, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.waits(&recipient, &sender, now)
}

// SetLimits implements [Store].
func (s *lockedBook) SetLimits(l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.limits = l
}

// Stats implements [Store].
func (s *lockedBook) Stats(now time.Time) Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.stats(now)
}
