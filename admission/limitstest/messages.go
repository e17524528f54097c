package limitstest

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"relayedge/admission"
)

// TestMessages holds the store to the contract of [admission.Messages].
func TestMessages(t *testing.T, s Store) {
	for _, tt := range []struct {
		name string
		test func(*testing.T, Store)
	}{
		{"each window of each scope", messagesEachWindow},
		{"0 is off and -1 refuses all", messagesOffAndShut},
		{"a look spends nothing", messagesPeek},
		{"what is charged is told with itself counted", messagesReset},
		{"what is refused spends nothing anywhere", messagesRefuseFreely},
		{"of several full windows the one that resets last is named", messagesNameLast},
		{"the bucket refills bit by bit", messagesRefill},
		{"the retry after the wait succeeds", messagesRetry},
		{"simultaneous messages", messagesAtOnce},
		{"no window ever holds more than its limit", messagesModel},
		{"reads have a part and hosts a share", messagesReads},
		{"nothing is left of senders who are silent", messagesLeave},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, s) })
	}
}

// only returns message limits with all windows off but one.
func only(scope admission.Scope, window admission.Window, limit int) (c admission.MessageLimitsConfig) {
	*limitOf(&c, scope, window) = limit
	return c
}

func limitOf(c *admission.MessageLimitsConfig, scope admission.Scope, window admission.Window) *int {
	if scope == admission.ScopeSender {
		return map[admission.Window]*int{admission.Minute: &c.Sender.Minute, admission.Hour: &c.Sender.Hour, admission.Day: &c.Sender.Day}[window]
	}
	return map[admission.Window]*int{admission.Minute: &c.Global.Minute, admission.Hour: &c.Global.Hour, admission.Day: &c.Global.Day}[window]
}

func (s Store) windowLength(w admission.Window) time.Duration {
	l := s.lengths()
	return map[admission.Window]time.Duration{admission.Minute: l.Minute, admission.Hour: l.Hour, admission.Day: l.Day}[w]
}

// eachWindow runs the test for every window of both scopes.
func eachWindow(t *testing.T, test func(*testing.T, admission.Scope, admission.Window)) {
	for _, scope := range []admission.Scope{admission.ScopeSender, admission.ScopeGlobal} {
		for _, window := range []admission.Window{admission.Minute, admission.Hour, admission.Day} {
			t.Run(string(scope)+" "+string(window), func(t *testing.T) { test(t, scope, window) })
		}
	}
}

// talk is one instance with the suite's clock.
type talk struct {
	s   Store
	m   admission.Messages
	ctx context.Context
}

func (s Store) talk(t testing.TB, c admission.MessageLimitsConfig) talk {
	return talk{s, s.Messages(t, 1, c, s.lengths())[0], t.Context()}
}

func (k talk) take(who int) admission.Decision { return k.m.Take(k.ctx, keyOf(who), k.s.Now()) }
func (k talk) peek(who int) admission.Decision { return k.m.Peek(k.ctx, keyOf(who), k.s.Now()) }
func (k talk) read(who int) admission.Decision { return k.m.Read(k.ctx, keyOf(who), k.s.Now()) }

// mustName wants a decision about that window.
func mustName(t failer, d admission.Decision, scope admission.Scope, window admission.Window, limit int64) {
	t.Helper()
	if d.Scope != scope || d.Window != window || d.Limit != limit {
		t.Fatalf("%+v, want it to name %s, %s, %d", d, scope, window, limit)
	}
}

func messagesEachWindow(t *testing.T, s Store) {
	eachWindow(t, func(t *testing.T, scope admission.Scope, window admission.Window) {
		k := s.talk(t, only(scope, window, 4))
		for want := int64(3); want >= 0; want-- {
			d := mustAllow(t, k.take(1))
			mustName(t, d, scope, window, 4)
			if d.Remaining != want {
				t.Fatalf("%+v, want %d to remain", d, want)
			}
		}
		d := s.mustRefuse(t, k.take(1), s.windowLength(window))
		mustName(t, d, scope, window, 4)
		if other := k.take(2); other.Allowed != (scope == admission.ScopeSender) {
			t.Fatalf("another sender gets %+v", other)
		}
	})
}

