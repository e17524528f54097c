// Package limitstest holds every store of rate limits to the contracts of
// [admission.Windows] and [admission.Messages]: the one in memory, and any that
// several processes share. Only tests import it.
//
// A store describes itself in a [Store] and calls [TestWindows] and [TestMessages]
// from its own tests. The suite asks for windows of a minute and an hour and has
// the store pass them: a store in memory by the times that it is given, a shared
// one by whatever moves its server's time, such as an offset that its tests add.
// Where only the real clock can move, [Store.Length] makes the windows short.
//
// Time may pass by itself between two calls of the suite. What a test says of
// what must be allowed holds all the same; that something is still refused is
// only asked while less than [Store.Slack] has passed.
package limitstest

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"relayedge/admission"
)

// Store is what the suite needs to know of a store.
type Store struct {
	// Windows returns n instances that count together and have counted nothing yet.
	Windows func(t testing.TB, n int, limit int64, window time.Duration) []admission.Windows
	// Messages does the same for message limits.
	Messages func(t testing.TB, n int, c admission.MessageLimitsConfig, l admission.MessageLengths) []admission.Messages

	// Now is the time that the suite gives to the store.
	Now func() time.Time
	// Advance lets d pass for Now and for the store. It may let a little more pass.
	Advance func(d time.Duration)

	// Length is how long the suite's shortest windows last, and a minute of message
	// limits. An hour is three of it and a day nine. 0: a minute.
	Length time.Duration
	// Slack is by how much the store may be late to let go of what it has counted,
	// its own rounding and the time of a call included.
	Slack time.Duration
	// Steps says that the hour and the day slide in so many steps at least; what
	// the store has admitted may count for one of them longer. 0: exactly.
	Steps int
	// Instances is how many share the limits where that matters. 0: one.
	Instances int
	// Samples is how often a random phase is tried. 0: 1,000.
	Samples int
	// Left returns how many keys are left in the store. nil: it cannot tell.
	Left func(t testing.TB) int
}

// lengths returns the windows of message limits.
func (s Store) lengths() admission.MessageLengths {
	minute := s.length()
	return admission.MessageLengths{Minute: minute, Hour: 3 * minute, Day: 9 * minute}
}

func (s Store) length() time.Duration {
	if s.Length == 0 {
		return time.Minute
	}
	return s.Length
}

func (s Store) instances() int { return max(1, s.Instances) }

func (s Store) samples() int {
	if s.Samples == 0 {
		return 1000
	}
	return s.Samples
}

// keyOf returns the key of somebody, spread as keyed hashes are.
func keyOf(n int) admission.Key {
	var k admission.Key
	x := uint64(n)
	for i := 0; i < len(k); i += 8 {
		// splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(k[i:], z^z>>31)
	}
	return k
}

// failer is what a *testing.T and a *rapid.T have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func mustAllow(t failer, d admission.Decision) admission.Decision {
	t.Helper()
	if !d.Allowed || d.RetryAfter != 0 || d.Unavailable {
		t.Fatalf("%+v, want it allowed, without a wait", d)
	}
	return d
}

// mustRefuse wants a refusal whose wait is within the window, and whose two ways
// to tell the time agree.
func (s Store) mustRefuse(t failer, d admission.Decision, window time.Duration) admission.Decision {
	t.Helper()
	if d.Allowed || d.Unavailable || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter > window+s.Slack {
		t.Fatalf("%+v, want a refusal for at most %v", d, window)
	}
	if secs := d.RetryAfterSecs(); secs < 1 || time.Duration(secs)*time.Second < d.RetryAfter {
		t.Fatalf("Retry-After is %d for %v", secs, d.RetryAfter)
	}
	if apart := d.Reset.Sub(s.Now()) - d.RetryAfter; apart.Abs() > time.Second+s.Slack {
		t.Fatalf("%+v: reset and wait are %v apart", d, apart)
	}
	return d
}

// atOnce calls take n times at once, spread over the instances, and returns the decisions.
func atOnce(n, instances int, take func(instance int) admission.Decision) []admission.Decision {
	all := make([]admission.Decision, n)
	start := make(chan struct{})
	var callers sync.WaitGroup
	for i := range n {
		callers.Go(func() {
			<-start
			all[i] = take(i % instances)
		})
	}
	close(start)
	callers.Wait()
	return all
}

// wantCountdown wants just limit of the decisions allowed, each told another Remaining.
func wantCountdown(t failer, all []admission.Decision, limit int) {
	t.Helper()
	told := make([]int, limit)
	allowed := 0
	for _, d := range all {
		if !d.Allowed {
			continue
		}
		if allowed++; d.Remaining < 0 || d.Remaining >= int64(limit) {
			t.Fatalf("%+v of a limit of %d", d, limit)
		}
		told[d.Remaining]++
	}
	if allowed != limit {
		t.Fatalf("%d are allowed, want %d", allowed, limit)
	}
	for remaining, n := range told {
		if n != 1 {
			t.Fatalf("%d were told that %d remain, want 1", n, remaining)
		}
	}
}

func background(t testing.TB) context.Context { return t.Context() }
