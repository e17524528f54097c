package admission

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucket(t *testing.T) {
	const s = time.Second
	type step struct {
		wait time.Duration // before the step
		take int64         // -1: a charge
		n    int64         // of a charge
		ok   bool          // of a take
		debt time.Duration // of a charge
	}
	take := func(wait time.Duration, n int64, ok bool) step { return step{wait: wait, take: n, ok: ok} }
	owe := func(wait time.Duration, n int64, debt time.Duration) step {
		return step{wait: wait, take: -1, n: n, debt: debt}
	}
	tests := []struct {
		name  string
		rate  Rate
		steps []step
	}{
		{"a burst, then the rate", Rate{2, s, 3}, []step{
			take(0, 1, true), take(0, 2, true), take(0, 1, false),
			take(s/2-1, 1, false), take(1, 1, true), take(0, 1, false),
			take(time.Hour, 3, true), take(0, 1, false),
		}},
		{"more than the burst is never there", Rate{2, s, 3}, []step{take(0, 4, false), take(time.Hour, 4, false), take(0, 3, true)}},
		{"a refusal takes nothing", Rate{1, s, 5}, []step{take(0, 4, true), take(0, 2, false), take(0, 2, false), take(0, 1, true)}},
		{"nothing is always there but in debt", Rate{1, s, 1}, []step{
			take(0, 0, true), take(0, 1, true), take(0, 0, true), owe(0, 1, s), take(0, 0, false), take(s, 0, true),
		}},
		{"less than nothing refills nothing", Rate{1, s, 1}, []step{take(0, 1, true), take(0, -5, true), take(0, 1, false), owe(0, -5, 0)}},
		{"a debt is waited out", Rate{1000, s, 4000}, []step{
			owe(0, 4000, 0), owe(0, 1, s/1000), owe(0, 999, s), owe(s/2, 0, s/2), take(s/2-1, 1, false), take(0, 0, false), take(1, 0, true),
			take(s/1000-1, 1, false), take(1, 1, true),
		}},
		{"thirds of a second", Rate{3, s, 3}, []step{
			take(0, 1, true), take(0, 1, true), take(0, 1, true), take(333_333_333, 1, false), take(1, 1, true),
			take(333_333_332, 1, false), take(1, 1, true), take(333_333_332, 1, false), take(1, 1, true), take(0, 1, false),
		}},
		{"a wait in thirds is rounded up", Rate{3, s, 0}, []step{owe(0, 1, 333_333_334), owe(333_333_333, 0, 1), owe(1, 0, 0)}},
		{"6 at once, then one every 10 seconds", Rate{1, 10 * s, 6}, []step{
			take(0, 6, true), take(10*s-1, 1, false), take(1, 1, true), take(20*s, 3, false), take(0, 2, true),
		}},
		{"the largest message at the lowest rate", Rate{1024, s, 1024}, []step{
			owe(0, 64<<20, 65535*s), owe(65535*s-1, 0, 1), owe(1, 0, 0), take(0, 1, false), take(s, 1024, true),
		}},
		{"a byte is not free at 10 GB/s", Rate{10e9, s, 10}, []step{
			take(0, 10, true), take(0, 1, false), take(1, 10, true), owe(0, 1, 1), owe(0, 9, 1), owe(0, 1, 2),
		}},
		{"a debt without end stays one", Rate{1, time.Hour, 1}, []step{
			owe(0, math.MaxInt64, forever-time.Hour), owe(0, math.MaxInt64, forever-time.Hour), owe(time.Hour, 0, forever-2*time.Hour),
		}},
		{"a debt beyond 64 bits of nanoseconds", Rate{1, 3, 1}, []step{owe(0, 1<<62, forever-3)}},
		{"a burst without end holds everything", Rate{1, time.Hour, math.MaxInt64}, []step{
			take(0, math.MaxInt64, true), owe(0, math.MaxInt64, 0),
		}},
		{"the fastest rate", Rate{math.MaxInt64, 1, 1}, []step{
			take(0, 1, true), owe(0, math.MaxInt64, 1), owe(1, 0, 0), take(1, 1, true),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b Bucket
			now := time.Now()
			for i, s := range tt.steps {
				now = now.Add(s.wait)
				if s.take == -1 {
					if debt := b.Charge(tt.rate, s.n, now); debt != s.debt {
						t.Fatalf("step %d: Charge(%d) = %v, want %v", i, s.n, debt, s.debt)
					}
				} else if ok := b.Take(tt.rate, s.take, now); ok != s.ok {
					t.Fatalf("step %d: Take(%d) = %v, want %v", i, s.take, ok, s.ok)
				}
			}
		})
	}
}

