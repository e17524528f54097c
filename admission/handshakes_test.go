package admission

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func nothing() {}

// enter takes a place for the source or ends the test.
func enter(t testing.TB, h *Handshakes, source netip.Prefix, now time.Time, evicted func()) *Place {
	t.Helper()
	p, ok := h.Enter(source, now, evicted)
	if !ok || p == nil {
		t.Fatalf("Enter(%v) = %v, %v, want a place", source, p, ok)
	}
	return p
}

// Many addresses that each hold one silent handshake do not lock out a newcomer
// for more than a second, and one source that holds them all does not at all.
func TestSilentHandshakesLockNobodyOut(t *testing.T) {
	const places = 1024
	newcomer := netip.MustParsePrefix("203.0.113.1/32")
	for _, tt := range []struct {
		name   string
		source func(i int) netip.Prefix
		young  bool // whether handshakes of up to a second keep their places
	}{
		{"one address", func(int) netip.Prefix { return netip.MustParsePrefix("192.0.2.1/32") }, false},
		{"one /48", func(int) netip.Prefix { return netip.MustParsePrefix("2001:db8::/48") }, false},
		{"no address", func(int) netip.Prefix { return netip.Prefix{} }, false},
		{"two each", func(i int) netip.Prefix { return sourceOf(i / 2) }, false},
		{"one each", sourceOf, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, start := NewHandshakes(places), time.Now()
			var evicted []int
			var silent []*Place
			for i := range places {
				silent = append(silent, enter(t, h, tt.source(i), start, func() { evicted = append(evicted, i) }))
			}
			if len(evicted) > 0 {
				t.Fatalf("%d were evicted while places were free", len(evicted))
			}
			now := start
			if tt.young {
				for _, age := range []time.Duration{-time.Hour, 0, time.Second} {
					if p, ok := h.Enter(newcomer, start.Add(age), nothing); ok || p != nil {
						t.Errorf("let in at an age of %v", age)
					}
				}
				now = start.Add(time.Second + time.Nanosecond)
			}
			p := enter(t, h, newcomer, now, func() { t.Error("the newcomer was evicted") })
			if !slices.Equal(evicted, []int{0}) {
				t.Errorf("evicted %v, want the oldest of the heaviest", evicted)
			}
			if n := h.InFlight(); n != places {
				t.Errorf("%d places are taken of %d", n, places)
			}
			if silent[0].Leave() {
				t.Error("the evicted one leaves a place that it has no more")
			}
			if !p.Leave() || p.Leave() || h.InFlight() != places-1 {
				t.Errorf("after the newcomer %d places are taken, want %d", h.InFlight(), places-1)
			}
		})
	}
}

// A source that is as heavy as the heaviest, or would be with the newcomer, has no
// more by opening faster: it takes the places of its own handshakes, or of its
// equals, and only of those that had their second.
func TestHandshakeRule(t *testing.T) {
	a, b, c := sourceOf(1), sourceOf(2), sourceOf(3)
	const old, young = 1100 * time.Millisecond, time.Second
	type one struct {
		source netip.Prefix
		age    time.Duration
	}
	for _, tt := range []struct {
		name   string
		open   []one // in the order in which they came
		source netip.Prefix
		want   int // who makes way; -1: nobody, the newcomer is refused
	}{
		{"w+1 < h: the heaviest's oldest, however young", []one{{b, old}, {a, 0}, {a, 0}, {a, 0}}, b, 1},
		{"w+1 < h: of two heaviest the one with the oldest", []one{{b, old}, {b, 0}, {a, 0}, {a, 0}}, c, 0},
		{"w+1 < h: not the oldest of a lighter one", []one{{b, old}, {a, 0}, {a, 0}}, c, 1},
		{"w+1 = h: the oldest of the heaviest, over a second old", []one{{b, old}, {a, old}, {a, 0}}, b, 1},
		{"w+1 = h: refused if that is a second old", []one{{b, old}, {a, young}, {a, 0}}, b, -1},
		{"w+1 = h: of all heaviest the oldest", []one{{c, old}, {a, old}, {b, old}, {b, old}, {a, old}}, c, 1},
		{"w+1 = h: all hold one", []one{{a, old}, {b, old}}, c, 0},
		{"w+1 = h: all hold one and are young", []one{{a, young}, {b, young}}, c, -1},
		{"w+1 > h: its own oldest, though others are older", []one{{b, 2 * old}, {b, 2 * old}, {a, old}, {a, 0}}, a, 2},
		{"w+1 > h: its own is young", []one{{b, old}, {b, old}, {a, young}, {a, 0}}, a, -1},
		{"w+1 > h: alone", []one{{a, old}, {a, old}}, a, 0},
		{"w+1 > h: one each, its own", []one{{b, old}, {a, old}}, a, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, now, lost := NewHandshakes(len(tt.open)), time.Now(), -1
			for i, o := range tt.open {
				enter(t, h, o.source, now.Add(-o.age), func() { lost = i })
			}
			if lost >= 0 {
				t.Fatalf("%d was evicted while places were free", lost)
			}
			if _, ok := h.Enter(tt.source, now, nothing); ok != (tt.want >= 0) || lost != tt.want {
				t.Errorf("let in: %v, and %d makes way, want %d", ok, lost, tt.want)
			}
			if n := h.InFlight(); n != len(tt.open) {
				t.Errorf("%d are in flight, want %d", n, len(tt.open))
			}
		})
	}
}

