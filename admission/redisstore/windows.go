package redisstore

import (
	"context"
	"strconv"
	"time"

	"relayedge/admission"
)

// awayRetry is how long a caller is told to wait who is refused because the store
// is away.
const awayRetry = time.Second

// windows are admission.Windows in the store.
type windows struct {
	store  *Store
	use    Use
	prefix string
	limit  int64
	length time.Duration
	args   []string
	local  admission.Windows
}

// Windows returns windows that count in the store, for a use, under a name:
// windows of one name count together, over all processes. The name is a word of
// ours. local decides while the store is away, unless on_failure says refuse; it
// has the same limit and length. The length is whole milliseconds. A limit of 0
// allows everything, and -1 nothing: neither asks the store.
func (s *Store) Windows(use Use, name string, limit int64, length time.Duration, local admission.Windows) admission.Windows {
	return &windows{
		store: s, use: use, prefix: s.cfg.Prefix + ":" + name + ":", limit: limit, length: length, local: local,
		args: []string{strconv.FormatInt(limit, 10), strconv.FormatInt(max(1, length.Milliseconds()), 10)},
	}
}

func (w *windows) Take(ctx context.Context, key admission.Key, now time.Time) admission.Decision {
	if w.limit <= 0 {
		return w.unasked(now)
	}
	answer, err := w.store.decide(ctx, w.store.window, []string{w.prefix + key.String()}, w.args, 4)
	if err != nil {
		if w.store.degrade(w.use) {
			return w.store.unavailable(w.limit, now)
		}
		return w.local.Take(ctx, key, now)
	}
	d := admission.Decision{
		Allowed:   answer[0] == 1,
		Limit:     w.limit,
		Remaining: answer[1],
		Reset:     time.UnixMilli(answer[2]),
	}
	if !d.Allowed {
		d.RetryAfter = time.Duration(answer[2]-answer[3]) * time.Millisecond
	}
	return d
}

// unasked decides where the limit is off, or shut.
func (w *windows) unasked(now time.Time) admission.Decision {
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
