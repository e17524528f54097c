package admission

import "time"

// Beat returns what this edge has to tell the store and asks of it. Each beat is
// followed by Done, or by Failed where no reply has come.
func (f *Fleet) Beat(now time.Time) Beat {
	f.gate.mu.Lock()
	f.urgent = false
	if len(f.pending) == 0 {
		if f.begin {
			f.cursor, f.seen, f.more = 0, 0, false
		}
		f.pending = f.collect(f.gate.at(now))
	}
	edges := f.edges
	f.gate.mu.Unlock()

	n := min(len(f.pending), askBatch)
	b := Beat{Life: f.life, Number: f.latest.Number + 1, Begin: f.begin, Edges: f.told, Seen: f.seen, Asks: f.pending[:n:n]}
	if f.pending = f.pending[n:]; len(f.pending) == 0 {
		// With this beat the store has all that follows from what this edge knows,
		// so it may go by that; not before.
		b.Edges, b.News, b.Cursor = edges, true, f.cursor
		if !f.more {
			b.Seen = f.cursor
		}
	}
	f.latest, f.sent = b, now
	return b
}

// Done takes the reply to the latest beat. It reports whether the next beat is due at once.
func (f *Fleet) Done(now time.Time, r Reply) (again bool) {
	if r.Unknown || now.Sub(f.sent) > f.lease {
		// Whatever was answered, the others may have had it since.
		f.restart()
		return true
	}
	f.begin, f.renewed, f.told, f.seen = false, f.sent, f.latest.Edges, f.latest.Seen
	if f.latest.News {
		f.cursor, f.more = r.Version, r.More
	}
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	if f.latest.Begin {
		f.begun = now
	}
	if r.Edges > f.heard {
		f.scan = true
	}
	f.heard = r.Edges
	if r.Edges > f.edges || now.Sub(f.begun) >= f.lease {
		// Soon after the store did not know this edge it may have forgotten the others
		// too, who have not told it again yet.
		f.edges = r.Edges
	}
	at := f.gate.at(now)
	tight := false
	for _, a := range r.Answers {
		tight = f.take(a, at) || tight
	}
	// The others wait for this edge to give up what it has of a tight key without a claim.
	return len(f.pending) > 0 || f.more || f.scan || tight
}

// Failed says that the latest beat was not answered, and may have reached the
// store or not. It reports whether this edge is alone from here on: the lease has
// run out, the others do not count what it holds, and its limits are its own.
func (f *Fleet) Failed(now time.Time) (alone bool) {
	f.restart()
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	if f.edges == 0 || now.Sub(f.renewed) <= f.lease {
		return false
	}
	f.edges, f.all = 0, shared{}
	clear(f.keys)
	clear(f.asked)
	f.life++
	return true
}

// restart has the next beat tell of all that this edge holds.
func (f *Fleet) restart() { f.begin, f.pending = true, nil }

// take notes what the fleet says of a key, and reports whether it has become
// tight by that. The caller holds the gate's lock.
func (f *Fleet) take(a Answer, at int64) (tight bool) {
	m := &f.all
	if a.Key != (SharedKey{}) {
		k := a.Key.key()
		if m = f.keys[k]; m == nil {
			if !a.Tight && a.Debt <= 0 {
				return false
			}
			m = new(shared)
			f.keys[k] = m
		}
		if a.Debt > 0 && !m.rate {
			_, full := f.row(k)
			m.begin(full, at, int64(f.edges))
		}
	}
	tight = a.Tight && !m.tight
	m.claim, m.total, m.tight = a.Claim, a.Total, a.Tight
	if m.rate {
		m.sent = 0
		m.full = at + int64(max(0, a.Debt)) + m.fold*m.spent
	}
	return tight
}

// row returns what the row of a key holds, of a host or a site.
func (f *Fleet) row(k key) (open int, full int64) {
	r := f.gate.hosts.row(f.gate.hosts.find(k))
	if r.open == 0 && r.full == 0 {
		r = f.gate.sites.row(f.gate.sites.find(k))
	}
	return int(r.open), r.full
}

