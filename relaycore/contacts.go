package relaycore

import (
	"bytes"
	"hash/maphash"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// contact is a pair of identities that has had a circuit. Which two they are it
// does not say.
type contact struct {
	key     uint64 // static: a keyed hash of both
	expires time.Time
	sides   [2]admission.Holding[*contact]
	place   place[contact] // in contacts.line
}

// contacts is the memory of who has had a circuit with whom: one who has is no
// stranger in the other's mailbox. It holds most of them, for a life after their
// latest circuit. When it is full, the pair that had its circuit the longest ago,
// of those of the source that has the most, is forgotten. It ends with the process.
// All of it is guarded by directory.mu.
type contacts struct {
	seed maphash.Seed // static

	// Changed by a reload.
	most int
	life time.Duration

	byPair map[uint64]*contact
	shares *admission.Shares[*contact] // of sides
	line   line[contact]               // by their latest circuits
}

func newContacts(l Limits) contacts {
	t := contacts{
		seed:   maphash.MakeSeed(),
		byPair: make(map[uint64]*contact),
		shares: admission.NewShares[*contact](),
		line:   line[contact]{place: func(c *contact) *place[contact] { return &c.place }},
	}
	t.bind(l, time.Time{})
	return t
}

// bind has the limit bind pairs that are yet to meet, and the life all of them.
func (t *contacts) bind(l Limits, now time.Time) {
	t.most, t.life = l.MaxContacts, secs(l.IdentityTTLSecs)
	// The line stays in the order of its ends.
	end := now.Add(t.life)
	for c := t.line.last; c != nil && c.expires.After(end); c = c.place.before {
		c.expires = end
	}
}

// key stands for a pair, in whatever order.
func (t *contacts) key(a, b wire.Identity) uint64 {
	if bytes.Compare(a[:], b[:]) > 0 {
		a, b = b, a
	}
	return maphash.Comparable(t.seed, pair{a, b})
}

// met notes that a circuit has joined two sessions.
func (t *contacts) met(a, b *session, now time.Time) {
	key := t.key(a.member.identity, b.member.identity)
	c := t.byPair[key]
	if c != nil {
		t.line.remove(c)
	} else {
		for range mostMadeRoom {
			if len(t.byPair) < t.most {
				break
			}
			t.remove(t.shares.Heaviest().Oldest.Owner)
		}
		c = &contact{key: key}
		t.byPair[key] = c
	}
	// The sides are those of the latest circuit, and their places the newest.
	for i, s := range []*session{a, b} {
		t.shares.Drop(&c.sides[i])
		c.sides[i] = t.shares.Holding(s.source.key(), c)
		t.shares.Add(&c.sides[i], 1)
	}
	c.expires = now.Add(t.life)
	t.line.append(c)
}

// have reports whether two identities have had a circuit.
func (t *contacts) have(a, b wire.Identity, now time.Time) bool {
	c := t.byPair[t.key(a, b)]
	return c != nil && now.Before(c.expires)
}

func (t *contacts) remove(c *contact) {
	delete(t.byPair, c.key)
	for i := range c.sides {
		t.shares.Drop(&c.sides[i])
	}
	t.line.remove(c)
}

func (t *contacts) expire(now time.Time) {
	for c := t.line.first; c != nil && !now.Before(c.expires); c = t.line.first {
		t.remove(c)
	}
}

// due returns when the next pair is forgotten; zero: there is none.
func (t *contacts) due() time.Time {
	if t.line.first == nil {
		return time.Time{}
	}
	return t.line.first.expires
}