// The age is one of the monotonic clock.
func TestHandshakesUnderASteppedClock(t *testing.T) {
	h, now := NewHandshakes(1), time.Now()
	enter(t, h, sourceOf(1), now, nothing)
	if _, ok := h.Enter(sourceOf(2), stepWall(t, now, time.Hour), nothing); ok {
		t.Error("a clock that was set forward evicts")
	}
	if _, ok := h.Enter(sourceOf(2), stepWall(t, now.Add(2*time.Second), -time.Hour), nothing); !ok {
		t.Error("a clock that was set back locks out")
	}
}

func TestHandshakesSetMost(t *testing.T) {
	h, now := NewHandshakes(4), time.Now()
	evicted := 0
	var places []*Place
	for i := range 4 {
		places = append(places, enter(t, h, sourceOf(i), now, func() { evicted++ }))
	}
	h.SetMost(2)
	if h.InFlight() != 4 || evicted != 0 {
		t.Errorf("%d are in flight, %d were evicted by a change", h.InFlight(), evicted)
	}
	if _, ok := h.Enter(sourceOf(9), now, nothing); ok {
		t.Error("let in above the limit")
	}
	places[0].Leave()
	places[1].Leave()
	if _, ok := h.Enter(sourceOf(9), now, nothing); ok {
		t.Error("let in at the limit")
	}
	places[2].Leave()
	enter(t, h, sourceOf(9), now, nothing)
	h.SetMost(3)
	enter(t, h, sourceOf(8), now, nothing)
	if h.InFlight() != 3 || evicted != 0 {
		t.Errorf("%d are in flight, %d evicted", h.InFlight(), evicted)
	}
	for _, most := range []int{0, -1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d places are taken for a limit", most)
				}
			}()
			h.SetMost(most)
		}()
	}
}

func TestNoPlaceLeaves(t *testing.T) {
	var p *Place
	if p.Leave() {
		t.Error("no place was held")
	}
}

// An evicted handshake may do with the places what it likes: no lock is held.
func TestEvictedMayComeBack(t *testing.T) {
	h, now := NewHandshakes(1), time.Now()
	var p *Place
	calls := 0
	p = enter(t, h, sourceOf(1), now, func() {
		calls++
		if p.Leave() {
			t.Error("it still has its place")
		}
		h.InFlight()
		if _, ok := h.Enter(sourceOf(3), now.Add(2*time.Second), nothing); ok {
			t.Error("the newcomer, young, was evicted in turn")
		}
	})
	second := enter(t, h, sourceOf(2), now.Add(2*time.Second), nothing)
	if calls != 1 || p.Leave() || !second.Leave() || h.InFlight() != 0 {
		t.Errorf("%d calls, %d in flight", calls, h.InFlight())
	}
}

