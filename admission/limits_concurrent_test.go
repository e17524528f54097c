package admission

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Whatever else goes on at the same time (a reload to the same limits, a look at
// the rows, other keys, times in any order), each key gets what its limit allows
// and no more.
func TestLimitsAreExactUnderConcurrency(t *testing.T) {
	const keys, callers, tries, limit = 20, 8, 40, 50
	c := MessageLimitsConfig{Sender: SenderMessageLimits{Minute: limit, Hour: limit, Day: limit}, Global: GlobalMessageLimits{Day: keys * limit}}
	w, m, th := NewFixedWindows(limit, time.Hour), newMessageLimits(t, c), NewThrottle(limit)
	now := time.Now()
	var requests, messages, units [keys]atomic.Int64
	var work, around sync.WaitGroup
	done := make(chan struct{})
	around.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			w.SetLimit(limit, time.Hour)
			th.SetLimit(limit)
			if err := m.SetLimits(c); err != nil {
				t.Error(err)
			}
			w.Rows(now)
			m.Senders(now)
			m.Readers(now)
			th.Rows(now)
		}
	})
	for caller := range callers {
		work.Go(func() {
			for try := range tries {
				for k := range keys {
					at := now.Add(time.Duration(try*(caller%3)) * time.Microsecond)
					if w.Take(t.Context(), numbered(k), at).Allowed {
						requests[k].Add(1)
					}
					m.Peek(t.Context(), numbered(k), at)
					if m.Take(t.Context(), numbered(k), at).Allowed {
						messages[k].Add(1)
					}
					if th.Take(numbered(k), at).Allowed {
						units[k].Add(1)
					}
				}
			}
		})
	}
	work.Wait()
	close(done)
	around.Wait()
	for k := range keys {
		if r, n, u := requests[k].Load(), messages[k].Load(), units[k].Load(); r != limit || n != limit || u != limit {
			t.Errorf("key %d got %d requests, %d messages and %d units, want %d of each", k, r, n, u, limit)
		}
	}
}
