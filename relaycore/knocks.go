package relaycore

import (
	"time"

	"relayedge/admission"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// Limits of the knock store that cannot be configured.
const (
	knocksPerTarget = 200
	knocksPerAsker  = 100 // new ones, in askerWindow
	askerWindow     = 24 * time.Hour
	maxAskers       = 100_000 // remembered in the table of askers
	// sourceShare is the part of the store, and of the table of askers, that one
	// source has at most: a sixteenth.
	sourceShare = 16
)

// knock is a message request that waits for its target.
type knock struct {
	pair    pair // static
	expires time.Time

	content []byte // wire.AskSize bytes

	all, own place[knock] // in knocks.line, and in the target's
	// In knocks.shares, by bytes, and in the target's.
	share, targetShare admission.Holding[*knock]
}

// doorstep is the knocks that wait for one target.
type doorstep struct {
	line   line[knock]
	shares *admission.Shares[*knock] // by places
}

func newDoorstep() *doorstep {
	return &doorstep{line[knock]{place: func(k *knock) *place[knock] { return &k.own }}, admission.NewShares[*knock]()}
}

// knocks is the store of message requests, which has a budget of its own. What
// is new always finds room: at the cost of its own source where that has its
// share, else of the heaviest one. All of it is guarded by directory.mu.
type knocks struct {
	sources bool // static: whether sources are known; else they have no shares

	// Changed by a reload.
	budget int64         // bytes of content
	life   time.Duration // of those that come

	byPair  map[pair]*knock
	targets map[wire.Identity]*doorstep
	shares  *admission.Shares[*knock]
	line    line[knock]
}

func newKnocks(q mailbox.Config, sources bool) knocks {
	t := knocks{
		sources: sources,
		byPair:  make(map[pair]*knock),
		targets: make(map[wire.Identity]*doorstep),
		shares:  admission.NewShares[*knock](),
		line:    line[knock]{place: func(k *knock) *place[knock] { return &k.all }},
	}
	t.bind(q, time.Time{})
	return t
}

// bind has the budget bind knocks that are yet to come, which then make the
// others fit, and the life all of them.
func (t *knocks) bind(q mailbox.Config, now time.Time) {
	t.budget, t.life = int64(q.KnockBudgetBytes), q.TTL()
	// The line stays in the order of its ends.
	end := now.Add(t.life)
	for k := t.line.last; k != nil && k.expires.After(end); k = k.all.before {
		k.expires = end
	}
}

// replace has a newer content take the place of the one that waits, if one does.
// It waits no longer for that.
func (t *knocks) replace(p pair, content []byte) bool {
	k := t.byPair[p]
	if k != nil {
		copy(k.content, content)
	}
	return k != nil
}

// add stores a copy of a knock of which none waits yet, and returns how many made room.
func (t *knocks) add(p pair, content []byte, from source, now time.Time) (evicted int) {
	k := &knock{pair: p, expires: now.Add(t.life), content: append(make([]byte, 0, len(content)), content...)}
	size := int64(cap(k.content))
	k.share = t.shares.Holding(from.key(), k)
	evict := func(old *admission.Holding[*knock]) {
		t.remove(old.Owner)
		evicted++
	}
	if t.sources {
		for own := t.shares.Of(&k.share); own.Amount > 0 && own.Amount+size > t.budget/sourceShare && evicted < mostMadeRoom; own = t.shares.Of(&k.share) {
			evict(own.Oldest)
		}
	}
	for t.shares.Held() > 0 && t.shares.Held()+size > t.budget && evicted < mostMadeRoom {
		evict(t.shares.Heaviest().Oldest)
	}
	if of := t.targets[p.to]; of != nil && of.line.n >= knocksPerTarget {
		evict(of.shares.Heaviest().Oldest)
	}
	of := t.targets[p.to]
	if of == nil {
		of = newDoorstep()
		t.targets[p.to] = of
	}
	k.targetShare = of.shares.Holding(from.key(), k)
	of.shares.Add(&k.targetShare, 1)
	of.line.append(k)
	t.shares.Add(&k.share, size)
	t.byPair[p] = k
	t.line.append(k)
	return evicted
}

// next takes out the oldest knock for the target; nil: none waits.
func (t *knocks) next(target wire.Identity) *knock {
	of := t.targets[target]
	if of == nil {
		return nil
	}
	k := of.line.first
	t.remove(k)
	return k
}

// drop forgets the knock of a pair, if one waits.
func (t *knocks) drop(p pair) {
	if k := t.byPair[p]; k != nil {
		t.remove(k)
	}
}

func (t *knocks) remove(k *knock) {
	delete(t.byPair, k.pair)
	of := t.targets[k.pair.to]
	of.shares.Drop(&k.targetShare)
	if of.line.remove(k); of.line.n == 0 {
		delete(t.targets, k.pair.to)
	}
	t.shares.Drop(&k.share)
	t.line.remove(k)
}

func (t *knocks) expire(now time.Time) {
	for k := t.line.first; k != nil && !now.Before(k.expires); k = t.line.first {
		t.remove(k)
	}
}

// due returns when the next knock expires; zero: none is there.
func (t *knocks) due() time.Time {
	if t.line.first == nil {
		return time.Time{}
	}
	return t.line.first.expires
}
