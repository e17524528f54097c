package relaycore

import (
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// asker is what is known of an identity that has knocked within askerWindow.
type asker struct {
	identity wire.Identity // static

	// When its knocks of the window leave it, the oldest first: in seconds from
	// askers.begun, rounded up.
	leave []uint32

	place place[asker] // in askers.line
	share admission.Holding[*asker]
}

// askers is the table of those who have knocked lately, so that none brings more
// than knocksPerAsker in any askerWindow. It holds most of them, of one source at
// most a sixteenth. All of it is guarded by directory.mu.
type askers struct {
	// Static.
	most    int
	begun   time.Time
	sources bool // whether sources are known; else they have no shares

	byIdentity map[wire.Identity]*asker
	shares     *admission.Shares[*asker]
	line       line[asker] // by their latest knocks
}

func newAskers(sources bool, now time.Time) askers {
	return askers{
		most: maxAskers, begun: now, sources: sources,
		byIdentity: make(map[wire.Identity]*asker),
		shares:     admission.NewShares[*asker](),
		line:       line[asker]{place: func(a *asker) *place[asker] { return &a.place }},
	}
}

// allow charges a knock of an identity, and reports false, charging nothing,
// where its quota is spent or the table has no place for it.
func (t *askers) allow(id wire.Identity, from source, now time.Time) bool {
	a := t.byIdentity[id]
	if a == nil {
		a = &asker{identity: id}
		a.share = t.shares.Holding(from.key(), a)
		if !t.room(a) {
			return false
		}
		t.byIdentity[id] = a
		t.shares.Add(&a.share, 1)
	} else {
		passed, gone := now.Sub(t.begun), 0
		for gone < len(a.leave) && time.Duration(a.leave[gone])*time.Second <= passed {
			gone++
		}
		a.leave = append(a.leave[:0], a.leave[gone:]...)
		if len(a.leave) >= knocksPerAsker {
			return false
		}
		t.line.remove(a)
	}
	end := now.Sub(t.begun) + askerWindow
	a.leave = append(a.leave, uint32((end+time.Second-1)/time.Second))
	t.line.append(a)
	return true
}

// room reports whether a has a place, after making one if it can.
func (t *askers) room(a *asker) bool {
	own := t.shares.Of(&a.share).Amount
	if t.sources && own >= int64(max(1, t.most/sourceShare)) {
		return false
	}
	if len(t.byIdentity) < t.most {
		return true
	}
	heaviest := t.shares.Heaviest()
	if !t.sources || own >= heaviest.Amount {
		return false
	}
	t.remove(heaviest.Oldest.Owner)
	return true
}

func (t *askers) remove(a *asker) {
	delete(t.byIdentity, a.identity)
	t.shares.Drop(&a.share)
	t.line.remove(a)
}

// forgotten is when the latest knock of a leaves the window.
func (t *askers) forgotten(a *asker) time.Time {
	return t.begun.Add(time.Duration(a.leave[len(a.leave)-1]) * time.Second)
}

func (t *askers) expire(now time.Time) {
	for a := t.line.first; a != nil && !now.Before(t.forgotten(a)); a = t.line.first {
		t.remove(a)
	}
}

// due returns when the next asker is forgotten; zero: none is there.
func (t *askers) due() time.Time {
	if t.line.first == nil {
		return time.Time{}
	}
	return t.forgotten(t.line.first)
}
