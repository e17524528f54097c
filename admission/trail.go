package admission

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Held is what a process holds of a host or a site.
type Held struct {
	Key  SharedKey
	Open int           // connections
	Debt time.Duration // until its bucket is full again
}

// Told is a part of what a process tells its successor: of each key that it names
// all that the process holds by itself, so that telling a key again changes nothing.
type Told struct {
	Open         int // connections in all
	Hosts, Sites []Held
	Settled      []uint64 // the numbers of questions whose connections are in what was told
	Whole        bool     // nothing is left to be told for the moment
}

// Question asks a successor for a connection of this process.
type Question struct {
	Addr netip.Addr
	All  bool // it has no global slot yet
}

// Answered is what became of a question.
type Answered struct {
	Reason Reason
	Number uint64 // of the question; the trail tells when it is settled
	Trail  *Trail // of the successor that has answered; nil, without a Reason: none has, the gate decides by itself again
	Taken  func() // called when what follows from the answer stands; may be nil
}

// Trail is what a gate has to tell one successor: first all that it holds, then
// what of that has changed. Its methods are safe for concurrent use.
type Trail struct {
	gate *Gate         // static
	wake chan struct{} // static

	// Guarded by gate.mu.
	hosts, sites untold
	settled      []uint64
	ended        bool
}

// untold are the keys of a table that are to be told.
type untold struct {
	known map[key]struct{} // those that were added, so that none is there twice for that
	queue []key
}

func (u *untold) add(k key) {
	if _, known := u.known[k]; !known && k != (key{}) {
		u.known[k] = struct{}{}
		u.queue = append(u.queue, k)
	}
}

// take takes the key that has waited longest.
func (u *untold) take() key {
	k := u.queue[0]
	if u.queue = u.queue[1:]; len(u.queue) == 0 {
		*u = untold{known: make(map[key]struct{})} // the memory of the first, which are many
		return k
	}
	delete(u.known, k)
	return k
}

// Secret returns the key of the gate's hashes. A successor needs it to mean the
// same by what it is told.
func (g *Gate) Secret() (secret [16]byte) {
	binary.LittleEndian.PutUint64(secret[:8], g.k0)
	binary.LittleEndian.PutUint64(secret[8:], g.k1)
	return secret
}

// NewSuccessor returns a gate with the limits l and the hash key of a predecessor,
// or the error of l.Validate.
func NewSuccessor(l Limits, secret [16]byte) (*Gate, error) {
	g, err := NewGate(l)
	if err != nil {
		return nil, err
	}
	g.k0, g.k1 = binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])
	return g, nil
}

// Retire has the gate decide nothing by itself until Resume: whoever would be
// admitted or named is asked for, and ask may wait for the answer. It returns neither
// Trail nor Reason in Answered only after Resume.
//
// What the predecessors of the gate hold it goes on counting, so that it is as
// exact as before when it resumes.
func (g *Gate) Retire(ask func(Question) Answered) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ask = ask
}

// Resume has the gate decide by itself.
func (g *Gate) Resume() { g.Retire(nil) }

// Trail begins to tell one more successor, which may decide once the gate is retired
// and all has been told.
func (g *Gate) Trail() *Trail {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &Trail{gate: g, wake: make(chan struct{}, 1), hosts: keysIn(&g.hosts), sites: keysIn(&g.sites)}
	g.trails = append(g.trails, t)
	t.stir()
	return t
}

// keysIn returns the keys of a table that anything is known of.
func keysIn(t *table) untold {
	u := untold{known: make(map[key]struct{}), queue: make([]key, 0, len(t.index))}
	for k := range t.index {
		u.queue = append(u.queue, k)
	}
	return u
}

// End ends the trail: that successor is gone.
func (t *Trail) End() {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.ended {
		return
	}
	t.ended, t.hosts, t.sites, t.settled = true, untold{}, untold{}, nil
	for i, other := range g.trails {
		if other == t {
			g.trails = append(g.trails[:i:i], g.trails[i+1:]...)
			break
		}
	}
	if len(g.trails) == 0 {
		g.trails = nil
	}
}

// Wake is told when there is something to tell.
func (t *Trail) Wake() <-chan struct{} { return t.wake }

// Stir has Wake told though there may be nothing to tell.
func (t *Trail) Stir() { t.stir() }