func messagesOffAndShut(t *testing.T, s Store) {
	off := s.talk(t, admission.MessageLimitsConfig{})
	for range 100 {
		for _, d := range []admission.Decision{off.peek(1), off.take(1), off.read(1)} {
			if mustAllow(t, d); d.Limit != 0 {
				t.Fatalf("%+v, want a limit of 0", d)
			}
		}
	}
	eachWindow(t, func(t *testing.T, scope admission.Scope, window admission.Window) {
		k := s.talk(t, only(scope, window, -1))
		decisions := []admission.Decision{k.peek(1), k.take(1)}
		if scope == admission.ScopeGlobal {
			decisions = append(decisions, k.read(1))
		} else {
			mustAllow(t, k.read(1))
		}
		for _, d := range decisions {
			s.mustRefuse(t, d, s.windowLength(window))
			mustName(t, d, scope, window, -1)
			if d.RetryAfter < s.windowLength(window)-s.Slack {
				t.Fatalf("%+v, want it one window away", d)
			}
		}
	})
}

func messagesPeek(t *testing.T, s Store) {
	c := admission.DefaultMessageLimits()
	c.Sender = admission.SenderMessageLimits{Minute: 3, Hour: 5, Day: 8}
	k := s.talk(t, c)
	for range 200 {
		mustAllow(t, k.peek(1)) // whoever claims a name looks, and no more
	}
	for range 3 {
		mustAllow(t, k.peek(1))
		mustAllow(t, k.take(1))
	}
	looked, refused := k.peek(1), k.take(1)
	s.mustRefuse(t, looked, s.lengths().Minute)
	s.mustRefuse(t, refused, s.lengths().Minute)
	if (looked.RetryAfter - refused.RetryAfter).Abs() > s.stall() {
		t.Fatalf("Peek says %+v, Take %+v", looked, refused)
	}
}

// messagesReset asks when what is allowed is told to reset: when all that counts is
// gone, what was charged included.
func messagesReset(t *testing.T, s Store) {
	const limit = 4
	resets := func(t *testing.T, decide func() admission.Decision, want time.Duration) admission.Decision {
		t.Helper()
		asked := s.Now()
		d := mustAllow(t, decide())
		if late := d.Reset.Sub(asked) - want; late < -s.Slack || late > s.stall() {
			t.Fatalf("%+v, want it to reset in %v", d, want)
		}
		return d
	}
	eachWindow(t, func(t *testing.T, scope admission.Scope, window admission.Window) {
		length := s.windowLength(window)
		first, second := length, length
		if window == admission.Minute { // a unit comes back each quarter of it
			first, second = length/limit, length/limit*3/2
		}
		k := s.talk(t, only(scope, window, limit))
		resets(t, func() admission.Decision { return k.peek(1) }, 0)
		charged := resets(t, func() admission.Decision { return k.take(1) }, first)
		s.Advance(length / limit / 2)
		if looked := mustAllow(t, k.peek(1)); !within(looked.Reset, charged.Reset, s.stall()) {
			t.Fatalf("%+v, and half a quarter of its length later %+v", charged, looked)
		}
		resets(t, func() admission.Decision { return k.take(1) }, second)
	})
	t.Run("a host's share", func(t *testing.T) {
		var c admission.MessageLimitsConfig
		c.Global.Minute = 16 * limit
		k := s.talk(t, c)
		d := resets(t, func() admission.Decision { return k.read(1) }, s.lengths().Minute/limit)
		mustName(t, d, admission.ScopeHost, admission.Minute, limit)
	})
}

