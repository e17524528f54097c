package admission

import (
	"context"
	"net/netip"
	"testing"
	"time"
)

// What one process counted the next goes on with, and a window ends when it would have.
func TestWindowsAreInherited(t *testing.T) {
	const length = time.Minute
	now := time.Now()
	old := NewFixedWindows(3, length)
	take := func(w *FixedWindows, key int, allowed bool, remaining int64) {
		t.Helper()
		if d := w.Take(t.Context(), numbered(key), now); d.Allowed != allowed || d.Remaining != remaining {
			t.Fatalf("key %d: %+v, want %v with %d left", key, d, allowed, remaining)
		}
	}
	take(old, 1, true, 2)
	now = now.Add(length / 2)
	take(old, 1, true, 1)
	take(old, 2, true, 2)
	take(old, 3, true, 2)
	asked, answers := 0, true
	rows := old.Retire(func(context.Context, Key) (Decision, bool) {
		asked++
		return Decision{Allowed: true, Remaining: 7}, answers
	}, now)
	if len(rows) != 3 {
		t.Fatalf("%d windows are handed over", len(rows))
	}
	take(old, 1, true, 7)
	answers = false
	take(old, 3, true, 1) // nobody counts in its place
	answers = true
	old.Resume()
	take(old, 3, true, 0)
	if asked != 2 {
		t.Errorf("%d requests were asked for", asked)
	}

	next := NewFixedWindows(3, length)
	next.Inherit(rows, now)
	take(next, 1, true, 0)
	take(next, 1, false, 0)
	take(next, 2, true, 1)
	now = now.Add(length/2 - time.Nanosecond)
	take(next, 1, false, 0)
	now = now.Add(time.Nanosecond)
	take(next, 1, true, 2)
	take(next, 2, true, 0)
	now = now.Add(length)
	if n := next.Rows(now); n != 0 {
		t.Errorf("%d windows are open", n)
	}
}

func TestCredentialsAreInherited(t *testing.T) {
	now := time.Now()
	old := NewCredentials(2, time.Minute)
	for i := range 2 {
		if !old.Apart(numbered(i), numbered(100), now) {
			t.Fatal("a new credential is not taken")
		}
		now = now.Add(20 * time.Second)
	}
	next := NewCredentials(1, time.Minute)
	next.Inherit(old.Known(now), now)
	for i := range 2 {
		if !next.Apart(numbered(i), numbered(100), now) {
			t.Errorf("credential %d is not known", i)
		}
	}
	if !next.Apart(numbered(2), numbered(100), now) || next.Apart(numbered(3), numbered(100), now) {
		t.Error("known credentials have cost their host")
	}
	if got := next.Rows(now.Add(time.Minute)); got != 0 {
		t.Errorf("%d credentials are known", got)
	}
}

// What a gate is told of a row binds as what it has itself: with its debt.
func TestPredecessorsDebt(t *testing.T) {
	l := DefaultLimits()
	l.ConnectionRatePerIP, l.ConnectionBurstPerIP = 1, 3
	old, err := NewGate(l)
	if err != nil {
		t.Fatal(err)
	}
	now, addr := time.Now(), netip.MustParseAddr("192.0.2.1")
	var leases []*Lease
	for range 2 {
		lease, reason := old.Admit(addr, now)
		if reason != "" {
			t.Fatal(reason)
		}
		leases = append(leases, lease)
	}
	for _, lease := range leases {
		lease.Release()
	}
	next, err := NewSuccessor(l, old.Secret())
	if err != nil {
		t.Fatal(err)
	}
	p := next.Predecessor()
	if err := p.Hold(old.Trail().Next(100, now), now); err != nil {
		t.Fatal(err)
	}
	if _, reason := next.Admit(addr, now); reason != "" {
		t.Errorf("within the burst: %q", reason)
	}
	if _, reason := next.Admit(addr, now); reason != ConnectionRate {
		t.Errorf("beyond the burst: %q", reason)
	}
	p.Gone()
	if _, reason := next.Admit(addr, now); reason != ConnectionRate {
		t.Errorf("the debt went with the process: %q", reason)
	}
	if st := next.Stats(now.Add(time.Hour)); st.Connections != 1 || st.Hosts != 1 {
		t.Errorf("%+v", st)
	}
}