func (t *Trail) stir() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Next returns what is to be told next, of at most so many keys.
func (t *Trail) Next(most int, now time.Time) Told {
	g := t.gate
	at := g.at(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	told := Told{Open: g.open}
	for _, p := range g.predecessors {
		told.Open -= p.open + p.openAsked
	}
	told.Hosts = g.held(&g.hosts, &t.hosts, most, at, func(p *Predecessor) map[key]*holding { return p.hosts })
	told.Sites = g.held(&g.sites, &t.sites, most-len(told.Hosts), at, func(p *Predecessor) map[key]*holding { return p.sites })
	if told.Whole = len(t.hosts.queue)+len(t.sites.queue) == 0; told.Whole {
		// A question is settled only by what was told of its connection before.
		n := min(most, len(t.settled))
		told.Settled, t.settled = t.settled[:n:n], t.settled[n:]
		told.Whole = len(t.settled) == 0
	}
	return told
}

// held takes at most so many of the keys out of those to be told, and returns what
// the gate itself holds of them. The caller holds mu.
func (g *Gate) held(t *table, keys *untold, most int, at int64, of func(*Predecessor) map[key]*holding) (all []Held) {
	n := min(most, len(keys.queue))
	for range n {
		k := keys.take()
		r := t.row(t.find(k))
		own := int(r.open)
		for _, p := range g.predecessors {
			if h := of(p)[k]; h != nil {
				own -= int(h.told + h.asked)
			}
		}
		all = append(all, Held{Key: k.shared(), Open: own, Debt: time.Duration(max(0, r.full-at))})
	}
	return all
}

// touch notes that what the gate itself holds of these keys has changed. The caller
// holds mu, and there are trails.
func (g *Gate) touch(host, site key) {
	for _, t := range g.trails {
		t.hosts.add(host)
		t.sites.add(site)
		t.stir()
	}
}

// admitAway asks the successor for a connection from addr.
func (g *Gate) admitAway(addr netip.Addr, now time.Time) (*Lease, Reason) {
	l := &Lease{gate: g}
	reason := g.away(Question{addr, true}, func(a Answered) {
		g.open++
		l.hold(a, addr)
	})
	switch {
	case reason == decideAlone:
		return g.Admit(addr, now)
	case reason != "":
		return nil, reason
	}
	return l, ""
}

// nameAway asks the successor for the client of a connection that the gate holds.
func (l *Lease) nameAway(addr netip.Addr, now time.Time) Reason {
	reason := l.gate.away(Question{addr, false}, func(a Answered) {
		if l.state == leaseReleased {
			// Its connection has ended meanwhile.
			a.Trail.settle(a.Number)
			return
		}
		l.hold(a, addr)
		l.state = leaseNamed
	})
	if reason == decideAlone {
		return l.Name(addr, now)
	}
	return reason
}

// decideAlone is no reason of a refusal: there is no successor any longer.
const decideAlone Reason = "-"

// away asks the successor a question. If it lets the connection in, take is called
// under the lock.
func (g *Gate) away(q Question, take func(Answered)) Reason {
	for {
		g.mu.Lock()
		ask := g.ask
		g.mu.Unlock()
		if ask == nil {
			return decideAlone
		}
		if reason := g.answered(ask(q), take); reason != askAgain {
			return reason
		}
	}
}

// askAgain is no reason of a refusal either: whoever has answered has ended.
const askAgain Reason = "?"

func (g *Gate) answered(a Answered, take func(Answered)) Reason {
	if a.Taken != nil {
		defer a.Taken()
	}
	switch {
	case a.Reason != "":
		return a.Reason
	case a.Trail == nil:
		return decideAlone
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.Trail.ended {
		return askAgain // whoever decides in its place does not know what it has allowed
	}
	take(a)
	return ""
}

// hold charges the lease to addr, for which a successor has answered. Its buckets
// have paid. The caller holds the gate's lock.
func (l *Lease) hold(a Answered, addr netip.Addr) {
	g := l.gate
	c := g.read(addr)
	if c.hasHost {
		i := g.hosts.find(c.host)
		l.host = g.hosts.take(i, c.host, g.hosts.row(i).full)
		l.state = leaseNamed
	}
	if c.hasSite {
		i := g.sites.find(c.site)
		l.site = g.sites.take(i, c.site, g.sites.row(i).full)
	}
	g.touch(c.host, c.site)
	a.Trail.settle(a.Number)
}

// Settle says that nothing will be told of a question: the successor may forget it.
func (t *Trail) Settle(number uint64) {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	t.settle(number)
}

// settle requires the gate's lock. The successor may forget the question once it
// has been told what the gate holds by now.
func (t *Trail) settle(number uint64) {
	if !t.ended {
		t.settled = append(t.settled, number)
		t.stir()
	}
}
