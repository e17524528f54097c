package relaycore

import (
	"container/list"
	"math/rand/v2"
	"sync"
	"time"

	"relayedge/relaycore/wire"
)

// requestLife is how long a named request waits for its mirror image.
const requestLife = 10 * time.Minute

// directory knows who is connected, who has asked for whom, and the circuits.
// Its methods never wait and write to nobody: they return who is to be told.
type directory struct {
	limits Limits // static

	mu       sync.RWMutex
	members  map[wire.Identity]*session
	requests map[pair]*request
	oldest   list.List // of *request, in the order in which they expire
	circuits map[uint64]*circuit
	pairs    map[pair]*circuit // by both orders of its members
}

// pair is who asks, and for whom.
type pair struct{ from, to wire.Identity }

func (p pair) mirror() pair { return pair{p.to, p.from} }

// request is a named request that waits for its mirror image. It belongs to the
// connection that sent it and ends with it.
type request struct {
	pair    pair
	id      uint64
	asker   *session
	expires time.Time
	place   *list.Element // in directory.oldest
}

// circuit joins two sessions.
type circuit struct {
	id      uint64
	members [2]*session
}

// other returns the member that is not c, or nil if c is no member.
func (ct *circuit) other(c *session) *session {
	switch c {
	case ct.members[0]:
		return ct.members[1]
	case ct.members[1]:
		return ct.members[0]
	}
	return nil
}

// membership is what the directory keeps of one session, guarded by directory.mu.
type membership struct {
	proven   bool
	over     bool // it was here and is not to come back
	identity wire.Identity
	requests map[pair]*request // what it has asked for
	circuits map[uint64]*circuit
}

func newDirectory(l Limits) *directory {
	return &directory{
		limits:   l,
		members:  make(map[wire.Identity]*session),
		requests: make(map[pair]*request),
		circuits: make(map[uint64]*circuit),
		pairs:    make(map[pair]*circuit),
	}
}

// widow is a session whose circuit has ended by another's doing.
type widow struct {
	session *session
	circuit uint64
}

// join makes c the identity's connection. It returns the connection that had the
// identity until now, if any, and those whose circuits with that one ended. It
// reports false where c has another identity.
func (d *directory) join(c *session, id wire.Identity) (replaced *session, widows []widow, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.member.proven || c.member.over {
		return nil, nil, c.member.identity == id && !c.member.over
	}
	if old := d.members[id]; old != nil {
		replaced, widows = old, d.remove(old)
	}
	c.member = membership{proven: true, identity: id}
	d.members[id] = c
	return replaced, widows, true
}

// leave forgets c, its requests and its circuits.
func (d *directory) leave(c *session) []widow {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.remove(c)
}

func (d *directory) remove(c *session) (widows []widow) {
	if !c.member.proven {
		return nil
	}
	delete(d.members, c.member.identity)
	for _, r := range c.member.requests {
		d.forget(r)
	}
	for id, ct := range c.member.circuits {
		widows = append(widows, widow{ct.other(c), id})
		d.dissolve(ct)
	}
	c.member = membership{over: true}
	return widows
}

func (d *directory) forget(r *request) {
	delete(d.requests, r.pair)
	delete(r.asker.member.requests, r.pair)
	d.oldest.Remove(r.place)
}

func (d *directory) dissolve(ct *circuit) {
	delete(d.circuits, ct.id)
	for _, m := range ct.members {
		delete(m.member.circuits, ct.id)
	}
	p := pair{ct.members[0].member.identity, ct.members[1].member.identity}
	delete(d.pairs, p)
	delete(d.pairs, p.mirror())
}

// expire forgets the requests whose time is over.
func (d *directory) expire(now time.Time) {
	for e := d.oldest.Front(); e != nil; e = d.oldest.Front() {
		r := e.Value.(*request)
		if now.Before(r.expires) {
			return
		}
		d.forget(r)
	}
}

