package relaycore

import (
	"fmt"
	"testing"
	"time"

	"relayedge/relaycore/wire"
)

// metFrom has two identities meet, each from a source.
func (t *contacts) metFrom(a, b int, from, other source, now time.Time) {
	side := func(n int, from source) *session {
		return &session{source: from, member: &membership{identity: idOf(n)}}
	}
	t.met(side(a, from), side(b, other), now)
}

func contactsOf(most int, life time.Duration) contacts {
	l := DefaultConfig().Limits
	l.MaxContacts, l.IdentityTTLSecs = most, int(life/time.Second)
	return newContacts(l)
}

// A pair is one pair, whoever asked whom, and lives from its latest circuit on.
func TestContacts(t *testing.T) {
	now := time.Now()
	c := contactsOf(10, time.Hour)
	has := func(a, b int, at time.Duration) bool { return c.have(idOf(a), idOf(b), now.Add(at)) }
	c.metFrom(1, 2, 1, 2, now)
	c.metFrom(1, 3, 1, 3, now)
	c.metFrom(2, 1, 2, 1, now.Add(30*time.Minute))
	if !has(1, 2, 0) || !has(2, 1, 0) || !has(3, 1, 0) || has(2, 3, 0) || has(1, 1, 0) || len(c.byPair) != 2 {
		t.Errorf("%d pairs", len(c.byPair))
	}
	for _, row := range []struct {
		at         time.Duration
		both, left int
	}{{time.Hour - 1, 2, 2}, {time.Hour, 1, 1}, {90*time.Minute - 1, 1, 1}, {90 * time.Minute, 0, 0}} {
		n := 0
		for _, p := range [][2]int{{1, 2}, {1, 3}} {
			if has(p[0], p[1], row.at) {
				n++
			}
		}
		c.expire(now.Add(row.at))
		if n != row.both || len(c.byPair) != row.left || c.line.n != row.left || c.shares.Held() != int64(2*row.left) || c.due().IsZero() != (row.left == 0) {
			t.Errorf("after %v %d are contacts, %d are kept, due %v", row.at, n, len(c.byPair), c.due())
		}
	}
}

// When the memory is full, the source that has the most forgets the pair that met
// the longest ago.
func TestContactsAreBounded(t *testing.T) {
	now := time.Now()
	c := contactsOf(4, time.Hour)
	// Source 9 makes up as many pairs as it likes; 1 and 2 have one.
	c.metFrom(1, 2, 1, 2, now)
	for n := range 50 {
		c.metFrom(100+2*n, 101+2*n, 9, 9, now)
	}
	if !c.have(idOf(1), idOf(2), now) || c.have(idOf(100), idOf(101), now) || !c.have(idOf(198), idOf(199), now) || len(c.byPair) != 4 {
		t.Errorf("%d pairs are left, the honest one: %v", len(c.byPair), c.have(idOf(1), idOf(2), now))
	}
	// To meet again makes a pair young.
	c = contactsOf(2, time.Hour)
	c.metFrom(1, 2, 9, 9, now)
	c.metFrom(3, 4, 9, 9, now)
	c.metFrom(1, 2, 9, 9, now)
	c.metFrom(5, 6, 9, 9, now)
	if !c.have(idOf(1), idOf(2), now) || c.have(idOf(3), idOf(4), now) {
		t.Error("the younger pair was forgotten")
	}
	// A lower limit binds those who come, and a shorter life all.
	l := DefaultConfig().Limits
	l.MaxContacts, l.IdentityTTLSecs = 1, 60
	c.bind(l, now)
	if len(c.byPair) != 2 || !c.due().Equal(now.Add(time.Minute)) {
		t.Errorf("%d pairs, due %v", len(c.byPair), c.due())
	}
	c.metFrom(7, 8, 9, 9, now)
	if len(c.byPair) != 1 || !c.have(idOf(7), idOf(8), now) {
		t.Errorf("%d pairs", len(c.byPair))
	}
}

// What a pair takes in memory is what docs and defaults count with.
func TestContactCost(t *testing.T) {
	const n, most = 20_000, 400
	c := contactsOf(n, time.Hour)
	now := time.Now()
	before := heap()
	for i := range n {
		side := func(from source, which byte) *session {
			return &session{source: from, member: &membership{identity: wire.Identity{byte(i), byte(i >> 8), which}}}
		}
		c.met(side(source(2*i), 1), side(source(2*i+1), 2), now)
	}
	took := (heap() - before) / n
	t.Logf("a pair takes %d bytes", took)
	if took > most {
		t.Errorf("a pair takes %d bytes, of sources of their own; %d were counted with", took, most)
	}
	if len(c.byPair) != n {
		t.Fatal(fmt.Sprint(len(c.byPair)))
	}
}
