package status

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// An hour and more in synthetic time: what is kept, and what is forgotten.
func TestRecorderOverAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now() // in a bubble: midnight of the first of January 2000, UTC
		r := NewRecorder(start, 1)
		// Each second one connection comes, every tenth is refused, every fifth pauses.
		read := func() Figures {
			n := uint64(time.Since(start) / time.Second)
			return Figures{Connections: int(n % 100), Accepted: n, Handshakes: 2 * n, BytesIn: 100 * n, BytesOut: 1000 * n, Rejections: []uint64{n / 10, n / 5}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.Run(ctx, read); close(done) }()
		fill := func() Status {
			synctest.Wait()
			s := Status{Rejections: []Rejection{{Reason: "a"}, {Reason: "rate_limit"}}}
			r.Fill(&s, time.Now(), read())
			return s
		}

		s := fill()
		if !slices.Equal(s.History.At, []int64{start.Unix()}) || s.UptimeSecs != 0 || s.Connections.Accepted != (Counts{}) {
			t.Errorf("at the start: %+v", s)
		}
		time.Sleep(34 * time.Second)
		s = fill()
		if !slices.Equal(s.History.At, []int64{start.Unix(), start.Unix() + 10, start.Unix() + 20, start.Unix() + 30}) ||
			!slices.Equal(s.History.Accepted, []uint64{0, 10, 10, 10}) || !slices.Equal(s.History.Rejections, []uint64{0, 1, 1, 1}) ||
			!slices.Equal(s.History.Connections, []int{0, 10, 20, 30}) {
			t.Errorf("after 34 seconds: %+v", s.History)
		}
		if want := (Counts{34, 34, 34}); s.Connections.Accepted != want {
			t.Errorf("%+v, want %+v", s.Connections.Accepted, want)
		}

		time.Sleep(86 * time.Second) // two minutes
		s = fill()
		for name, row := range map[string][2]Counts{
			"accepted":   {s.Connections.Accepted, {120, 60, 120}},
			"handshakes": {s.Handshakes.Done, {240, 120, 240}},
			"in":         {s.Bytes.In, {12_000, 6_000, 12_000}},
			"out":        {s.Bytes.Out, {120_000, 60_000, 120_000}},
			"a":          {s.Rejections[0].Counts, {12, 6, 12}},
			"rate_limit": {s.Rejections[1].Counts, {24, 12, 24}},
		} {
			if row[0] != row[1] {
				t.Errorf("%s: %+v, want %+v", name, row[0], row[1])
			}
		}
		time.Sleep(4 * time.Second)
		if got := fill().Connections.Accepted.Minute; got != 64 { // since the sample at 60, which is nearest to 64
			t.Errorf("in the last minute %d", got)
		}
		time.Sleep(2 * time.Second)
		if got := fill().Connections.Accepted.Minute; got != 56 { // since the one at 70
			t.Errorf("in the last minute %d", got)
		}

		time.Sleep(2*time.Hour - 126*time.Second)
		s = fill()
		h := s.History
		for name, n := range map[string]int{"at": len(h.At), "connections": len(h.Connections), "accepted": len(h.Accepted), "rejections": len(h.Rejections), "handshakes": len(h.Handshakes), "in": len(h.BytesIn), "out": len(h.BytesOut)} {
			if n != 361 { // both ends
				t.Errorf("after two hours %s has %d", name, n)
			}
		}
		if h.At[0] != time.Now().Unix()-3600 || h.Accepted[0] != 10 || h.At[360] != time.Now().Unix() {
			t.Errorf("the hour is from %d with %d to %d", h.At[0], h.Accepted[0], h.At[360])
		}
		if want := (Counts{7200, 60, 3600}); s.Connections.Accepted != want || s.UptimeSecs != 7200 {
			t.Errorf("%+v after %d, want %+v", s.Connections.Accepted, s.UptimeSecs, want)
		}
		if n := len(r.samples); n != maxSamples || cap(r.samples) != maxSamples {
			t.Errorf("%d samples are kept, in room for %d", n, cap(r.samples))
		}
		// By the clock: thirteen, since the hour ends where the last begins.
		if n := len(h.Periods); n != 13 {
			t.Fatalf("%d periods", n)
		}
		want := Period{start.UTC().Add(65 * time.Minute), 90, 300, 30, 30_000, 300_000}
		if h.Periods[1] != want {
			t.Errorf("%+v, want %+v", h.Periods[1], want)
		}
		cancel()
		<-done
	})
}

// A process that did not run for a while, asleep or held up, counts what came
// since the sample before, and knows when that was.
func TestRecorderAfterAGap(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := NewRecorder(start, -1)
	r.record(start.Add(10*time.Second), Figures{Accepted: 5})
	r.record(start.Add(30*time.Minute), Figures{Accepted: 7})
	var s Status
	r.Fill(&s, start.Add(30*time.Minute+time.Second), Figures{Accepted: 8})
	if !slices.Equal(s.History.Accepted, []uint64{5, 2}) || !slices.Equal(s.History.At, []int64{start.Unix() + 10, start.Unix() + 1800}) || len(s.History.Periods) != 2 {
		t.Errorf("%+v", s.History)
	}
	if want := (Counts{8, 1, 8}); s.Connections.Accepted != want {
		t.Errorf("%+v, want %+v", s.Connections.Accepted, want)
	}
	if got := rates(s, s.History.Accepted); !slices.Equal(got, []uint64{5, 0}) {
		t.Errorf("tenths a second: %v", got)
	}
}
