package admission

import (
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func newMessageLimits(t testing.TB, c MessageLimitsConfig) *MessageLimits {
	t.Helper()
	m, err := NewMessageLimits(c, MessageLengths{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Spec 000: the windows are those by name, with these defaults.
func TestMessageLimitsByDefault(t *testing.T) {
	m, now := newMessageLimits(t, DefaultMessageLimits()), time.Now()
	send := func(who int) Decision { return m.Take(t.Context(), numbered(who), now) }
	wantNamed := func(d Decision, scope Scope, window Window, limit int64, wait time.Duration) {
		t.Helper()
		// A slide's time is rounded up to the millisecond.
		if d.Allowed || d.Scope != scope || d.Window != window || d.Limit != limit || (d.RetryAfter-wait).Abs() > time.Millisecond {
			t.Fatalf("%+v, want %s, %s, %d in %v", d, scope, window, limit, wait)
		}
	}
	for left := range int64(20) {
		mustTake(t, send(1), 19-left)
	}
	wantNamed(send(1), ScopeSender, Minute, 20, 3*time.Second)
	start := now
	for range 180 {
		now = now.Add(3 * time.Second)
		if d := send(1); !d.Allowed {
			t.Fatalf("%+v", d)
		}
	}
	wantNamed(send(1), ScopeSender, Hour, 200, time.Hour-now.Sub(start))
	for day := range 4 {
		now = start.Add(time.Duration(day+1)*time.Hour + time.Hour/2)
		for range 200 {
			now = now.Add(3 * time.Second)
			if d := send(1); !d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
	}
	now = now.Add(time.Hour)
	wantNamed(send(1), ScopeSender, Day, 1000, 24*time.Hour-now.Sub(start))
	// 1,000 messages of many senders, and the bucket of all is empty.
	now = now.Add(time.Hour)
	for who := range 1000 {
		if d := send(100 + who); !d.Allowed {
			t.Fatalf("%+v", d)
		}
	}
	wantNamed(send(2), ScopeGlobal, Minute, 1000, 60*time.Millisecond)
	wantNamed(m.Read(t.Context(), numbered(3), now), ScopeGlobal, Minute, 1000, 60*time.Millisecond)
}

// The name of a victim can be claimed as often as one likes: a look spends nothing
// and leaves nothing behind.
func TestForgedSendersSpendNothing(t *testing.T) {
	m, now := newMessageLimits(t, DefaultMessageLimits()), time.Now()
	n := 1_000_000
	if underRace {
		n = 100_000
	}
	for i := range n {
		if d := m.Peek(t.Context(), numbered(1), now); !d.Allowed {
			t.Fatalf("the look %d is refused: %+v", i, d)
		}
		m.Peek(t.Context(), numbered(i), now)
	}
	if rows := m.Senders(now); rows != 0 {
		t.Errorf("%d rows are kept of senders that sent nothing", rows)
	}
	for left := range int64(20) {
		mustTake(t, m.Take(t.Context(), numbered(1), now), 19-left)
	}
}

func TestMessageLimitsFollowTheMonotonicClock(t *testing.T) {
	for _, window := range []Window{Minute, Hour, Day} {
		for _, step := range wallSteps {
			t.Run(fmt.Sprint(window, step), func(t *testing.T) {
				c, length := MessageLimitsConfig{}, time.Duration(0)
				switch window {
				case Minute:
					c.Sender.Minute, length = 1, time.Minute
				case Hour:
					c.Sender.Hour, length = 1, time.Hour
				case Day:
					c.Global.Day, length = 1, 24*time.Hour
				}
				m, now := newMessageLimits(t, c), time.Now()
				mustTake(t, m.Take(t.Context(), numbered(1), now), 0)
				now = stepWall(t, now.Add(length/2), step)
				d := m.Take(t.Context(), numbered(1), now)
				mustWait(t, d, length/2)
				if want := now.Round(0).Add(length / 2); !d.Reset.Equal(want) {
					t.Errorf("it resets at %v, want %v", d.Reset, want)
				}
				mustTake(t, m.Take(t.Context(), numbered(1), now.Add(length/2)), 0)
				mustWait(t, m.Take(t.Context(), numbered(1), now), length)
			})
		}
	}
}

func TestMessageLimitsKeepTheirCountsOverAReload(t *testing.T) {
	c := MessageLimitsConfig{Sender: SenderMessageLimits{Hour: 5}, Global: GlobalMessageLimits{Day: 100}}
	m, now := newMessageLimits(t, c), time.Now()
	reload := func(hour int) {
		t.Helper()
		c.Sender.Hour = hour
		if err := m.SetLimits(c); err != nil {
			t.Fatal(err)
		}
	}
	for left := range int64(3) {
		mustTake(t, m.Take(t.Context(), numbered(1), now), 4-left)
	}
	reload(5)
	mustTake(t, m.Take(t.Context(), numbered(1), now), 1)
	reload(10)
	mustTake(t, m.Take(t.Context(), numbered(1), now.Add(time.Minute)), 5)
	reload(2) // three of the first four must leave, and one more
	mustWait(t, m.Take(t.Context(), numbered(1), now.Add(time.Minute)), 59*time.Minute)
	reload(1)
	mustWait(t, m.Take(t.Context(), numbered(1), now.Add(time.Minute)), time.Hour)
	reload(-1)
	mustWait(t, m.Take(t.Context(), numbered(1), now.Add(time.Minute)), time.Hour)
	reload(10)
	mustTake(t, m.Take(t.Context(), numbered(1), now.Add(time.Minute)), 4)
	// A window that is off counts nothing, and forgets nothing.
	reload(0)
	mustTake(t, m.Take(t.Context(), numbered(1), now.Add(time.Minute)), 100-7)
	reload(10)
	mustTake(t, m.Take(t.Context(), numbered(1), now.Add(time.Minute)), 3)
	c.Sender.Hour = -2
	if err := m.SetLimits(c); err == nil {
		t.Error("a limit of -2 is taken")
	}
	mustTake(t, m.Take(t.Context(), numbered(1), now.Add(time.Minute)), 2)
}

// A full table gives up nobody's count; newcomers share, and who gets a row of its
// own later begins it with what its shared row holds.
func TestFullMessageLimitsAreNoAmnesty(t *testing.T) {
	fill := map[string]func(*MessageLimits){
		"as many as count":    func(m *MessageLimits) { m.senders.bound = 10 },
		"no times to be kept": func(m *MessageLimits) { m.most = 10 * 4 },
	}
	for name, narrow := range fill {
		t.Run(name, func(t *testing.T) {
			m, now := newMessageLimits(t, MessageLimitsConfig{Sender: SenderMessageLimits{Hour: 3}}), time.Now()
			narrow(m)
			for k := range 10 {
				for left := range int64(3) {
					mustTake(t, m.Take(t.Context(), numbered(k), now), 2-left)
				}
			}
			now = now.Add(30 * time.Minute)
			newcomer := func(n int) Key { return numberedBeside(5, n) }
			mustTake(t, m.Take(t.Context(), newcomer(1), now), 2)
			mustTake(t, m.Take(t.Context(), newcomer(2), now), 1)
			if d := m.Peek(t.Context(), newcomer(3), now); d.Remaining != 1 {
				t.Fatalf("a newcomer that looks is told %+v, want what the others have left", d)
			}
			mustTake(t, m.Take(t.Context(), newcomer(3), now), 0)
			for n := range 100 {
				if d := m.Take(t.Context(), newcomer(n), now); d.Allowed || d.RetryAfter < 59*time.Minute {
					t.Fatalf("%+v", d)
				}
				if d := m.Take(t.Context(), numbered(n%10), now); d.Allowed || d.RetryAfter > 31*time.Minute {
					t.Fatalf("%+v", d)
				}
			}
			mustTake(t, m.Take(t.Context(), numberedBeside(6, 1), now), 2)
			if rows := m.Senders(now); rows != 10 {
				t.Fatalf("%d rows, want 10", rows)
			}
			// There is room again. Whoever had a part in a shared row had no more than
			// all of it, and what is charged from here on is one's own.
			now = now.Add(31 * time.Minute)
			if d := m.Take(t.Context(), newcomer(1), now); d.Allowed {
				t.Fatalf("%+v", d)
			}
			mustTake(t, m.Take(t.Context(), numberedBeside(6, 2), now), 1)
			mustTake(t, m.Take(t.Context(), numberedBeside(6, 3), now), 1)
			mustTake(t, m.Take(t.Context(), numberedBeside(6, 2), now), 0)
			if rows := m.Senders(now); rows != 2 {
				t.Errorf("%d rows, want 2", rows)
			}
			now = now.Add(time.Hour + time.Minute)
			if rows := m.Senders(now); rows != 0 {
				t.Errorf("%d rows are left", rows)
			}
			mustTake(t, m.Take(t.Context(), newcomer(1), now), 2)
		})
	}
}

// Senders that go on when no more times can be kept go over to coarse steps: they
// take little more, and are still held to their limits.
func TestMessageLimitsOutOfTimes(t *testing.T) {
	m, now := newMessageLimits(t, MessageLimitsConfig{Sender: SenderMessageLimits{Day: 1000}}), time.Now()
	m.most = 100
	for range 30 {
		now = now.Add(time.Millisecond)
		for k := range 10 {
			m.Take(t.Context(), numbered(k), now)
		}
	}
	if n := m.times; n > 200 {
		t.Errorf("%d times are kept, want about 100", n)
	}
	for range 970 {
		now = now.Add(80 * time.Second)
		for k := range 3 {
			if d := m.Take(t.Context(), numbered(k), now); !d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
	}
	if d := m.Take(t.Context(), numbered(1), now); d.Allowed {
		t.Fatalf("%+v", d)
	}
	if n := m.times; n > 400 {
		t.Errorf("%d times are kept of 4,000 messages", n)
	}
	m.Senders(now.Add(25 * time.Hour))
	if m.times != 0 {
		t.Errorf("room for %d times is counted after all are gone", m.times)
	}
}

// A table of senders that is full has its bound in rows and in bytes, and a day
// later it has nothing.
func TestMessageLimitsAreBounded(t *testing.T) {
	c := DefaultMessageLimits()
	c.Global = GlobalMessageLimits{}
	m, now := newMessageLimits(t, c), time.Now()
	before := heapInUse()
	n := 5_000_000
	if underRace {
		n = 200_000
	}
	for k := range n {
		m.Take(t.Context(), numbered(k), now)
	}
	took := heapInUse() - before
	if rows := m.Senders(now); rows != senderRows {
		t.Fatalf("%d rows, want %d", rows, senderRows)
	}
	t.Logf("%d rows take %d bytes, %d each", senderRows, took, took/senderRows)
	if most := uint64(280 * senderRows); took > most {
		t.Errorf("the table takes %d bytes, want at most %d", took, most)
	}
	now = now.Add(24*time.Hour + time.Millisecond)
	if rows := m.Senders(now); rows != 0 {
		t.Errorf("%d rows are left", rows)
	}
	if left := int64(heapInUse()) - int64(before); left > 1<<20 {
		t.Errorf("%d bytes are left", left)
	}
	runtime.KeepAlive(m)
}

func TestMessageLimitsAllocateNothing(t *testing.T) {
	m, now := newMessageLimits(t, DefaultMessageLimits()), time.Now()
	for k := range 10 {
		m.Take(t.Context(), numbered(k), now)
		m.Read(t.Context(), numbered(k), now)
	}
	i := 0
	for name, call := range map[string]func(){
		"Peek": func() { m.Peek(t.Context(), numbered(i%20), now) },
		"Read": func() { m.Read(t.Context(), numbered(i%10), now) },
		"a refused Take": func() {
			for m.Take(t.Context(), numbered(1), now).Allowed {
			}
		},
	} {
		if n := testing.AllocsPerRun(1000, func() { i++; call() }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestReadShares(t *testing.T) {
	for _, tt := range []struct {
		global, part GlobalMessageLimits
		host         int
	}{
		{GlobalMessageLimits{1000, 100_000, 1_000_000}, GlobalMessageLimits{500, 50_000, 500_000}, 62},
		{GlobalMessageLimits{1, 1, 1}, GlobalMessageLimits{1, 1, 1}, 1},
		{GlobalMessageLimits{3, 5, 7}, GlobalMessageLimits{2, 3, 4}, 1},
		{GlobalMessageLimits{0, 0, 0}, GlobalMessageLimits{0, 0, 0}, 0},
		{GlobalMessageLimits{-1, -1, -1}, GlobalMessageLimits{-1, -1, -1}, 0},
		{GlobalMessageLimits{32, -1, 0}, GlobalMessageLimits{16, -1, 0}, 2},
	} {
		part, host := MessageLimitsConfig{Global: tt.global}.ReadShares()
		if part != tt.part || host != tt.host {
			t.Errorf("of %v reads have %v and a host %d, want %v and %d", tt.global, part, host, tt.part, tt.host)
		}
	}
}

// The tags and Validate say the same of each key.
func TestMessageLimitsConfig(t *testing.T) {
	if err := DefaultMessageLimits().Validate(); err != nil {
		t.Fatal(err)
	}
	seen := 0
	var walk func(prefix string, index []int, typ reflect.Type)
	walk = func(prefix string, index []int, typ reflect.Type) {
		for f := range typ.Fields() {
			at, key := append(append([]int(nil), index...), f.Index...), prefix+f.Tag.Get("key")
			if f.Type.Kind() == reflect.Struct {
				walk(key+".", at, f.Type)
				continue
			}
			seen++
			c := DefaultMessageLimits()
			field := reflect.ValueOf(&c).Elem().FieldByIndex(at)
			if got := strconv.FormatInt(field.Int(), 10); got != f.Tag.Get("default") || f.Tag.Get("zero") != "off" {
				t.Errorf("%s: the default is %s, the tag says %s", key, got, f.Tag.Get("default"))
			}
			least, _ := strconv.ParseInt(f.Tag.Get("min"), 10, 64)
			most, _ := strconv.ParseInt(f.Tag.Get("max"), 10, 64)
			for _, value := range []int64{least, 0, 1, most} {
				if field.SetInt(value); c.Validate() != nil {
					t.Errorf("%s: %d is refused: %v", key, value, c.Validate())
				}
			}
			for _, value := range []int64{least - 1, -1 << 40, most + 1, 1 << 40} {
				field.SetInt(value)
				if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), key+": "+strconv.FormatInt(value, 10)) {
					t.Errorf("%s: %d: %v", key, value, err)
				}
			}
		}
	}
	walk("", nil, reflect.TypeFor[MessageLimitsConfig]())
	if seen != 7 {
		t.Errorf("%d keys", seen)
	}
}

// Of windows that reset at the same time the sender's is named, and the shorter.
func TestTheSenderIsNamedFirst(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		limits MessageLimitsConfig
		scope  Scope
		window Window
	}{
		{MessageLimitsConfig{Sender: SenderMessageLimits{Hour: 1}, Global: GlobalMessageLimits{Hour: 1}}, ScopeSender, Hour},
		{MessageLimitsConfig{Sender: SenderMessageLimits{Minute: 1}, Global: GlobalMessageLimits{Minute: 1}}, ScopeSender, Minute},
		{MessageLimitsConfig{Sender: SenderMessageLimits{Day: -1}, Global: GlobalMessageLimits{Day: -1}}, ScopeSender, Day},
	} {
		m := newMessageLimits(t, tt.limits)
		m.Take(t.Context(), numbered(1), now)
		if d := m.Take(t.Context(), numbered(1), now); d.Allowed || d.Scope != tt.scope || d.Window != tt.window {
			t.Errorf("%+v, want %s, %s", d, tt.scope, tt.window)
		}
	}
}

// Senders that begin with what they shared go on apart, and every time that is
// kept is counted once.
func TestSendersThatSharedGoOnApart(t *testing.T) {
	const limit = 4
	m, now := newMessageLimits(t, MessageLimitsConfig{Sender: SenderMessageLimits{Hour: limit}}), time.Now()
	m.senders.bound = 2
	m.Take(t.Context(), numbered(1), now)
	m.Take(t.Context(), numbered(2), now)
	now = now.Add(59 * time.Minute)
	a, b := numberedBeside(9, 1), numberedBeside(9, 2)
	mustTake(t, m.Take(t.Context(), a, now), limit-1)
	mustTake(t, m.Take(t.Context(), b, now), limit-2)
	now = now.Add(2 * time.Minute) // both get rows of their own
	mustTake(t, m.Take(t.Context(), a, now), limit-3)
	now = now.Add(20 * time.Minute)
	mustTake(t, m.Take(t.Context(), b, now), limit-3)
	mustTake(t, m.Take(t.Context(), b, now), limit-4)
	now = now.Add(38*time.Minute + time.Second) // what was shared is over
	mustTake(t, m.Take(t.Context(), a, now), limit-2)
	mustTake(t, m.Take(t.Context(), b, now), limit-3)
	now = now.Add(2 * time.Minute) // and what a had at first alone
	mustTake(t, m.Take(t.Context(), a, now), limit-2)
	mustTake(t, m.Take(t.Context(), b, now), limit-4)

	kept := 0
	count := func(t *tally) { kept += len(t.hour.ring) + len(t.day.ring) }
	for i := m.senders.oldest; i != 0; i = m.senders.row(i).newer {
		count(&m.senders.row(i).held)
	}
	for i := range m.senders.shared {
		count(&m.senders.shared[i].held)
	}
	if kept != m.times || kept == 0 {
		t.Errorf("room for %d times is counted, and there is room for %d", m.times, kept)
	}
}

// What is allowed is told when all of what is counted will be gone.
func TestResetOfWhatIsAllowed(t *testing.T) {
	m, now := newMessageLimits(t, MessageLimitsConfig{Sender: SenderMessageLimits{Hour: 3}}), time.Now()
	if d := m.Peek(t.Context(), numbered(1), now); !d.Reset.Equal(now.Round(0)) {
		t.Errorf("nothing is counted, and %+v", d)
	}
	if d := m.Take(t.Context(), numbered(1), now); !d.Reset.Equal(now.Round(0).Add(time.Hour)) {
		t.Errorf("%+v, want it to reset in an hour", d)
	}
	now = now.Add(10 * time.Minute)
	if d := m.Peek(t.Context(), numbered(1), now); !d.Reset.Equal(now.Round(0).Add(50 * time.Minute)) {
		t.Errorf("%+v, want it to reset in 50 minutes", d)
	}
}
