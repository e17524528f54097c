package admission

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"
)

// numbered returns a key like a keyed hash. The last byte of n says which shared row
// it would have.
func numbered(n int) Key {
	var k Key
	k[0] = byte(n)
	binary.BigEndian.PutUint64(k[8:], uint64(n))
	return k
}

// numberedBeside returns another key with the same shared row.
func numberedBeside(n, other int) Key {
	k := numbered(n)
	binary.BigEndian.PutUint32(k[1:], uint32(other+1))
	return k
}

func mustTake(t testing.TB, d Decision, remaining int64) {
	t.Helper()
	if !d.Allowed || d.Remaining != remaining {
		t.Fatalf("%+v, want it allowed with %d to remain", d, remaining)
	}
}

func mustWait(t testing.TB, d Decision, wait time.Duration) {
	t.Helper()
	if d.Allowed || d.RetryAfter != wait {
		t.Fatalf("%+v, want it refused for %v", d, wait)
	}
}

var wallSteps = []time.Duration{time.Hour, -time.Hour, -24 * time.Hour, 24 * time.Hour}

// A window lasts as long as it should whatever the wall clock does, and tells
// when it resets by the clock of the request that asks.
func TestFixedWindowsFollowTheMonotonicClock(t *testing.T) {
	for _, step := range wallSteps {
		t.Run(step.String(), func(t *testing.T) {
			w, now := NewFixedWindows(2, time.Minute), time.Now()
			mustTake(t, w.Take(t.Context(), numbered(1), now), 1)
			now = stepWall(t, now.Add(20*time.Second), step)
			mustTake(t, w.Take(t.Context(), numbered(1), now), 0)
			d := w.Take(t.Context(), numbered(1), now)
			mustWait(t, d, 40*time.Second)
			if want := now.Round(0).Add(40 * time.Second); !d.Reset.Equal(want) {
				t.Errorf("it resets at %v, want %v", d.Reset, want)
			}
			now = now.Add(40*time.Second - 1)
			mustWait(t, w.Take(t.Context(), numbered(1), now), 1)
			mustTake(t, w.Take(t.Context(), numbered(1), now.Add(1)), 1)
		})
	}
}

// Callers whose times arrive in another order than they were read in open no
// window twice.
func TestFixedWindowsNeverGoBack(t *testing.T) {
	w, now := NewFixedWindows(1, time.Minute), time.Now()
	mustTake(t, w.Take(t.Context(), numbered(1), now), 0)
	mustTake(t, w.Take(t.Context(), numbered(1), now.Add(time.Minute)), 0)
	mustWait(t, w.Take(t.Context(), numbered(1), now), time.Minute)
	mustTake(t, w.Take(t.Context(), numbered(1), now.Add(2*time.Minute)), 0)
}

// A new limit or length holds for the windows that are open, with what they have counted.
func TestFixedWindowsKeepTheirCountsOverAReload(t *testing.T) {
	w, now := NewFixedWindows(10, time.Minute), time.Now()
	for left := range int64(3) {
		mustTake(t, w.Take(t.Context(), numbered(1), now), 9-left)
	}
	w.SetLimit(10, time.Minute)
	mustTake(t, w.Take(t.Context(), numbered(1), now), 6)
	w.SetLimit(20, time.Minute)
	mustTake(t, w.Take(t.Context(), numbered(1), now), 15)
	w.SetLimit(3, time.Minute)
	mustWait(t, w.Take(t.Context(), numbered(1), now), time.Minute)
	w.SetLimit(-1, time.Minute)
	mustWait(t, w.Take(t.Context(), numbered(1), now), time.Minute)
	w.SetLimit(10, 2*time.Minute)
	mustTake(t, w.Take(t.Context(), numbered(1), now.Add(time.Minute)), 4)
	w.SetLimit(10, time.Minute)
	mustTake(t, w.Take(t.Context(), numbered(1), now.Add(time.Minute+time.Second)), 9)
}

