package proxy

import (
	"slices"
	"testing"
	"time"

	"relayedge/proxy/loop"
)

// sharingLoops are loops that look in turn, all of them once a window.
type sharingLoops struct {
	share  loopShare
	most   int
	shares []int // of its time, in thousandths, that each works
	now    time.Time
}

// change is what a look has led to.
type change struct{ from, to, oneOf int }

const window = 100 * time.Millisecond

func newSharingLoops(most int, shares ...int) *sharingLoops {
	s := &sharingLoops{most: most, shares: shares, now: time.Unix(1e9, 0)}
	s.share.active = 1
	return s
}

func (s *sharingLoops) busy(i int) int { return s.shares[i] }

// look lets so many windows pass, and returns what changes in the last of them;
// none may change before.
func (s *sharingLoops) look(t *testing.T, windows int) (changes []change) {
	t.Helper()
	for range windows {
		if changes != nil {
			t.Fatalf("%v changed early, at %v", changes, s.now)
		}
		s.now = s.now.Add(window)
		for i := range s.shares {
			from, to, oneOf := s.share.look(i, s.busy, s.most, s.now)
			if oneOf != 0 {
				changes = append(changes, change{from, to, oneOf})
			}
		}
	}
	return changes
}

func (s *sharingLoops) want(t *testing.T, windows, active int, want ...change) {
	t.Helper()
	if got := s.look(t, windows); !slices.Equal(got, want) || s.share.active != active {
		t.Fatalf("changes %v of %d loops, want %v of %d", got, s.share.active, want, active)
	}
}

// A loop that is busy for five looks in a row gives half to one more, if there may
// be one more.
func TestBusyLoopIsHelped(t *testing.T) {
	s := newSharingLoops(2, busyShare, 0)
	s.want(t, 4, 1)
	s.want(t, 1, 2, change{0, 1, 2})

	s = newSharingLoops(2, busyShare-1, 0)
	s.want(t, 100, 1)

	s = newSharingLoops(1, 1000, 0)
	s.want(t, 100, 1)
}

// It is busy in a row: one look at which it is not begins anew.
func TestBusyInARow(t *testing.T) {
	s := newSharingLoops(2, 1000, 0)
	s.want(t, 4, 1)
	s.shares[0] = busyShare - 1
	s.want(t, 1, 1)
	s.shares[0] = 1000
	s.want(t, 4, 1)
	s.want(t, 1, 2, change{0, 1, 2})
}

// What one change has led to is seen before the next.
func TestChangesSettle(t *testing.T) {
	s := newSharingLoops(3, 1000, 1000, 0)
	s.want(t, 5, 2, change{0, 1, 2})
	s.want(t, int(settleTime/window)-1, 2)
	s.want(t, 1, 3, change{0, 2, 2})
}

// Of the loops that are active, one that is not half as busy helps before one
// more is opened, whatever there may be.
func TestHelperIsOneThatIsThere(t *testing.T) {
	for _, row := range []struct {
		name         string
		most, active int
		shares       []int
		want         []change
	}{
		{"not half as busy", 3, 2, []int{1000, busyShare/2 - 1, 0}, []change{{0, 1, 2}}},
		{"one before it", 3, 2, []int{busyShare/2 - 1, 1000, 0}, []change{{1, 0, 2}}},
		{"half as busy", 3, 2, []int{1000, busyShare / 2, 0}, []change{{0, 2, 2}}},
		{"and there may be no more", 2, 2, []int{1000, busyShare / 2}, nil},
		{"processors were taken away", 1, 2, []int{1000, busyShare / 2}, nil},
		{"at rest itself", 1, 1, []int{0, 1000}, []change{{1, 0, 2}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newSharingLoops(row.most, row.shares...)
			s.share.active = row.active
			if got := s.look(t, busyWindows); !slices.Equal(got, row.want) {
				t.Errorf("%v, want %v", got, row.want)
			}
		})
	}
}

// One loop less does once all together have been calm for long enough: the last
// of them rests, and the first takes what it had.
func TestCalmLoopsRest(t *testing.T) {
	calm := int(calmTime / window)
	s := newSharingLoops(3, calmShare-200, 100, 100)
	s.share.active = 3
	s.want(t, calm, 3) // since the first of these looks
	s.want(t, 1, 2, change{2, 0, 1})
	s.want(t, int(settleTime/window)-1, 2)
	s.want(t, 1, 1, change{1, 0, 1})
	s.want(t, 2*calm, 1) // the first never rests
}

