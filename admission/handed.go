package admission

import (
	"context"
	"time"
)

// Counted is a row of a limiter on its way to the process that takes this one's
// place.
type Counted struct {
	Key   Key
	Count int64         // requests in its window
	Age   time.Duration // since its window opened, or its credential was seen
}

// Retire has w count nothing by itself until Resume: each request is asked for. It
// returns what was counted in the windows that are open, the oldest first; keys that
// share a window, because there were too many, are not among them. Where ask reports
// false, w counts.
func (w *FixedWindows) Retire(ask func(context.Context, Key) (Decision, bool), now time.Time) []Counted {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ask = ask
	return handRows(&w.rows, w.clock.read(now), func(held int64) int64 { return held })
}

// Resume has w count by itself, from what it had counted.
func (w *FixedWindows) Resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ask = nil
}

// Inherit takes what another process has counted, before w has counted anything.
func (w *FixedWindows) Inherit(rows []Counted, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	takeRows(&w.rows, w.clock.read(now), rows, func(n int64) int64 { return max(0, n) })
}

// Known returns the credentials that are known, the one that was seen the longest
// ago first.
func (c *Credentials) Known(now time.Time) []Counted {
	c.mu.Lock()
	defer c.mu.Unlock()
	return handRows(&c.rows, c.clock.read(now), func(struct{}) int64 { return 0 })
}

// Inherit makes known what another process knows, before anything is known here.
func (c *Credentials) Inherit(rows []Counted, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	takeRows(&c.rows, c.clock.read(now), rows, func(int64) struct{} { return struct{}{} })
}

func handRows[T any](r *roster[T], at int64, count func(T) int64) []Counted {
	rows := make([]Counted, 0, len(r.index))
	for i := r.oldest; i != 0; i = r.row(i).newer {
		if row := r.row(i); r.alive(row, at) {
			rows = append(rows, Counted{row.key, count(row.held), time.Duration(at - row.since)})
		}
	}
	return rows
}

// takeRows adds rows, the oldest first, as far as there is room.
func takeRows[T any](r *roster[T], at int64, rows []Counted, held func(int64) T) {
	for _, c := range rows {
		since := at - max(0, int64(c.Age))
		if r.newest != 0 {
			since = max(since, r.row(r.newest).since) // the order is that of their ends
		}
		if len(r.index) >= r.bound || r.index[c.Key] != 0 || at-since >= r.life {
			continue
		}
		r.add(c.Key, since).held = held(c.Count)
	}
}
