package main_test

import (
	"crypto/rand"
	"syscall"
	"testing"
	"time"

	"relayedge/internal/testredis"
)

// What a credential has used of its window is the same after a reload and, with a
// store, after a restart of the edge: neither forgotten nor inflated.
func TestRequestWindowOutlastsItsEdge(t *testing.T) {
	t.Parallel()
	const limit = 6
	store := testredis.Start(t)
	policy := requestPolicy(t, redisSection(t, store), limit, time.Hour)
	for attempt := range 8 {
		// A decision that took longer than it may can stand charged all the same: then
		// another credential has to say it all.
		credential := rand.Text()
		var late int64
		ask := func(e *edge, times, wantOK int) {
			t.Helper()
			r, err := newRequester(t.Context(), "127.0.0.1", e, credential)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var a tally
			for range times {
				if err := r.ask(&a); err != nil {
					t.Fatal(err)
				}
			}
			late += a.unavailable.Load()
			if late == 0 && (a.ok.Load() != int64(wantOK) || a.limited.Load() != int64(times-wantOK)) {
				t.Errorf("of %d requests: %v, want %d let through", times, &a, wantOK)
			}
		}
		first := runEdge(t, policy)
		ask(first, 2, 2)
		if err := first.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		first.shows(t, `relayedge_reloads_total{result="applied"} 1`)
		ask(first, 1, 1)
		first.terminate(t)
		if code, err := first.ended(); code != 0 || err != nil {
			t.Fatalf("ended with %d, %v", code, err)
		}
		second := runEdge(t, policy)
		ask(second, limit, limit-3)
		second.terminate(t)
		if late == 0 {
			return
		}
		t.Logf("attempt %d: %d decisions were late", attempt, late)
	}
	t.Error("the store was too slow each time")
}
