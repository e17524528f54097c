package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"relayedge/admission"
)

// Redis and memory decide alike, whatever comes when and whatever the limits are
// changed to, as long as both keep every time.
func TestStoreAndMemoryDecideAlike(t *testing.T) {
	s := newStanding(t, 1)
	// Whole milliseconds, so that the roundings of both meet.
	s.advance(time.Millisecond - time.Duration(begun.Nanosecond())%time.Millisecond)
	lengths := admission.MessageLengths{Minute: time.Minute, Hour: 3 * time.Minute, Day: 9 * time.Minute}
	rapid.Check(t, func(r *rapid.T) {
		limits := func() (c admission.MessageLimitsConfig) {
			for i, limit := range []*int{&c.Sender.Minute, &c.Sender.Hour, &c.Sender.Day, &c.Global.Minute, &c.Global.Hour, &c.Global.Day} {
				*limit = rapid.SampledFrom([]int{0, 1, 2, 3, 5, 7, 12, -1, 4, 6}).Draw(r, fmt.Sprint("limit", i))
			}
			return c
		}
		c := limits()
		s.fresh()
		memory, err := admission.NewMessageLimits(c, lengths)
		if err != nil {
			r.Fatal(err)
		}
		store := s.stores[0].Messages(c, lengths, refuseAll{})
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			if rapid.IntRange(0, 2).Draw(r, "pauses") == 0 {
				s.advance(time.Duration(rapid.IntRange(1, 60_000).Draw(r, "pause")) * time.Millisecond)
			}
			if rapid.IntRange(0, 19).Draw(r, "changes") == 0 {
				// A window that was off has counted in neither, but what stood in it before
				// it was switched off is forgotten in memory at once, here in time.
				was := c
				c = limits()
				for _, pair := range [][2]*int{{&was.Sender.Hour, &c.Sender.Hour}, {&was.Sender.Day, &c.Sender.Day}, {&was.Global.Hour, &c.Global.Hour}, {&was.Global.Day, &c.Global.Day},
					{&was.Sender.Minute, &c.Sender.Minute}, {&was.Global.Minute, &c.Global.Minute}} {
					if *pair[0] <= 0 || *pair[1] <= 0 {
						*pair[1] = *pair[0]
					}
				}
				if err := memory.SetLimits(c); err != nil {
					r.Fatal(err)
				}
				store = s.stores[0].Messages(c, lengths, refuseAll{})
			}
			who := keyOf(rapid.IntRange(0, 2).Draw(r, "who"))
			decide := rapid.SampledFrom([]func(admission.Messages) admission.Decision{
				func(m admission.Messages) admission.Decision { return m.Peek(context.Background(), who, s.now()) },
				func(m admission.Messages) admission.Decision { return m.Take(context.Background(), who, s.now()) },
				func(m admission.Messages) admission.Decision { return m.Take(context.Background(), who, s.now()) },
				func(m admission.Messages) admission.Decision { return m.Read(context.Background(), who, s.now()) },
			}).Draw(r, "call")
			want, got := decide(memory), decide(store)
			waits := got.RetryAfter - want.RetryAfter
			resets := got.Reset.Sub(want.Reset)
			got.RetryAfter, got.Reset = want.RetryAfter, want.Reset
			if got != want || waits.Abs() > 2*time.Microsecond || resets.Abs() > 2*time.Microsecond {
				r.Fatalf("the store says %+v (waits %v, resets %v more), memory %+v", got, waits, resets, want)
			}
		}
	})
}

