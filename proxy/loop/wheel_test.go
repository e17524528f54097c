package loop

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// expireFunc is an owner made of a function.
type expireFunc func()

func (f expireFunc) Expire() { f() }

// nobody is an owner that does not care.
type nobody struct{}

func (nobody) Expire() {}

// ceilTick is the first millisecond at which a moment has come.
func ceilTick(at time.Duration) time.Duration {
	ms := at.Truncate(time.Millisecond) // towards 0
	if ms < at {
		ms += time.Millisecond
	}
	return ms
}

// dueAt is when a timer for a moment expires that was set at now, and when a
// loop must advance at the latest.
func dueAt(now, at time.Duration) time.Duration {
	if at <= now {
		return now
	}
	return ceilTick(at)
}

func TestTimerIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Timer{}); size > 48 {
		t.Errorf("a Timer takes %d bytes", size)
	}
}

// One timer, at each moment where levels meet: it expires at its millisecond,
// not one earlier, and is then not set.
func TestWheelAtTheEdges(t *testing.T) {
	moments := []time.Duration{
		math.MinInt64, -1, 0, 1, time.Millisecond - 1, time.Millisecond, time.Millisecond + 1,
		math.MaxInt64 - 2*time.Millisecond,
	}
	for level := 1; level <= levels+1; level++ {
		for _, width := range []int64{1, 2, slots - 1} {
			at := time.Duration(width<<(level*slotBits)) * time.Millisecond
			moments = append(moments, at-time.Millisecond, at-1, at, at+1, at+time.Millisecond)
		}
	}
	// The wheel may stand anywhere when a timer is set.
	starts := []time.Duration{0, time.Millisecond / 2, 63 * time.Millisecond, 64 * time.Millisecond,
		4095 * time.Millisecond, 4096*time.Millisecond + 1, 86399 * time.Second, (span - 1) * time.Millisecond}
	for _, start := range starts {
		for _, after := range moments {
			if after > math.MaxInt64-2*time.Millisecond-start {
				continue
			}
			var w Wheel
			var timer Timer
			expired := 0
			timer.Owner = expireFunc(func() {
				if expired++; timer.IsSet() {
					t.Errorf("a timer at %v is set while it expires", start+after)
				}
			})
			w.Advance(start)
			w.Set(&timer, start+after)
			if !timer.IsSet() {
				t.Fatalf("a timer at %v is not set", start+after)
			}
			due := dueAt(start, start+after)
			if due > start {
				w.Advance(due - 1)
				if expired != 0 {
					t.Fatalf("from %v, a timer at %v expired before %v", start, start+after, due)
				}
			}
			w.Advance(due)
			if expired != 1 || timer.IsSet() {
				t.Fatalf("from %v, a timer at %v expired %d times by %v", start, start+after, expired, due)
			}
			w.Advance(due + 365*24*time.Hour)
			if _, ok := w.Next(); expired != 1 || ok {
				t.Fatalf("from %v, a timer at %v stayed", start, start+after)
			}
		}
	}
}

// Next leads to each timer in a few steps, and to its very millisecond.
func TestWheelNextIsCheap(t *testing.T) {
	for _, row := range []struct {
		at    time.Duration
		steps int // no more Advances than this
	}{
		{0, 1},
		{time.Millisecond, 1},
		{63 * time.Millisecond, 1},
		{100 * time.Millisecond, 2},
		{10 * time.Second, 3},
		{300 * time.Second, 4},
		{24 * time.Hour, 5},
		{12 * 24 * time.Hour, 5},
		{100 * 24 * time.Hour, 14},
	} {
		for _, start := range []time.Duration{0, 123456789 * time.Microsecond} {
			var w Wheel
			w.Advance(start)
			var now time.Duration
			expired := time.Duration(-1)
			w.Set(&Timer{Owner: expireFunc(func() { expired = now })}, start+row.at)
			steps := 0
			for {
				next, ok := w.Next()
				if !ok {
					break
				}
				if next < now || next > dueAt(start, start+row.at) {
					t.Fatalf("a timer at %v, now %v: Next is %v", start+row.at, now, next)
				}
				now = next
				w.Advance(now)
				steps++
			}
			if steps > row.steps {
				t.Errorf("a timer %v ahead of %v took %d steps, want %d", row.at, start, steps, row.steps)
			}
			if want := dueAt(start, start+row.at); expired != want {
				t.Errorf("a timer for %v expired at %v", want, expired)
			}
		}
	}
}

