package relaycore

import (
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// directory knows who is connected, who has asked for whom, the circuits, and
// what is kept of those who are away. Its methods never wait and write to
// nobody: they return who is to be told.
type directory struct {
	// Static.
	count *counters
	tell  func(notices) // of what time has ended; called without mu

	// Guarded by mu, like all that these hold and like each session's member.
	mu         sync.RWMutex
	refill     admission.Rate // of blinded requests
	members    map[wire.Identity]*session
	pending    pending
	circuits   circuits
	knocks     knocks
	askers     askers
	identities identities
	contacts   contacts
	alarm      alarm // of sweep
}

// membership is what the directory keeps of one session, guarded by directory.mu.
type membership struct {
	proven   bool
	over     bool // it was here and is not to come back
	identity wire.Identity
	asking   asking           // what it has asked for
	codes    admission.Bucket // its blinded requests under new tokens
	circuits map[uint64]*circuit
	reader   *mailbox.Reader // nil until PUBLISHED is on its way
}

// notice is a message that somebody is to be told by another's doing, or by time's.
type notice struct {
	to      *session
	message wire.Frame
	// spare says that it is left out where the queue has no room to spare, since
	// nobody's doings may cost others their sessions.
	spare bool
}

type notices []notice

// send tells everybody. No lock may be held.
func (all notices) send() {
	for _, n := range all {
		if !n.spare || n.to.out.hasRoomToSpare() {
			n.to.tell(n.message)
		}
	}
}

// allSpare has every notice left out where the queue has no room to spare.
func (all notices) allSpare() {
	for i := range all {
		all[i].spare = true
	}
}

// closed adds that a circuit has ended, for those of its members that are there.
func (all notices) closed(ct *circuit, why wire.Ended, but *session) notices {
	for _, s := range ct.sides {
		if s.session == nil || s.session == but {
			continue
		}
		delete(s.session.member.circuits, ct.id)
		all = append(all, notice{s.session, wire.CircuitClosed{Circuit: ct.id, Reason: why}, false})
	}
	return all
}

func newDirectory(cfg Config, sources bool, count *counters, now time.Time) *directory {
	l := cfg.Limits
	d := &directory{
		count:      count,
		tell:       notices.send,
		refill:     blindAskRate(l),
		members:    make(map[wire.Identity]*session),
		pending:    newPending(l, sources),
		circuits:   newCircuits(l, sources),
		knocks:     newKnocks(cfg.OfflineQueue, sources),
		askers:     newAskers(sources, now),
		identities: newIdentities(l),
		contacts:   newContacts(l),
	}
	d.alarm.ring = d.sweep
	return d
}

func blindAskRate(l Limits) admission.Rate {
	return admission.Rate{N: int64(l.BlindAskRefillPerSec), Per: time.Second, Burst: int64(l.BlindAskBurst)}
}

// mostMadeRoom is how many knocks, or identities, one newcomer evicts at most.
// While the limits stay as they are it takes fewer; after a limit was lowered there
// may be far too many, which then go with those who come, and keep nobody waiting.
const mostMadeRoom = 256

// bind has other limits bind whatever comes; what is there stays, except that
// nothing is kept for longer than a life that is shorter, from now on.
func (d *directory) bind(cfg Config, now time.Time) {
	told := d.lock(now)
	d.refill = blindAskRate(cfg.Limits)
	d.pending.bind(cfg.Limits)
	d.circuits.bind(cfg.Limits)
	d.knocks.bind(cfg.OfflineQueue, now)
	d.identities.bind(cfg.Limits, now)
	d.contacts.bind(cfg.Limits, now)
	d.unlock(now)
	d.tell(told)
}

// lock begins a change, with everything gone whose time is over.
func (d *directory) lock(now time.Time) (told notices) {
	d.mu.Lock()
	d.count.blindExpired.Add(uint64(d.pending.expire(now)))
	for _, ct := range d.circuits.expire(now) {
		told = told.closed(ct, wire.EndedLeft, nil)
	}
	d.knocks.expire(now)
	d.askers.expire(now)
	d.identities.expire(now)
	d.contacts.expire(now)
	return told
}

// unlock ends a change and sets the alarm for what is due next.
func (d *directory) unlock(now time.Time) {
	var first time.Time
	for _, due := range []time.Time{d.pending.due(), d.circuits.due(), d.knocks.due(), d.askers.due(), d.identities.due(), d.contacts.due()} {
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	if !first.IsZero() {
		d.alarm.by(first, now)
	}
	d.mu.Unlock()
}

// sweep ends what is due where nobody comes by to do so.
func (d *directory) sweep() {
	now := time.Now()
	told := d.lock(now)
	d.alarm.rung()
	d.unlock(now)
	d.tell(told)
}

// close silences the alarm for good.
func (d *directory) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alarm.stop()
}

// join makes c the identity's connection, with the bundle that it publishes. It
// returns the connection that had the identity until then, if any. It reports
// false where c has another identity.
func (d *directory) join(c *session, f *wire.Publish, now time.Time) (replaced *session, told notices, ok bool) {
	told = d.lock(now)
	defer d.unlock(now)
	id := f.Identity
	if c.member.over || c.member.proven && c.member.identity != id {
		return nil, told, false
	}
	if !c.member.proven {
		if replaced = d.members[id]; replaced != nil {
			told = append(told, d.remove(replaced, now)...)
		}
		// What is left of this identity's circuits are blinded ones, whose other
		// members would go on talking to a connection that is gone.
		for ct := range d.circuits.byIdentity[id] {
			d.circuits.remove(ct)
			d.count.blindEndedAtPublish.Add(1)
			told = told.closed(ct, wire.EndedLeft, nil)
		}
		c.member = membership{proven: true, identity: id, asking: newAsking()}
		d.members[id] = c
	}
	d.count.identitiesEvicted.Add(uint64(d.identities.publish(id, f.Bundle, f.BundleSignature, c.source)))
	d.identities.byIdentity[id].signedAt = now
	return replaced, told, true
}

// publish stores a bundle that an identity has signed at a time, from a source,
// without a session of its own. It reports false where that is outdated.
func (d *directory) publish(id wire.Identity, bundle []byte, signature [64]byte, sentAt time.Time, from source, now time.Time) bool {
	told := d.lock(now)
	ok := !d.identities.outdated(id, sentAt)
	if ok {
		d.count.identitiesEvicted.Add(uint64(d.identities.publish(id, bundle, signature, from)))
		d.identities.byIdentity[id].signedAt = sentAt
		if d.members[id] == nil {
			d.identities.leave(id, now)
		}
	}
	d.unlock(now)
	d.tell(told)
	return ok
}

// outdated reports whether a newer bundle is there than one of that time.
func (d *directory) outdated(id wire.Identity, sentAt time.Time) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.identities.outdated(id, sentAt)
}

