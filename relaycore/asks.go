package relaycore

import (
	"time"

	"relayedge/relaycore/wire"
)

// asked is what became of a request. At most one of its groups is set; where
// none is, the request is pending.
type asked struct {
	fault wire.Fault // it is not taken

	// Refused for a limit.
	limit wire.Limit
	retry time.Duration

	circuit uint64 // it is open

	// Pending, and its knock is for this connection of the target.
	target *session
	knock  wire.Knock

	told notices // who else is to be told
}

// refuse is a request that a limit refuses until a time.
func (a *asked) refuse(limit wire.Limit, wait time.Duration) {
	a.limit, a.retry = limit, wait
}

// ask takes c's request. Its content is not kept.
func (d *directory) ask(c *session, f *wire.Ask, now time.Time) asked {
	a := asked{told: d.lock(now)}
	defer d.unlock(now)
	switch {
	case !c.member.proven:
		a.fault = wire.FaultOrder
	case f.Mode == wire.Blinded:
		d.askBlinded(&a, c, f, now)
	case f.Key == c.member.identity:
		a.fault = wire.FaultTarget
	default:
		d.askNamed(&a, c, f, now)
	}
	return a
}

func (d *directory) askNamed(a *asked, c *session, f *wire.Ask, now time.Time) {
	p := pair{c.member.identity, f.Key}
	if ct := d.circuits.byPair[p]; ct != nil {
		a.circuit = ct.id
		return
	}
	if mirror := d.pending.named[p.mirror()]; mirror != nil {
		if d.open(a, mirror, c, now) {
			d.knocks.drop(p)
			d.knocks.drop(p.mirror())
		}
		return
	}
	if r := d.pending.named[p]; r != nil {
		// The newest id is the one that the asker waits for.
		r.id = f.RequestID
		d.knocks.replace(p, f.Content)
		return
	}
	if !d.pend(a, c, f, now) || d.knocks.replace(p, f.Content) {
		return
	}
	if !d.askers.allow(p.from, c.source, now) {
		d.count.reject(ReasonKnockQuota)
		return
	}
	if a.target = d.members[p.to]; a.target != nil {
		a.knock = wire.Knock{Asker: p.from, Content: f.Content}
		return
	}
	d.keep(p, f.Content, c.source, now)
}

func (d *directory) askBlinded(a *asked, c *session, f *wire.Ask, now time.Time) {
	r, ct := d.pending.blinded[f.Key], d.circuits.byToken[f.Key]
	if r != nil && r.asker == c {
		r.id = f.RequestID
		return
	}
	if ct != nil && c.member.circuits[ct.id] == ct {
		a.circuit = ct.id
		return
	}
	before := c.member.codes
	if !c.member.codes.Take(d.refill, 1, now) {
		d.count.reject(ReasonBlindAskRate)
		a.refuse(wire.LimitBlindAskRate, before.Charge(d.refill, 1, now))
		return
	}
	switch {
	case ct != nil:
		d.count.blindBusy.Add(1)
		a.fault = wire.FaultBusy
	case r != nil:
		if d.open(a, r, c, now) {
			d.count.blindMatched.Add(1)
		}
	case d.pend(a, c, f, now):
		d.count.blindAccepted.Add(1)
	}
}

// pend gives c's request a place, if there is one.
func (d *directory) pend(a *asked, c *session, f *wire.Ask, now time.Time) bool {
	r := &request{mode: f.Mode, key: f.Key, id: f.RequestID, asker: c, expires: now.Add(requestLife)}
	evicted, full := d.pending.add(r)
	if full.limit != 0 {
		a.refuse(full.limit, full.until.Sub(now))
		return false
	}
	if evicted != nil {
		d.count.reject(ReasonPendingEvicted)
		a.told = append(a.told, notice{evicted.asker, wire.RateLimited{
			Refused:        wire.Refused{Frame: wire.TypeAsk, RequestID: evicted.id},
			Limit:          wire.LimitPendingTargets,
			RetryAfterSecs: uint32(evictedRetry / time.Second),
		}, true})
	}
	return true
}

// evictedRetry is what those are told to wait whose request or circuit made room
// for a lighter source's.
const evictedRetry = 30 * time.Second

// open opens the circuit that c's request completes, unless a cap forbids it:
// then the other side's request goes on waiting.
func (d *directory) open(a *asked, r *request, c *session, now time.Time) bool {
	ct, evicted, limit := d.circuits.open(r, c)
	if limit != 0 {
		a.refuse(limit, circuitRetry)
		return false
	}
	if evicted != nil {
		d.count.reject(ReasonCircuitEvicted)
		a.told = a.told.closed(evicted, wire.EndedEvicted, nil)
	}
	for _, m := range []*session{r.asker, c} {
		if m.member.circuits == nil {
			m.member.circuits = make(map[uint64]*circuit)
		}
		m.member.circuits[ct.id] = ct
	}
	d.count.circuits.Add(1)
	d.contacts.met(r.asker, c, now)
	a.circuit = ct.id
	a.told = append(a.told, notice{r.asker, wire.CircuitOpen{RequestID: r.id, Circuit: ct.id}, false})
	d.pending.remove(r)
	return true
}

// keep stores a knock until its target comes, or until its connection has room to spare.
func (d *directory) keep(p pair, content []byte, from source, now time.Time) {
	for range d.knocks.add(p, content, from, now) {
		d.count.reject(ReasonKnockEvicted)
	}
}

// keepKnock stores the knock that c's request brought, unless the request has
// ended since or another one waits already.
func (d *directory) keepKnock(c *session, target wire.Identity, content []byte) {
	now := time.Now()
	told := d.lock(now)
	if p := (pair{c.member.identity, target}); d.pending.named[p] != nil && !d.knocks.replace(p, content) {
		d.keep(p, content, c.source, now)
	}
	d.unlock(now)
	told.send()
}
