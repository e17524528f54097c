package admission

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dchest/siphash"
)

// Reason says why a connection was refused. The empty Reason means admitted.
type Reason string

// The gate's reasons, in the order in which it looks.
const (
	Denied           Reason = "denied"            // the address is on the deny list
	StoreUnavailable Reason = "store_unavailable" // the gate of a fleet is alone, and refuses then
	MaxConnections   Reason = "max_connections"   // the global cap is reached
	PerIPCap         Reason = "per_ip_cap"        // the host's cap is reached
	PerPrefixCap     Reason = "per_prefix_cap"    // the site's cap is reached
	ConnectionRate   Reason = "connection_rate"   // the host or the site opens connections too fast
)

const (
	// sweepRows is how many debtors of each table one decision may drop. A
	// decision makes at most one debtor, so more than one keeps up.
	sweepRows = 4
	// statsRows is the same for one hold of the lock in Stats, which drops them all.
	statsRows = 256
	// endOfTime is the latest time of the gate, in nanoseconds since its start:
	// far away, and yet no debt added to it overflows.
	endOfTime = 1 << 62
)

// Gate decides whether a connection may exist. It is safe for concurrent use
// and exact under it.
type Gate struct {
	// Static.
	start  time.Time
	k0, k1 uint64 // key of the tables' hash

	// Read by everyone; written under mu, so that who holds mu and finds the
	// settings it began with decides by the limits in force.
	settings atomic.Pointer[settings]

	// Written under mu, read by everyone.
	observedHostCap, observedSiteCap, observedRate atomic.Uint64

	fleet *Fleet // its side of a fleet, or nil; set before the gate is used

	mu sync.Mutex
	// Guarded by mu.
	now          int64 // the time of the latest decision: a release asks no clock
	open         int   // leases out, and what predecessors hold
	hosts, sites table
	predecessors []*Predecessor
	trails       []*Trail // what successors are to be told; nil: there is none
	// ask asks a successor for whoever comes; nil: the gate decides.
	ask func(Question) Answered
}

// NewGate returns a gate with the limits l, or the error of l.Validate.
func NewGate(l Limits) (*Gate, error) {
	s, err := newSettings(l)
	if err != nil {
		return nil, err
	}
	var secret [16]byte
	rand.Read(secret[:]) // never fails: it ends the process instead
	g := &Gate{
		start: time.Now(),
		k0:    binary.LittleEndian.Uint64(secret[:8]),
		k1:    binary.LittleEndian.Uint64(secret[8:]),
		hosts: newTable(),
		sites: newTable(),
	}
	g.settings.Store(s)
	return g, nil
}

// SetLimits puts l in force for newcomers. Nobody who was admitted is evicted
// and every count stays; what a bucket owes stays as the time in which it will
// be full again. It returns the error of l.Validate and then changes nothing.
func (g *Gate) SetLimits(l Limits) error {
	s, err := newSettings(l)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settings.Store(s)
	return nil
}

// Limits returns a copy of the limits in force.
func (g *Gate) Limits() Limits {
	return g.settings.Load().limits.clone()
}

// Admit charges one connection from addr, all or nothing. A refusal changes no
// count, allocates nothing and returns no lease. The zero addr stands for a peer
// without a host (a unix socket, or a peer that a PROXY header has yet to name):
// it is charged to the global cap alone. now feeds the connection rates by its
// monotonic reading.
func (g *Gate) Admit(addr netip.Addr, now time.Time) (*Lease, Reason) {
	at := g.at(now)
	c, ok := g.lock(addr)
	if !ok {
		return nil, Denied
	}
	if g.ask != nil {
		g.mu.Unlock()
		return g.admitAway(addr, now)
	}
	host, site, reason := g.enter(&c, at)
	if reason == "" && g.trails != nil {
		g.touch(c.host, c.site)
	}
	g.mu.Unlock()
	if reason != "" {
		return nil, reason
	}
	l := &Lease{gate: g, host: host, site: site}
	if c.hasHost {
		l.state = leaseNamed
	}
	return l, ""
}

// client is what a decision needs to know of an address. It is made without
// the lock and holds for the settings that it was made by.
type client struct {
	settings         *settings
	scopes           *scopes // what binds it
	host, site       key
	hasHost, hasSite bool
	denied           bool
}

// read looks addr up in the deny list and the classes, and hashes its keys.
func (g *Gate) read(addr netip.Addr) client {
	s := g.settings.Load()
	c := client{settings: s}
	if !addr.IsValid() {
		return c
	}
	addr = bare(addr)
	inner := lookThrough(addr, s.limits.EmbeddedIPv4)
	// The operator may have denied the gateway as well as the client behind it.
	if s.deny.Contains(inner) || inner != addr && s.deny.Contains(addr) {
		c.denied = true
		return c
	}
	c.scopes = s.of(inner)
	host, site := keysOf(inner)
	c.host, c.hasHost = g.hash(host), true
	if site.IsValid() {
		c.site, c.hasSite = g.hash(site), true
	}
	return c
}

// hash returns the keyed hash of what p fixes of its address. Lengths differ
// between the kinds of keys, so one kind cannot stand for another.
func (g *Gate) hash(p netip.Prefix) key {
	var b [16]byte
	if a := p.Addr(); a.Is4() {
		v4 := a.As4()
		copy(b[:], v4[:])
	} else {
		b = a.As16()
	}
	hi, lo := siphash.Hash128(g.k0, g.k1, b[:p.Bits()/8])
	return key{hi, lo}
}