// collect returns all that is to be told at the time at. What an edge does not
// want any longer it gives up by that, whether or not the store hears of it. The
// caller holds the gate's lock.
func (f *Fleet) collect(at int64) (asks []Ask) {
	if f.begin || f.scan {
		s := f.gate.settings.Load()
		f.rows(&f.gate.hosts, s.leastHost)
		f.rows(&f.gate.sites, s.leastSite)
	}
	f.learn(at)
	f.all.recent = f.gate.settings.Load().limits.MaxConnections
	if a, ok := f.ask(&f.all, f.gate.open, 0, at); ok {
		asks = append(asks, a)
	}
	for k, m := range f.keys {
		open, full := f.row(k)
		if a, ok := f.ask(m, open, full, at); ok {
			a.Key = k.shared()
			asks = append(asks, a)
		} else if !m.tight && !m.rate && m.claim == 0 {
			delete(f.keys, k)
		}
	}
	f.scan = false
	return asks
}

// learn makes known what has come up since the latest beat. The caller holds the
// gate's lock.
func (f *Fleet) learn(at int64) {
	for k, a := range f.asked {
		m := f.know(k)
		if m == nil {
			continue
		}
		m.refused += a.refused
		m.recent = max(m.recent, a.most)
		if _, full := f.row(k); a.spent > 0 && !m.rate {
			m.begin(full, at, a.fold)
		}
		// Not what of it is left by now: the others have refilled theirs meanwhile too.
		m.spent = max(m.spent, a.spent)
	}
	clear(f.asked)
}

// rows makes known the rows of t that hold so much that a cap of least would
// have them told of: those of a gate that comes into a fleet, or whose part of the
// caps has shrunk.
func (f *Fleet) rows(t *table, least int) {
	if least == 0 {
		return
	}
	low := free(least, max(1, f.edges))
	for k, i := range t.index {
		if 2*int(t.row(i).open) <= low {
			continue
		}
		m := f.know(k)
		if m == nil {
			return
		}
		m.recent = max(m.recent, least) // until a newcomer comes, whose cap may be higher
	}
}

// know returns what is known of k, from here on, or nil where that would be too much.
func (f *Fleet) know(k key) *shared {
	m := f.keys[k]
	if m == nil && len(f.keys) < knownBound {
		m = new(shared)
		f.keys[k] = m
	}
	return m
}

// ask returns what is to be told of a key that has so many connections, and whether there is anything.
func (f *Fleet) ask(m *shared, open int, full, at int64) (Ask, bool) {
	a := Ask{Held: open}
	if m.recent > 0 {
		m.most, m.recent = m.recent, 0
	}
	n := max(1, f.edges)
	switch {
	case m.most == 0: // no cap, or no newcomer by whom to know it
		if !m.tight {
			a.Held = 0
		}
		a.Need, a.Want = a.Held, a.Held
	case m.tight:
		if open > 0 || m.refused > 0 {
			// Some of what nobody has, and of the last of it nothing: that is for
			// whoever has use for it.
			a.Need = open + m.refused
			a.Want = a.Need + max(0, m.most-(m.total-m.claim)-open)/(2*n)
		}
	case m.refused == 0 && (m.claim == 0 && 2*open <= free(m.most, n) || 4*open <= free(m.most, n)):
		a.Held = 0
	default:
		a.Need = open + m.refused + open/4
		a.Want = max(a.Need, open+m.refused+max(open, free(m.most, n)))
	}
	a.Cap = m.most
	if m.most > 0 {
		a.Need, a.Want = max(a.Held, min(a.Need, m.most)), max(a.Held, min(a.Want, m.most))
	}
	if m.refused > 0 {
		m.keep = at + claimKept
	}
	if m.total > m.most && m.most > 0 {
		// There is more than the cap, so nobody can use more than is open.
		a.Held, a.Need, a.Want = open, open, open
	} else if at < m.keep && m.claim > a.Want {
		// Whoever was refused may be on the way back.
		a.Need, a.Want = max(a.Need, open), m.claim
		a.Held = open
	}
	// An ask brings the total up to date too, which may be why somebody was refused.
	all := f.begin || f.scan
	tell := all || a.Want != m.claim || m.refused > 0
	if !m.tight && m.refused == 0 && a.Want > 0 && a.Need <= m.claim && m.claim <= 2*a.Want {
		// It has enough, and not much too much; but where more edges are to have their
		// part without a claim, there may be less for claims.
		tell = all
		a.Want = max(a.Want, m.claim)
	}
	m.refused = 0
	if m.rate {
		m.spent += m.sent // no answer has come to it
		m.sent = 0
		switch {
		case m.spent > 0:
			a.Spent, tell = time.Duration(m.spent), true
			m.sent, m.spent = m.spent, 0
		case max(m.full, full) <= at:
			m.rate = false
		}
	}
	if tell {
		// The store may take away what is beyond that, and the answer may be lost.
		m.claim = min(m.claim, a.Need)
	}
	return a, tell
}
