package relaycore

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"relayedge/relaycore/wire"
)

// requests is a table of requests with sessions that nobody serves.
type requests struct {
	t        testing.TB
	table    pending
	sessions map[int]*session
	asked    int
}

func newRequests(t testing.TB, sources bool, change func(*Limits)) *requests {
	l := DefaultConfig().Limits
	change(&l)
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	return &requests{t: t, table: newPending(l, sources), sessions: make(map[int]*session)}
}

// session is a session from a source, by number.
func (r *requests) session(number int, from source) *session {
	c := r.sessions[number]
	if c == nil {
		c = &session{source: from, member: &membership{proven: true, asking: newAsking()}}
		binary.BigEndian.PutUint64(c.member.identity[:], uint64(number))
		r.sessions[number] = c
	}
	return c
}

// add makes a request of c, under a key that nobody else has.
func (r *requests) add(c *session, mode wire.Mode) (made, evicted *request, limit wire.Limit) {
	r.asked++
	made = &request{mode: mode, key: tokenOf(r.asked), asker: c, expires: time.Unix(int64(r.asked), 0)}
	evicted, f := r.table.add(made)
	if (f.limit != 0) != !f.until.IsZero() {
		r.t.Fatalf("%v until %v", f.limit, f.until)
	}
	return made, evicted, f.limit
}

// spec/003, pending_identity_reserve_percent: blinded requests never hold more
// than the rest, rounded in favour of the named ones.
func TestReserve(t *testing.T) {
	for _, tc := range []struct{ most, percent, blinded int }{
		{1, 0, 1}, {1, 25, 0}, {2, 25, 1}, {4, 25, 3}, {5, 25, 3}, {100, 1, 99}, {100, 90, 10}, {18000, 25, 13500}, {1000000, 33, 670000},
	} {
		r := newRequests(t, false, func(l *Limits) { pendingAtMost(l, tc.most); l.PendingIdentityReservePercent = tc.percent })
		if r.table.mostBlinded != tc.blinded {
			t.Errorf("%d%% of %d leave %d for blinded requests, want %d", tc.percent, tc.most, r.table.mostBlinded, tc.blinded)
		}
	}
	// Nothing is left for blinded ones: they are refused, and nothing breaks.
	r := newRequests(t, true, func(l *Limits) { pendingAtMost(l, 1) })
	if _, _, limit := r.add(r.session(1, 1), wire.Blinded); limit != wire.LimitPendingReserve {
		t.Errorf("%v", limit)
	}
	if _, _, limit := r.add(r.session(1, 1), wire.Named); limit != 0 {
		t.Errorf("%v", limit)
	}
}

