package admission

import (
	"testing"
	"time"
)

func TestThrottle(t *testing.T) {
	th, now := NewThrottle(4), time.Now()
	for left := range int64(4) {
		d := th.Take(numbered(1), now)
		mustTake(t, d, 3-left)
		if d.Scope != ScopeHost || d.Window != Minute || d.Limit != 4 || !d.Reset.Equal(now.Round(0).Add(time.Duration(left+1)*15*time.Second)) {
			t.Fatalf("%+v", d)
		}
	}
	d := th.Take(numbered(1), now)
	mustWait(t, d, 15*time.Second)
	if d.Scope != ScopeHost || d.Window != Minute || d.Limit != 4 || !d.Reset.Equal(now.Round(0).Add(15*time.Second)) {
		t.Fatalf("%+v", d)
	}
	mustTake(t, th.Take(numbered(2), now), 3)
	mustWait(t, th.Take(numbered(1), now.Add(15*time.Second-1)), 1)
	mustTake(t, th.Take(numbered(1), now.Add(15*time.Second)), 0)
}

// What is proven costs nothing, however much of it there is.
func TestThrottleTakesBackWhatWasProven(t *testing.T) {
	th, now := NewThrottle(2), time.Now()
	for range 1000 {
		mustTake(t, th.Take(numbered(1), now), 1)
		th.Return(numbered(1), now)
	}
	th.Take(numbered(1), now)
	th.Take(numbered(1), now)
	th.Return(numbered(1), now)
	mustTake(t, th.Take(numbered(1), now), 0)
	mustWait(t, th.Take(numbered(1), now), 30*time.Second)
	// More comes back than was taken: the bucket is full, and no fuller.
	for range 10 {
		th.Return(numbered(1), now)
		th.Return(numbered(2), now)
	}
	for _, who := range []int{1, 2} {
		mustTake(t, th.Take(numbered(who), now), 1)
		mustTake(t, th.Take(numbered(who), now), 0)
		mustWait(t, th.Take(numbered(who), now), 30*time.Second)
	}
}

func TestThrottleOffAndShut(t *testing.T) {
	now := time.Now()
	off, shut := NewThrottle(0), NewThrottle(-1)
	for range 1000 {
		if d := off.Take(numbered(1), now); !d.Allowed || d.Limit != 0 {
			t.Fatalf("%+v", d)
		}
		off.Return(numbered(1), now)
		d := shut.Take(numbered(1), now)
		mustWait(t, d, time.Minute)
		if d.Limit != -1 || d.Scope != ScopeHost || d.Window != Minute {
			t.Fatalf("%+v", d)
		}
	}
	if off.Rows(now) != 0 || shut.Rows(now) != 0 {
		t.Error("rows are kept")
	}
}

// What is owed is time and stays; only the units are measured anew.
func TestThrottleKeepsItsDebtsOverAReload(t *testing.T) {
	th, now := NewThrottle(4), time.Now()
	th.Take(numbered(1), now)
	th.Take(numbered(1), now) // owes half a minute
	th.SetLimit(4)
	mustTake(t, th.Take(numbered(1), now), 1)
	th.SetLimit(60)
	mustTake(t, th.Take(numbered(1), now), 14)
	th.SetLimit(1)
	mustWait(t, th.Take(numbered(1), now), 46*time.Second)
}

func TestThrottleFollowsTheMonotonicClock(t *testing.T) {
	for _, step := range wallSteps {
		th, now := NewThrottle(1), time.Now()
		mustTake(t, th.Take(numbered(1), now), 0)
		now = stepWall(t, now, step)
		mustWait(t, th.Take(numbered(1), now), time.Minute)
		mustTake(t, th.Take(numbered(1), now.Add(time.Minute)), 0)
		mustWait(t, th.Take(numbered(1), now), time.Minute)
	}
}

// A full table forgets no debt, and newcomers share.
func TestAFullThrottleIsNoAmnesty(t *testing.T) {
	th, now := NewThrottle(2), time.Now()
	th.rows.bound = 10
	for k := range 10 {
		th.Take(numbered(k), now)
		th.Take(numbered(k), now)
	}
	mustTake(t, th.Take(numberedBeside(3, 1), now), 1)
	mustTake(t, th.Take(numberedBeside(3, 2), now), 0)
	for n := range 100 {
		mustWait(t, th.Take(numberedBeside(3, n), now), 30*time.Second)
		mustWait(t, th.Take(numbered(n%10), now), 30*time.Second)
	}
	th.Return(numberedBeside(3, 2), now)
	mustTake(t, th.Take(numberedBeside(3, 2), now), 0)
	if n := th.Rows(now.Add(time.Minute)); n != 0 {
		t.Errorf("%d rows are left of hosts that owe nothing", n)
	}
}

func TestThrottleIsBounded(t *testing.T) {
	th, now := NewThrottle(1), time.Now()
	for k := range 2 * throttleRows {
		th.Take(numbered(k), now)
	}
	if n := th.Rows(now); n != throttleRows {
		t.Errorf("%d rows, want %d", n, throttleRows)
	}
	if n := testing.AllocsPerRun(1000, func() { th.Take(numbered(1), now) }); n != 0 {
		t.Errorf("a refusal allocates %v times", n)
	}
}

// A host is remembered for as long as it owes something, whenever it began.
func TestThrottleRemembersWhoGoesOn(t *testing.T) {
	th, now := NewThrottle(2), time.Now()
	mustTake(t, th.Take(numbered(1), now), 1)
	mustTake(t, th.Take(numbered(1), now.Add(50*time.Second)), 1)
	mustTake(t, th.Take(numbered(1), now.Add(61*time.Second)), 0)
}

// A limit that does not divide the minute is never exceeded by it, and is whole.
func TestPace(t *testing.T) {
	minute := int64(time.Minute)
	for _, limit := range []int64{1, 7, 20, 999, 1000, 7_000_001, maxGlobalMessages} {
		p := paceOf(limit, minute)
		if p.cost*limit < minute || (p.cost-1)*limit >= minute || p.burst != p.cost*limit {
			t.Errorf("%d a minute is %+v", limit, p)
		}
		if n := tokens(0).left(p, 0); n != limit {
			t.Errorf("%d a minute holds %d", limit, n)
		}
	}
}
