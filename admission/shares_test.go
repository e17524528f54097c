package admission

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// sourceOf returns the n-th of many sources, of both families.
func sourceOf(n int) netip.Prefix {
	if n%2 == 0 {
		return Source(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), nil)
	}
	return Source(hostOf(n, n>>16), nil)
}

// check holds the ledger's parts against each other.
func (s *Shares[T]) check(t failer) {
	t.Helper()
	var held int64
	for i, row := range s.heap {
		if row.at != i || s.sources[row.source] != row {
			t.Fatalf("the row at %d believes to be at %d, the index has %p for %p", i, row.at, s.sources[row.source], row)
		}
		if i > 0 && row.heavier(s.heap[(i-1)/2]) {
			t.Fatalf("the row at %d is heavier than the one above", i)
		}
		var amount int64
		var older *Holding[T]
		for h := row.Oldest; h != nil; older, h = h, h.newer {
			if h.older != older || h.share != row || h.source != row.source || h.amount <= 0 || older != nil && older.order >= h.order {
				t.Fatalf("a holding of the row at %d is out of place", i)
			}
			amount += h.amount
		}
		if row.Newest != older || row.Amount != amount || amount == 0 {
			t.Fatalf("the row at %d has %d, its holdings %d", i, row.Amount, amount)
		}
		held += amount
	}
	if len(s.sources) != len(s.heap) || s.held != held {
		t.Fatalf("%d rows and %d in the index, %d held and %d in the rows", len(s.heap), len(s.sources), s.held, held)
	}
	if s.peak >= shrinkFrom && (len(s.heap) < s.peak/4 || cap(s.heap) > 4*s.peak) {
		t.Fatalf("room for %d, a peak of %d and %d in use", cap(s.heap), s.peak, len(s.heap))
	}
}

// The ledger names what a recount of all holdings names.
func TestSharesAgainstModel(t *testing.T) {
	const sources = 20 // so many that a row may come from another part of the heap
	type item struct {
		real   Holding[int]
		source int
		amount int64
		began  int
	}
	rapid.Check(t, func(t *rapid.T) {
		s, began := NewShares[int](), 0
		items := make([]*item, 32)
		for i := range items {
			source := i % sources
			items[i] = &item{source: source}
			var prefix netip.Prefix // the source of all without an address
			if source > 0 {
				prefix = sourceOf(source)
			}
			items[i].real = s.Holding(prefix, i)
		}
		of := func(source int) (all []*item, amount int64) {
			for _, it := range items {
				if it.source == source && it.amount > 0 {
					all, amount = append(all, it), amount+it.amount
				}
			}
			slices.SortFunc(all, func(a, b *item) int { return a.began - b.began })
			return all, amount
		}
		compare := func(what string, got Share[int], source int) {
			all, amount := of(source)
			if got.Amount != amount {
				t.Fatalf("%s: %d, want %d", what, got.Amount, amount)
			}
			h := got.Oldest
			for _, it := range all {
				if h == nil || h.Owner != it.real.Owner || h.Amount() != it.amount {
					t.Fatalf("%s: %+v, want the holding of %d", what, h, it.real.Owner)
				}
				if h.Newer() == nil && got.Newest != h {
					t.Fatalf("%s: the last is not the newest", what)
				}
				h = h.Newer()
			}
			if h != nil || len(all) == 0 && got != (Share[int]{}) {
				t.Fatalf("%s: more than is held: %+v", what, got)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				it := rapid.SampledFrom(items).Draw(t, "item")
				n := rapid.Int64Range(-it.amount, 4).Draw(t, "amount")
				if it.amount == 0 && n > 0 {
					began++
					it.began = began
				}
				it.amount += n
				s.Add(&it.real, n)
			},
			"drop": func(t *rapid.T) {
				it := rapid.SampledFrom(items).Draw(t, "item")
				it.amount = 0
				s.Drop(&it.real)
			},
			"": func(t *rapid.T) {
				s.check(t)
				heaviest, most, oldest, held, holding := 0, int64(0), 0, int64(0), 0
				for source := range sources {
					all, amount := of(source)
					held += amount
					if amount > 0 {
						holding++
					}
					if amount > most || amount > 0 && amount == most && all[0].began < oldest {
						heaviest, most, oldest = source, amount, all[0].began
					}
				}
				compare("heaviest", s.Heaviest(), heaviest)
				for _, it := range items {
					compare("of", s.Of(&it.real), it.source)
				}
				if s.Held() != held || s.Sources() != holding {
					t.Fatalf("%d held by %d sources, want %d by %d", s.Held(), s.Sources(), held, holding)
				}
			},
		})
	})
}

// Each kind of source has its own row, however the parts of their keys resemble each other.
func TestSourcesAreToldApart(t *testing.T) {
	s := NewShares[string]()
	all := append(prefixes("0.0.0.0/32", "::/48", "::/128", "::/32", "10.0.0.0/32", "10.0.0.1/32", "a00::/48"), netip.Prefix{})
	for _, p := range all {
		for range 2 {
			h := s.Holding(p, p.String())
			s.Add(&h, 1)
		}
	}
	if s.Sources() != len(all) || s.Heaviest().Amount != 2 {
		t.Errorf("%d sources with at most %d, want %d with 2", s.Sources(), s.Heaviest().Amount, len(all))
	}
	s.check(t)
	if mapped := s.Holding(netip.MustParsePrefix("::ffff:10.0.0.1/128"), ""); s.Of(&mapped).Amount != 2 {
		t.Error("an IPv4 address in IPv6 form is another source")
	}
	other := NewShares[string]()
	if s.Holding(all[0], "").source == other.Holding(all[0], "").source {
		t.Error("two ledgers have one secret")
	}
}

func TestHoldingGivesBackNoMoreThanItHolds(t *testing.T) {
	s := NewShares[int]()
	h := s.Holding(sourceOf(1), 0)
	s.Add(&h, 3)
	defer func() {
		if recover() == nil || h.Amount() != 3 || s.Held() != 3 {
			t.Errorf("%d of %d", h.Amount(), s.Held())
		}
	}()
	s.Add(&h, -4)
}

// The memory of a burst goes away, also while some of it stays.
func TestSharesShrink(t *testing.T) {
	inUse := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const burst, stay = 100_000, 100
	s := NewShares[int]()
	holdings := make([]Holding[int], burst)
	before := inUse()
	for i := range holdings {
		holdings[i] = s.Holding(sourceOf(i), i)
		s.Add(&holdings[i], 1)
	}
	if full := inUse() - before; full < burst*64 {
		t.Fatalf("a burst takes %d bytes: this test measures nothing", full)
	}
	for i := range holdings[stay:] {
		s.Drop(&holdings[stay+i])
	}
	s.check(t)
	if left := inUse() - before; left > 512<<10 {
		t.Errorf("%d bytes are left for %d sources", left, s.Sources())
	}
	if s.Sources() != stay || s.Heaviest().Oldest.Owner != 0 {
		t.Errorf("%d sources are left, the first with %v", s.Sources(), s.Heaviest())
	}
	for i := range stay {
		s.Drop(&holdings[i])
	}
	s.check(t)
	if s.Held() != 0 || s.Sources() != 0 || s.Heaviest() != (Share[int]{}) {
		t.Errorf("%d by %d sources are left", s.Held(), s.Sources())
	}
	runtime.KeepAlive(s)
}