// Above 4,096 a window slides in steps: it holds no more than its limit, and a
// step leaves as a whole when its last message does.
func TestStoreSteps(t *testing.T) {
	s := newStanding(t, 1)
	const limit = exact + 4
	hour := admission.MessageLengths{}.OrReal().Hour
	m := s.stores[0].Messages(admission.MessageLimitsConfig{Sender: admission.SenderMessageLimits{Hour: limit}}, admission.MessageLengths{}, refuseAll{})
	s.advance(begun.Truncate(time.Minute).Add(time.Minute).Sub(s.now())) // where a step begins
	takeN := func(n int) (allowed int) {
		var mu sync.Mutex
		var callers sync.WaitGroup
		for c := range 16 {
			callers.Go(func() {
				for range n/16 + min(1, max(0, n%16-c)) {
					if m.Take(t.Context(), keyOf(1), s.now()).Allowed {
						mu.Lock()
						allowed++
						mu.Unlock()
					}
				}
			})
		}
		callers.Wait()
		return allowed
	}
	key := s.stores[0].cfg.Prefix + ":{messages}:sender:" + keyOf(1).String() + ":hour"
	if n := takeN(2000); n != 2000 {
		t.Fatalf("%d are allowed, want 2000", n)
	}
	s.advance(50 * time.Second)
	if n := takeN(1000); n != 1000 {
		t.Fatalf("%d are allowed, want 1000", n)
	}
	if n := s.Ask("LLEN", key); n != int64(2) {
		t.Errorf("%v entries stand for one step, want 1 and the one before", n)
	}
	s.advance(10 * time.Second) // the next step
	if n := takeN(1200); n != limit-3000 {
		t.Fatalf("%d are allowed, want %d", n, limit-3000)
	}
	if n := s.Ask("LLEN", key); n != int64(3) {
		t.Errorf("%v entries stand for two steps, want 2 and the one before", n)
	}
	// The first step leaves an hour after its last message.
	d := m.Peek(t.Context(), keyOf(1), s.now())
	if want := hour - 10*time.Second; d.Allowed || d.RetryAfter != want {
		t.Fatalf("%+v, want a wait of %v", d, want)
	}
	s.advance(d.RetryAfter - time.Microsecond)
	if d := m.Take(t.Context(), keyOf(1), s.now()); d.Allowed {
		t.Fatalf("%+v before the step left", d)
	}
	s.advance(time.Microsecond)
	if n := takeN(3100); n != 3000 {
		t.Fatalf("%d are allowed, want the 3000 that have left", n)
	}
}

// A limit that was lowered holds what was counted before: the wait is until enough
// of it has left, and the limit that was raised goes on from there.
func TestStoreChangedLimits(t *testing.T) {
	s := newStanding(t, 1)
	messages := func(limit int) admission.Messages {
		return s.stores[0].Messages(admission.MessageLimitsConfig{Sender: admission.SenderMessageLimits{Hour: limit}}, admission.MessageLengths{}, refuseAll{})
	}
	for range 100 {
		if d := messages(100).Take(t.Context(), keyOf(1), s.now()); !d.Allowed {
			t.Fatalf("%+v, want it allowed", d)
		}
		s.advance(time.Second)
	}
	// At i seconds a message came for each i below 100; an hour later it leaves.
	for _, limit := range []int{100, 99, 98, 64, 63, 7, 2, 1} {
		d := messages(limit).Peek(t.Context(), keyOf(1), s.now())
		want := time.Hour - time.Duration(limit)*time.Second
		if d.Allowed || (d.RetryAfter-want).Abs() > time.Millisecond {
			t.Errorf("with a limit of %d: %+v, want a wait of %v", limit, d, want)
		}
	}
	for range 5000 {
		if d := messages(5100).Take(t.Context(), keyOf(1), s.now()); !d.Allowed {
			t.Fatalf("%+v, want it allowed", d)
		}
	}
	if d := messages(5100).Take(t.Context(), keyOf(1), s.now()); d.Allowed {
		t.Errorf("%+v, want it refused", d)
	}
}

// Nothing leaves a window before its time, not by a part of a millisecond.
func TestStoreLetsGoInTime(t *testing.T) {
	s := newStanding(t, 1)
	m := s.stores[0].Messages(admission.MessageLimitsConfig{Sender: admission.SenderMessageLimits{Hour: 1}}, admission.MessageLengths{}, refuseAll{})
	if d := m.Take(t.Context(), keyOf(1), s.now()); !d.Allowed {
		t.Fatalf("%+v, want it allowed", d)
	}
	s.advance(time.Hour - time.Microsecond)
	if d := m.Take(t.Context(), keyOf(1), s.now()); d.Allowed {
		t.Errorf("%+v a microsecond before the hour is over", d)
	}
	s.advance(time.Microsecond + time.Millisecond)
	if d := m.Take(t.Context(), keyOf(1), s.now()); !d.Allowed {
		t.Errorf("%+v after the hour", d)
	}
}

