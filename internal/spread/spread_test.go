package spread

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestEach(t *testing.T) {
	for _, row := range []struct {
		things       int
		within, step time.Duration
	}{
		{0, time.Second, 0},
		{1, 0, 0},
		{1, time.Hour, Step},
		{100, time.Hour, Step},
		{100, 100 * Step, Step},
		{100, 100 * (Step - time.Nanosecond), Step - time.Nanosecond},
		{5000, 10 * time.Second, 2 * time.Millisecond},
		{100, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			things := make([]int, row.things)
			for i := range things {
				things[i] = i
			}
			began := time.Now()
			var order []int
			Each(things, row.within, nil, func(n int) {
				if at, want := time.Since(began), time.Duration(len(order))*row.step; at != want {
					t.Fatalf("%+v: number %d is at %v, want %v", row, len(order), at, want)
				}
				order = append(order, n)
			})
			if row.things >= 100 && slices.IsSorted(order) {
				t.Errorf("%+v: the order can be foreseen", row)
			}
			slices.Sort(order)
			for i, n := range order {
				if i != n {
					t.Fatalf("%+v: not each of them once: %v", row, order)
				}
			}
			if len(order) != row.things {
				t.Errorf("%+v: %d calls", row, len(order))
			}
		})
	}
}

// A pause that came out too long is made up for.
func TestEachCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		Each(make([]struct{}, 100), time.Hour, nil, func(struct{}) {
			if calls++; calls == 10 {
				time.Sleep(20 * Step)
			}
		})
		if took := time.Since(began); calls != 100 || took != 99*Step {
			t.Errorf("%d calls took %v", calls, took)
		}
	})
}

func TestEachIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		time.AfterFunc(3*Step/2, func() { close(over) })
		began, calls := time.Now(), 0
		Each(make([]struct{}, 100), time.Hour, over, func(struct{}) { calls++ })
		if took := time.Since(began); calls != 2 || took != 3*Step/2 {
			t.Errorf("%d calls took %v", calls, took)
		}
	})
}
