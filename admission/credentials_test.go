package admission

import (
	"testing"
	"time"
)

// Only a credential that is new costs its host, and one that is known is known
// from wherever it comes, as long as it is seen.
func TestCredentials(t *testing.T) {
	c, now := NewCredentials(2, 5*time.Minute), time.Now()
	ask := func(credential, host int, want bool) {
		t.Helper()
		if got := c.Apart(numbered(credential), numbered(host), now); got != want {
			t.Fatalf("credential %d of host %d is apart: %v, want %v", credential, host, got, want)
		}
	}
	ask(1, 1, true)
	ask(2, 1, true)
	for range 1000 {
		ask(3, 1, false)
		ask(1, 1, true)
		ask(2, 2, true)
	}
	ask(3, 2, true)
	ask(3, 1, true)
	now = now.Add(30 * time.Second)
	ask(4, 1, true)
	ask(5, 1, false)
	// 1 is seen every four minutes, the others never.
	for range 3 {
		now = now.Add(4 * time.Minute)
		ask(1, 3, true)
	}
	if n := c.Rows(now); n != 1 {
		t.Fatalf("%d are known, want 1", n)
	}
	c.SetLimit(1, time.Minute)
	ask(1, 4, true)
	ask(6, 4, true)
	ask(7, 4, false)
	now = now.Add(time.Minute)
	if n := c.Rows(now); n != 0 {
		t.Fatalf("%d are known, want none", n)
	}
}

// However many hosts invent credentials, as many as are known at once are known,
// and hosts that bring no new ones are not in the way.
func TestCredentialsAreBounded(t *testing.T) {
	c, now := NewCredentials(2, time.Minute), time.Now()
	c.rows.bound = 1000
	for i := range 10_000 {
		c.Apart(numbered(i), numbered(i/2), now)
	}
	if n := c.Rows(now); n != 1000 {
		t.Fatalf("%d are known, want 1,000", n)
	}
	if c.Apart(numbered(10_001), numbered(1_000_000), now) {
		t.Error("one more is counted apart")
	}
	if !c.Apart(numbered(999), numbered(1_000_000), now) {
		t.Error("a known one is forgotten")
	}
	if n := testing.AllocsPerRun(1000, func() { c.Apart(numbered(999), numbered(1), now) }); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}