// The places go as the naive rule says, over any sequence of entries, leaves,
// pauses and changes of the limit.
func TestHandshakesAgainstModel(t *testing.T) {
	type handshake struct {
		place   *Place
		source  int
		entered time.Duration
		open    bool
		evicted int
	}
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 8).Draw(t, "most")
		h, start, now := NewHandshakes(most), time.Now(), time.Duration(0)
		var all []*handshake // in the order in which they came
		of := func(source int) (open []*handshake) {
			for _, hs := range all {
				if hs.open && (source < 0 || hs.source == source) {
					open = append(open, hs)
				}
			}
			return open
		}
		// loser recounts who makes way for a newcomer of the source.
		loser := func(source int) *handshake {
			h := 0
			for s := range 5 {
				h = max(h, len(of(s)))
			}
			w := len(of(source))
			var candidates []*handshake
			for _, hs := range of(-1) {
				heaviest := len(of(hs.source)) == h
				overASecond := now-hs.entered > time.Second
				switch {
				case w+1 < h && heaviest, w+1 == h && heaviest && overASecond, w+1 > h && hs.source == source && overASecond:
					candidates = append(candidates, hs)
				}
			}
			if len(candidates) == 0 {
				return nil
			}
			return candidates[0]
		}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				source := min(rapid.IntRange(0, 7).Draw(t, "source"), 4)
				hs := &handshake{source: source, entered: now, open: true}
				var prefix netip.Prefix
				if source > 0 {
					prefix = sourceOf(source)
				}
				full := len(of(-1)) >= most
				var out *handshake
				if full {
					out = loser(source)
				}
				place, ok := h.Enter(prefix, start.Add(now), func() { hs.evicted++ })
				if ok != (!full || out != nil) || ok != (place != nil) {
					t.Fatalf("a newcomer of %d is let in: %v", source, ok)
				}
				if !ok {
					return
				}
				if out != nil {
					if out.evicted != 1 {
						t.Fatalf("the %d-th of %d was not evicted", slices.Index(all, out), source)
					}
					out.open = false
				}
				hs.place = place
				all = append(all, hs)
			},
			"leave": func(t *rapid.T) {
				if len(all) == 0 {
					t.Skip("nobody there")
				}
				hs := rapid.SampledFrom(all).Draw(t, "handshake") // those that have left among them
				if held := hs.place.Leave(); held != hs.open {
					t.Fatalf("it held its place: %v, want %v", held, hs.open)
				}
				hs.open = false
			},
			"wait": func(t *rapid.T) {
				now += rapid.SampledFrom([]time.Duration{1, time.Second / 3, time.Second - 1, time.Second, time.Second + 1}).Draw(t, "wait")
			},
			"set most": func(t *rapid.T) {
				most = rapid.IntRange(1, 8).Draw(t, "most")
				h.SetMost(most)
			},
			"": func(t *rapid.T) {
				if got, want := h.InFlight(), len(of(-1)); got != want {
					t.Fatalf("%d are in flight, want %d", got, want)
				}
				for i, hs := range all {
					if hs.evicted > 1 || hs.open && hs.evicted > 0 {
						t.Fatalf("the %d-th, open %v, was evicted %d times", i, hs.open, hs.evicted)
					}
				}
				h.places.check(t)
			},
		})
	})
}

// Under concurrency the limit holds exactly, each handshake is evicted or leaves,
// never both, and all places come back.
func TestHandshakesConcurrently(t *testing.T) {
	const most, workers, rounds = 16, 8, 3000
	h, start := NewHandshakes(most), time.Now()
	var ran, evicted, left, let atomic.Int64
	var workersDone sync.WaitGroup
	for w := range workers {
		workersDone.Go(func() {
			var mine []*Place
			for i := range rounds {
				if n := h.InFlight(); n > most {
					t.Errorf("%d of %d places are taken", n, most)
					return
				}
				p, ok := h.Enter(sourceOf((w*7+i*i)%11), start.Add(time.Duration(i)*time.Second/10), func() { ran.Add(1) })
				if ok {
					let.Add(1)
					mine = append(mine, p)
				}
				if len(mine) > 3 {
					switch {
					case mine[0].Leave():
						left.Add(1)
					default:
						evicted.Add(1)
					}
					mine = mine[1:]
				}
				runtime.Gosched()
			}
			for _, p := range mine {
				if p.Leave() {
					left.Add(1)
				} else {
					evicted.Add(1)
				}
			}
		})
	}
	workersDone.Wait()
	if ran.Load() != evicted.Load() || left.Load()+evicted.Load() != let.Load() || ran.Load() == 0 {
		t.Errorf("%d were let in, %d left, %d found themselves evicted, %d were told", let.Load(), left.Load(), evicted.Load(), ran.Load())
	}
	if h.InFlight() != 0 || h.places.Sources() != 0 {
		t.Errorf("%d in flight of %d sources at the end", h.InFlight(), h.places.Sources())
	}
}
