// Package fleettest has the naive store of a fleet, for tests: what every real
// one does as one step, it does in plain Go.
package fleettest

import (
	"maps"
	"slices"
	"time"

	"relayedge/admission"
)

// Ledger is the store of one fleet. It is not safe for concurrent use.
type Ledger struct {
	lease   time.Duration
	since   time.Time // when the first came of the edges that it knows
	version uint64
	edges   map[string]*edge

	tight   map[admission.SharedKey]uint64 // since which version
	buckets map[admission.SharedKey]time.Time
	changed map[admission.SharedKey]uint64 // at which version, of those that are tight or have a bucket
	gone    map[admission.SharedKey]uint64 // since which version they are tight no longer, until all know it
}

type edge struct {
	until  time.Time
	number uint64
	edges  int
	seen   uint64
	claims map[admission.SharedKey]int
}

// NewLedger returns a ledger that counts what an edge holds for so long after its latest beat.
func NewLedger(lease time.Duration) *Ledger {
	return &Ledger{
		lease: lease, edges: make(map[string]*edge), tight: make(map[admission.SharedKey]uint64),
		buckets: make(map[admission.SharedKey]time.Time),
		changed: make(map[admission.SharedKey]uint64), gone: make(map[admission.SharedKey]uint64),
	}
}

// Claim returns what an edge has claimed of a key.
func (l *Ledger) Claim(id string, k admission.SharedKey) int {
	if e := l.edges[id]; e != nil {
		return e.claims[k]
	}
	return 0
}

// Size returns how many entries the ledger has.
func (l *Ledger) Size() int {
	n := len(l.edges) + len(l.tight) + len(l.buckets) + len(l.changed) + len(l.gone)
	for _, e := range l.edges {
		n += len(e.claims)
	}
	return n
}

// Leave forgets an edge and gives back what it holds.
func (l *Ledger) Leave(id string) { l.drop(id) }

// Beat does what a beat of an edge says, at the time now of the store.
func (l *Ledger) Beat(id string, b admission.Beat, now time.Time) admission.Reply {
	for other, e := range maps.Clone(l.edges) {
		if !now.Before(e.until) {
			l.drop(other)
		}
	}
	me := l.edges[id]
	known := me != nil && (me.number+1 == b.Number || b.Begin && me.number < b.Number)
	if !known && (me != nil || !b.Begin) || b.Cursor > l.version {
		return admission.Reply{Unknown: true, Edges: len(l.edges)}
	}
	if len(l.edges) == 0 || now.Before(l.since) {
		l.since = now
	}
	if me == nil {
		me = &edge{claims: make(map[admission.SharedKey]int)}
		l.edges[id] = me
	}
	me.until, me.number, me.seen = now.Add(l.lease), b.Number, b.Seen
	me.edges = len(l.edges)
	if b.Edges > 0 {
		me.edges = min(me.edges, b.Edges)
	}
	for k, full := range maps.Clone(l.buckets) {
		if !now.Before(full) {
			delete(l.buckets, k)
			if l.tight[k] == 0 {
				delete(l.changed, k)
			}
		}
	}
	r := admission.Reply{Edges: len(l.edges)}
	for _, a := range b.Asks {
		l.ask(me, a, now)
		r.Answers = append(r.Answers, l.answer(me, a.Key, now))
	}
	if b.News {
		for _, set := range []map[admission.SharedKey]uint64{l.changed, l.gone} {
			for k, version := range set {
				if version > b.Cursor {
					r.Answers = append(r.Answers, l.answer(me, k, now))
				}
			}
		}
		r.Version = l.version
	}
	all := slices.Collect(maps.Values(l.edges))
	seen := slices.MinFunc(all, func(a, b *edge) int { return int(a.seen) - int(b.seen) }).seen
	maps.DeleteFunc(l.gone, func(_ admission.SharedKey, version uint64) bool { return version <= seen })
	return r
}

func (l *Ledger) answer(me *edge, k admission.SharedKey, now time.Time) admission.Answer {
	a := admission.Answer{Key: k, Claim: me.claims[k], Total: l.total(k), Tight: l.tight[k] > 0}
	if full, ok := l.buckets[k]; ok {
		a.Debt = max(0, full.Sub(now))
	}
	return a
}

func (l *Ledger) total(k admission.SharedKey) (n int) {
	for _, e := range l.edges {
		n += e.claims[k]
	}
	return n
}

func (l *Ledger) ask(me *edge, a admission.Ask, now time.Time) {
	free := func(n int) int { return max(1, a.Cap/(2*n)) }
	since := l.tight[a.Key]
	// What is left of the cap beside the others, and what all would have if nothing were tight.
	left, loose := a.Cap, 0
	for _, e := range l.edges {
		if e == me {
			continue
		}
		claim := e.claims[a.Key]
		most := max(claim, free(e.edges))
		loose += most
		if since == 0 || e.seen < since {
			left -= most
		} else {
			left -= claim
		}
	}
	give := a.Held
	if a.Cap > 0 {
		room := left
		if now.Sub(l.since) < l.lease {
			room = 0 // there may be edges that have not told it yet what they hold
		}
		// What it has and needs is not taken away: it counts on that until it is told.
		give = max(a.Held, min(a.Want, max(room, min(me.claims[a.Key], a.Need))))
		loose += max(give, free(me.edges))
	}
	delete(me.claims, a.Key)
	if give > 0 {
		me.claims[a.Key] = give
	}
	if a.Spent > 0 {
		full := l.buckets[a.Key]
		if full.Before(now) {
			full = now
		}
		l.buckets[a.Key] = full.Add(a.Spent)
	}
	total := l.total(a.Key)
	switch {
	case since == 0 && a.Cap > 0 && a.Need > left && total > 0:
		delete(l.gone, a.Key)
		l.change(l.changed, a.Key)
		l.tight[a.Key] = l.version
	case since > 0 && (total == 0 || a.Cap > 0 && a.Need <= give && loose <= a.Cap && 4*total <= a.Cap):
		l.loosen(a.Key)
		if a.Spent > 0 {
			l.change(l.changed, a.Key)
		}
	case since > 0 || a.Spent > 0:
		l.change(l.changed, a.Key)
	}
}

func (l *Ledger) change(set map[admission.SharedKey]uint64, k admission.SharedKey) {
	l.version++
	set[k] = l.version
}

func (l *Ledger) loosen(k admission.SharedKey) {
	delete(l.tight, k)
	if l.buckets[k].IsZero() {
		delete(l.changed, k)
	}
	l.change(l.gone, k)
}

func (l *Ledger) drop(id string) {
	e := l.edges[id]
	delete(l.edges, id)
	if e == nil {
		return
	}
	for k := range e.claims {
		switch {
		case l.tight[k] == 0:
		case l.total(k) == 0:
			l.loosen(k)
		default:
			l.change(l.changed, k)
		}
	}
}
