package admission

import (
	"net/netip"
	"testing"
	"time"
)

// rated returns limits with a rate for hosts alone.
func rated(rate, burst int) Limits {
	l := wide()
	l.ConnectionRatePerIP, l.ConnectionBurstPerIP = rate, burst
	return l
}

func TestConnectionRate(t *testing.T) {
	tests := []struct {
		name string
		rate int
		gap  time.Duration // in which one connection is refilled
	}{
		{"1/s", 1, time.Second},
		{"20/s", 20, 50 * time.Millisecond},
		{"3/s, rounded up", 3, 333_333_334 * time.Nanosecond},
		{"100000/s", 100_000, 10 * time.Microsecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, now := newGate(t, rated(tt.rate, 5)), time.Now()
			for range 5 {
				mustAdmit(t, g, v4, now).Release()
			}
			mustRefuse(t, g, v4, now, ConnectionRate)
			mustAdmit(t, g, netip.MustParseAddr("192.0.2.11"), now).Release()
			for range 10 {
				mustRefuse(t, g, v4, now.Add(tt.gap-time.Nanosecond), ConnectionRate)
				now = now.Add(tt.gap)
				mustAdmit(t, g, v4, now).Release()
				mustRefuse(t, g, v4, now, ConnectionRate)
			}
			now = now.Add(24 * time.Hour) // refills the burst and no more
			for range 5 {
				mustAdmit(t, g, v4, now).Release()
			}
			mustRefuse(t, g, v4, now, ConnectionRate)
		})
	}
}

func TestConnectionRateOfASite(t *testing.T) {
	l := wide()
	l.ConnectionRatePerIPv648, l.ConnectionBurstPerIPv648 = 2, 3
	g, now := newGate(t, l), time.Now()
	for i := range 3 {
		mustAdmit(t, g, hostOf(1, i), now)
	}
	mustRefuse(t, g, hostOf(1, 9), now, ConnectionRate)
	mustAdmit(t, g, hostOf(2, 0), now)
	for range 10 {
		mustAdmit(t, g, v4, now) // IPv4 has no site
	}
	mustAdmit(t, g, hostOf(1, 9), now.Add(500*time.Millisecond))
}

// A row outlives its connections only until its bucket is full again.
func TestRowsLiveUntilTheBucketIsFull(t *testing.T) {
	l := rated(1, 10)
	l.ConnectionRatePerIPv648, l.ConnectionBurstPerIPv648 = 2, 10
	g, start := newGate(t, l), time.Now()
	var held []*Lease
	for range 4 {
		held = append(held, mustAdmit(t, g, v6, start))
	}
	wantHeld(t, g, start.Add(time.Hour), 4, 1, 1) // full, but with connections
	for _, lease := range held {
		lease.Release()
	}
	wantHeld(t, g, start.Add(time.Hour), 0, 0, 0)

	start = start.Add(2 * time.Hour)
	for range 4 {
		mustAdmit(t, g, v6, start).Release()
	}
	wantHeld(t, g, start.Add(2*time.Second-time.Nanosecond), 0, 1, 1)
	wantHeld(t, g, start.Add(2*time.Second), 0, 1, 0)
	wantHeld(t, g, start.Add(4*time.Second-time.Nanosecond), 0, 1, 0)
	wantHeld(t, g, start.Add(4*time.Second), 0, 0, 0)
}

// indebted returns a gate in which n hosts of n sites owe one second from start on.
func indebted(t *testing.T, n int) (g *Gate, start time.Time) {
	t.Helper()
	l := rated(1, 10)
	l.ConnectionRatePerIPv648, l.ConnectionBurstPerIPv648 = 1, 10
	g, start = newGate(t, l), time.Now()
	for i := range n {
		mustAdmit(t, g, hostOf(i, 0), start).Release()
	}
	return g, start
}

// wantRows compares the rows as they stand, without the sweep of Stats.
func wantRows(t *testing.T, g *Gate, hosts, sites int) {
	t.Helper()
	if h, s := len(g.hosts.index), len(g.sites.index); h != hosts || s != sites {
		t.Fatalf("%d hosts and %d sites stand, want %d and %d", h, s, hosts, sites)
	}
}

// Without Stats, decisions about others sweep what is full again: each of
// Admit, Name and Release drops its few rows.
func TestDecisionsSweep(t *testing.T) {
	g, start := indebted(t, 10*3*sweepRows)
	later := start.Add(time.Second)
	wantRows(t, g, 30*sweepRows, 30*sweepRows)
	var lease *Lease
	for left := 30 * sweepRows; left > 0; {
		for _, decide := range []func(){
			func() { lease = mustAdmit(t, g, nobody, later) },
			func() { lease.Name(nobody, later) },
			func() { lease.Release() },
		} {
			decide()
			left -= sweepRows
			wantRows(t, g, left, left)
		}
	}
}

// Stats drops any number of rows, however many one hold of the lock may drop.
func TestStatsSweepsAll(t *testing.T) {
	g, start := indebted(t, 10*statsRows+1)
	wantHeld(t, g, start, 0, 10*statsRows+1, 10*statsRows+1)
	wantHeld(t, g, start.Add(time.Second), 0, 0, 0)

	// A table of sites that is fuller than that of hosts is swept as well.
	l := wide()
	l.ConnectionRatePerIPv648, l.ConnectionBurstPerIPv648 = 1, 10
	setLimits(t, g, l)
	for i := range 2 * statsRows {
		mustAdmit(t, g, hostOf(i, 0), start).Release()
	}
	wantHeld(t, g, start, 0, 0, 2*statsRows)
	wantHeld(t, g, start.Add(time.Second), 0, 0, 0)
}