// asked is what became of a named request. Exactly one of its groups is set.
type asked struct {
	unproven bool // the asker has no identity
	self     bool // the target is the asker

	// Refused for a limit.
	limit wire.Limit
	retry time.Duration

	// A circuit is open; mirror had asked before, and is nil if it was open already.
	circuit  uint64
	mirror   *session
	mirrorID uint64

	// Pending; knock is the target, if it is connected and hears of it for the first time.
	knock *session
	asker wire.Identity
}

// ask takes c's named request for target.
func (d *directory) ask(c *session, id uint64, target wire.Identity, now time.Time) asked {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !c.member.proven {
		return asked{unproven: true}
	}
	if target == c.member.identity {
		return asked{self: true}
	}
	d.expire(now)
	p := pair{c.member.identity, target}
	if ct := d.pairs[p]; ct != nil {
		return asked{circuit: ct.id}
	}
	if mirror := d.requests[p.mirror()]; mirror != nil {
		return d.open(c, mirror)
	}
	if r := d.requests[p]; r != nil {
		// The newest id is the one that the asker waits for.
		r.id = id
		return asked{}
	}
	if len(c.member.requests) >= d.limits.MaxPendingPerConnection {
		first := now.Add(requestLife)
		for _, r := range c.member.requests {
			if r.expires.Before(first) {
				first = r.expires
			}
		}
		return asked{limit: wire.LimitPendingPerConnection, retry: first.Sub(now)}
	}
	if len(d.requests) >= d.limits.MaxPendingCircuitTargets {
		first := d.oldest.Front().Value.(*request)
		return asked{limit: wire.LimitPendingTargets, retry: first.expires.Sub(now)}
	}
	r := &request{pair: p, id: id, asker: c, expires: now.Add(requestLife)}
	r.place = d.oldest.PushBack(r)
	d.requests[p] = r
	if c.member.requests == nil {
		c.member.requests = make(map[pair]*request)
	}
	c.member.requests[p] = r
	return asked{knock: d.members[target], asker: c.member.identity}
}

// circuitRetry is what a request that a circuit cap refused is told to wait:
// circuits end when people leave, which nobody can foresee.
const circuitRetry = 30 * time.Second

// open opens the circuit that c's request completes.
func (d *directory) open(c *session, mirror *request) asked {
	if 2*len(d.circuits)+2 > d.limits.MaxCircuits {
		return asked{limit: wire.LimitCircuits, retry: circuitRetry}
	}
	// What a connection has created is never more than what it is a member of,
	// and an identity is a member through one connection: one count holds both caps.
	most := d.limits.MaxCircuitsPerConnection
	if len(c.member.circuits) >= most || len(mirror.asker.member.circuits) >= most {
		return asked{limit: wire.LimitCircuitsPerMember, retry: circuitRetry}
	}
	id := rand.Uint64()
	for id == 0 || d.circuits[id] != nil {
		id = rand.Uint64()
	}
	ct := &circuit{id: id, members: [2]*session{mirror.asker, c}}
	d.circuits[id] = ct
	for _, m := range ct.members {
		if m.member.circuits == nil {
			m.member.circuits = make(map[uint64]*circuit)
		}
		m.member.circuits[id] = ct
	}
	d.pairs[mirror.pair], d.pairs[mirror.pair.mirror()] = ct, ct
	d.forget(mirror)
	return asked{circuit: id, mirror: mirror.asker, mirrorID: mirror.id}
}

// route returns the other member of c's circuit, or nil where c is in no such circuit.
func (d *directory) route(c *session, id uint64) *session {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if ct := d.circuits[id]; ct != nil {
		return ct.other(c)
	}
	return nil
}

// close ends c's circuit and returns the other member, or nil where c is in no such circuit.
func (d *directory) close(c *session, id uint64) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	ct := d.circuits[id]
	if ct == nil {
		return nil
	}
	other := ct.other(c)
	if other != nil {
		d.dissolve(ct)
	}
	return other
}

type directoryStats struct{ identities, pending, circuits int }

func (d *directory) stats() directoryStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire(time.Now())
	return directoryStats{len(d.members), len(d.requests), len(d.circuits)}
}
