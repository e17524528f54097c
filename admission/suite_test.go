package admission_test

import (
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/admission/limitstest"
)

// inMemory is the store of this process. Time is what now says and what Advance
// has added to it.
func inMemory(now func() time.Time) limitstest.Store {
	passed := time.Duration(0)
	clock := func() time.Time { return now().Add(passed) }
	left := func() int { return 0 }
	return limitstest.Store{
		Windows: func(_ testing.TB, n int, limit int64, window time.Duration) (all []admission.Windows) {
			w := admission.NewFixedWindows(limit, window)
			left = func() int { return w.Rows(clock()) }
			for range n {
				all = append(all, w)
			}
			return all
		},
		Messages: func(t testing.TB, n int, c admission.MessageLimitsConfig, l admission.MessageLengths) (all []admission.Messages) {
			m, err := admission.NewMessageLimits(c, l)
			if err != nil {
				t.Fatal(err)
			}
			left = func() int { return m.Senders(clock()) + m.Readers(clock()) }
			for range n {
				all = append(all, m)
			}
			return all
		},
		Now:     clock,
		Advance: func(d time.Duration) { passed += d },
		Slack:   2 * time.Millisecond, // a slide's times are rounded up to one
		Left:    func(testing.TB) int { return left() },
	}
}

func standsStill(at time.Time) func() time.Time { return func() time.Time { return at } }

func TestFixedWindowsKeepTheContract(t *testing.T) {
	limitstest.TestWindows(t, inMemory(standsStill(time.Now())))
}

func TestMessageLimitsKeepTheContract(t *testing.T) {
	limitstest.TestMessages(t, inMemory(standsStill(time.Now())))
}

// Times without a monotonic reading, long ago, are as good as any.
func TestLimitsFollowAnyTimes(t *testing.T) {
	s := inMemory(standsStill(time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)))
	limitstest.TestWindows(t, s)
	limitstest.TestMessages(t, s)
}

// The suite is for stores whose time passes by itself, too, with several instances.
func TestLimitsKeepTheContractInRealTime(t *testing.T) {
	s := inMemory(time.Now)
	s.Slack, s.Samples, s.Instances = time.Second, 100, 2
	limitstest.TestWindows(t, s)
	limitstest.TestMessages(t, s)
}
