package relaycore

import (
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// requestLife is how long a request waits for its other half.
const requestLife = 10 * time.Minute

// token is what both sides of a blinded request derive.
type token [32]byte

// pair is who asks, and for whom.
type pair struct{ from, to wire.Identity }

func (p pair) mirror() pair { return pair{p.to, p.from} }

// request is a conversation request that waits for its other half. It belongs to
// the connection that sent it and ends with it.
type request struct {
	// Static.
	mode    wire.Mode
	key     [32]byte // named: the target; blinded: the token
	asker   *session
	expires time.Time

	id uint64 // the newest that the asker gave it

	// In the pending line of its mode, and in the asker's own.
	all, own place[request]
	// In pending.shares, and in that of its mode.
	share, modeShare admission.Holding[*request]
}

// asking is what one session has pending, of one mode each.
type asking struct{ named, blinded line[request] }

func placeAmongAll(r *request) *place[request] { return &r.all }
func placeAmongOwn(r *request) *place[request] { return &r.own }

func newAsking() asking {
	return asking{line[request]{place: placeAmongOwn}, line[request]{place: placeAmongOwn}}
}

func (a *asking) of(mode wire.Mode) *line[request] {
	if mode == wire.Blinded {
		return &a.blinded
	}
	return &a.named
}

// pending is the table of requests: named and blinded ones in one table, so that
// a named request that finds no place can take that of a blinded one. All of it
// is guarded by directory.mu.
type pending struct {
	sources bool // static: whether sources are known; else nobody is lighter than another

	// Changed by a reload.
	most        int // requests of both modes
	mostBlinded int // what the reserve for named requests leaves
	perSession  [2]int
	perSource   [2]int

	named   map[pair]*request
	blinded map[token]*request
	lines   [2]line[request] // of all requests, by mode

	shares     *admission.Shares[*request] // of both modes
	modeShares [2]*admission.Shares[*request]
}

// Indices of what there is once for each mode.
func at(mode wire.Mode) int { return int(mode - wire.Named) }

func newPending(l Limits, sources bool) pending {
	t := pending{
		sources: sources,
		named:   make(map[pair]*request),
		blinded: make(map[token]*request),
		lines:   [2]line[request]{{place: placeAmongAll}, {place: placeAmongAll}},
		shares:  admission.NewShares[*request](),
	}
	t.bind(l)
	for i := range t.modeShares {
		t.modeShares[i] = admission.NewShares[*request]()
	}
	return t
}

// bind has the limits bind whatever comes. What is there stays: while there is
// more than they allow, a newcomer takes the place of another or finds none.
func (t *pending) bind(l Limits) {
	t.most = l.MaxPendingCircuitTargets
	t.perSession = [2]int{l.MaxPendingPerConnection, l.MaxPendingBlindPerConnection}
	t.perSource = [2]int{l.MaxPendingPerSource, l.MaxPendingBlindPerSource}
	// Rounded in favour of the reserve: blinded requests never hold more than the rest.
	t.mostBlinded = int(int64(t.most) * int64(100-l.PendingIdentityReservePercent) / 100)
}

// full says which limit leaves a request no place, and when the next one will be free.
type full struct {
	limit wire.Limit
	until time.Time
}

// add gives r a place. Where there is none it returns the limit; where one was
// made, the request that made room, which has ended.
func (t *pending) add(r *request) (evicted *request, f full) {
	r.share = t.shares.Holding(r.asker.source.key(), r)
	own, mode := r.asker.member.asking.of(r.mode), t.modeShares[at(r.mode)]
	r.modeShare = mode.Holding(r.asker.source.key(), r)

	limits := [2]struct{ session, source wire.Limit }{
		{wire.LimitPendingPerConnection, wire.LimitPendingPerSource},
		{wire.LimitPendingBlindPerConnection, wire.LimitPendingBlindPerSource},
	}[at(r.mode)]
	if own.n >= t.perSession[at(r.mode)] {
		return nil, full{limits.session, own.first.expires}
	}
	if share := mode.Of(&r.modeShare); t.sources && share.Amount >= int64(t.perSource[at(r.mode)]) {
		return nil, full{limits.source, share.Oldest.Owner.expires}
	}
	evicted, f = t.room(r)
	if f.limit != 0 {
		return nil, f
	}
	if evicted != nil {
		t.remove(evicted)
	}
	if r.mode == wire.Named {
		t.named[r.pair()] = r
	} else {
		t.blinded[r.key] = r
	}
	t.lines[at(r.mode)].append(r)
	own.append(r)
	t.shares.Add(&r.share, 1)
	mode.Add(&r.modeShare, 1)
	return evicted, full{}
}

// room finds whose place r can have, if there is no free one.
func (t *pending) room(r *request) (evicted *request, f full) {
	blinded := t.modeShares[at(wire.Blinded)]
	if r.mode == wire.Blinded && len(t.blinded) >= t.mostBlinded {
		if evicted = t.lighter(blinded, &r.modeShare); evicted == nil {
			f = full{wire.LimitPendingReserve, r.expires}
			if oldest := t.lines[at(wire.Blinded)].first; oldest != nil {
				f.until = oldest.expires
			} // else the reserve leaves nothing at all
		}
		return evicted, f
	}
	if t.len() < t.most {
		return nil, full{}
	}
	// The reserve holds whoever asks, and whether sources are known or not.
	if r.mode == wire.Named && len(t.named) < t.most-t.mostBlinded {
		return blinded.Heaviest().Oldest.Owner, full{}
	}
	if evicted = t.lighter(t.shares, &r.share); evicted == nil {
		f = full{wire.LimitPendingTargets, t.due()}
	}
	return evicted, f
}

// lighter returns the oldest request of the heaviest source, if the source of h
// holds less than that one.
func (t *pending) lighter(shares *admission.Shares[*request], h *admission.Holding[*request]) *request {
	heaviest := shares.Heaviest()
	if !t.sources || shares.Of(h).Amount >= heaviest.Amount {
		return nil
	}
	return heaviest.Oldest.Owner
}

// len is how many requests are pending.
func (t *pending) len() int { return len(t.named) + len(t.blinded) }

func (r *request) pair() pair { return pair{r.asker.member.identity, r.key} }

// remove takes r out, whoever it was that ended it.
func (t *pending) remove(r *request) {
	if r.mode == wire.Named {
		delete(t.named, r.pair())
	} else {
		delete(t.blinded, r.key)
	}
	t.lines[at(r.mode)].remove(r)
	r.asker.member.asking.of(r.mode).remove(r)
	t.shares.Drop(&r.share)
	t.modeShares[at(r.mode)].Drop(&r.modeShare)
}

// leave takes all requests of c out.
func (t *pending) leave(c *session) {
	for _, mode := range []wire.Mode{wire.Named, wire.Blinded} {
		for own := c.member.asking.of(mode); own.first != nil; {
			t.remove(own.first)
		}
	}
}

// expire takes out what has waited long enough, and returns how many of it were blinded.
func (t *pending) expire(now time.Time) (blinded int) {
	for i := range t.lines {
		l := &t.lines[i]
		for r := l.first; r != nil && !now.Before(r.expires); r = l.first {
			if r.mode == wire.Blinded {
				blinded++
			}
			t.remove(r)
		}
	}
	return blinded
}

// due returns when the next request expires; zero: none is there.
func (t *pending) due() (first time.Time) {
	for i := range t.lines {
		if r := t.lines[i].first; r != nil && (first.IsZero() || r.expires.Before(first)) {
			first = r.expires
		}
	}
	return first
}