// receive lets c have what waits for its identity. It reports false where another
// connection has the identity by now.
func (d *directory) receive(c *session, store mailbox.Store) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !c.member.proven {
		return false
	}
	if c.member.reader == nil {
		c.member.reader = store.Reader(c.member.identity)
	}
	return true
}

// waiting takes out a knock that waits for c's identity, if one does, and returns
// the reader of its mailbox; both are nil before receive.
func (d *directory) waiting(c *session) (k *knock, r *mailbox.Reader) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.member.reader == nil {
		return nil, nil
	}
	return d.knocks.next(c.member.identity), c.member.reader
}

// wake has the connection of an identity look for what waits. It reports whether
// there is one that takes it.
func (d *directory) wake(id wire.Identity) (takes bool) {
	d.mu.RLock()
	c := d.members[id]
	takes = c != nil && c.member.reader != nil
	d.mu.RUnlock()
	if c != nil {
		c.backlog()
	}
	return takes
}

// leave forgets c and its requests, and parts it from its circuits.
func (d *directory) leave(c *session) notices {
	now := time.Now()
	told := d.lock(now)
	defer d.unlock(now)
	return append(told, d.remove(c, now)...)
}

func (d *directory) remove(c *session, now time.Time) (told notices) {
	if !c.member.proven {
		return nil
	}
	delete(d.members, c.member.identity)
	d.identities.leave(c.member.identity, now)
	if c.member.reader != nil {
		c.member.reader.Close()
	}
	d.pending.leave(c)
	for _, ct := range c.member.circuits {
		if d.circuits.part(ct, c, now) {
			told = told.closed(ct, wire.EndedLeft, c)
		}
	}
	c.member = membership{over: true}
	return told
}

// route is where a message on a circuit goes.
type route struct {
	to   *session      // nil: the other side is away
	peer wire.Identity // the other side
}

// route returns the other side of c's circuit. It reports false where c is in no such circuit.
func (d *directory) route(c *session, id uint64) (route, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	ct := c.member.circuits[id]
	if ct == nil {
		return route{}, false
	}
	other := ct.other(c)
	return route{other.session, other.identity}, true
}

// part has c leave a circuit, if it is in it.
func (d *directory) part(c *session, id uint64) notices {
	now := time.Now()
	told := d.lock(now)
	defer d.unlock(now)
	ct := c.member.circuits[id]
	if ct == nil {
		return told
	}
	delete(c.member.circuits, id)
	if d.circuits.part(ct, c, now) {
		told = told.closed(ct, wire.EndedClosed, c)
	}
	return told
}

// bundle returns what an identity has published last, and its signature over it.
func (d *directory) bundle(id wire.Identity) (bundle []byte, signature [64]byte, ok bool) {
	now := time.Now()
	d.mu.RLock()
	defer d.mu.RUnlock()
	r := d.identities.byIdentity[id]
	if r == nil || !r.connected && !now.Before(r.expires) {
		return nil, signature, false
	}
	return r.bundle, r.signature, true
}

// known reports whether an identity is connected, or has left a bundle.
func (d *directory) known(id wire.Identity) bool {
	d.mu.RLock()
	connected := d.members[id] != nil
	d.mu.RUnlock()
	if connected {
		return true
	}
	_, _, ok := d.bundle(id)
	return ok
}

// haveMet reports whether two identities have had a circuit.
func (d *directory) haveMet(a, b wire.Identity, now time.Time) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.contacts.have(a, b, now)
}

// directoryStats is how much of everything there is.
type directoryStats struct{ connected, pending, circuits, knocks, askers, identities, contacts int }

func (d *directory) stats() directoryStats {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return directoryStats{
		connected:  len(d.members),
		pending:    d.pending.len(),
		circuits:   len(d.circuits.byID),
		knocks:     len(d.knocks.byPair),
		askers:     len(d.askers.byIdentity),
		identities: len(d.identities.byIdentity),
		contacts:   len(d.contacts.byPair),
	}
}
