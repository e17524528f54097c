package admission

import (
	"errors"
	"time"
)

const (
	// heldBound is how many keys of each table a predecessor may hold, and
	// askedMost how many of its questions may be without a settlement.
	heldBound = 1 << 22
	askedMost = 1 << 16
)

// ErrHolding says that a predecessor tells more than one process can hold.
var ErrHolding = errors.New("it tells of more hosts than a process can hold")

// Predecessor is what an older process still holds, of which this gate has the
// counts: they bind newcomers as its own do, and fall as the older process tells
// it. Its methods are safe for concurrent use.
type Predecessor struct {
	gate *Gate // static

	// Guarded by gate.mu.
	open         int
	openAsked    int // global slots among asked
	hosts, sites map[key]*holding
	asked        map[uint64]reservation
	gone         bool
}

// holding is what a predecessor holds of one key.
type holding struct {
	row   uint32
	told  uint32 // connections that it has told of
	asked uint32 // that it was allowed, and has not told of yet
}

// reservation is what stands for a connection from the answer to its predecessor's
// question until it is told of.
type reservation struct {
	host, site key // the zero key: none
	all        bool
}

// Predecessor returns an older process that holds nothing yet.
func (g *Gate) Predecessor() *Predecessor {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &Predecessor{gate: g, hosts: make(map[key]*holding), sites: make(map[key]*holding), asked: make(map[uint64]reservation)}
	g.predecessors = append(g.predecessors, p)
	return p
}

// Hold takes what the predecessor tells. After Gone it does nothing.
func (p *Predecessor) Hold(told Told, now time.Time) error {
	g := p.gate
	at := g.at(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.gone {
		return nil
	}
	if len(p.hosts)+len(told.Hosts) > heldBound || len(p.sites)+len(told.Sites) > heldBound || told.Open < 0 {
		return ErrHolding
	}
	g.tick(at)
	g.open += told.Open - p.open
	p.open = told.Open
	for _, h := range told.Hosts {
		p.set(&g.hosts, p.hosts, h, at)
	}
	for _, h := range told.Sites {
		p.set(&g.sites, p.sites, h, at)
	}
	for _, number := range told.Settled {
		p.settle(number, at)
	}
	return nil
}

// set requires the gate's lock. It has the predecessor hold what it tells of a key.
func (p *Predecessor) set(t *table, keys map[key]*holding, told Held, at int64) {
	k := told.Key.key()
	open := uint32(max(0, told.Open))
	full := at + min(max(0, int64(told.Debt)), endOfTime-at)
	h := keys[k]
	if h == nil {
		i := t.find(k)
		if open == 0 && full <= max(at, t.row(i).full) {
			return
		}
		h = new(holding)
		keys[k] = h
	}
	before := h.told
	t.hold(h, k, full)
	h.told = open
	t.row(h.row).open += open
	t.settle(h, keys, k, before, at)
}

// hold has row h stand for k with one connection more than it has, so that it
// lives until settle, and its bucket owe what it owes already or until full.
func (t *table) hold(h *holding, k key, full int64) {
	i := t.find(k)
	h.row = t.take(i, k, max(full, t.row(i).full))
}

// settle takes away that connection, and so many more.
func (t *table) settle(h *holding, keys map[key]*holding, k key, less uint32, at int64) {
	t.row(h.row).open -= less
	t.release(h.row, at)
	if h.told+h.asked == 0 {
		delete(keys, k)
	}
}

// Ask decides about a connection of the predecessor's as Admit and Name do. If it
// lets it in, what is charged stays reserved under the number until the
// predecessor has told of it.
func (p *Predecessor) Ask(number uint64, q Question, now time.Time) Reason {
	g := p.gate
	at := g.at(now)
	c, ok := g.lock(q.Addr)
	if !ok {
		return Denied
	}
	defer g.mu.Unlock()
	if _, twice := p.asked[number]; twice || p.gone || len(p.asked) >= askedMost {
		return MaxConnections
	}
	var host, site uint32
	var reason Reason
	if q.All {
		host, site, reason = g.enter(&c, at)
	} else {
		g.tick(at)
		host, site, reason = g.charge(&c, at)
	}
	if reason != "" {
		return reason
	}
	r := reservation{all: q.All}
	if q.All {
		p.openAsked++
	}
	if c.hasHost {
		r.host = c.host
		reserve(p.hosts, c.host, host)
	}
	if c.hasSite {
		r.site = c.site
		reserve(p.sites, c.site, site)
	}
	p.asked[number] = r
	return ""
}

func reserve(keys map[key]*holding, k key, row uint32) {
	h := keys[k]
	if h == nil {
		h = &holding{row: row}
		keys[k] = h
	}
	h.asked++
}

// settle requires the gate's lock.
func (p *Predecessor) settle(number uint64, at int64) {
	r, ok := p.asked[number]
	if !ok {
		return
	}
	delete(p.asked, number)
	g := p.gate
	if r.all {
		p.openAsked--
		g.open--
	}
	for _, of := range []struct {
		table *table
		keys  map[key]*holding
		key   key
	}{{&g.hosts, p.hosts, r.host}, {&g.sites, p.sites, r.site}} {
		if of.key == (key{}) {
			continue
		}
		h := of.keys[of.key]
		h.asked--
		of.table.settle(h, of.keys, of.key, 0, at)
	}
}

// Gone frees all that the predecessor holds, once: it has ended.
func (p *Predecessor) Gone() {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.gone {
		return
	}
	p.gone = true
	g.open -= p.open + p.openAsked
	for _, of := range []struct {
		table *table
		keys  map[key]*holding
	}{{&g.hosts, p.hosts}, {&g.sites, p.sites}} {
		for _, h := range of.keys {
			of.table.row(h.row).open -= h.told + h.asked - 1
			of.table.release(h.row, g.now)
		}
	}
	p.hosts, p.sites, p.asked = nil, nil, nil
	p.open, p.openAsked = 0, 0
	for i, other := range g.predecessors {
		if other == p {
			g.predecessors = append(g.predecessors[:i:i], g.predecessors[i+1:]...)
			break
		}
	}
}
