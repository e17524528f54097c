package limitstest

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"relayedge/admission"
)

// messagesModel keeps the time of every message that was accepted, and recounts.
func messagesModel(t *testing.T, s Store) {
	if !s.exact() {
		t.Skip("time goes on by itself in this store")
	}
	lengths := s.lengths()
	windows := []admission.Window{admission.Minute, admission.Hour, admission.Day}
	rapid.Check(t, func(r *rapid.T) {
		var c admission.MessageLimitsConfig
		for _, scope := range []admission.Scope{admission.ScopeSender, admission.ScopeGlobal} {
			for _, w := range windows {
				*limitOf(&c, scope, w) = rapid.IntRange(0, 6).Draw(r, string(scope)+" "+string(w))
			}
		}
		m := s.Messages(t, 1, c, lengths)[0]
		accepted := map[int][]time.Time{}
		var all []time.Time
		// count is how many came less than length before now.
		count := func(times []time.Time, length time.Duration) (n int) {
			for _, at := range times {
				if s.Now().Sub(at) < length {
					n++
				}
			}
			return n
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			if rapid.Bool().Draw(r, "pauses") {
				s.Advance(time.Duration(rapid.Int64Range(0, int64(lengths.Hour/3)).Draw(r, "pause")))
			}
			who := rapid.IntRange(0, 2).Draw(r, "who")
			looked := m.Peek(context.Background(), keyOf(who), s.Now())
			d := m.Take(context.Background(), keyOf(who), s.Now())
			if looked.Allowed != d.Allowed || looked.RetryAfter != d.RetryAfter {
				r.Fatalf("Peek says %+v, Take %+v", looked, d)
			}
			// full reports whether a window may be full, and whether it must be.
			full := func(scope admission.Scope, w admission.Window) (may, must bool) {
				times, limit, length := all, *limitOf(&c, scope, w), s.windowLength(w)
				if scope == admission.ScopeSender {
					times = accepted[who]
				}
				switch {
				case limit == 0:
					return false, false
				case w == admission.Minute:
					// Recounted below, by what a bucket may have let through.
					return bucketEmpty(times, limit, length, s.Now(), s.Slack), bucketEmpty(times, limit, length, s.Now(), -s.Slack)
				}
				late := s.Slack
				if s.Steps > 0 {
					late += length / time.Duration(s.Steps)
				}
				return count(times, length+late) >= limit, count(times, length) >= limit
			}
			if d.Allowed {
				for _, scope := range []admission.Scope{admission.ScopeSender, admission.ScopeGlobal} {
					for _, w := range windows {
						if _, must := full(scope, w); must {
							r.Fatalf("%+v, want a refusal: the %s's %s is full", d, scope, w)
						}
					}
				}
				accepted[who] = append(accepted[who], s.Now())
				all = append(all, s.Now())
				continue
			}
			s.mustRefuse(r, d, lengths.Day)
			if may, _ := full(d.Scope, d.Window); !may {
				r.Fatalf("%+v, want it allowed: that window is not full", d)
			}
			if d.Limit != int64(*limitOf(&c, d.Scope, d.Window)) {
				r.Fatalf("%+v names another limit", d)
			}
		}
	})
}

// bucketEmpty replays a bucket of limit units that refills in length, from which
// each of the times took one, and says whether it is empty, if it refills late.
func bucketEmpty(times []time.Time, limit int, length time.Duration, now time.Time, late time.Duration) bool {
	unit := float64(length) / float64(limit)
	owes, last := 0.0, now
	for _, at := range times {
		if owes > 0 {
			owes = max(0, owes-float64(at.Sub(last)))
		}
		owes += unit
		last = at
	}
	owes = max(0, owes-float64(now.Sub(last)))
	return owes+unit+float64(late) > float64(length)
}
