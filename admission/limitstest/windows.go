package limitstest

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"relayedge/admission"
)

// TestWindows holds the store to the contract of [admission.Windows].
func TestWindows(t *testing.T, s Store) {
	for _, tt := range []struct {
		name string
		test func(*testing.T, Store)
	}{
		{"a window counts down and opens again as a whole", windowsCountDown},
		{"what is refused counts for nothing", windowsRefuseFreely},
		{"keys count apart", windowsApart},
		{"0 is off and -1 refuses all", windowsOffAndShut},
		{"the retry after the wait succeeds", windowsRetry},
		{"around an edge twice the limit, and no more", windowsEdge},
		{"simultaneous requests", windowsAtOnce},
		{"a naive model decides alike", windowsModel},
		{"nothing is left of windows that are over", windowsLeave},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, s) })
	}
}

// windows returns one instance.
func (s Store) windows(t testing.TB, limit int64, window time.Duration) func(admission.Key) admission.Decision {
	w := s.Windows(t, 1, limit, window)[0]
	ctx := background(t)
	return func(k admission.Key) admission.Decision { return w.Take(ctx, k, s.Now()) }
}

func windowsCountDown(t *testing.T, s Store) {
	window := s.length()
	take := s.windows(t, 5, window)
	for range 2 {
		for want := int64(4); want >= 0; want-- {
			d := mustAllow(t, take(keyOf(1)))
			if d.Limit != 5 || d.Remaining != want {
				t.Fatalf("%+v, want %d of 5 to remain", d, want)
			}
			if in := d.Reset.Sub(s.Now()); in <= 0 && s.Slack < window || in > window+s.Slack {
				t.Fatalf("the window resets in %v", in)
			}
			s.Advance(window / 100)
		}
		d := s.mustRefuse(t, take(keyOf(1)), window)
		if d.Limit != 5 {
			t.Fatalf("%+v, want a limit of 5", d)
		}
		s.Advance(d.RetryAfter)
	}
}

func windowsRefuseFreely(t *testing.T, s Store) {
	window := s.length()
	take := s.windows(t, 3, window)
	for range 3 {
		mustAllow(t, take(keyOf(1)))
	}
	var waited time.Duration
	for range 20 {
		d := take(keyOf(1))
		if d.Allowed {
			break // time went on by itself
		}
		step := min(d.RetryAfter, window/10)
		s.Advance(step)
		waited += step
	}
	if waited > window+s.Slack {
		t.Fatalf("asking goes on for %v and is still refused", waited)
	}
	if d := mustAllow(t, take(keyOf(1))); waited == window && d.Remaining < 1 {
		t.Fatalf("%+v after the window was over, want the refused to have counted for nothing", d)
	}
}

func windowsApart(t *testing.T, s Store) {
	take := s.windows(t, 1, s.length())
	for who := range 50 {
		mustAllow(t, take(keyOf(who)))
	}
	for who := range 50 {
		s.mustRefuse(t, take(keyOf(who)), s.length())
	}
}

func windowsOffAndShut(t *testing.T, s Store) {
	off, shut := s.windows(t, 0, s.length()), s.windows(t, -1, s.length())
	for range 100 {
		if d := mustAllow(t, off(keyOf(1))); d.Limit != 0 {
			t.Fatalf("%+v, want a limit of 0", d)
		}
		d := s.mustRefuse(t, shut(keyOf(1)), s.length())
		if d.Limit != -1 || d.RetryAfter < s.length()-s.Slack {
			t.Fatalf("%+v, want a limit of -1, one window away", d)
		}
	}
}

func windowsRetry(t *testing.T, s Store) {
	window := s.length()
	take := s.windows(t, 2, window)
	random := rand.New(rand.NewPCG(1, 2))
	for range s.samples() {
		s.Advance(time.Duration(random.Int64N(int64(window))))
		var d admission.Decision
		for d = take(keyOf(1)); d.Allowed; d = take(keyOf(1)) {
			s.Advance(time.Duration(random.Int64N(int64(window / 4))))
		}
		s.mustRefuse(t, d, window)
		s.Advance(d.RetryAfter)
		mustAllow(t, take(keyOf(1)))
	}
}

func windowsEdge(t *testing.T, s Store) {
	window := s.length()
	take := s.windows(t, 60, window)
	mustAllow(t, take(keyOf(1))) // opens the window
	s.Advance(window - window/60)
	for range 59 {
		take(keyOf(1))
	}
	allowed := 60
	s.Advance(window / 60)
	for range 200 {
		if take(keyOf(1)).Allowed {
			allowed++
		}
	}
	if allowed != 120 && s.exact() || allowed > 120 {
		t.Fatalf("%d are allowed around the edge, want 120", allowed)
	}
}

// exact reports whether time stands still between two steps of the suite.
func (s Store) exact() bool { return s.Slack < 10*time.Millisecond }

func windowsAtOnce(t *testing.T, s Store) {
	const limit = 10
	instances := s.Windows(t, s.instances(), limit, 10*s.length())
	ctx := background(t)
	wantCountdown(t, atOnce(1000, len(instances), func(i int) admission.Decision {
		return instances[i].Take(ctx, keyOf(1), s.Now())
	}), limit)
}

// windowsModel compares with a map of counts.
func windowsModel(t *testing.T, s Store) {
	if !s.exact() {
		t.Skip("time goes on by itself in this store")
	}
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.Int64Range(1, 4).Draw(r, "limit")
		window := s.length()
		w := s.Windows(t, 1, limit, window)[0]
		type open struct {
			at    time.Time
			count int64
		}
		model := map[int]open{}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			s.Advance(time.Duration(rapid.Int64Range(0, int64(window/2)).Draw(r, "pause")))
			who := rapid.IntRange(0, 2).Draw(r, "who")
			m, known := model[who]
			if !known || s.Now().Sub(m.at) >= window {
				m = open{at: s.Now()}
			}
			d := w.Take(context.Background(), keyOf(who), s.Now())
			if m.count >= limit {
				s.mustRefuse(r, d, window)
			} else {
				m.count++
				if mustAllow(r, d); d.Remaining != limit-m.count {
					r.Fatalf("%+v, want %d to remain", d, limit-m.count)
				}
			}
			if reset := m.at.Add(window).Round(0); !within(d.Reset, reset, s.Slack) || d.Limit != limit {
				r.Fatalf("%+v, want it to reset at %v", d, reset)
			}
			model[who] = m
		}
	})
}

func within(a, b time.Time, slack time.Duration) bool { return a.Sub(b).Abs() <= slack }

func windowsLeave(t *testing.T, s Store) {
	if s.Left == nil {
		t.Skip("the store cannot tell its keys")
	}
	take := s.windows(t, 2, s.length())
	for who := range 300 {
		for range 3 {
			take(keyOf(who))
		}
	}
	if s.Left(t) == 0 && s.exact() {
		t.Fatal("the store has no keys while windows are open: nothing is tested")
	}
	s.Advance(2 * s.length())
	if n := s.Left(t); n != 0 {
		t.Fatalf("%d keys are left after two windows", n)
	}
}
