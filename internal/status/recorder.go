package status

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	step   = 10 * time.Second
	hour   = time.Hour
	period = 5 * time.Minute
	// maxSamples are those of an hour with both its ends, and one before them, since
	// which the first counts. A machine that wakes from sleep makes up for no steps.
	maxSamples = int(hour/step) + 2
)

// Figures are what a Recorder keeps: a gauge and counters since the start.
type Figures struct {
	Connections                             int
	Accepted, Handshakes, BytesIn, BytesOut uint64
	Rejections                              []uint64 // by reason, always in the same order
}

// Recorder keeps the figures of the last hour, and no more of them than that takes.
// It may be used by several goroutines.
type Recorder struct {
	// Static.
	start  time.Time
	pauses int // the index of Rejections that is no refusal; -1: there is none

	mu      sync.Mutex
	samples []sample // guarded by mu; the oldest first
}

type sample struct {
	after time.Duration // since the start, by the monotonic clock
	Figures
}

// NewRecorder returns a recorder of a process that has started at start with all
// counters at 0. pauses is the index of a reason that counts read pauses, or -1.
func NewRecorder(start time.Time, pauses int) *Recorder {
	return &Recorder{start: start, pauses: pauses, samples: make([]sample, 0, maxSamples)}
}

// Started is when the process has.
func (r *Recorder) Started() time.Time { return r.start }

// Run records what read returns at once, and then at every step until ctx ends.
func (r *Recorder) Run(ctx context.Context, read func() Figures) {
	r.record(time.Now(), read())
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.record(time.Now(), read())
		}
	}
}

func (r *Recorder) record(now time.Time, f Figures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) == maxSamples {
		r.samples = slices.Delete(r.samples, 0, 1)
	}
	r.samples = append(r.samples, sample{now.Sub(r.start), f})
}

// Fill writes into s what comes of the figures f at now, and of the hour before.
// Rejections of s must have their reasons, in the order of f.
func (r *Recorder) Fill(s *Status, now time.Time, f Figures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := now.Sub(r.start)
	s.At, s.Started, s.UptimeSecs = now.UTC().Truncate(time.Second), r.start.UTC().Truncate(time.Second), int64(at/time.Second)
	minuteAgo, hourAgo := r.nearest(at-time.Minute), r.nearest(at-hour)
	counts := func(of func(Figures) uint64) Counts {
		total := of(f)
		return Counts{total, total - of(minuteAgo), total - of(hourAgo)}
	}
	s.Connections = Connections{f.Connections, counts(func(f Figures) uint64 { return f.Accepted })}
	s.Handshakes.Done = counts(func(f Figures) uint64 { return f.Handshakes })
	s.Bytes = Bytes{counts(func(f Figures) uint64 { return f.BytesIn }), counts(func(f Figures) uint64 { return f.BytesOut })}
	for i := range s.Rejections {
		s.Rejections[i].Counts = counts(func(f Figures) uint64 {
			if i < len(f.Rejections) {
				return f.Rejections[i]
			}
			return 0 // before the start
		})
	}
	s.History = r.history(now, at)
}

// nearest requires mu. It returns the figures that are known of the time nearest to
// after.
func (r *Recorder) nearest(after time.Duration) Figures {
	var best Figures // of the start
	distance := max(after, 0)
	for _, s := range r.samples {
		if d := (s.after - after).Abs(); after > 0 && d < distance {
			best, distance = s.Figures, d
		}
	}
	return best
}

// history requires mu.
func (r *Recorder) history(now time.Time, at time.Duration) History {
	h := History{
		StepSecs: int(step / time.Second),
		At:       []int64{}, Connections: []int{}, Accepted: []uint64{}, Rejections: []uint64{}, Handshakes: []uint64{}, BytesIn: []uint64{}, BytesOut: []uint64{},
		Periods: []Period{},
	}
	var before Figures
	for _, s := range r.samples {
		if s.after >= at-hour {
			h.At = append(h.At, now.Add(s.after-at).Unix())
			h.Connections = append(h.Connections, s.Connections)
			h.Accepted = append(h.Accepted, s.Accepted-before.Accepted)
			h.Rejections = append(h.Rejections, r.refused(s.Figures)-r.refused(before))
			h.Handshakes = append(h.Handshakes, s.Handshakes-before.Handshakes)
			h.BytesIn = append(h.BytesIn, s.BytesIn-before.BytesIn)
			h.BytesOut = append(h.BytesOut, s.BytesOut-before.BytesOut)
		}
		before = s.Figures
	}
	for i, unix := range h.At {
		from := time.Unix(unix, 0).UTC().Truncate(period)
		if n := len(h.Periods); n == 0 || !h.Periods[n-1].From.Equal(from) {
			h.Periods = append(h.Periods, Period{From: from})
		}
		p := &h.Periods[len(h.Periods)-1]
		p.ConnectionsMost = max(p.ConnectionsMost, h.Connections[i])
		p.Accepted += h.Accepted[i]
		p.Rejections += h.Rejections[i]
		p.BytesIn += h.BytesIn[i]
		p.BytesOut += h.BytesOut[i]
	}
	return h
}

func (r *Recorder) refused(f Figures) (n uint64) {
	for i, v := range f.Rejections {
		if i != r.pauses {
			n += v
		}
	}
	return n
}