// lock reads addr and takes the lock with the limits unchanged since. If addr
// is denied it returns false, without the lock.
func (g *Gate) lock(addr netip.Addr) (client, bool) {
	for {
		c := g.read(addr)
		if c.denied {
			return c, false
		}
		g.mu.Lock()
		if c.settings == g.settings.Load() {
			return c, true
		}
		g.mu.Unlock()
	}
}

// enter charges a newcomer's global slot and its keys. The caller holds mu.
func (g *Gate) enter(c *client, at int64) (host, site uint32, reason Reason) {
	g.tick(at)
	if g.fleet.shut() {
		return 0, 0, StoreUnavailable
	}
	if g.full(c.settings.limits.MaxConnections) {
		return 0, 0, MaxConnections
	}
	host, site, reason = g.charge(c, at)
	if reason == "" {
		g.open++
		if g.fleet != nil && g.fleet.edges > 0 {
			g.fleet.fill(&g.fleet.all, g.open, c.settings.limits.MaxConnections)
		}
	}
	return host, site, reason
}

// full reports whether there may be no further connection.
func (g *Gate) full(most int) bool {
	if g.fleet == nil {
		return g.open >= most
	}
	return g.fleet.capped(key{}, &g.fleet.all, g.open, most)
}

// charge charges the keys of c, all or nothing. The caller holds mu.
func (g *Gate) charge(c *client, at int64) (host, site uint32, reason Reason) {
	if !c.hasHost {
		return 0, 0, ""
	}
	s := c.scopes
	host = g.hosts.find(c.host)
	if c.hasSite {
		site = g.sites.find(c.site)
	}
	h, w := g.hosts.row(host), g.sites.row(site)
	sharedHost, sharedSite := g.fleet.find(c.host), g.fleet.find(c.site)
	hostCapped := g.fleet.capped(c.host, sharedHost, int(h.open), s.host.most)
	siteCapped := c.hasSite && g.fleet.capped(c.site, sharedSite, int(w.open), s.site.most)
	hostPaid := s.host.charge(sharedHost.bucket(h), at, s.host.fold(g.fleet))
	sitePaid := s.site.charge(sharedSite.bucket(w), at, s.site.fold(g.fleet))
	switch {
	case hostCapped && !s.host.observeCap:
		return 0, 0, PerIPCap
	case siteCapped && !s.site.observeCap:
		return 0, 0, PerPrefixCap
	case !hostPaid.ok && !s.host.observeRate, !sitePaid.ok && !s.site.observeRate:
		return 0, 0, ConnectionRate
	}
	// It gets in. What stands against it by now is observed only; such a bucket
	// pays nothing, as it would not for a refusal, so that the count is what
	// the limit would have refused in earnest.
	if hostCapped {
		g.observedHostCap.Add(1)
	}
	if siteCapped {
		g.observedSiteCap.Add(1)
	}
	if !hostPaid.ok {
		g.observedRate.Add(1)
	}
	if !sitePaid.ok {
		g.observedRate.Add(1)
	}
	host = g.hosts.take(host, c.host, hostPaid.full)
	g.fleet.took(c.host, sharedHost, int(g.hosts.row(host).open), &s.host, hostPaid, at)
	if c.hasSite {
		site = g.sites.take(site, c.site, sitePaid.full)
		g.fleet.took(c.site, sharedSite, int(g.sites.row(site).open), &s.site, sitePaid, at)
	}
	return host, site, ""
}

// at returns now as the time of the gate.
func (g *Gate) at(now time.Time) int64 {
	return min(max(int64(now.Sub(g.start)), 0), endOfTime)
}

// tick notes the time and drops some of the debtors that have paid. The caller holds mu.
func (g *Gate) tick(at int64) {
	g.now = at
	g.hosts.sweep(at, sweepRows)
	g.sites.sweep(at, sweepRows)
}

// Stats is a snapshot of what the gate holds.
type Stats struct {
	Connections int               // leases out, and what predecessors hold
	Hosts       int               // rows of the host table: hosts with open connections or with a bucket that is not full again
	Sites       int               // the same for sites
	Observed    map[Reason]uint64 // connections let in against an observed limit, by its reason, since the start
}

// Stats returns what the gate holds at now; rows whose bucket is full again by then are dropped first.
func (g *Gate) Stats(now time.Time) Stats {
	at := g.at(now)
	for {
		g.mu.Lock()
		g.now = at
		more := g.hosts.sweep(at, statsRows)
		more = g.sites.sweep(at, statsRows) || more
		st := Stats{Connections: g.open, Hosts: len(g.hosts.index), Sites: len(g.sites.index)}
		g.mu.Unlock()
		if more {
			continue
		}
		st.Observed = make(map[Reason]uint64, 3)
		for _, r := range []Reason{PerIPCap, PerPrefixCap, ConnectionRate} {
			st.Observed[r] = g.Observed(r)
		}
		return st
	}
}

// Observed returns how many connections were let in against an observed limit
// with the reason r, since the start. One that both observed rates would have
// refused counts twice.
func (g *Gate) Observed(r Reason) uint64 {
	switch r {
	case PerIPCap:
		return g.observedHostCap.Load()
	case PerPrefixCap:
		return g.observedSiteCap.Load()
	case ConnectionRate:
		return g.observedRate.Load()
	}
	return 0
}