// A full table gives up no window. Newcomers share: together they have one limit a
// shared window, and one of them that gets a window of its own begins it with what
// was counted for all of them.
func TestFullFixedWindowsAreNoAmnesty(t *testing.T) {
	w, now := NewFixedWindows(3, time.Minute), time.Now()
	w.rows.bound = 100
	for k := range 100 {
		for left := range int64(3) {
			mustTake(t, w.Take(t.Context(), numbered(k), now), 2-left)
		}
	}
	newcomer := func(n int) Key { return numberedBeside(7, n) }
	now = now.Add(30 * time.Second)
	for n := range 3 {
		mustTake(t, w.Take(t.Context(), newcomer(n), now), int64(2-n))
	}
	for n := range 1000 {
		mustWait(t, w.Take(t.Context(), newcomer(n), now), time.Minute)
		mustWait(t, w.Take(t.Context(), numbered(n%100), now), 30*time.Second)
	}
	mustTake(t, w.Take(t.Context(), numberedBeside(8, 1), now), 2)
	if n := len(w.rows.index); n != 100 {
		t.Fatalf("%d rows, want 100", n)
	}
	// The hundred windows are over, the shared one is not.
	now = now.Add(30 * time.Second)
	mustWait(t, w.Take(t.Context(), newcomer(1), now), 30*time.Second)
	mustTake(t, w.Take(t.Context(), numberedBeside(8, 2), now), 1)
	mustTake(t, w.Take(t.Context(), numberedBeside(9, 2), now), 2)
	// Nobody shares any longer.
	now = now.Add(30 * time.Second)
	for n := range 50 {
		mustTake(t, w.Take(t.Context(), newcomer(n), now), 2)
	}
}

// However many keys there are, the table has its bound in rows and in bytes, and
// two windows later it has nothing, by requests alone or when it is asked.
func TestFixedWindowsAreBounded(t *testing.T) {
	w, now := NewFixedWindows(1, time.Minute), time.Now()
	before := heapInUse()
	n := 5_000_000
	if underRace {
		n = 300_000
	}
	for k := range n {
		w.Take(t.Context(), numbered(k), now)
	}
	took := heapInUse() - before
	if rows := w.Rows(now); rows != fixedRows {
		t.Fatalf("%d keys have %d rows, want %d", n, rows, fixedRows)
	}
	t.Logf("%d rows take %d bytes, %d each", fixedRows, took, took/fixedRows)
	if most := uint64(110 * fixedRows); took > most {
		t.Errorf("the table takes %d bytes, want at most %d", took, most)
	}
	now = now.Add(2 * time.Minute)
	for range fixedRows / (sweepKeys - 1) {
		w.Take(t.Context(), numbered(1), now)
	}
	if len(w.rows.index) != 1 || len(w.rows.chunks) > 4 {
		t.Errorf("%d rows in %d chunks after as many requests, want 1 and a few", len(w.rows.index), len(w.rows.chunks))
	}
	for k := range fixedRows {
		w.Take(t.Context(), numbered(k), now)
	}
	now = now.Add(2 * time.Minute)
	if rows := w.Rows(now); rows != 0 {
		t.Errorf("%d rows are left after two windows", rows)
	}
	if left := int64(heapInUse()) - int64(before); left > 1<<20 {
		t.Errorf("%d bytes are left after two windows", left)
	}
	runtime.KeepAlive(w)
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestFixedWindowsAllocateNothing(t *testing.T) {
	w, now := NewFixedWindows(1_000_000, time.Minute), time.Now()
	w.Take(t.Context(), numbered(1), now)
	if n := testing.AllocsPerRun(1000, func() { w.Take(t.Context(), numbered(1), now) }); n != 0 {
		t.Errorf("a request allocates %v times", n)
	}
	w.SetLimit(1, time.Minute)
	if n := testing.AllocsPerRun(1000, func() { w.Take(t.Context(), numbered(1), now) }); n != 0 {
		t.Errorf("a refusal allocates %v times", n)
	}
}

func TestWindowsRefuseWhatIsNoLimit(t *testing.T) {
	for name, make := range map[string]func(){
		"a limit of -2":      func() { NewFixedWindows(-2, time.Minute) },
		"no length":          func() { NewFixedWindows(1, 0) },
		"a throttle of -2":   func() { NewThrottle(-2) },
		"a window of a week": func() { NewMessageLimits(DefaultMessageLimits(), MessageLengths{Day: longestWindow + 1}) },
		"a negative length":  func() { NewMessageLimits(DefaultMessageLimits(), MessageLengths{Hour: -1}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it is taken")
				}
			}()
			make()
		})
	}
}
