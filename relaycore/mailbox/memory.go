package mailbox

import (
	"time"

	"relayedge/relaycore/wire"
)

// Memory is a [Store] that ends with the process.
type Memory struct {
	lockedBook
	closed bool // guarded by mu
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory(l Limits, now time.Time) *Memory {
	s := new(Memory)
	s.book.init(l, now)
	return s
}

// Put implements [Store].
func (s *Memory) Put(m Message, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	it, known, refused := s.book.admit(&m, now)
	if refused != nil {
		return refused
	}
	if !known {
		it.payload = append([]byte(nil), m.Payload...)
		s.book.count.Put++
	}
	return nil
}

// Refuses implements [Store].
func (s *Memory) Refuses(m Message, now time.Time) *Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.refuses(&m, now)
}

// Read implements [Store].
func (s *Memory) Read(recipient wire.Identity, after uint64, n, size int, now time.Time) ([]Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return held(s.book.behind(&recipient, after, n, size, now)), nil
}

func held(portion []*item) []Held {
	if len(portion) == 0 {
		return nil
	}
	out := make([]Held, len(portion))
	for i, it := range portion {
		out[i] = Held{Sender: it.sender, ID: it.id, Payload: it.payload, Seq: it.seq}
	}
	return out
}

// Ack implements [Store].
func (s *Memory) Ack(recipient wire.Identity, ids []wire.MessageID, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.ack(&recipient, ids, now)
}

// Reader implements [Store].
func (s *Memory) Reader(recipient wire.Identity) *Reader {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.open(&Reader{Recipient: recipient, store: s})
}

func (s *Memory) next(r *Reader, now time.Time) ([]Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return held(s.book.take(r, now)), nil
}

// Expire implements [Store].
func (s *Memory) Expire(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.pass(now)
	return s.book.due()
}

// Close implements [Store].
func (s *Memory) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.book.clear()
	return nil
}
