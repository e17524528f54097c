package relaycore

import (
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// recordOverhead is what an identity costs beside its bundle: its record, and
// its part of the tables. A test measures it.
const recordOverhead = 768

// record is an identity that has published, with its bundle. It outlives the
// identity's connection.
type record struct {
	// Static.
	identity wire.Identity

	bundle    []byte
	signature [64]byte  // the identity's, over the bundle
	signedAt  time.Time // by the identity's clock, or by ours where it came from a session
	connected bool
	expires   time.Time // where it is not connected

	place place[record] // in identities.line, where it is not connected
	// In the ledgers of the same names.
	bytes, places, away admission.Holding[*record]
}

// identities is the store of bundles. A PUBLISH is never refused for it: what is
// too much goes at the cost of the heaviest source, of that one's identities the
// one that has been away for the longest, and only where all its identities are
// connected the bundle of the oldest. All of it is guarded by directory.mu.
type identities struct {
	// Changed by a reload.
	most   int
	budget int64
	life   time.Duration // of those that leave

	byIdentity map[wire.Identity]*record
	bytes      *admission.Shares[*record]
	places     *admission.Shares[*record]
	away       *admission.Shares[*record] // places of those that are not connected
	line       line[record]               // who is not connected
}

func newIdentities(l Limits) identities {
	t := identities{
		byIdentity: make(map[wire.Identity]*record),
		bytes:      admission.NewShares[*record](),
		places:     admission.NewShares[*record](),
		away:       admission.NewShares[*record](),
		line:       line[record]{place: func(r *record) *place[record] { return &r.place }},
	}
	t.bind(l, time.Time{})
	return t
}

// bind has the limits bind identities that are yet to publish, which then make
// the others fit, and the life all that are away.
func (t *identities) bind(l Limits, now time.Time) {
	t.most, t.budget, t.life = l.MaxIdentities, int64(l.IdentityBudgetBytes), secs(l.IdentityTTLSecs)
	// The line stays in the order of its ends.
	end := now.Add(t.life)
	for r := t.line.last; r != nil && r.expires.After(end); r = r.place.before {
		r.expires = end
	}
}

// outdated reports whether what is stored of an identity is newer than that. The
// second is what a client's time may leave out.
func (t *identities) outdated(id wire.Identity, signedAt time.Time) bool {
	r := t.byIdentity[id]
	return r != nil && signedAt.Unix() < r.signedAt.Unix()
}

// publish stores a copy of what an identity has published, as that of a connected
// one, and returns how many others made room.
func (t *identities) publish(id wire.Identity, bundle []byte, signature [64]byte, from source) (evicted int) {
	if old := t.byIdentity[id]; old != nil {
		t.remove(old)
	}
	r := &record{identity: id, signature: signature, connected: true, bundle: append(make([]byte, 0, len(bundle)), bundle...)}
	size := int64(cap(r.bundle) + recordOverhead)
	for len(t.byIdentity) >= t.most && evicted < mostMadeRoom {
		t.evict(t.places)
		evicted++
	}
	for t.bytes.Held() > 0 && t.bytes.Held()+size > t.budget && evicted < mostMadeRoom {
		t.evict(t.bytes)
		evicted++
	}
	r.bytes, r.places, r.away = t.bytes.Holding(from.key(), r), t.places.Holding(from.key(), r), t.away.Holding(from.key(), r)
	t.byIdentity[id] = r
	t.bytes.Add(&r.bytes, size)
	t.places.Add(&r.places, 1)
	return evicted
}

// evict takes out an identity of the source that is the heaviest in a ledger.
func (t *identities) evict(by *admission.Shares[*record]) {
	pays := by.Heaviest().Oldest.Owner
	if away := t.away.Of(&pays.away); away.Oldest != nil {
		pays = away.Oldest.Owner
	}
	t.remove(pays)
}

// leave notes that an identity's connection has ended.
func (t *identities) leave(id wire.Identity, now time.Time) {
	r := t.byIdentity[id]
	if r == nil || !r.connected {
		return
	}
	r.connected, r.expires = false, now.Add(t.life)
	t.away.Add(&r.away, 1)
	t.line.append(r)
}

func (t *identities) remove(r *record) {
	delete(t.byIdentity, r.identity)
	t.bytes.Drop(&r.bytes)
	t.places.Drop(&r.places)
	if r.connected {
		return
	}
	t.away.Drop(&r.away)
	t.line.remove(r)
}

func (t *identities) expire(now time.Time) {
	for r := t.line.first; r != nil && !now.Before(r.expires); r = t.line.first {
		t.remove(r)
	}
}

// due returns when the next identity is forgotten; zero: nobody is away.
func (t *identities) due() time.Time {
	if t.line.first == nil {
		return time.Time{}
	}
	return t.line.first.expires
}