// A timer that was set from far comes before one that was set later, from near,
// although it waits in a higher level.
func TestWheelLevelsOverlap(t *testing.T) {
	for level := range levels - 1 {
		var w Wheel
		var got []string
		width := time.Duration(1<<(level*slotBits)) * time.Millisecond
		w.Set(&Timer{Owner: expireFunc(func() { got = append(got, "far") })}, 70*width)
		w.Advance(40 * width)
		w.Set(&Timer{Owner: expireFunc(func() { got = append(got, "near") })}, 100*width)
		if next, ok := w.Next(); next > 70*width || !ok {
			t.Errorf("level %d: Next is %v, %v", level, next, ok)
		}
		w.Advance(100 * width)
		if len(got) != 2 || got[0] != "far" {
			t.Errorf("level %d: %v", level, got)
		}
	}
}

// What is set to the present or the past from inside of Expire waits for the
// next Advance, which is needed at once.
func TestWheelAdvanceEnds(t *testing.T) {
	var w Wheel
	var timer Timer
	expired := 0
	timer.Owner = expireFunc(func() {
		expired++
		w.Set(&timer, time.Duration(expired)*5*time.Millisecond)
	})
	w.Set(&timer, 0)
	for want := 1; want <= 3; want++ {
		w.Advance(time.Second + 400*time.Microsecond)
		if expired != want {
			t.Fatalf("expired %d times, want %d", expired, want)
		}
		if next, ok := w.Next(); next != time.Second+400*time.Microsecond || !ok {
			t.Fatalf("Next is %v, %v", next, ok)
		}
	}
	w.Advance(0) // time does not go back, and the timer is due
	if expired != 4 {
		t.Fatal("an Advance to an earlier time did not count")
	}
}

// While timers expire, those behind them still are to come.
func TestWheelNextInsideExpire(t *testing.T) {
	var w Wheel
	var first, second Timer
	first.Owner = expireFunc(func() {
		if next, ok := w.Next(); next != time.Second || !ok || !second.IsSet() {
			t.Errorf("Next is %v, %v", next, ok)
		}
	})
	second.Owner = nobody{}
	w.Set(&first, time.Millisecond)
	w.Set(&second, 2*time.Millisecond)
	w.Advance(time.Second)
	if second.IsSet() {
		t.Error("the second did not expire")
	}
}