// The server's clock is set: nobody is locked out for longer than a window, and
// at most one window more is allowed.
func TestStoreClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{-24 * time.Hour, -time.Hour, -time.Millisecond, time.Hour, 24 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			s := newStanding(t, 1)
			m := s.stores[0].Messages(admission.MessageLimitsConfig{
				Sender: admission.SenderMessageLimits{Minute: 4, Hour: 4}, Global: admission.GlobalMessageLimits{Hour: 2 * exact},
			}, admission.MessageLengths{}, refuseAll{})
			w := s.stores[0].Windows(RequestLimits, "test", 4, time.Minute, refuseAll{})
			spend := func() (requests, messages int) {
				for range 20 {
					if w.Take(t.Context(), keyOf(1), s.now()).Allowed {
						requests++
					}
					if m.Take(t.Context(), keyOf(1), s.now()).Allowed {
						messages++
					}
				}
				return requests, messages
			}
			spend()
			s.passed += step
			s.Ask("SET", "clock", whole(s.now().UnixMicro()))
			requests, messages := spend()
			if step < 0 && requests+messages > 0 || requests > 4 || messages > 4 {
				t.Errorf("%d requests and %d messages are allowed at once", requests, messages)
			}
			d := w.Take(t.Context(), keyOf(1), s.now())
			if d.Allowed || d.RetryAfter > time.Minute {
				t.Errorf("%+v, want a refusal for a minute at most", d)
			}
			s.advance(d.RetryAfter)
			if d := w.Take(t.Context(), keyOf(1), s.now()); !d.Allowed {
				t.Errorf("%+v after the wait, want it allowed", d)
			}
			s.advance(time.Hour - d.RetryAfter + 2*time.Millisecond) // times are rounded up
			if d := m.Take(t.Context(), keyOf(1), s.now()); !d.Allowed {
				t.Errorf("%+v after an hour, want it allowed", d)
			}
			s.advance(time.Hour + time.Minute)
			if n := s.left(); n != 0 {
				t.Errorf("%d keys are left: %v", n, s.Keys())
			}
		})
	}
}

// What others have written under our keys is replaced, and locks nobody out.
func TestForeignValues(t *testing.T) {
	hex := keyOf(1).String()
	windowKey := "relayedge:test:" + hex
	tests := [][]string{{"SET", "x"}, {"SET", ""}, {"SET", "99999"}, {"SET", "9 9999999999999999"}, {"SET", "-1 -1"},
		{"RPUSH", "x"}, {"RPUSH", strings.Repeat("\xff", 10)}, {"RPUSH", strings.Repeat("\xff", 10), "x"}, {"RPUSH", strings.Repeat("\x00", 10), "x", "y"},
		{"HSET", "a", "b"}, {"SADD", "x"}, {"ZADD", "1", "x"}}
	keys := []string{windowKey}
	for _, tally := range []string{"sender:" + hex, "reader:" + hex, "global", "reads"} {
		for _, window := range []string{"", ":hour", ":day"} {
			keys = append(keys, "relayedge:{messages}:"+tally+window)
		}
	}
	s := newStanding(t, 1)
	m := s.stores[0].Messages(admission.DefaultMessageLimits(), admission.MessageLengths{}, refuseAll{})
	w := s.stores[0].Windows(RequestLimits, "test", 10, time.Minute, refuseAll{})
	for _, tt := range tests {
		s.fresh()
		for _, key := range keys {
			s.Ask(append([]string{tt[0], key}, tt[1:]...)...)
		}
		now := s.now()
		w.Take(t.Context(), keyOf(1), now)
		m.Take(t.Context(), keyOf(1), now)
		m.Read(t.Context(), keyOf(1), now)
		if n := s.stores[0].breaker.failures.Load(); n != 0 {
			t.Fatalf("%q: a decision fails", tt)
		}
		s.advance(24*time.Hour + time.Minute)
		for i, d := range []admission.Decision{
			w.Take(t.Context(), keyOf(1), s.now()), m.Take(t.Context(), keyOf(1), s.now()), m.Read(t.Context(), keyOf(1), s.now()),
		} {
			if !d.Allowed {
				t.Errorf("%q: decision %d a day later: %+v, want it allowed", tt, i, d)
			}
		}
	}
}