// A release takes the time of the latest call: what is full by then is dropped
// with its last connection.
func TestReleaseKnowsTheTime(t *testing.T) {
	later := time.Now().Add(time.Minute)
	for name, tell := range map[string]func(*Gate){
		"Admit": func(g *Gate) { g.Admit(nobody, later) },
		"Stats": func(g *Gate) { g.Stats(later) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t, rated(1, 10))
			lease := mustAdmit(t, g, v6, time.Now())
			tell(g)
			lease.Release()
			wantRows(t, g, 0, 0)
			if room := cap(g.hosts.debtors); room != 0 {
				t.Error("the row became a debtor first")
			}
		})
	}
}

// What is owed stays as time when the rate changes.
func TestRateChange(t *testing.T) {
	g, now := newGate(t, rated(1, 4)), time.Now()
	for range 4 {
		mustAdmit(t, g, v4, now) // owes 4 s
	}
	setLimits(t, g, rated(10, 20)) // a burst of 2 s
	mustRefuse(t, g, v4, now.Add(2100*time.Millisecond-time.Nanosecond), ConnectionRate)
	mustAdmit(t, g, v4, now.Add(2100*time.Millisecond))
	setLimits(t, g, rated(0, 1))
	for range 100 {
		mustAdmit(t, g, v4, now.Add(2100*time.Millisecond))
	}
	setLimits(t, g, rated(1, 4)) // what was let in without a rate owes nothing
	mustAdmit(t, g, v4, now.Add(2100*time.Millisecond))
	mustAdmit(t, g, v4, now.Add(2100*time.Millisecond))
	mustRefuse(t, g, v4, now.Add(2100*time.Millisecond), ConnectionRate)
}

// An observed rate counts what it would have refused in earnest, and leaves
// the debt as that refusal would have left it.
func TestObservedRateOwesNoMoreThanItsBurst(t *testing.T) {
	observed := rated(1, 5)
	observed.Observe = []string{keyHostRate}
	g, earnest, now := newGate(t, observed), newGate(t, rated(1, 5)), time.Now()
	refused := uint64(0)
	for range 100 {
		now = now.Add(300 * time.Millisecond)
		mustAdmit(t, g, v4, now).Release()
		if lease, reason := earnest.Admit(v4, now); reason != "" {
			refused++
		} else {
			lease.Release()
		}
	}
	if got := g.Observed(ConnectionRate); got != refused || refused == 0 {
		t.Errorf("observed %d, in earnest %d were refused", got, refused)
	}
	setLimits(t, g, rated(1, 5))
	now = now.Add(5 * time.Second)
	for range 5 {
		mustAdmit(t, g, v4, now)
	}
	mustRefuse(t, g, v4, now, ConnectionRate)
}

// A host whose rate is only observed is still held by its site's rate, which it
// pays while it can; what the site refuses costs neither of them.
func TestObservedHostUnderARatedSite(t *testing.T) {
	l := rated(1, 2)
	l.ConnectionRatePerIPv648, l.ConnectionBurstPerIPv648 = 1, 4
	l.Observe = []string{keyHostRate}
	g, now := newGate(t, l), time.Now()
	for range 4 {
		mustAdmit(t, g, v6, now)
	}
	for range 10 {
		mustRefuse(t, g, v6, now, ConnectionRate)
	}
	if got := g.Observed(ConnectionRate); got != 2 {
		t.Errorf("observed %d, want the 2 that were let in", got)
	}
	// In one second the site and the host have earned one connection each.
	mustAdmit(t, g, v6, now.Add(time.Second))
	mustRefuse(t, g, v6, now.Add(time.Second), ConnectionRate)
	if got := g.Observed(ConnectionRate); got != 2 {
		t.Errorf("observed %d, want 2 still: the host could pay", got)
	}
}

// Rates follow the monotonic clock: a step of the wall clock neither locks
// anyone out nor refills anything.
func TestSteppedWallClock(t *testing.T) {
	for _, step := range []time.Duration{-24 * time.Hour, -time.Hour, time.Hour, 24 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			g, now := newGate(t, rated(1, 2)), time.Now()
			mustAdmit(t, g, v4, now)
			mustAdmit(t, g, v4, now)
			now = stepWall(t, now, step)
			mustRefuse(t, g, v4, now.Add(time.Second-time.Nanosecond), ConnectionRate)
			mustAdmit(t, g, v4, now.Add(time.Second))
			mustRefuse(t, g, v4, now.Add(time.Second), ConnectionRate)
		})
	}
}

// Times that no clock reads are survived: before the gate's start, and as far
// away as a time can be.
func TestTimesOutOfReach(t *testing.T) {
	g := newGate(t, rated(1, 1))
	mustAdmit(t, g, v4, time.Time{})
	mustRefuse(t, g, v4, time.Time{}, ConnectionRate)
	far := time.Now().AddDate(1000, 0, 0)
	mustAdmit(t, g, v4, far)
	mustRefuse(t, g, v4, far, ConnectionRate)
	mustRefuse(t, g, v4, time.Now(), ConnectionRate)
	mustAdmit(t, g, v6, time.Now())
}
