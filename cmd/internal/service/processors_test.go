package service

import (
	"context"
	"runtime"
	"testing"
	"time"
)

func TestProcessors(t *testing.T) {
	type stretch struct{ looks, share, count int } // share of a processor, in thousandths
	for _, row := range []struct {
		name      string
		most      int
		stretches []stretch
	}{
		{"rest", 8, []stretch{{1000, 0, 1}}},
		{"what one carries", 8, []stretch{{1000, crowded - 1, 1}}},
		{"a few looks are no load", 8, []stretch{{3, 1000, 1}, {1, 0, 1}, {3, 1000, 1}}},
		{"more than one carries", 8, []stretch{{4, crowded, 2}}},
		{"more each time", 8, []stretch{{4, 1000, 2}, {4, 2000, 4}, {4, 4000, 8}, {20, 8000, 8}}},
		{"no more than were given", 3, []stretch{{4, 1000, 2}, {4, 2000, 3}, {20, 3000, 3}}},
		{"load that is carried", 8, []stretch{{4, 1000, 2}, {1000, 2*crowded - 1, 2}}},
		{"a load that has gone", 8, []stretch{{4, 1000, 2}, {4, 2000, 4}, {29, 0, 4}, {1, 0, 3}, {30, 0, 2}, {30, 0, 1}, {500, 0, 1}}},
		{"what one less would hardly carry", 8, []stretch{{4, 1000, 2}, {1000, roomy, 2}}},
		{"what one less carries", 8, []stretch{{4, 1000, 2}, {30, roomy - 1, 1}}},
		{"rest that is interrupted", 8, []stretch{{4, 1000, 2}, {29, 0, 2}, {1, 1000, 2}, {29, 0, 2}, {1, 0, 1}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			now := time.Unix(0, 0)
			p := processors{most: row.most, count: 1, looked: now}
			used := time.Duration(0)
			for i, s := range row.stretches {
				count := 0
				for range s.looks {
					now = now.Add(processorPause)
					used += processorPause * time.Duration(s.share) / 1000
					count = p.look(used, now)
				}
				if count != s.count {
					t.Fatalf("stretch %d: %d processors, want %d", i+1, count, s.count)
				}
			}
		})
	}
}

// At its end the program has what it was given; GOMAXPROCS is obeyed.
func TestProcessorsAsNeeded(t *testing.T) {
	given := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(given)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		ProcessorsAsNeeded(ctx)
		close(done)
	}()
	for runtime.GOMAXPROCS(0) != 1 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	if n := runtime.GOMAXPROCS(0); n != 2 {
		t.Errorf("%d processors are left", n)
	}
	t.Setenv("GOMAXPROCS", "2")
	ProcessorsAsNeeded(t.Context()) // returns at once
	if n := runtime.GOMAXPROCS(0); n != 2 {
		t.Errorf("%d processors, where GOMAXPROCS says 2", n)
	}
}
