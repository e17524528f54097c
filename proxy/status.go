package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"relayedge/admission"
	"relayedge/internal/hostport"
	"relayedge/proxy/upstream"
)

// ListenerStatus is what is known of a listener.
type ListenerStatus struct {
	Name, Address string
	Protocol, TLS string // as the policy has them
	Open          int64  // connections
	Leaving       bool   // a reload has removed it, and connections are left
}

// Listeners tells of every listener in force, in the order of the policy, and then
// of those removed that have connections left.
func (s *Server) Listeners() []ListenerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave()
	var all []ListenerStatus
	for i, l := range slices.Concat(s.listeners, s.leaving) {
		c := l.terms.Load().config
		all = append(all, ListenerStatus{c.Name, hostport.Text(l.socket.Addr()), c.Protocol, c.TLS, l.open.Load(), i >= len(s.listeners)})
	}
	return all
}

// UpstreamStatus is what is known of an upstream.
type UpstreamStatus struct {
	Name      string
	Up        bool
	Addresses []upstream.Status
}

// Upstreams tells of every upstream in force, by name.
func (s *Server) Upstreams() []UpstreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []UpstreamStatus
	for _, name := range slices.Sorted(maps.Keys(s.upstreams)) {
		u := s.upstreams[name]
		all = append(all, UpstreamStatus{name, u.Up(), u.Status()})
	}
	return all
}

// Holder is a host or a site with the connections that it has.
type Holder struct {
	Network     netip.Prefix // of the host or the site
	Site        bool
	Connections int
	Cap         int
}

// Holders are what hosts and sites hold of their caps.
type Holders struct {
	// The most that a host has of those whose cap is that of the limits, and no
	// class's; and a site.
	MostOfHost, MostOfSite int
	AtCap                  []Holder // that have no less than their cap: those with the most connections first
}

// Holders counts the open connections by the hosts and sites of their clients, at
// this edge. It looks at every connection, so it is for a person who waits for it,
// and not for every request. A connection whose header has not come yet has no client.
func (s *Server) Holders() Holders {
	type held struct {
		open int
		addr netip.Addr // one of its clients'
	}
	hosts, sites := make(map[netip.Prefix]held), make(map[netip.Prefix]held)
	limits := s.gate.Limits()
	add := func(to map[netip.Prefix]held, key netip.Prefix, addr netip.Addr) {
		if key.IsValid() {
			to[key] = held{to[key].open + 1, addr}
		}
	}
	for _, addr := range s.clients() {
		host, site := admission.Keys(addr, limits.EmbeddedIPv4)
		add(hosts, host, addr)
		add(sites, site, addr)
	}
	var h Holders
	for key, held := range hosts {
		caps := s.gate.Caps(held.addr)
		if caps.Host == limits.MaxConnectionsPerIP {
			h.MostOfHost = max(h.MostOfHost, held.open)
		}
		if caps.Host > 0 && held.open >= caps.Host {
			h.AtCap = append(h.AtCap, Holder{key, false, held.open, caps.Host})
		}
	}
	for key, held := range sites {
		caps := s.gate.Caps(held.addr)
		if caps.Site == limits.MaxConnectionsPerIPv648 {
			h.MostOfSite = max(h.MostOfSite, held.open)
		}
		if caps.Site > 0 && held.open >= caps.Site {
			h.AtCap = append(h.AtCap, Holder{key, true, held.open, caps.Site})
		}
	}
	slices.SortFunc(h.AtCap, func(a, b Holder) int {
		return cmp.Or(b.Connections-a.Connections, a.Network.Compare(b.Network))
	})
	return h
}

// clients are the clients of the open connections that have an address.
func (s *Server) clients() []netip.Addr {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.sessions)) // each has a lock of its own
	s.mu.Unlock()
	clients := make([]netip.Addr, 0, len(open))
	for _, session := range open {
		if addr, counted := session.holder(); counted {
			clients = append(clients, addr)
		}
	}
	return clients
}

// holder is the client that the gate counts a session for; false where there is
// none: its header has not come, names nobody, or the lease is given back.
func (s *session) holder() (netip.Addr, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.counted || s.stopped {
		return netip.Addr{}, false
	}
	addr := s.client.Addr()
	return addr, addr.IsValid()
}

// count says whether the gate counts the session for its client. From here on the
// client does not change while it does.
func (s *session) count(counts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counted = counts
}
