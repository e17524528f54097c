package admission

import (
	"hash/maphash"
	"net/netip"
)

// Shares is the ledger of one bounded thing (places, entries, bytes): it knows
// what each source holds of it and names the heaviest source at once; a change
// takes O(log n) of the sources that hold something. It decides nothing: who has
// the thing asks it who pays when the thing is full.
//
// It is not safe for concurrent use, [Shares.Holding] apart: the lock of whoever
// has the thing guards it and all holdings. It keeps no address but a hash
// with a secret of its own, nothing of a source that holds nothing, and of a
// burst's memory at most four times what is in use.
type Shares[T any] struct {
	seed    maphash.Seed // static
	sources map[uint64]*share[T]
	heap    []*share[T] // the heaviest first
	spare   *share[T]   // rows without a source
	peak    int         // the most sources since map, heap and spare rows were made anew
	orders  uint64      // holdings that were ever begun
	held    int64
}

// Holding is what one owner (a connection, a request) holds of the thing in the
// name of a source. It is made by [Shares.Holding] and must not be copied while
// it holds something.
type Holding[T any] struct {
	Owner T // whom it stands for, for those who ask the ledger

	source       uint64
	amount       int64
	share        *share[T] // nil: it holds nothing
	older, newer *Holding[T]
	order        uint64
}

// Share is what one source holds: an amount, and holdings from the oldest to the
// newest, by when each began to hold something. It is zero for a source that holds nothing.
type Share[T any] struct {
	Amount         int64
	Oldest, Newest *Holding[T]
}

// share is a source's row in the ledger.
type share[T any] struct {
	Share[T]
	source uint64
	at     int       // its place in the heap
	spare  *share[T] // without a source: the next such row
}

// shrinkFrom is how many sources a ledger must have had for its memory to be made anew.
const shrinkFrom = 256

// NewShares returns a ledger in which nobody holds anything.
func NewShares[T any]() *Shares[T] {
	return &Shares[T]{seed: maphash.MakeSeed(), sources: make(map[uint64]*share[T])}
}

// Holding returns a holding of the source, for owner, that holds nothing yet. The
// zero Prefix is a source too: that of all peers without an address. It touches
// nothing that changes, so no lock is needed.
func (s *Shares[T]) Holding(source netip.Prefix, owner T) Holding[T] {
	// Without the pointer that an Addr has for its zone, hashing allocates nothing.
	key := struct {
		addr [16]byte
		bits int16
	}{source.Addr().As16(), int16(source.Bits())}
	if source.Addr().Is4() {
		key.bits += 96
	}
	return Holding[T]{Owner: owner, source: maphash.Comparable(s.seed, key)}
}

// Amount returns what h holds.
func (h *Holding[T]) Amount() int64 { return h.amount }

// Newer returns the holding of h's source that began next after h, nil after the newest.
func (h *Holding[T]) Newer() *Holding[T] { return h.newer }

// Held returns what all sources hold.
func (s *Shares[T]) Held() int64 { return s.held }

// Sources returns how many sources hold something.
func (s *Shares[T]) Sources() int { return len(s.heap) }

// Of returns the share of h's source, h itself included.
func (s *Shares[T]) Of(h *Holding[T]) Share[T] {
	if row := s.sources[h.source]; row != nil {
		return row.Share
	}
	return Share[T]{}
}

// Heaviest returns the share of the source that holds the most; of several, of
// the one whose oldest holding is the oldest.
func (s *Shares[T]) Heaviest() Share[T] {
	if len(s.heap) == 0 {
		return Share[T]{}
	}
	return s.heap[0].Share
}

// Add has h hold n more, or -n less. A holding that held nothing becomes the
// newest of its source; one that holds nothing any longer is no part of the
// ledger. It panics if h would hold less than nothing.
func (s *Shares[T]) Add(h *Holding[T], n int64) {
	if h.amount+n < 0 {
		panic("admission: a holding gives back more than it holds")
	}
	if n == 0 {
		return
	}
	if h.amount == 0 {
		s.link(h)
	}
	row := h.share
	h.amount += n
	row.Amount += n
	s.held += n
	if h.amount == 0 {
		s.unlink(h)
	}
	if row.Oldest == nil {
		s.drop(row)
		return
	}
	s.up(row.at, row)
	s.down(row.at, row)
}

// Drop has h hold nothing. A holding that holds nothing stays as it is.
func (s *Shares[T]) Drop(h *Holding[T]) { s.Add(h, -h.amount) }

// link makes h the newest holding of its source.
func (s *Shares[T]) link(h *Holding[T]) {
	row := s.sources[h.source]
	if row == nil {
		if row = s.spare; row != nil {
			s.spare, row.spare = row.spare, nil
		} else {
			row = new(share[T])
		}
		row.source, row.at = h.source, len(s.heap)
		s.sources[h.source] = row
		s.heap = append(s.heap, row)
		s.peak = max(s.peak, len(s.heap))
	}
	s.orders++
	h.share, h.order, h.older = row, s.orders, row.Newest
	if h.older != nil {
		h.older.newer = h
	} else {
		row.Oldest = h
	}
	row.Newest = h
}

func (s *Shares[T]) unlink(h *Holding[T]) {
	row := h.share
	if h.older != nil {
		h.older.newer = h.newer
	} else {
		row.Oldest = h.newer
	}
	if h.newer != nil {
		h.newer.older = h.older
	} else {
		row.Newest = h.older
	}
	h.share, h.older, h.newer = nil, nil, nil
}

// drop takes a row whose source holds nothing out of the ledger.
func (s *Shares[T]) drop(row *share[T]) {
	delete(s.sources, row.source)
	last := len(s.heap) - 1
	moved := s.heap[last]
	s.heap[last] = nil
	s.heap = s.heap[:last]
	if moved != row {
		s.up(row.at, moved)
		s.down(moved.at, moved)
	}
	row.spare, s.spare = s.spare, row
	if s.peak >= shrinkFrom && last <= s.peak/4 {
		s.shrink()
	}
}

// shrink makes the ledger's memory anew, for what it holds: maps and slices do
// not shrink by themselves. The sources that have left since the last time pay for it.
func (s *Shares[T]) shrink() {
	s.spare, s.peak = nil, len(s.heap)
	s.heap = append(make([]*share[T], 0, len(s.heap)), s.heap...)
	s.sources = make(map[uint64]*share[T], len(s.heap))
	for _, row := range s.heap {
		s.sources[row.source] = row
	}
}

// heavier is the order of the heap.
func (a *share[T]) heavier(b *share[T]) bool {
	return a.Amount > b.Amount || a.Amount == b.Amount && a.Oldest.order < b.Oldest.order
}

func (s *Shares[T]) place(at int, row *share[T]) {
	s.heap[at], row.at = row, at
}

// up places row at the place at, or above.
func (s *Shares[T]) up(at int, row *share[T]) {
	for at > 0 {
		parent := s.heap[(at-1)/2]
		if !row.heavier(parent) {
			break
		}
		s.place(at, parent)
		at = (at - 1) / 2
	}
	s.place(at, row)
}

// down places row at the place at, or below.
func (s *Shares[T]) down(at int, row *share[T]) {
	for {
		child := 2*at + 1
		if child >= len(s.heap) {
			break
		}
		if child+1 < len(s.heap) && s.heap[child+1].heavier(s.heap[child]) {
			child++
		}
		if !s.heap[child].heavier(row) {
			break
		}
		s.place(at, s.heap[child])
		at = child
	}
	s.place(at, row)
}