func messagesRefuseFreely(t *testing.T, s Store) {
	lengths := s.lengths()
	t.Run("a global refusal", func(t *testing.T) {
		c := only(admission.ScopeSender, admission.Day, 3)
		c.Global.Minute = 2
		k := s.talk(t, c)
		for range 2 {
			mustAllow(t, k.take(1))
		}
		for range 50 {
			d := k.take(1)
			if d.Allowed && s.exact() {
				t.Fatalf("%+v, want a refusal", d)
			} else if d.Allowed {
				t.Skip("this store's time went on too far")
			}
			mustName(t, d, admission.ScopeGlobal, admission.Minute, 2)
		}
		s.Advance(lengths.Minute)
		mustAllow(t, k.take(1))
		mustName(t, s.mustRefuse(t, k.take(1), lengths.Day), admission.ScopeSender, admission.Day, 3)
	})
	t.Run("a sender's refusal", func(t *testing.T) {
		c := only(admission.ScopeSender, admission.Hour, 2)
		c.Global.Day = 5
		k := s.talk(t, c)
		for range 2 {
			mustAllow(t, k.take(1))
		}
		for range 50 {
			s.mustRefuse(t, k.take(1), lengths.Hour)
		}
		mustAllow(t, k.take(2))
		mustAllow(t, k.take(2))
		mustAllow(t, k.take(3))
		mustName(t, s.mustRefuse(t, k.take(4), lengths.Day), admission.ScopeGlobal, admission.Day, 5)
	})
	t.Run("the minute's refusal spends nothing of the hour", func(t *testing.T) {
		c := only(admission.ScopeSender, admission.Hour, 4)
		c.Sender.Minute = 2
		k := s.talk(t, c)
		for range 2 {
			mustAllow(t, k.take(1))
			mustAllow(t, k.take(1))
			for range 20 {
				if k.take(1).Allowed {
					t.Skip("this store's time went on too far")
				}
			}
			s.Advance(lengths.Minute)
		}
		mustName(t, s.mustRefuse(t, k.take(1), lengths.Hour), admission.ScopeSender, admission.Hour, 4)
	})
}

func messagesNameLast(t *testing.T, s Store) {
	lengths := s.lengths()
	for _, tt := range []struct {
		name   string
		limits admission.MessageLimitsConfig
		scope  admission.Scope
		window admission.Window
	}{
		{"the hour behind the minute", admission.MessageLimitsConfig{Sender: admission.SenderMessageLimits{Minute: 2, Hour: 2}}, admission.ScopeSender, admission.Hour},
		{"the day behind all", admission.MessageLimitsConfig{Sender: admission.SenderMessageLimits{Minute: 2, Hour: 2, Day: 2}, Global: admission.GlobalMessageLimits{Minute: 2, Hour: 2}}, admission.ScopeSender, admission.Day},
		{"the global day behind the sender's hour", admission.MessageLimitsConfig{Sender: admission.SenderMessageLimits{Minute: 2, Hour: 2}, Global: admission.GlobalMessageLimits{Day: 2}}, admission.ScopeGlobal, admission.Day},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := s.talk(t, tt.limits)
			mustAllow(t, k.take(1))
			mustAllow(t, k.take(1))
			d := s.mustRefuse(t, k.take(1), lengths.Day)
			mustName(t, d, tt.scope, tt.window, 2)
			s.Advance(d.RetryAfter)
			mustAllow(t, k.take(1)) // no other window is in the way then
		})
	}
}

func messagesRefill(t *testing.T, s Store) {
	minute := s.lengths().Minute
	k := s.talk(t, only(admission.ScopeSender, admission.Minute, 4))
	for range 4 {
		mustAllow(t, k.take(1))
	}
	for range 8 {
		d := k.take(1)
		if !d.Allowed && d.RetryAfter > minute/4+s.Slack {
			t.Fatalf("%+v, want a unit in a quarter of the minute", d)
		}
		s.Advance(minute / 4)
		mustAllow(t, k.take(1))
	}
}