// Timers of one millisecond that were set near it expire in the order in which
// they were set.
func TestWheelKeepsOrderInATick(t *testing.T) {
	var w Wheel
	var got []int
	timers := make([]Timer, 5)
	for i := range timers {
		timers[i].Owner = expireFunc(func() { got = append(got, i) })
		w.Set(&timers[i], 10*time.Millisecond)
	}
	w.Clear(&timers[0]) // the head of its slot
	w.Set(&timers[2], 10*time.Millisecond)
	w.Advance(10 * time.Millisecond)
	if want := [...]int{1, 3, 4, 2}; len(got) != len(want) || [4]int(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// wheelModel is the naive wheel: a map of moments.
type wheelModel struct {
	t      *rapid.T
	wheel  Wheel
	timers []Timer
	now    time.Duration
	at     map[int]time.Duration // what is set, and when it is due
	late   map[int]bool          // of them, those set inside this Advance to a moment not after it
	near   map[int]bool          // of them, those set no more than 63 ms ahead
	within bool                  // an Advance is under way
	last   time.Duration         // the millisecond of the last that expired in this Advance
}

// drawMoment is around now, at all scales, in the past too.
func (m *wheelModel) drawMoment(label string) time.Duration {
	scale := rapid.SampledFrom([]time.Duration{
		time.Millisecond, 64 * time.Millisecond, 200 * time.Millisecond, 5 * time.Second, 5 * time.Minute, 24 * time.Hour, 20 * 24 * time.Hour,
	}).Draw(m.t, "scale")
	// Small numbers are drawn far too often for a distance: it is eighths of the
	// scale, and a little.
	eighths := rapid.SampledFrom([]time.Duration{-1, 0, 1, 2, 3, 4, 5, 6, 7, 8}).Draw(m.t, "eighths")
	little := rapid.Int64Range(-int64(scale)/16, int64(scale)/16).Draw(m.t, label)
	return m.now + scale*eighths/8 + time.Duration(little)
}

func (m *wheelModel) set(i int, at time.Duration) {
	m.wheel.Set(&m.timers[i], at)
	m.at[i] = dueAt(m.now, at)
	delete(m.late, i)
	m.near[i] = m.at[i]-m.now.Truncate(time.Millisecond) <= 63*time.Millisecond
	if at <= m.now {
		m.late[i] = m.within
	}
}

func (m *wheelModel) clear(i int) {
	m.wheel.Clear(&m.timers[i])
	delete(m.at, i)
	delete(m.late, i)
}

// any sets or clears any timer.
func (m *wheelModel) any() {
	i := rapid.IntRange(0, len(m.timers)-1).Draw(m.t, "timer")
	if rapid.IntRange(0, 3).Draw(m.t, "clear") == 0 {
		m.clear(i)
	} else {
		m.set(i, m.drawMoment("at"))
	}
}

func (m *wheelModel) expire(i int) {
	at, set := m.at[i]
	switch {
	case !m.within:
		m.t.Fatalf("timer %d expired outside of Advance", i)
	case !set:
		m.t.Fatalf("timer %d expired, and was not set", i)
	case m.late[i]:
		m.t.Fatalf("timer %d expired in the Advance in which it was set to the past", i)
	case at > m.now:
		m.t.Fatalf("timer %d for %v expired at %v", i, at, m.now)
	case at < m.last:
		m.t.Fatalf("timer %d for %v expired after one for %v", i, at, m.last)
	case m.timers[i].IsSet():
		m.t.Fatalf("timer %d is set while it expires", i)
	}
	m.last = at
	delete(m.at, i)
	for range rapid.IntRange(0, 2).Draw(m.t, "inside") {
		m.any()
	}
	if rapid.IntRange(0, 4).Draw(m.t, "again") == 0 {
		m.set(i, m.drawMoment("at"))
	}
}

func (m *wheelModel) advance(now time.Duration) {
	m.now = max(m.now, now)
	// What was due before stands in the order in which it came to be so.
	m.last = math.MinInt64
	m.within = true
	m.wheel.Advance(now)
	m.within = false
	for i, at := range m.at {
		if !m.late[i] && at <= m.now {
			m.t.Fatalf("timer %d for %v is left at %v", i, at, m.now)
		}
	}
	clear(m.late)
}

// check compares what can be asked.
func (m *wheelModel) check() {
	for i := range m.timers {
		if _, set := m.at[i]; set != m.timers[i].IsSet() {
			m.t.Fatalf("timer %d: IsSet is %v", i, m.timers[i].IsSet())
		}
	}
	next, ok := m.wheel.Next()
	if ok != (len(m.at) > 0) {
		m.t.Fatalf("Next is %v, %v with %d timers set", next, ok, len(m.at))
	}
	if !ok {
		return
	}
	first, exact := time.Duration(math.MaxInt64), true
	for i, at := range m.at {
		first = min(first, at)
		exact = exact && m.near[i]
	}
	if next > first || next < m.now {
		m.t.Fatalf("at %v, the first timer is for %v, Next is %v", m.now, first, next)
	}
	if exact && next != first {
		m.t.Fatalf("at %v, the first timer is for %v, Next is %v and not exact", m.now, first, next)
	}
}

func TestWheelIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &wheelModel{t: t, timers: make([]Timer, 20), at: map[int]time.Duration{}, late: map[int]bool{}, near: map[int]bool{}}
		for i := range m.timers {
			m.timers[i].Owner = expireFunc(func() { m.expire(i) })
		}
		m.advance(m.drawMoment("start"))
		t.Repeat(map[string]func(*rapid.T){
			"":      func(*rapid.T) { m.check() },
			"any":   func(*rapid.T) { m.any() },
			"more":  func(*rapid.T) { m.any() },
			"to":    func(*rapid.T) { m.advance(m.drawMoment("now")) },
			"again": func(*rapid.T) { m.advance(m.now) },
			"next": func(t *rapid.T) {
				if next, ok := m.wheel.Next(); ok {
					m.advance(next)
				} else {
					t.Skip("nothing is set")
				}
			},
		})
		// In the end all that is left expires, each at its very millisecond, as a
		// loop that sleeps until Next would have it.
		for steps := 0; len(m.at) > 0; steps++ {
			if steps > len(m.timers)*(levels+2) {
				t.Fatalf("%d timers are left after %d steps", len(m.at), steps)
			}
			for i := range m.timers {
				m.timers[i].Owner = expireFunc(func() {
					if at := m.at[i]; at != m.now {
						t.Fatalf("timer %d for %v expired at %v", i, at, m.now)
					}
					delete(m.at, i)
				})
			}
			next, _ := m.wheel.Next()
			m.advance(next)
			m.check()
		}
	})
}

