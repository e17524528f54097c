package admission_test

import (
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/admission/limitstest"
)

// inMemory is the store of this process, in a time that stands still unless it is told.
func inMemory(t *testing.T, start time.Time) limitstest.Store {
	now := start
	left := func() int { return 0 }
	return limitstest.Store{
		Windows: func(_ testing.TB, _ int, limit int64, window time.Duration) []admission.Windows {
			w := admission.NewFixedWindows(limit, window)
			left = func() int { return w.Rows(now) }
			return []admission.Windows{w}
		},
		Messages: func(t testing.TB, _ int, c admission.MessageLimitsConfig, l admission.MessageLengths) []admission.Messages {
			m, err := admission.NewMessageLimits(c, l)
			if err != nil {
				t.Fatal(err)
			}
			left = func() int { return m.Senders(now) + m.Readers(now) }
			return []admission.Messages{m}
		},
		Now:     func() time.Time { return now },
		Advance: func(d time.Duration) { now = now.Add(d) },
		Slack:   2 * time.Millisecond, // a slide's times are rounded up to one
		Left:    func(testing.TB) int { return left() },
	}
}

func TestFixedWindowsKeepTheContract(t *testing.T) {
	limitstest.TestWindows(t, inMemory(t, time.Now()))
}

func TestMessageLimitsKeepTheContract(t *testing.T) {
	limitstest.TestMessages(t, inMemory(t, time.Now()))
}

// Times without a monotonic reading, long ago, are as good as any.
func TestLimitsFollowAnyTimes(t *testing.T) {
	s := inMemory(t, time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC))
	limitstest.TestWindows(t, s)
	limitstest.TestMessages(t, s)
}
