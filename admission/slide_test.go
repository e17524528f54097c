package admission

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Whatever the limit and the step, no window ever holds more than the limit, and
// what it refuses it would have to refuse if it were late by no more than a step.
func TestSlidesHoldEveryWindow(t *testing.T) {
	const hour = int64(time.Hour)
	for _, tt := range []struct {
		name    string
		rule    slideRule
		coarse  bool
		pause   int64 // mean, between two attempts
		late    int64
		entries int
	}{
		{"exact", slideRule{50, hour, hourSteps}, false, hour / 200, millisecond, 50},
		{"exact, up to its most", slideRule{slideExact, hour, hourSteps}, false, hour / (4 * slideExact), millisecond, slideExact},
		{"in steps", slideRule{slideExact + 1, hour, hourSteps}, false, hour / (4 * slideExact), hour / hourSteps, hourSteps + 2},
		{"coarse", slideRule{500, hour, hourSteps}, true, hour / 2000, hour / coarseSteps, coarseSteps + 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(5, 6))
			s, held, at := slide{}, 0, int64(0)
			var accepted []int64
			refused := 0
			for range 30_000 {
				if at += random.Int64N(2 * tt.pause); random.IntN(3000) == 0 {
					at += random.Int64N(2 * hour)
				}
				within := func(length int64) int {
					i, _ := slices.BinarySearch(accepted, at-length+1)
					return len(accepted) - i
				}
				if wait := s.wait(tt.rule, at); wait > 0 {
					refused++
					if n := within(hour + tt.late); int64(n) < tt.rule.limit {
						t.Fatalf("refused with %d of %d in the window", n, tt.rule.limit)
					}
					if wait > hour+millisecond {
						t.Fatalf("a wait of %v", time.Duration(wait))
					}
					later := s
					later.ring = slices.Clone(s.ring)
					if again := later.wait(tt.rule, at+wait); again != 0 {
						t.Fatalf("after %v there are %v to wait", time.Duration(wait), time.Duration(again))
					}
					continue
				}
				if n := within(hour); int64(n) >= tt.rule.limit {
					t.Fatalf("allowed with %d of %d in the window", n, tt.rule.limit)
				}
				s.add(tt.rule, at, tt.coarse, &held)
				accepted = append(accepted, at)
				if int(s.used) > tt.entries || held != len(s.ring) || len(s.ring) > max(4, 2*tt.entries) {
					t.Fatalf("%d entries in a ring of %d, %d held, want at most %d entries", s.used, len(s.ring), held, tt.entries)
				}
			}
			if refused == 0 || len(accepted) < int(tt.rule.limit) {
				t.Fatalf("%d are accepted and %d refused: nothing is tested", len(accepted), refused)
			}
		})
	}
}

// However long nothing came, what came before is over: the times of entries wrap
// around every 49 days.
func TestSlidesForgetOverLongSilences(t *testing.T) {
	rule := slideRule{3, int64(24 * time.Hour), daySteps}
	for _, days := range []time.Duration{1, 2, 24, 25, 30, 49, 50, 365, 3650} {
		s, held := slide{}, 0
		for range 3 {
			s.add(rule, 5, false, &held)
		}
		if wait := s.wait(rule, 5); wait == 0 {
			t.Fatal("the window is not full")
		}
		if wait := s.wait(rule, int64(days*24*time.Hour)+millisecond); wait != 0 || s.total != 0 {
			t.Errorf("after %d days there are %v to wait and %d in the window", days, time.Duration(wait), s.total)
		}
	}
}

// A ring gives back the room of a busier time.
func TestSlidesShrink(t *testing.T) {
	rule := slideRule{1000, int64(time.Hour), hourSteps}
	s, held, at := slide{}, 0, int64(0)
	for range 1000 {
		at += millisecond
		s.add(rule, at, false, &held)
	}
	if held < 1000 {
		t.Fatalf("room for %d", held)
	}
	at += int64(time.Hour)
	s.add(rule, at, false, &held)
	if held != len(s.ring) || held > 8 {
		t.Errorf("room for %d of 1 entry, held is %d", len(s.ring), held)
	}
	s.reset(&held)
	if held != 0 || s.total != 0 {
		t.Errorf("%d held after a reset", held)
	}
}
