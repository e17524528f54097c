package redisstore

import (
	"context"
	"sync/atomic"
	"time"

	"relayedge/admission"
)

// awayRetry is how long a caller is told to wait who is refused because the store
// is away.
const awayRetry = time.Second

// LocalWindows are what decides while the store is away, as *admission.FixedWindows.
type LocalWindows interface {
	admission.Windows
	SetLimit(limit int64, length time.Duration)
}

// Windows are admission.Windows in the store. Make them with [Store.Windows].
type Windows struct {
	// Static.
	store  *Store
	use    Use
	prefix string
	local  LocalWindows

	inForce atomic.Pointer[window]
}

// window is a limit, and how the script is told.
type window struct {
	limit  int64
	length time.Duration
	args   []string
}

// Windows returns windows that count in the store, for a use, under a name:
// windows of one name count together, over all processes. The name is a word of
// ours. local decides while the store is away, unless on_failure says refuse; it
// gets the same limit and length. The length is whole milliseconds. A limit of 0
// allows everything, and -1 nothing: neither asks the store.
func (s *Store) Windows(use Use, name string, limit int64, length time.Duration, local LocalWindows) *Windows {
	w := &Windows{store: s, use: use, prefix: s.cfg.Prefix + ":" + name + ":", local: local}
	w.SetLimit(limit, length)
	return w
}

// SetLimit changes the limit, also that of the windows that are open, and the
// length of those that open from here on. What was counted stays. Processes that
// count together should get it together: each decides by the limit of its own.
func (w *Windows) SetLimit(limit int64, length time.Duration) {
	w.local.SetLimit(limit, length)
	w.inForce.Store(&window{limit, length, []string{whole(limit), whole(max(1, length.Milliseconds()))}})
}

// Take implements [admission.Windows].
func (w *Windows) Take(ctx context.Context, key admission.Key, now time.Time) admission.Decision {
	in := w.inForce.Load()
	if in.limit <= 0 {
		return in.unasked(now)
	}
	answer, err := w.store.decide(ctx, w.store.window, []string{w.prefix + key.String()}, in.args, 4)
	if err != nil {
		if w.store.degrade(w.use) {
			return w.store.unavailable(in.limit, now)
		}
		return w.local.Take(ctx, key, now)
	}
	d := admission.Decision{
		Allowed:   answer[0] == 1,
		Limit:     in.limit,
		Remaining: answer[1],
		Reset:     time.UnixMilli(answer[2]),
	}
	if !d.Allowed {
		d.RetryAfter = time.Duration(answer[2]-answer[3]) * time.Millisecond
	}
	return d
}

// unasked decides where the limit is off, or shut.
func (w *window) unasked(now time.Time) admission.Decision {
	if w.limit == 0 {
		return admission.Decision{Allowed: true, Reset: now.Round(0)}
	}
	return admission.Decision{Limit: w.limit, Reset: now.Add(w.length).Round(0), RetryAfter: w.length}
}

// degrade counts a decision that the store does not make, and reports whether it
// is refused.
func (s *Store) degrade(use Use) (refused bool) {
	d := &s.degraded[use]
	if refused = s.cfg.OnFailure.refuses(use); refused {
		d.refused.Add(1)
	} else {
		d.local.Add(1)
	}
	return refused
}

func (s *Store) unavailable(limit int64, now time.Time) admission.Decision {
	return admission.Decision{Limit: limit, Reset: now.Add(awayRetry), RetryAfter: awayRetry, Unavailable: true}
}
