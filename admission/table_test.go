package admission

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// failer is what a *testing.T and a *rapid.T have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// check holds the table against its invariants.
func (t *table) check(tb failer) {
	tb.Helper()
	debtors := 0
	for k, i := range t.index {
		r := t.row(i)
		if r.key != k {
			tb.Fatalf("row %d of key %x has the key %x", i, k, r.key)
		}
		if r.open > 0 {
			continue
		}
		debtors++
		if at := int(r.link) - 1; at < 0 || at >= len(t.debtors) || t.debtors[at] != (debtor{r.full, i}) {
			tb.Fatalf("row %d, without connections, is not at its place %d among the debtors", i, at)
		}
	}
	if debtors != len(t.debtors) {
		tb.Fatalf("%d debtors are queued, want %d", len(t.debtors), debtors)
	}
	for at := 1; at < len(t.debtors); at++ {
		if t.debtors[(at-1)/2].full > t.debtors[at].full {
			tb.Fatalf("the debtor at %d is nearer to full than the one above it", at)
		}
	}
	free := 0
	for i := t.free; i != 0; i = t.row(i).link {
		free++
	}
	if 1+len(t.index)+free != int(t.used) {
		tb.Fatalf("%d rows in use and %d free of %d", len(t.index), free, t.used)
	}
	if *t.row(0) != (row{}) {
		tb.Fatalf("row 0 is written: %+v", *t.row(0))
	}
}

func TestTableKeepsItsOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	table := newTable()
	table.bound = 50
	type held struct {
		i    uint32
		full int64
	}
	var leases []held
	now := int64(0)
	for range 20_000 {
		switch k := (key{hi: random.Uint64N(200)}); random.IntN(5) {
		case 0, 1:
			full := max(table.row(table.find(k)).full, now+random.Int64N(100))
			leases = append(leases, held{table.take(table.find(k), k, full), full})
		case 2, 3:
			if len(leases) > 0 {
				at := random.IntN(len(leases))
				table.release(leases[at].i, now)
				leases = slices.Delete(leases, at, at+1)
			}
		case 4:
			now += random.Int64N(5)
			for table.sweep(now, 1) {
			}
			for _, d := range table.debtors {
				if d.full <= now {
					t.Fatal("a full row is left after the sweep")
				}
			}
		}
		if len(table.debtors) > table.bound {
			t.Fatalf("%d debtors, allowed are %d", len(table.debtors), table.bound)
		}
		table.check(t)
	}
	for _, l := range leases {
		table.release(l.i, now)
	}
	for table.sweep(now+1000, 7) {
	}
	table.check(t)
	if len(table.index) != 0 {
		t.Errorf("%d rows are left", len(table.index))
	}
}

// At the bound the row that is nearest to full goes first.
func TestDebtorsAreBounded(t *testing.T) {
	table := newTable()
	if table.bound != 65536 {
		t.Fatalf("the bound is %d, the package comment says 65536", table.bound)
	}
	table.bound = 3
	pass := func(id uint64, full int64) {
		table.release(table.take(table.find(key{hi: id}), key{hi: id}, full), 0)
	}
	for id, full := range []int64{50, 10, 40, 30, 60, 20} {
		pass(uint64(id), full)
		table.check(t)
	}
	var left []int64
	for _, i := range table.index {
		left = append(left, table.row(i).full)
	}
	slices.Sort(left)
	if want := []int64{40, 50, 60}; !slices.Equal(left, want) {
		t.Errorf("the debts left are %v, want %v", left, want)
	}
	// Rows with connections do not count for the bound.
	for id := range uint64(100) {
		table.take(0, key{lo: 1 + id}, 1)
	}
	if len(table.debtors) != 3 || len(table.index) != 103 {
		t.Errorf("%d debtors of %d rows, want 3 of 103", len(table.debtors), len(table.index))
	}
}

// After a burst the memory goes back, and rows begin at the first again.
func TestTableShrinks(t *testing.T) {
	table := newTable()
	table.bound = 5000
	var held []uint32
	for id := range uint64(10 * chunkRows) {
		held = append(held, table.take(0, key{hi: id}, int64(id%2)))
	}
	if len(table.chunks) < 10 {
		t.Fatalf("%d chunks for %d rows", len(table.chunks), len(held))
	}
	for n, i := range held {
		if table.release(i, 0); n%50 == 0 { // a look at all of it each time would be long
			table.check(t)
		}
	}
	for table.sweep(1, 1000) {
	}
	if len(table.chunks) != 1 || table.used != 1 || cap(table.debtors) != 0 || table.bound != 5000 {
		t.Errorf("%d chunks, %d rows, room for %d debtors, a bound of %d", len(table.chunks), table.used, cap(table.debtors), table.bound)
	}
	table.take(0, key{hi: 1}, 1)
	table.check(t)
}

// Rows are used again: coming and going takes no more rows than were ever held at once.
func TestRowsAreReused(t *testing.T) {
	table := newTable()
	for id := range uint64(100_000) {
		a := table.take(0, key{hi: id}, 0)
		b := table.take(0, key{lo: id + 1}, 0)
		table.release(a, 0)
		table.release(b, 0)
	}
	if table.used != 3 {
		t.Errorf("%d rows were used for two at once, want row 0 and 2", table.used)
	}
}
