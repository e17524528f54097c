package admission

import (
	"net/netip"
	"time"
)

// Lease is what the gate hands out for an admitted connection. It holds the
// exact rows that were charged, so a change of limits cannot make it give back
// something else. Its methods are safe for concurrent use.
type Lease struct {
	gate *Gate // static

	// Guarded by gate.mu.
	host, site uint32 // rows; 0: none
	state      leaseState
}

type leaseState uint8

const (
	leaseUnnamed  leaseState = iota // holds a global slot and awaits its name
	leaseNamed                      // holds all that it will ever hold
	leaseReleased                   // holds nothing
)

// Name charges the lease, which holds a global slot so far, to addr as well:
// deny list, host, site and rates, all or nothing. It is for connections whose
// client a PROXY header names; the zero addr, for a header that names none, is
// charged nothing more. After a refusal the lease still holds its global slot
// and no name. Naming a lease that has a name, or after Release, panics.
func (l *Lease) Name(addr netip.Addr, now time.Time) Reason {
	g := l.gate
	at := g.at(now)
	c, ok := g.lock(addr)
	if !ok {
		g.mu.Lock()
	}
	state := l.state
	var reason Reason
	switch {
	case state != leaseUnnamed:
	case !ok:
		reason = Denied
	case g.ask != nil:
		g.mu.Unlock()
		return l.nameAway(addr, now)
	default:
		g.tick(at)
		var host, site uint32
		if host, site, reason = g.charge(&c, at); reason == "" {
			l.host, l.site, l.state = host, site, leaseNamed
			if g.trails != nil {
				g.touch(c.host, c.site)
			}
		}
	}
	g.mu.Unlock()
	switch state {
	case leaseNamed:
		panic("admission: a lease is named twice")
	case leaseReleased:
		panic("admission: a lease is named after its release")
	}
	return reason
}

// Release gives back all that the lease holds. Calls after the first do
// nothing, and so does the Release of a nil lease, so that it can be deferred
// on the line after Admit.
func (l *Lease) Release() {
	if l == nil {
		return
	}
	g := l.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.state == leaseReleased {
		return
	}
	l.state = leaseReleased
	g.open--
	if g.trails != nil {
		g.touch(g.hosts.row(l.host).key, g.sites.row(l.site).key)
	}
	if l.host != 0 {
		g.hosts.release(l.host, g.now)
	}
	if l.site != 0 {
		g.sites.release(l.site, g.now)
	}
	g.tick(g.now)
}
