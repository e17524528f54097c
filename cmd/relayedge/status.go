package main

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/logging"
	"relayedge/internal/status"
	"relayedge/internal/telemetry"
	"relayedge/proxy"
	"relayedge/proxy/certs"
)

const (
	// holdersKept is for how long the count of who holds what is good: it looks at
	// every connection, and any number of people may look at the page.
	holdersKept = time.Second
	// networksListed is how many networks at their caps are.
	networksListed = 20
)

// teller says what the edge is about. Its figures are those of the metrics: it reads
// the same families.
type teller struct {
	server   *proxy.Server
	store    *certs.Store
	policy   func() *policy.Policy // in force
	recorder *status.Recorder

	mu        sync.Mutex
	holders   proxy.Holders // guarded by mu
	holdersAt time.Time
}

// newTeller returns the teller of an edge that starts.
func newTeller(server *proxy.Server, store *certs.Store, inForce func() *policy.Policy) *teller {
	rejections, _ := sample(families(server)["rejections_total"])
	return &teller{
		server: server, store: store, policy: inForce,
		recorder: status.NewRecorder(time.Now(), slices.Index(rejections, string(proxy.RateLimit))),
	}
}

func families(server *proxy.Server) map[string]telemetry.Family {
	byName := make(map[string]telemetry.Family)
	for _, f := range server.Families() {
		byName[f.Name] = f
	}
	return byName
}

// sample reads a family: its labels in order, and a value for each.
func sample(f telemetry.Family) (labels []string, values []uint64) {
	f.Read(func(label string, value float64) {
		labels, values = append(labels, label), append(values, uint64(value))
	})
	return labels, values
}

func sum(values []uint64) (n uint64) {
	for _, v := range values {
		n += v
	}
	return n
}

// figures are what the recorder keeps.
func (t *teller) figures() status.Figures { return figuresOf(families(t.server)) }

func figuresOf(f map[string]telemetry.Family) status.Figures {
	_, open := sample(f["connections"])
	_, accepted := sample(f["connections_total"])
	_, bytes := sample(f["bytes_total"])
	_, rejections := sample(f["rejections_total"])
	_, handshakes, _ := f["handshake_seconds"].ReadHistogram()
	return status.Figures{
		Connections: int(sum(open)), Accepted: sum(accepted), Handshakes: handshakes,
		BytesIn: bytes[0], BytesOut: bytes[1], Rejections: rejections,
	}
}

// Status is the document of this moment.
func (t *teller) Status() status.Status {
	now := time.Now()
	f := families(t.server)
	figures := figuresOf(f)
	s := status.Status{Version: service.Version(), Ended: totals(f["ended_total"]), Observed: totals(f["observed_total"])}
	if err := t.server.Ready(); err != nil {
		s.NotReady = err.Error()
	} else {
		s.Ready = true
	}
	reasons, _ := sample(f["rejections_total"])
	for _, r := range reasons {
		s.Rejections = append(s.Rejections, status.Rejection{Reason: r})
	}
	t.recorder.Fill(&s, now, figures)
	_, inFlight := sample(f["handshakes_in_flight"])
	s.Handshakes.InFlight = int(sum(inFlight))
	s.Listeners, s.Upstreams, s.Certificates = t.listeners(), t.upstreams(), t.certificates(s.At)
	holders := t.holding(now)
	s.Limits = limits(f["limit"], map[string]int{
		"max_connections": figures.Connections, "descriptors": figures.Connections, "max_handshakes": s.Handshakes.InFlight,
		"max_connections_per_ip": holders.MostOfHost, "max_connections_per_ipv6_48": holders.MostOfSite,
	})
	s.Capped = capped(holders.AtCap, t.policy().Log.ClientAddresses)
	return s
}

func totals(f telemetry.Family) (all []status.Total) {
	reasons, values := sample(f)
	for i, r := range reasons {
		all = append(all, status.Total{Reason: r, Total: values[i]})
	}
	return all
}

func (t *teller) listeners() []status.Listener {
	all := []status.Listener{}
	for _, l := range t.server.Listeners() {
		all = append(all, status.Listener{Name: l.Name, Address: l.Address, Protocol: l.Protocol, TLS: l.TLS, Open: int(l.Open), Leaving: l.Leaving})
	}
	return all
}

func (t *teller) upstreams() []status.Upstream {
	all := []status.Upstream{}
	for _, u := range t.server.Upstreams() {
		up := status.Upstream{Name: u.Name, Up: u.Up, Addresses: []status.Address{}}
		for _, a := range u.Addresses {
			up.Addresses = append(up.Addresses, status.Address(a))
		}
		all = append(all, up)
	}
	return all
}

// certificates tells of every certificate, at a moment of whole seconds.
func (t *teller) certificates(at time.Time) []status.Certificate {
	all := []status.Certificate{}
	for _, h := range t.store.Held() {
		c := status.Certificate{Names: h.Names, Source: h.Source}
		if !h.NotAfter.IsZero() {
			c.NotAfter, c.ExpiresInSecs = new(h.NotAfter.UTC()), int64(h.NotAfter.Sub(at)/time.Second)
		}
		all = append(all, c)
	}
	return all
}

// limits are those in force, with what is held against them.
func limits(f telemetry.Family, used map[string]int) (all []status.Limit) {
	keys, values := sample(f)
	for i, key := range keys {
		// At 0 seconds of drain, connections end at once; whatever else may be 0 is off then.
		l := status.Limit{Limit: key, Value: int64(values[i]), Off: values[i] == 0 && key != "drain_secs"}
		if n, held := used[key]; held {
			l.Used = new(int64(n))
		}
		all = append(all, l)
	}
	return all
}

// holding is who holds what, of the last moments.
func (t *teller) holding(now time.Time) proxy.Holders {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holdersAt.IsZero() || now.Sub(t.holdersAt) >= holdersKept {
		t.holders, t.holdersAt = t.server.Holders(), now
	}
	return t.holders
}

// capped gathers who is at its cap by networks, as far as addresses, which is
// log.client_addresses, allows. Never more than the network is told: a page is seen
// by more people than a log.
func capped(atCap []proxy.Holder, addresses string) status.Capped {
	c := status.Capped{Shown: addresses != "none", Networks: []status.Network{}}
	of := make(map[netip.Prefix]*status.Network)
	sites := make(map[netip.Prefix]int)
	for _, h := range atCap {
		network := logging.Network(h.Network.Addr())
		n := of[network]
		if n == nil {
			n = &status.Network{Network: network.String()}
			of[network] = n
		}
		if h.Site {
			c.Sites++
			n.Sites++
			sites[network] = h.Connections
		} else {
			c.Hosts++
			n.Hosts++
			n.Connections += h.Connections
		}
	}
	if !c.Shown {
		return c
	}
	for network, n := range of {
		n.Connections = max(n.Connections, sites[network]) // a site's are those of its hosts
		c.Networks = append(c.Networks, *n)
	}
	slices.SortFunc(c.Networks, func(a, b status.Network) int {
		return cmp.Or(b.Connections-a.Connections, cmp.Compare(a.Network, b.Network))
	})
	if n := len(c.Networks); n > networksListed {
		c.Networks, c.More = c.Networks[:networksListed], n-networksListed
	}
	return c
}
