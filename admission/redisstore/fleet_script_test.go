package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/admission/fleettest"
	"relayedge/internal/testredis"
)

// standingClock is a time that a test moves.
const standingClock = `local function clock() return tonumber(redis.call('GET', 'clock')) end
`

// beats are sent to the script and to the naive ledger alike.
type beats struct {
	*testing.T
	server *testredis.Server
	store  *Store
	ledger *fleettest.Ledger
	now    time.Time
}

func newBeats(t *testing.T, lease time.Duration) *beats {
	t.Helper()
	server := testredis.Start(t)
	b := &beats{
		T: t, server: server, store: openTest(t, Config{URL: URL("redis://" + server.Addr)}, serverClock),
		ledger: fleettest.NewLedger(lease), now: begun,
	}
	b.pass(0)
	return b
}

func (b *beats) pass(d time.Duration) {
	b.now = b.now.Add(d)
	b.server.Ask("SET", "clock", whole(b.now.UnixMicro()))
}

// send sends a beat of an edge to both, and compares what they say.
func (b *beats) send(edge *Fleet, beat admission.Beat) admission.Reply {
	b.Helper()
	got, err := edge.send(b.Context(), beat)
	if err != nil {
		b.Fatal(err)
	}
	want := b.ledger.Beat(edge.name(beat), beat, b.now)
	if fmt.Sprint(said(got)) != fmt.Sprint(said(want)) {
		b.Fatalf("the script answers\n%v\nthe ledger\n%v\nto %+v", said(got), said(want), beat)
	}
	return got
}

// said is what a reply says, in one order and each thing once.
func said(r admission.Reply) (lines []string) {
	for _, a := range r.Answers {
		lines = append(lines, fmt.Sprintf("%x: claim %d of %d, tight %v, debt %v", a.Key[15:], a.Claim, a.Total, a.Tight, a.Debt))
	}
	slices.Sort(lines)
	return append(slices.Compact(lines), fmt.Sprintf("unknown %v, %d edges, version %d, more %v", r.Unknown, r.Edges, r.Version, r.More))
}

// The script does what the naive ledger does, whatever is sent in whatever order.
func TestFleetScriptIsTheLedger(t *testing.T) {
	const lease = 10 * time.Minute // nothing is to expire by the server's own clock
	b := newBeats(t, lease)
	random := rand.New(rand.NewPCG(1, 2))
	type edge struct {
		*Fleet
		number, cursor, seen uint64
		begin                bool
		life                 uint64
	}
	var edges []*edge
	for range 4 {
		edges = append(edges, &edge{Fleet: b.store.newFleet(nil, standingClock, lease), begin: true})
	}
	for range 3000 {
		e := edges[random.IntN(len(edges))]
		e.number++
		beat := admission.Beat{Life: e.life, Number: e.number, Begin: e.begin, Edges: random.IntN(5), Seen: e.seen, News: random.IntN(3) > 0, Cursor: e.cursor}
		switch random.IntN(20) {
		case 0:
			beat.Number -= uint64(random.IntN(3))
		case 1:
			beat.Begin = true
		case 2:
			beat.Cursor += 1000
		}
		for range random.IntN(4) {
			var a admission.Ask
			a.Key[15] = byte(random.IntN(6))
			a.Held = random.IntN(12) * random.IntN(2)
			a.Need = a.Held + random.IntN(12)*random.IntN(2)
			a.Want = a.Need + random.IntN(12)*random.IntN(2)
			a.Cap = []int{0, 1, 7, 20, 64}[random.IntN(5)]
			if random.IntN(3) == 0 {
				a.Spent = time.Duration(random.IntN(5000)) * time.Millisecond
			}
			beat.Asks = append(beat.Asks, a)
		}
		r := b.send(e.Fleet, beat)
		if r.Unknown {
			e.begin, e.cursor, e.seen = true, 0, 0
		} else {
			e.begin = false
			if beat.News {
				e.seen, e.cursor = e.cursor, r.Version
			}
		}
		switch random.IntN(60) {
		case 0:
			b.pass(lease / 3)
		case 1:
			e.life++
			e.begin = true
		default:
			b.pass(time.Duration(random.IntN(1000)) * time.Millisecond)
		}
	}
}

