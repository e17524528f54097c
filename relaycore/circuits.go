package relaycore

import (
	"math/rand/v2"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// Times of circuits.
const (
	// circuitRetry is what a request that a circuit cap refused is told to wait:
	// circuits end when people leave, which nobody can foresee.
	circuitRetry = 30 * time.Second
	// blindLinger is how long a blinded conversation outlives the connection of one
	// of its members.
	blindLinger = 10 * time.Minute
)

// circuit joins two identities.
type circuit struct {
	// Static.
	id    uint64
	blind bool
	token token // of a blinded one
	sides [2]side

	// Of a blinded one that a member has left.
	fades  time.Time
	fading place[circuit] // in circuits.fading
}

// side is one end of a circuit. It is held by the identity until the circuit
// ends, also when its session has left, so that reconnecting frees no place.
type side struct {
	identity wire.Identity
	session  *session // nil once it has left
	held     admission.Holding[*circuit]
}

// other returns the side that is not c's, or nil if c is no member.
func (ct *circuit) other(c *session) *side {
	switch c {
	case ct.sides[0].session:
		return &ct.sides[1]
	case ct.sides[1].session:
		return &ct.sides[0]
	}
	return nil
}

// circuits is the table of circuits. All of it is guarded by directory.mu.
type circuits struct {
	sources bool // static: whether sources are known; else nobody is lighter than another

	// Changed by a reload.
	most        int // sides in all
	perIdentity int
	perSource   int

	byID       map[uint64]*circuit
	byPair     map[pair]*circuit // named ones, by both orders of their members
	byToken    map[token]*circuit
	byIdentity map[wire.Identity]map[*circuit]struct{}
	shares     *admission.Shares[*circuit] // of sides

	fading line[circuit] // those that a member has left
}

func newCircuits(l Limits, sources bool) circuits {
	t := circuits{
		sources:    sources,
		byID:       make(map[uint64]*circuit),
		byPair:     make(map[pair]*circuit),
		byToken:    make(map[token]*circuit),
		byIdentity: make(map[wire.Identity]map[*circuit]struct{}),
		shares:     admission.NewShares[*circuit](),
		fading:     line[circuit]{place: func(ct *circuit) *place[circuit] { return &ct.fading }},
	}
	t.bind(l)
	return t
}

// bind has the limits bind circuits that are yet to open.
func (t *circuits) bind(l Limits) {
	t.most, t.perIdentity, t.perSource = l.MaxCircuits, l.MaxCircuitsPerConnection, l.MaxCircuitsPerSource
}

// open joins the asker of r and c, whose request completes the pair. It returns
// the limit that forbids it, or the circuit and the one that made room for it,
// which has ended.
func (t *circuits) open(r *request, c *session) (opened, evicted *circuit, limit wire.Limit) {
	ct := &circuit{blind: r.mode == wire.Blinded}
	for i, m := range []*session{r.asker, c} {
		// What a connection has created is never more than what its identity is a
		// member of: one count holds both caps.
		if len(t.byIdentity[m.member.identity]) >= t.perIdentity {
			return nil, nil, wire.LimitCircuitsPerMember
		}
		ct.sides[i] = side{m.member.identity, m, t.shares.Holding(m.source.key(), ct)}
	}
	if t.sources {
		needs := int64(1)
		if r.asker.source == c.source {
			needs = 2
		}
		for i := range ct.sides {
			if t.shares.Of(&ct.sides[i].held).Amount+needs > int64(t.perSource) {
				return nil, nil, wire.LimitCircuitsPerSource
			}
		}
	}
	if t.shares.Held()+2 > int64(t.most) {
		heaviest := t.shares.Heaviest()
		if !t.sources || t.shares.Of(&ct.sides[1].held).Amount >= heaviest.Amount {
			return nil, nil, wire.LimitCircuits
		}
		evicted = heaviest.Newest.Owner
		t.remove(evicted)
	}
	for ct.id == 0 || t.byID[ct.id] != nil {
		ct.id = rand.Uint64()
	}
	t.byID[ct.id] = ct
	if ct.blind {
		ct.token = r.key
		t.byToken[ct.token] = ct
	} else {
		p := pair{ct.sides[0].identity, ct.sides[1].identity}
		t.byPair[p], t.byPair[p.mirror()] = ct, ct
	}
	for i := range ct.sides {
		s := &ct.sides[i]
		if t.byIdentity[s.identity] == nil {
			t.byIdentity[s.identity] = make(map[*circuit]struct{})
		}
		t.byIdentity[s.identity][ct] = struct{}{}
		t.shares.Add(&s.held, 1)
	}
	return ct, evicted, 0
}

// remove ends a circuit.
func (t *circuits) remove(ct *circuit) {
	delete(t.byID, ct.id)
	if ct.blind {
		delete(t.byToken, ct.token)
	} else {
		p := pair{ct.sides[0].identity, ct.sides[1].identity}
		delete(t.byPair, p)
		delete(t.byPair, p.mirror())
	}
	for i := range ct.sides {
		s := &ct.sides[i]
		of := t.byIdentity[s.identity]
		if delete(of, ct); len(of) == 0 {
			delete(t.byIdentity, s.identity)
		}
		t.shares.Drop(&s.held)
	}
	if !ct.fades.IsZero() {
		t.fading.remove(ct)
	}
}

// part takes c out of a circuit of its own and reports whether that has ended
// it. A named circuit ends when either side leaves, a blinded one with its last
// member, or when it has faded.
func (t *circuits) part(ct *circuit, c *session, now time.Time) (ended bool) {
	if !ct.blind || ct.other(c).session == nil {
		t.remove(ct)
		return true
	}
	for i := range ct.sides {
		if ct.sides[i].session == c {
			ct.sides[i].session = nil
		}
	}
	ct.fades = now.Add(blindLinger) // once: who is left is the last
	t.fading.append(ct)
	return false
}

// expire ends what has faded and returns it.
func (t *circuits) expire(now time.Time) (ended []*circuit) {
	for ct := t.fading.first; ct != nil && !now.Before(ct.fades); ct = t.fading.first {
		t.remove(ct)
		ended = append(ended, ct)
	}
	return ended
}

// due returns when the next circuit has faded; zero: none fades.
func (t *circuits) due() time.Time {
	if t.fading.first == nil {
		return time.Time{}
	}
	return t.fading.first.fades
}