func messagesRetry(t *testing.T, s Store) {
	eachWindow(t, func(t *testing.T, scope admission.Scope, window admission.Window) {
		length := s.windowLength(window)
		k := s.talk(t, only(scope, window, 3))
		random := rand.New(rand.NewPCG(3, 4))
		for range s.samples() {
			s.Advance(time.Duration(random.Int64N(int64(length))))
			var d admission.Decision
			for d = k.take(1); d.Allowed; d = k.take(1) {
				s.Advance(time.Duration(random.Int64N(int64(length / 8))))
			}
			s.mustRefuse(t, d, length)
			s.Advance(d.RetryAfter)
			mustAllow(t, k.take(1))
		}
	})
}

func messagesAtOnce(t *testing.T, s Store) {
	eachWindow(t, func(t *testing.T, scope admission.Scope, window admission.Window) {
		const limit = 10
		l := s.lengths()
		l = admission.MessageLengths{Minute: 100 * l.Minute, Hour: 100 * l.Hour, Day: 100 * l.Day}
		instances := s.Messages(t, s.instances(), only(scope, window, limit), l)
		ctx := t.Context()
		all := atOnce(1000, len(instances), func(i int) admission.Decision {
			return instances[i].Take(ctx, keyOf(1), s.Now())
		})
		wantCountdown(t, all, limit)
	})
}

func messagesReads(t *testing.T, s Store) {
	c := admission.MessageLimitsConfig{Global: admission.GlobalMessageLimits{Hour: 64, Minute: 160}}
	lengths := s.lengths()
	t.Run("a host has a share", func(t *testing.T) {
		k := s.talk(t, c)
		_, share := c.ReadShares()
		for range share {
			mustAllow(t, k.read(1))
		}
		d := k.read(1)
		if d.Allowed && !s.exact() {
			t.Skip("this store's time went on too far")
		}
		s.mustRefuse(t, d, lengths.Minute)
		mustName(t, d, admission.ScopeHost, admission.Minute, int64(share))
		mustAllow(t, k.read(2))
		s.Advance(d.RetryAfter)
		mustAllow(t, k.read(1))
	})
	t.Run("reads cannot silence messages", func(t *testing.T) {
		k := s.talk(t, c)
		allowed := 0
		for host := range 200 {
			d := k.read(host)
			if d.Allowed {
				allowed++
				continue
			}
			mustName(t, s.mustRefuse(t, d, lengths.Hour), admission.ScopeGlobal, admission.Hour, 32)
		}
		if allowed != 32 {
			t.Fatalf("%d reads are allowed, want half of 64", allowed)
		}
		for range 32 {
			mustAllow(t, k.take(1))
		}
		mustName(t, s.mustRefuse(t, k.take(1), lengths.Hour), admission.ScopeGlobal, admission.Hour, 64)
	})
	t.Run("reads are refused when the global limit is spent", func(t *testing.T) {
		k := s.talk(t, c)
		for range 64 {
			mustAllow(t, k.take(1))
		}
		d := s.mustRefuse(t, k.read(1), lengths.Hour)
		mustName(t, d, admission.ScopeGlobal, admission.Hour, 64)
		s.Advance(d.RetryAfter + lengths.Hour/10)
		for range 10 { // the refused reads have spent no share
			mustAllow(t, k.read(1))
		}
	})
}

func messagesLeave(t *testing.T, s Store) {
	if s.Left == nil {
		t.Skip("the store cannot tell its keys")
	}
	k := s.talk(t, admission.DefaultMessageLimits())
	for who := range 100 {
		k.take(who)
		k.read(who)
	}
	for who := range 1000 {
		k.peek(1000 + who)
	}
	if n := s.Left(t); s.exact() && (n == 0 || n > 1000) {
		t.Fatalf("%d keys are kept of 100 senders, as many hosts, and those that only looked", n)
	}
	s.Advance(s.lengths().Day + s.lengths().Minute)
	if n := s.Left(t); n != 0 {
		t.Fatalf("%d keys are left a day later", n)
	}
}