// A store that began less than a lease ago, or whose clock says so, grants what is
// held and nothing ahead of that: others may hold the rest.
func TestFleetStoreThatHasJustBegun(t *testing.T) {
	const lease = time.Minute
	b := newBeats(t, lease)
	edge := b.store.newFleet(nil, standingClock, lease)
	number := uint64(0)
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{
		{0, 2}, {lease / 2, 2}, {lease/2 - time.Millisecond, 2}, {time.Millisecond, 10},
		{-time.Hour, 2}, {lease - time.Millisecond, 2}, {time.Millisecond, 10},
		{lease, 2}, // nobody that it knew is left
	} {
		b.pass(tt.after)
		number++
		ask := admission.Ask{Held: 2, Need: 2, Want: 10, Cap: 10}
		r := b.send(edge, admission.Beat{Number: number, Begin: true, Edges: 1, Asks: []admission.Ask{ask}})
		if got := r.Answers[0].Claim; got != tt.want {
			t.Errorf("%v later: a claim of %d, want %d", tt.after, got, tt.want)
		}
	}
	b.server.Ask("HSET", edge.keys[0], "@", "x")
	number++
	r, err := edge.send(t.Context(), admission.Beat{Number: number, Begin: true, Edges: 1, Asks: []admission.Ask{{Want: 10, Cap: 10}}})
	if err != nil || r.Answers[0].Claim != 0 {
		t.Errorf("no time since when: %+v, %v, want no claim", r, err)
	}
}

// No key of the fleet's stays for ever: each ends soon after the last beat, whatever
// the script wrote in the end.
func TestFleetKeysExpire(t *testing.T) {
	const lease = time.Minute
	b := newBeats(t, lease)
	expire := func(want int) {
		t.Helper()
		keys := 0
		for _, key := range b.server.Keys() {
			if key == "clock" {
				continue
			}
			keys++
			if left := b.server.Ask("PTTL", key).(int64); left <= 0 || left > (4*lease).Milliseconds() {
				t.Errorf("%s has %d ms left, want up to four leases", key, left)
			}
		}
		if keys != want {
			t.Errorf("%d keys, want %d: %q", keys, want, b.server.Keys())
		}
	}
	k, l := admission.SharedKey{1}, admission.SharedKey{2}
	full := func(k admission.SharedKey) admission.Ask {
		return admission.Ask{Key: k, Held: 64, Need: 65, Want: 65, Cap: 64}
	}
	spent := full(k)
	spent.Spent = time.Hour
	edge, other := b.store.newFleet(nil, standingClock, lease), b.store.newFleet(nil, standingClock, lease)
	b.send(edge, admission.Beat{Number: 1, Begin: true, Edges: 1, Asks: []admission.Ask{spent, full(l)}})
	b.send(edge, admission.Beat{Number: 2, Edges: 1, Asks: []admission.Ask{{Key: l, Cap: 64}}})
	expire(7)
	// What another leaves behind is written by its good-bye.
	b.server.Ask("FLUSHALL")
	b.ledger = fleettest.NewLedger(lease)
	b.pass(0)
	b.send(edge, admission.Beat{Number: 3, Begin: true, Edges: 1})
	b.send(other, admission.Beat{Number: 1, Begin: true, Edges: 1, Asks: []admission.Ask{full(k)}})
	goodbye := []string{other.name(admission.Beat{}), milliseconds(lease), "leave"}
	if err := other.script.lua.Exec(t.Context(), *b.store.client.Load(), other.keys, goodbye).Error(); err != nil {
		t.Fatal(err)
	}
	expire(2)
}