// Who pays when the table is full: the heaviest source's oldest request, of
// either kind; for the blinded share, the heaviest blinded source's; and a named
// request under the reserve takes a blinded one's place whoever asks.
func TestWhoPays(t *testing.T) {
	type ask struct {
		session int
		from    source
		mode    wire.Mode
		pays    int // number of the request that makes room, from 1; 0: none
		limit   wire.Limit
	}
	const n, b = wire.Named, wire.Blinded
	for _, tc := range []struct {
		name    string
		sources bool
		reserve int
		change  func(*pending) // before the last ask
		asks    []ask
	}{
		{"a lighter source", true, 0, nil, []ask{
			{1, 1, n, 0, 0}, {1, 1, b, 0, 0}, {2, 2, b, 0, 0}, {1, 1, n, 0, 0}, {3, 3, n, 1, 0}}},
		{"of either kind", true, 0, nil, []ask{
			{1, 1, b, 0, 0}, {1, 1, n, 0, 0}, {2, 2, b, 0, 0}, {1, 1, n, 0, 0}, {3, 3, n, 1, 0}}},
		{"the heaviest itself", true, 0, nil, []ask{
			{1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {2, 2, n, 0, 0}, {1, 1, n, 0, wire.LimitPendingTargets}}},
		{"another connection of the heaviest", true, 0, nil, []ask{
			{1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {2, 2, n, 0, 0}, {3, 1, n, 0, wire.LimitPendingTargets}}},
		{"as heavy as the heaviest", true, 0, nil, []ask{
			{1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {2, 2, n, 0, 0}, {2, 2, n, 0, 0}, {2, 2, n, 0, wire.LimitPendingTargets}}},
		{"all alike, and a newcomer", true, 0, nil, []ask{
			{1, 1, n, 0, 0}, {2, 2, n, 0, 0}, {3, 3, n, 0, 0}, {4, 4, n, 0, 0}, {5, 5, n, 1, 0}}},
		{"sources that are not known", false, 0, nil, []ask{
			{1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {2, 2, n, 0, wire.LimitPendingTargets}}},
		{"the blinded share, a lighter source", true, 25, nil, []ask{
			{1, 1, n, 0, 0}, {1, 1, b, 0, 0}, {1, 1, b, 0, 0}, {2, 2, b, 0, 0}, {3, 3, b, 2, 0}}},
		{"the blinded share, free places apart", true, 50, nil, []ask{
			{1, 1, b, 0, 0}, {1, 1, b, 0, 0}, {2, 2, b, 1, 0}, {2, 2, b, 0, wire.LimitPendingReserve}}},
		{"the blinded share, heavier in all and lighter in blinded ones", true, 50, nil, []ask{
			{1, 1, n, 0, 0}, {1, 1, n, 0, 0}, {2, 2, b, 0, 0}, {2, 2, b, 0, 0}, {1, 1, b, 3, 0}}},
		{"the blinded share, sources that are not known", false, 50, nil, []ask{
			{1, 1, b, 0, 0}, {1, 1, b, 0, 0}, {2, 2, b, 0, wire.LimitPendingReserve}, {2, 2, n, 0, 0}, {2, 2, n, 0, 0}, {2, 2, n, 0, wire.LimitPendingTargets}}},
		{"under the reserve, lowered while blinded ones held more", false, 0, func(p *pending) { p.mostBlinded = 2 }, []ask{
			{1, 1, b, 0, 0}, {1, 1, b, 0, 0}, {1, 1, b, 0, 0}, {1, 1, n, 0, 0}, {1, 1, n, 1, 0}}},
	} {
		r := newRequests(t, tc.sources, func(l *Limits) { pendingAtMost(l, 4); l.PendingIdentityReservePercent = tc.reserve })
		made := map[*request]int{}
		for i, a := range tc.asks {
			if tc.change != nil && i == len(tc.asks)-1 {
				tc.change(&r.table)
			}
			before := r.table.len()
			mine, evicted, limit := r.add(r.session(a.session, a.from), a.mode)
			made[mine] = i + 1
			if limit != a.limit || made[evicted] != a.pays {
				t.Errorf("%s: request %d: %v, number %d makes room", tc.name, i+1, limit, made[evicted])
			}
			after := before
			if limit == 0 && evicted == nil {
				after++
			}
			if r.table.len() != after || int(r.table.shares.Held()) != after {
				t.Errorf("%s: request %d: %d are pending, %d in the ledger", tc.name, i+1, r.table.len(), r.table.shares.Held())
			}
		}
	}
}

// spec/003: a row costs about 1.6 KB of memory, about 1.6 GB at 1,000,000.
func TestMillionRows(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("takes a second and 400 MB")
	}
	const rows = 1_000_000
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	// As many sources as can be, for each has a place in the ledgers; three quarters blinded.
	r := newRequests(t, true, func(l *Limits) { l.MaxPendingCircuitTargets = rows })
	askers := make([]session, rows/16)
	for i := range askers {
		askers[i] = session{source: source(i), member: &membership{proven: true, asking: newAsking()}}
		binary.BigEndian.PutUint64(askers[i].member.identity[:], uint64(i))
	}
	before := heap()
	for i := range rows {
		mode := wire.Blinded
		if i%4 == 3 {
			mode = wire.Named
		}
		if _, evicted, limit := r.add(&askers[i%len(askers)], mode); limit != 0 || evicted != nil {
			t.Fatalf("row %d: %v", i, limit)
		}
	}
	each := float64(heap()-before) / rows
	t.Logf("%.0f bytes a row", each)
	if r.table.len() != rows || each > 1600 {
		t.Errorf("%d rows of %.0f bytes", r.table.len(), each)
	}
	runtime.KeepAlive(r)
}