func TestBucketOnSteppedClocks(t *testing.T) {
	r := Rate{1, time.Second, 2}
	for _, step := range []time.Duration{-24 * time.Hour, -time.Hour, time.Hour, 24 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			var b Bucket
			now := time.Now()
			b.Take(r, 2, now)
			now = stepWall(t, now, step)
			if b.Take(r, 1, now.Add(time.Second-1)) || !b.Take(r, 1, now.Add(time.Second)) || b.Take(r, 1, now.Add(time.Second)) {
				t.Error("the wall clock moved the bucket")
			}
		})
	}
	t.Run("an earlier time refills nothing", func(t *testing.T) {
		var b Bucket
		now := time.Now()
		b.Take(r, 2, now)
		b.Take(r, 1, now.Add(-time.Hour))
		if b.Take(r, 1, now.Add(time.Second-1)) || !b.Take(r, 1, now.Add(time.Second)) {
			t.Error("an earlier time moved the bucket")
		}
	})
	t.Run("no time at all", func(t *testing.T) {
		var b Bucket
		if !b.Take(r, 2, time.Time{}) || b.Take(r, 1, time.Time{}) {
			t.Error("the bucket does not hold its burst at the zero time")
		}
		now := time.Now()
		b = Bucket{}
		b.Take(r, 2, now)
		b.Take(r, 1, time.Time{})
		if b.Take(r, 1, now.Add(time.Second-1)) || !b.Take(r, 1, now.Add(time.Second)) {
			t.Error("the zero time moved the bucket")
		}
	})
}

// What a bucket owes is time: another rate neither forgives nor multiplies it.
func TestBucketRateChange(t *testing.T) {
	var b Bucket
	now := time.Now()
	b.Charge(Rate{1, time.Second, 10}, 10, now) // 10 s until full
	if wait := b.Charge(Rate{100, time.Second, 500}, 0, now); wait != 5*time.Second {
		t.Errorf("wait %v for a burst of 5 s, want 5s", wait)
	}
	if wait := b.Charge(Rate{1, time.Minute, 1}, 0, now); wait != 0 {
		t.Errorf("wait %v for a burst of a minute, want none", wait)
	}
}

func TestBucketNeedsARate(t *testing.T) {
	for _, r := range []Rate{{}, {0, time.Second, 1}, {-1, time.Second, 1}, {1, 0, 1}, {1, -1, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is taken", r)
				}
			}()
			new(Bucket).Take(r, 1, time.Now())
		}()
	}
}

// Any sequence of charges waits as long as exact arithmetic says.
func TestBucketAgainstRationals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rate{
			N:     rapid.Int64Range(1, 1e10).Draw(t, "n"),
			Per:   time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "per")),
			Burst: rapid.Int64Range(0, 1e7).Draw(t, "burst"),
		}
		unit := big.NewRat(int64(r.Per), r.N)
		in := func(n int64) *big.Rat { return new(big.Rat).Mul(unit, new(big.Rat).SetInt64(n)) }
		var (
			b     Bucket
			owes  = new(big.Rat)
			start = time.Now()
			now   time.Duration
		)
		for range 50 {
			passed := rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "passed")
			now += time.Duration(passed)
			if owes.Sub(owes, new(big.Rat).SetInt64(passed)); owes.Sign() < 0 {
				owes.SetInt64(0)
			}
			n := rapid.Int64Range(0, 1e8).Draw(t, "charge")
			owes.Add(owes, in(n))
			if owes.Cmp(new(big.Rat).SetInt64(forever)) >= 0 {
				return // cut: a row of the table above
			}
			want, _ := new(big.Rat).Sub(owes, in(r.Burst)).Float64()
			got := float64(b.Charge(r, n, start.Add(now)))
			if want = math.Ceil(max(want, 0)); math.Abs(got-want) > 1+want/1e15 {
				t.Fatalf("wait %.0f, want %.0f", got, want)
			}
		}
	})
}

func BenchmarkBucket(b *testing.B) {
	var bucket Bucket
	rate, now := Rate{N: 1 << 20, Per: time.Second, Burst: 4 << 20}, time.Now()
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		bucket.Charge(rate, 1024, now)
	}
}
