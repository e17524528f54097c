package admission

import (
	"context"
	"sync"
	"time"
)

// fixedRows is how many keys a FixedWindows counts apart. A row takes about 90
// bytes with its place in the index.
const fixedRows = 1 << 17

// FixedWindows is [Windows] in the memory of this process.
//
// A window follows the monotonic reading of the times that Take is given: a step
// of the wall clock neither prolongs nor ends it. [Decision.Reset] is told by the
// wall clock of the request that asks. Around the edge of two windows a key may
// have twice the limit within one window's length, and never more.
//
// It counts 131,072 keys apart, in about 12 MB. The keys that come while as many
// windows are open share 256 windows of the same limit; nobody's window is given
// up for them. A key that is over its limit thus stays so. There is no timer: each
// request drops up to eight windows that are over, and [FixedWindows.Rows] all.
type FixedWindows struct {
	mu sync.Mutex
	// Guarded by mu.
	limit int64
	clock stopwatch
	ask   func(context.Context, Key) (Decision, bool) // asks who counts in its place; nil: it counts
	rows  roster[int64]                               // counts; a row's since is when its window opened, its life the window
}

// NewFixedWindows allows each key limit requests in each window; 0 allows them
// all, and -1 refuses them all. It panics if limit is less than -1, or if window
// is not positive.
func NewFixedWindows(limit int64, window time.Duration) *FixedWindows {
	w := &FixedWindows{rows: roster[int64]{bound: fixedRows}}
	w.SetLimit(limit, window)
	return w
}

// SetLimit changes the limit and the length of all windows, also of those that
// are open. What was counted in them stays.
func (w *FixedWindows) SetLimit(limit int64, window time.Duration) {
	if limit < -1 || window <= 0 {
		panic("admission: windows need a limit of -1 or more and a positive length")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit, w.rows.life = limit, int64(window)
}

// Take counts one request of key. Where the limit is off, the decision's Limit is 0.
func (w *FixedWindows) Take(ctx context.Context, key Key, now time.Time) Decision {
	w.mu.Lock()
	if ask := w.ask; ask != nil {
		w.mu.Unlock()
		if d, answered := ask(ctx, key); answered {
			return d
		}
		w.mu.Lock()
	}
	defer w.mu.Unlock()
	at := w.clock.read(now)
	w.rows.sweep(at, sweepKeys)
	limit, length := w.limit, w.rows.life
	switch {
	case limit == 0:
		return Decision{Allowed: true, Reset: now.Round(0)}
	case limit < 0:
		return Decision{Limit: limit, Reset: wallAfter(now, length), RetryAfter: time.Duration(length)}
	}
	row := w.rows.open(key, at)
	rest := row.since + length - at
	d := Decision{Limit: limit, Reset: wallAfter(now, rest)}
	if row.held >= limit {
		d.RetryAfter = time.Duration(rest)
		return d
	}
	row.held++
	d.Allowed, d.Remaining = true, limit-row.held
	return d
}

// Rows drops the windows that are over and returns how many are open.
func (w *FixedWindows) Rows(now time.Time) int {
	return countRows(&w.mu, &w.clock, &w.rows, now)
}