// crowd is a wheel of n timers between 1 ms and 5 minutes ahead, each of which
// sets itself again when it expires.
type crowd struct {
	wheel  Wheel
	now    time.Duration
	timers []crowdTimer
	told   int
}

type crowdTimer struct {
	Timer
	crowd *crowd
	after time.Duration
}

func (t *crowdTimer) Expire() {
	t.crowd.told++
	t.crowd.wheel.Set(&t.Timer, t.crowd.now+t.after)
}

func newCrowd(n int) *crowd {
	c := &crowd{timers: make([]crowdTimer, n)}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range c.timers {
		t := &c.timers[i]
		t.crowd, t.after = c, time.Duration(1+rng.Int64N(int64(5*time.Minute)))
		t.Owner = t
		c.wheel.Set(&t.Timer, t.after)
	}
	return c
}

func (c *crowd) advance(by time.Duration) {
	c.now += by
	c.wheel.Advance(c.now)
}

func TestWheelDoesNotAllocate(t *testing.T) {
	c := newCrowd(1000)
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		timer := &c.timers[i%len(c.timers)]
		i++
		c.wheel.Clear(&timer.Timer)
		c.wheel.Set(&timer.Timer, c.now+timer.after)
		c.wheel.Next()
		c.advance(time.Second)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if c.told < 1000 {
		t.Errorf("only %d expired", c.told)
	}
}

func BenchmarkWheelSetClear(b *testing.B) {
	c := newCrowd(10_000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		timer := &c.timers[i%len(c.timers)]
		i++
		c.wheel.Clear(&timer.Timer)
		c.wheel.Set(&timer.Timer, timer.after)
	}
}

// One operation is a second of 10,000 timers, those that expire in it set again.
func BenchmarkWheelAdvance(b *testing.B) {
	c := newCrowd(10_000)
	b.ReportAllocs()
	for b.Loop() {
		c.advance(time.Second)
	}
	b.ReportMetric(float64(c.told)/float64(b.N), "expired/op")
}

func BenchmarkWheelNext(b *testing.B) {
	c := newCrowd(10_000)
	b.ReportAllocs()
	for b.Loop() {
		c.wheel.Next()
	}
}
