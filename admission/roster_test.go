package admission

import (
	"testing"

	"pgregory.net/rapid"
)

// check holds the roster against its invariants.
func (r *roster[T]) check(tb failer) {
	tb.Helper()
	linked, older := 0, uint32(0)
	for i := r.oldest; i != 0; i = r.row(i).newer {
		row := r.row(i)
		if row.number != i || row.older != older || !row.live || r.index[row.key] != i {
			tb.Fatalf("row %d is %+v, after row %d", i, row, older)
		}
		linked++
		older = i
	}
	if older != r.newest || linked != len(r.index) {
		tb.Fatalf("%d rows are linked up to %d, want %d up to %d", linked, older, len(r.index), r.newest)
	}
	free := 0
	for i := r.free; i != 0; i = r.row(i).newer {
		if r.row(i).live {
			tb.Fatalf("the free row %d is in use", i)
		}
		free++
	}
	if r.used > 0 && 1+linked+free != int(r.used) {
		tb.Fatalf("%d rows in use and %d free of %d", linked, free, r.used)
	}
	if most := max(rosterShrinkFrom, 4*len(r.index)) + rosterChunk + 1; len(r.chunks)*rosterChunk > most+rosterChunk {
		tb.Fatalf("room for %d rows of which %d live", len(r.chunks)*rosterChunk, len(r.index))
	}
}

// The roster decides as a map of who was renewed when, and of what was counted.
func TestRosterAgainstAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bound := rapid.IntRange(1, 12).Draw(rt, "bound")
		r := roster[int]{bound: bound, life: 100}
		type own struct {
			since int64
			held  int
		}
		rows := map[int]own{}
		shared := map[byte]own{}
		at := int64(0)
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			at += rapid.Int64Range(0, 30).Draw(rt, "pause")
			who := rapid.IntRange(0, 20).Draw(rt, "who")
			k := numbered(who)
			k[0] = byte(who % 3)
			// What is dead is dropped by a sweep, or when it is looked for.
			sweeps := rapid.Bool().Draw(rt, "sweeps")
			for sweeps && r.sweep(at, 1) {
			}
			for n, row := range rows {
				if at-row.since >= 100 && (sweeps || n == who) {
					delete(rows, n)
				}
			}
			for n, row := range shared {
				if at-row.since >= 100 {
					delete(shared, n)
				}
			}
			mine, isMine := rows[who]
			all, isShared := shared[k[0]]
			switch row := r.find(k, at); {
			case isMine:
				if row == nil || row.held != mine.held || row.number == 0 {
					rt.Fatalf("found %+v, want a row with %d", row, mine.held)
				}
			case isShared:
				if row == nil || row.held != all.held || row.number != 0 {
					rt.Fatalf("found %+v, want a shared row with %d", row, all.held)
				}
			case row != nil:
				rt.Fatalf("found %+v, want none", row)
			}
			if rapid.Bool().Draw(rt, "charge") {
				row := r.open(k, at)
				r.renew(row, at)
				row.held++
				switch {
				case isMine:
					rows[who] = own{at, mine.held + 1}
				case len(rows) < bound:
					rows[who] = own{at, all.held + 1}
				default:
					shared[k[0]] = own{at, all.held + 1}
				}
			}
			r.check(rt)
			if len(r.index) != len(rows) {
				rt.Fatalf("%d rows, want %d", len(r.index), len(rows))
			}
		}
	})
}

// A burst's memory goes when the burst has gone, and those who stay keep what they hold.
func TestRosterShrinks(t *testing.T) {
	r := roster[int]{bound: 100_000, life: 100}
	for i := range 50_000 {
		r.open(numbered(i), int64(i/1000)).held = i
	}
	r.check(t)
	for i := range 100 {
		row := r.find(numbered(i), 60)
		r.renew(row, 60)
	}
	for r.sweep(155, 1000) {
		r.check(t)
	}
	if r.check(t); len(r.index) != 100 || len(r.chunks) > 5 {
		t.Fatalf("%d rows in %d chunks, want 100 and a few", len(r.index), len(r.chunks))
	}
	for i := range 100 {
		if row := r.find(numbered(i), 155); row == nil || row.held != i {
			t.Fatalf("row %d is %+v", i, row)
		}
	}
}
