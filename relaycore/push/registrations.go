package push

import (
	"container/list"
	"net/netip"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// registrationOverhead is what a registration costs beside its endpoint: its
// record, and its part of the tables. A test measures it.
const registrationOverhead = 768

// mostMadeRoom bounds how many registrations one newcomer has forgotten: a limit
// that a reload has lowered takes effect a few at a time.
const mostMadeRoom = 64

// registration is the endpoint that an identity has left.
type registration struct {
	// Static.
	identity wire.Identity
	id       string
	budget   admission.Key
	endpoint string
	host     string

	left    time.Time // when its client left it last, by the client's clock
	expires time.Time
	quiet   time.Time // until when its service asked not to be called

	place         *list.Element // in registrations.line
	bytes, places admission.Holding[*registration]

	// Its wake-up. One at most is queued or under way.
	queued *list.Element // in its host's line; nil: not queued
	flying bool
	again  bool        // something came while it was flying
	test   chan Result // who waits for the next one; nil: nobody
}

// size is what it is charged, in bytes.
func (r *registration) size() int64 { return int64(len(r.endpoint) + registrationOverhead) }

// registrations is the table of endpoints. A new one is never refused for it:
// what is too much goes at the cost of the heaviest source, of that one's the
// oldest. It has no lock of its own: Waker.mu guards it.
type registrations struct {
	// Changed by a reload.
	most   int
	budget int64
	life   time.Duration

	byIdentity map[wire.Identity]*registration
	bytes      *admission.Shares[*registration]
	places     *admission.Shares[*registration]
	line       *list.List // in the order of their ends
}

func newRegistrations() registrations {
	return registrations{
		byIdentity: make(map[wire.Identity]*registration),
		bytes:      admission.NewShares[*registration](),
		places:     admission.NewShares[*registration](),
		line:       list.New(),
	}
}

// bind has the limits bind newcomers, which then make the others fit, and the
// life all that are kept.
func (t *registrations) bind(cfg Config, now time.Time) {
	t.most, t.budget, t.life = cfg.MaxRegistrations, int64(cfg.RegistrationBudgetBytes), cfg.ttl()
	end := now.Add(t.life)
	for e := t.line.Back(); e != nil; e = e.Prev() {
		r := e.Value.(*registration)
		if !r.expires.After(end) {
			break
		}
		r.expires = end
	}
}

// put keeps an endpoint. What goes for it is in gone, which the caller forgets.
func (t *registrations) put(r *registration, source netip.Prefix, now time.Time) (gone []*registration) {
	if old := t.byIdentity[r.identity]; old != nil {
		t.remove(old)
		gone = append(gone, old)
	}
	for range mostMadeRoom {
		by := t.places
		if len(t.byIdentity) < t.most {
			if by = t.bytes; by.Held() == 0 || by.Held()+r.size() <= t.budget {
				break
			}
		}
		pays := by.Heaviest().Oldest.Owner
		t.remove(pays)
		gone = append(gone, pays)
	}
	t.byIdentity[r.identity] = r
	t.renew(r, source, now)
	return gone
}

// renew has r live anew, as the newest of a source.
func (t *registrations) renew(r *registration, source netip.Prefix, now time.Time) {
	if r.place != nil {
		t.release(r)
	}
	r.expires = now.Add(t.life)
	r.place = t.line.PushBack(r)
	r.bytes, r.places = t.bytes.Holding(source, r), t.places.Holding(source, r)
	t.bytes.Add(&r.bytes, r.size())
	t.places.Add(&r.places, 1)
}

func (t *registrations) remove(r *registration) {
	delete(t.byIdentity, r.identity)
	t.release(r)
}

func (t *registrations) release(r *registration) {
	t.line.Remove(r.place)
	t.bytes.Drop(&r.bytes)
	t.places.Drop(&r.places)
}

// kept reports whether r is in the table.
func (t *registrations) kept(r *registration) bool { return t.byIdentity[r.identity] == r }

// expired takes out what has lived its time.
func (t *registrations) expired(now time.Time) (gone []*registration) {
	for e := t.line.Front(); e != nil; e = t.line.Front() {
		r := e.Value.(*registration)
		if now.Before(r.expires) {
			break
		}
		t.remove(r)
		gone = append(gone, r)
	}
	return gone
}