// Together is all that are active, and calm is for the whole time.
func TestCalmIsOfAllAndForLong(t *testing.T) {
	calm := int(calmTime / window)
	s := newSharingLoops(2, calmShare/2+1, calmShare/2)
	s.share.active = 2
	s.want(t, 2*calm, 2)

	s = newSharingLoops(3, calmShare, 0, 1000) // the third is at rest
	s.share.active = 2
	s.share.since = s.now.Add(time.Hour) // it is not helped meanwhile
	s.want(t, 2*calm, 2)
	s.share.since = s.now
	s.shares[2] = 0
	s.want(t, int(settleTime/window), 1, change{1, 0, 1})

	s = newSharingLoops(2, 0, 0)
	s.share.active = 2
	s.want(t, calm, 2)
	s.shares[0] = calmShare + 1
	s.want(t, 1, 2)
	s.shares[0] = 0
	s.want(t, calm, 2)
	s.want(t, 1, 1, change{1, 0, 1})
}

// Calm that one loop has seen is over when another has seen that it is: a loop
// that sleeps does not look.
func TestCalmIsSeenByAll(t *testing.T) {
	var s loopShare
	s.active = 2
	shares := []int{0, 0}
	busy := func(i int) int { return shares[i] }
	at := time.Unix(1e9, 0)
	s.look(0, busy, 2, at)
	shares[1] = calmShare + 1
	s.look(1, busy, 2, at.Add(calmTime-time.Nanosecond))
	shares[1] = 0
	if _, _, oneOf := s.look(0, busy, 2, at.Add(calmTime)); oneOf != 0 {
		t.Error("a loop rests that was needed a moment ago")
	}
}

// A newcomer goes to the active loop that works least, the first of these.
func TestLightestLoop(t *testing.T) {
	for _, row := range []struct {
		active int
		shares []int
		want   int
	}{
		{1, []int{900, 0}, 0},
		{2, []int{900, 100, 0}, 1},
		{3, []int{900, 100, 0}, 2},
		{3, []int{300, 100, 100}, 1},
	} {
		s := loopShare{active: row.active}
		if got := s.lightest(func(i int) int { return row.shares[i] }); got != row.want {
			t.Errorf("%d of %v: %d, want %d", row.active, row.shares, got, row.want)
		}
	}
}

// A burst that comes between two looks is spread; what was given before a look is
// in what the loop works since.
func TestBurstIsSpread(t *testing.T) {
	shares := []int{300, 290, 290}
	busy := func(i int) int { return shares[i] }
	s := loopShare{active: 3}
	burst := func(n int) []int {
		got := make([]int, 3)
		for range n {
			got[s.lightest(busy)]++
		}
		return got
	}
	if got, want := burst(320), []int{100, 110, 110}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	s.look(1, busy, 3, time.Unix(1e9, 0))
	if got, want := burst(100), []int{0, 100, 0}; !slices.Equal(got, want) {
		t.Errorf("after a look: %v, want %v", got, want)
	}
}

// Of the pairs, which have a handler for each connection or one for both, each is
// counted once; what is no pair stays.
func TestChosenPairs(t *testing.T) {
	pairs := make([]*pair, 5)
	var handlers []loop.Handler
	for i := range pairs {
		pairs[i] = new(pair)
		handlers = append(handlers, new(arrival), pairs[i])
	}
	for _, p := range pairs {
		handlers = append(handlers, p)
	}
	if got := chosen(handlers, 1); !slices.Equal(got, pairs) {
		t.Errorf("all of %d: %d", len(pairs), len(got))
	}
	if got := chosen(handlers, 2); !slices.Equal(got, []*pair{pairs[1], pairs[3]}) {
		t.Errorf("half of %d: %d, or others", len(pairs), len(got))
	}
}

// A pair that has a turn to come in its loop stays there, and so does one that is
// ending or has not begun.
func TestPairsThatStay(t *testing.T) {
	for name, p := range map[string]*pair{
		"is over":        {over: true},
		"has more to do": {queued: true},
		"has not begun":  {start: new(beginning)},
		"was stopped":    {s: &session{stopped: true}},
	} {
		if p.move(nil) {
			t.Errorf("a pair moves that %s", name)
		}
	}
	(&pair{over: true}).arrive() // it was ended on its way
}
