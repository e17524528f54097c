package admission

import (
	"net/netip"
	"sync"
	"time"
)

// settled is the age up to which a handshake keeps its place against a source
// that would not stay lighter: a handshake that gets on is over by then.
const settled = time.Second

// Handshakes are the places for handshakes in flight. When all are taken, a
// newcomer may take the place of another handshake, but never one from a lighter
// source: with w the places that its source holds and h those that the heaviest holds,
//
//   - w+1 < h: of the heaviest source's oldest handshake, at once;
//   - w+1 = h: of the oldest handshake of the heaviest sources, if that is over one second old;
//   - w+1 > h: of its own source's oldest handshake, if that is over one second old.
//
// So a source that holds them all locks nobody out, and sources that hold one
// each do so for a second. Its methods are safe for concurrent use.
type Handshakes struct {
	mu sync.Mutex
	// Guarded by mu, the seed of places apart.
	most   int
	places *Shares[*Place]
}

// Place is what Enter hands out for a handshake. Its methods are safe for concurrent use.
type Place struct {
	// Static.
	handshakes *Handshakes
	evicted    func()
	entered    time.Time

	holding Holding[*Place] // guarded by handshakes.mu; empty: the place is given back or taken away
}

// NewHandshakes returns most places, all of them free. It panics if most is less than 1.
func NewHandshakes(most int) *Handshakes {
	h := &Handshakes{places: NewShares[*Place]()}
	h.SetMost(most)
	return h
}

// SetMost changes how many places there are. A handshake in flight keeps its
// place if they become fewer; newcomers then take places of others only.
func (h *Handshakes) SetMost(most int) {
	if most < 1 {
		panic("admission: handshakes need at least one place")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.most = most
}

// InFlight returns how many places are taken.
func (h *Handshakes) InFlight() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return int(h.places.Held())
}

// Enter takes a place for a handshake of the source, as [Source] gives it; the
// zero Prefix is one source: that of all peers without an address. It returns
// false, and no place, where no other handshake has to make way. One that has to
// has lost its place when its evicted is called: once, by the goroutine of the
// newcomer and before its Enter returns, without a lock held; so it must not
// wait. now is read by its monotonic reading.
func (h *Handshakes) Enter(source netip.Prefix, now time.Time, evicted func()) (*Place, bool) {
	newcomer := h.places.Holding(source, nil)
	h.mu.Lock()
	var loser *Place
	if h.places.Held() >= int64(h.most) {
		if loser = h.loser(&newcomer, now); loser == nil {
			h.mu.Unlock()
			return nil, false
		}
		h.places.Drop(&loser.holding)
	}
	p := &Place{handshakes: h, evicted: evicted, entered: now, holding: newcomer}
	p.holding.Owner = p
	h.places.Add(&p.holding, 1)
	h.mu.Unlock()
	if loser != nil {
		loser.evicted()
	}
	return p, true
}

// loser returns who has to make way for the newcomer, nil if nobody has. All
// places are taken, and the caller holds mu.
func (h *Handshakes) loser(newcomer *Holding[*Place], now time.Time) *Place {
	own, heaviest := h.places.Of(newcomer), h.places.Heaviest()
	with := own.Amount + 1
	if with < heaviest.Amount {
		return heaviest.Oldest.Owner
	}
	p := heaviest.Oldest.Owner
	if with > heaviest.Amount {
		p = own.Oldest.Owner
	}
	if now.Sub(p.entered) <= settled {
		return nil
	}
	return p
}

// Leave gives the place back and reports whether it was still held: it was not
// if the handshake was evicted, or has left before. Leaving no place, the nil
// one, does nothing, so that it can be deferred on the line after Enter.
func (p *Place) Leave() bool {
	if p == nil {
		return false
	}
	h := p.handshakes
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.holding.Amount() == 0 {
		return false
	}
	h.places.Drop(&p.holding)
	return true
}
