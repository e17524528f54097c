package admission

import (
	"sync"
	"time"
)

const (
	rosterChunk = 256
	// sharedRows is how many rows the keys share that find a roster full. A key
	// is a keyed hash, so nobody chooses with whom it shares.
	sharedRows = 256
	// sweepKeys is how many dead rows one decision may drop. It makes at most
	// one, so the roster shrinks several times as fast as it can grow.
	sweepKeys = 8
	// rosterShrinkFrom is how many rows a roster must have had for its memory to
	// be made anew when few are left.
	rosterShrinkFrom = 1024
)

// roster is a bounded table of what a limiter holds against each key. A row is
// dead, and its key owes nothing, once its since is life ago.
//
// A full roster drops no row that lives. The keys without one share a few rows
// then, each of which allows them together what it allows one key, so that being
// new earns nobody more. A key that gets a row of its own later begins it with
// what its shared row holds, since that may be its own.
//
// It is not safe for concurrent use. Rows keep their place in memory until the
// next call of sweep, find or open.
type roster[T any] struct {
	bound  int
	life   int64
	full   func() bool // beside the bound; nil: never
	forget func(*T)    // told of what a dropped row held; nil: nothing to do
	clone  func(*T) T  // copies what a row holds; nil: by assignment

	index          map[Key]uint32
	chunks         []*[rosterChunk]rosterRow[T] // grown by the chunk: no growth copies the rows
	used           uint32                       // rows that were ever given out, row 0 among them, which is nobody's
	free           uint32                       // the first free row, linked by newer; 0: none
	oldest, newest uint32                       // by since
	peak           int                          // the most rows since the memory was made anew
	shared         []rosterRow[T]               // nil: the roster was never full
}

type rosterRow[T any] struct {
	key          Key
	since        int64
	number       uint32 // 0: a shared row
	older, newer uint32
	live         bool
	held         T
}

func (r *roster[T]) row(i uint32) *rosterRow[T] {
	return &r.chunks[i/rosterChunk][i%rosterChunk]
}

func (r *roster[T]) alive(row *rosterRow[T], at int64) bool {
	return row.live && at-row.since < r.life
}

// sharedOf returns the row that k would share.
func (r *roster[T]) sharedOf(k Key) *rosterRow[T] { return &r.shared[int(k[0])%len(r.shared)] }

// find returns the row that counts for k, its own or a shared one; nil if
// nothing is held against it.
func (r *roster[T]) find(k Key, at int64) *rosterRow[T] {
	if i := r.index[k]; i != 0 {
		if row := r.row(i); r.alive(row, at) {
			return row
		}
		r.drop(i)
	}
	if r.shared != nil {
		if row := r.sharedOf(k); r.alive(row, at) {
			return row
		}
	}
	return nil
}

// open returns the row to charge for k: its own, a new one of its own, or the
// one that it shares. A row that holds nothing yet has its since at the time at.
func (r *roster[T]) open(k Key, at int64) *rosterRow[T] {
	found := r.find(k, at)
	if found != nil && found.number != 0 {
		return found
	}
	if len(r.index) >= r.bound || r.full != nil && r.full() {
		if found != nil {
			return found
		}
		if r.shared == nil {
			r.shared = make([]rosterRow[T], sharedRows)
		}
		row := r.sharedOf(k)
		r.clear(row)
		row.since, row.live = at, true
		return row
	}
	row := r.add(k, at)
	if found != nil {
		row.since = found.since
		if r.clone != nil {
			row.held = r.clone(&found.held)
		} else {
			row.held = found.held
		}
	}
	return row
}

// renew has the life of row begin again.
func (r *roster[T]) renew(row *rosterRow[T], at int64) {
	row.since = at
	if row.number != 0 && row.number != r.newest {
		r.unlink(row)
		r.link(row)
	}
}

// sweep drops at most n dead rows and reports whether there are more.
func (r *roster[T]) sweep(at int64, n int) (more bool) {
	for ; r.oldest != 0 && !r.alive(r.row(r.oldest), at); n-- {
		if n == 0 {
			return true
		}
		r.drop(r.oldest)
	}
	return false
}

func (r *roster[T]) add(k Key, at int64) *rosterRow[T] {
	i := r.free
	switch {
	case i != 0:
		r.free = r.row(i).newer
	default:
		if r.index == nil {
			r.index, r.used = make(map[Key]uint32), 1
		}
		i = r.used
		r.used++
		if int(i/rosterChunk) == len(r.chunks) {
			r.chunks = append(r.chunks, new([rosterChunk]rosterRow[T]))
		}
	}
	row := r.row(i)
	*row = rosterRow[T]{key: k, since: at, number: i, live: true}
	r.link(row)
	r.index[k] = i
	r.peak = max(r.peak, len(r.index))
	return row
}

// link makes row the newest.
func (r *roster[T]) link(row *rosterRow[T]) {
	row.older, row.newer = r.newest, 0
	if r.newest != 0 {
		r.row(r.newest).newer = row.number
	} else {
		r.oldest = row.number
	}
	r.newest = row.number
}

func (r *roster[T]) unlink(row *rosterRow[T]) {
	if row.older != 0 {
		r.row(row.older).newer = row.newer
	} else {
		r.oldest = row.newer
	}
	if row.newer != 0 {
		r.row(row.newer).older = row.older
	} else {
		r.newest = row.older
	}
}

func (r *roster[T]) drop(i uint32) {
	row := r.row(i)
	delete(r.index, row.key)
	r.unlink(row)
	r.clear(row)
	row.newer, r.free = r.free, i
	if r.peak >= rosterShrinkFrom && len(r.index) <= r.peak/4 {
		r.shrink()
	}
}

// clear takes away what row holds.
func (r *roster[T]) clear(row *rosterRow[T]) {
	if r.forget != nil {
		r.forget(&row.held)
	}
	*row = rosterRow[T]{}
}

// shrink makes the memory anew, for what is in it: maps and slices do not shrink
// by themselves. The rows that were dropped since the last time pay for it.
func (r *roster[T]) shrink() {
	old := *r
	r.index, r.used = make(map[Key]uint32, len(old.index)), 1
	r.chunks, r.free, r.oldest, r.newest, r.peak = nil, 0, 0, 0, 0
	for i := old.oldest; i != 0; i = old.row(i).newer {
		row := old.row(i)
		r.add(row.key, row.since).held = row.held
	}
}

// countRows drops the dead rows of a limiter's roster and returns how many live.
// mu guards the clock and the roster; it is free between two batches.
func countRows[T any](mu *sync.Mutex, clock *stopwatch, r *roster[T], now time.Time) int {
	mu.Lock()
	defer mu.Unlock()
	for r.sweep(clock.read(now), statsRows) {
		mu.Unlock()
		mu.Lock()
	}
	return len(r.index)
}
