package admission

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the naive gate: it keeps every lease and every charge there ever
// was, and recounts them for each decision.
type model struct {
	limits   Limits
	leases   []*modelLease
	charges  map[string][]charge
	observed map[Reason]uint64
}

type modelLease struct {
	real       *Lease
	host, site string // spelled keys; "": none
	named      bool
	released   bool
}

type charge struct {
	at   time.Duration
	cost time.Duration
}

// holds reports whether p holds b, bit by bit. An IPv6 network holds a mapped
// address only where it is mapped itself.
func holds(p netip.Prefix, b [16]byte) bool {
	network, bits := p.Addr().As16(), p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return same(b, network, bits) && (!isMapped(b) || bits >= 96)
}

var mapped = netip.MustParseAddr("::ffff:0:0").As16()

func isMapped(b [16]byte) bool { return same(b, mapped, 96) }

// limitsOf returns the limits with the values of the class that has the longest
// of all networks that hold the address.
func (m *model) limitsOf(b [16]byte) Limits {
	l, longest := m.limits, -1
	for _, c := range m.limits.Classes {
		for _, p := range c.Networks {
			bits := p.Bits()
			if p.Addr().Is4() {
				bits += 96
			}
			if !holds(p, b) || bits <= longest {
				continue
			}
			l, longest = m.limits, bits
			for value, own := range map[*int]*int{
				&l.MaxConnectionsPerIP:      c.MaxConnectionsPerIP,
				&l.MaxConnectionsPerIPv648:  c.MaxConnectionsPerIPv648,
				&l.ConnectionRatePerIP:      c.ConnectionRatePerIP,
				&l.ConnectionBurstPerIP:     c.ConnectionBurstPerIP,
				&l.ConnectionRatePerIPv648:  c.ConnectionRatePerIPv648,
				&l.ConnectionBurstPerIPv648: c.ConnectionBurstPerIPv648,
			} {
				if own != nil {
					*value = *own
				}
			}
		}
	}
	return l
}

// named is what the model reads in an address: its keys, and the limits that bind it.
type named struct {
	host, site string
	limits     Limits
}

// keys spells the keys of addr byte by byte.
func (m *model) keys(addr netip.Addr) (n named, denied bool) {
	if !addr.IsValid() {
		return named{}, false
	}
	all := addr.As16()
	denies := func(b [16]byte) bool {
		return slices.ContainsFunc(m.limits.Deny, func(p netip.Prefix) bool { return holds(p, b) })
	}
	if denies(all) {
		return named{}, true
	}
	if !isMapped(all) {
		for _, p := range m.limits.EmbeddedIPv4 {
			if same(all, p.Addr().As16(), p.Bits()) {
				copy(all[:12], mapped[:12])
				break
			}
		}
	}
	if denies(all) {
		return named{}, true
	}
	n.limits = m.limitsOf(all)
	if isMapped(all) {
		n.host = "host " + string(all[:])
	} else {
		n.host, n.site = "host "+string(all[:8]), "site "+string(all[:6])
	}
	return n, false
}

// same reports whether a and b begin with the same bits.
func same(a, b [16]byte, bits int) bool {
	for i := range bits {
		if mask := byte(0x80) >> (i % 8); a[i/8]&mask != b[i/8]&mask {
			return false
		}
	}
	return true
}

// open counts the leases that hold the key, or all of them for "".
func (m *model) open(key string) (n int) {
	for _, l := range m.leases {
		if !l.released && (key == "" || l.host == key || l.site == key) {
			n++
		}
	}
	return n
}

// debt returns what the bucket of the key owes.
func (m *model) debt(key string, now time.Duration) (owed time.Duration) {
	last := time.Duration(0)
	for _, c := range m.charges[key] {
		owed = max(0, owed-(c.at-last)) + c.cost
		last = c.at
	}
	return max(0, owed-(now-last))
}

// judge decides about the keys and, if they get in, charges them to l.
func (m *model) judge(l *modelLease, n named, now time.Duration) Reason {
	host, site := n.host, n.site
	type limit struct {
		name   string
		reason Reason
		over   bool
		key    string
		cost   time.Duration
	}
	bucket := func(name, key string, rate, burst int) limit {
		l := limit{name: name, reason: ConnectionRate, key: key}
		if rate == 0 || key == "" {
			return l
		}
		l.cost = time.Second / time.Duration(rate)
		if time.Second%time.Duration(rate) != 0 {
			l.cost++
		}
		l.over = m.debt(key, now)+l.cost > time.Duration(burst)*l.cost
		return l
	}
	occupancy := func(name, key string, reason Reason, most int) limit {
		return limit{name: name, reason: reason, over: most > 0 && key != "" && m.open(key) >= most}
	}
	all := []limit{
		occupancy("max_connections_per_ip", host, PerIPCap, n.limits.MaxConnectionsPerIP),
		occupancy("max_connections_per_ipv6_48", site, PerPrefixCap, n.limits.MaxConnectionsPerIPv648),
		bucket("connection_rate_per_ip", host, n.limits.ConnectionRatePerIP, n.limits.ConnectionBurstPerIP),
		bucket("connection_rate_per_ipv6_48", site, n.limits.ConnectionRatePerIPv648, n.limits.ConnectionBurstPerIPv648),
	}
	for _, limit := range all {
		if limit.over && !slices.Contains(m.limits.Observe, limit.name) {
			return limit.reason
		}
	}
	for _, limit := range all {
		if limit.over {
			m.observed[limit.reason]++
		} else if limit.cost > 0 {
			m.charges[limit.key] = append(m.charges[limit.key], charge{now, limit.cost})
		}
	}
	l.host, l.site, l.named = host, site, true
	return ""
}

// rows counts the keys of a kind that are held or in debt.
func (m *model) rows(kind string, now time.Duration) int {
	keys := make(map[string]bool)
	for _, l := range m.leases {
		for _, key := range []string{l.host, l.site} {
			if key != "" && key[:4] == kind && (m.open(key) > 0 || m.debt(key, now) > 0) {
				keys[key] = true
			}
		}
	}
	return len(keys)
}

var modelAddrs = append(addrs(
	"192.0.2.1", "::ffff:192.0.2.1", "64:ff9b::192.0.2.1", "192.0.2.2", "198.51.100.1",
	"2001:db8:1:1::1", "2001:db8:1:1::2", "2001:db8:1:2::1", "2001:db8:1:3::192.0.2.1", "2001:db8:2::1",
	"fe80::1%eth0", "fe80::1", "::", "0.0.0.0",
), netip.Addr{})

func drawLimits(t *rapid.T) Limits {
	small := func(name string, least, most int) int { return rapid.IntRange(least, most).Draw(t, name) }
	some := func(name string, of ...string) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, len(of), rapid.ID[string]).Draw(t, name)
	}
	l := Limits{MaxConnections: small("max_connections", 1, 12)}
	l.MaxConnectionsPerIP = small("max_connections_per_ip", 0, min(4, l.MaxConnections))
	l.MaxConnectionsPerIPv648 = small("max_connections_per_ipv6_48", 0, min(6, l.MaxConnections))
	l.ConnectionRatePerIP = small("connection_rate_per_ip", 0, 3)
	l.ConnectionBurstPerIP = small("connection_burst_per_ip", 1, 6)
	l.ConnectionRatePerIPv648 = small("connection_rate_per_ipv6_48", 0, 5)
	l.ConnectionBurstPerIPv648 = small("connection_burst_per_ipv6_48", 1, 10)
	l.Observe = some("observe", observable...)
	l.Deny = prefixes(some("deny", "198.51.100.0/24", "::ffff:192.0.2.2/128", "2001:db8:1:2::/64", "64:ff9b::/96", "::/127", "fe80::/10")...)
	l.EmbeddedIPv4 = prefixes(some("embedded_ipv4", "64:ff9b::/96", "2001:db8:1:3::/64", "2001:db8:2::/48")...)
	networks := some("networks", "192.0.2.0/24", "::ffff:192.0.2.1/128", "192.0.2.2/32", "::ffff:0:0/96", "2001:db8::/32", "2001:db8:1:1::/64",
		"2001:db8:1:1::2/128", "2001:db8:1:2::/63", "::/0", "fe80::/10")
	for _, name := range some("classes", "carrier", "exit", "bouncer") {
		n := rapid.IntRange(1, 3).Draw(t, "networks of "+name)
		if n > len(networks) {
			break
		}
		own := func(key string, least, most int) *int {
			if rapid.Bool().Draw(t, name+" leaves "+key) {
				return nil
			}
			return new(small(name+" "+key, least, most))
		}
		l.Classes = append(l.Classes, Class{
			Name: name, Networks: prefixes(networks[:n]...),
			MaxConnectionsPerIP:      own("max_connections_per_ip", 0, min(8, l.MaxConnections)),
			MaxConnectionsPerIPv648:  own("max_connections_per_ipv6_48", 0, min(8, l.MaxConnections)),
			ConnectionRatePerIP:      own("connection_rate_per_ip", 0, 3),
			ConnectionBurstPerIP:     own("connection_burst_per_ip", 1, 6),
			ConnectionRatePerIPv648:  own("connection_rate_per_ipv6_48", 0, 5),
			ConnectionBurstPerIPv648: own("connection_burst_per_ipv6_48", 1, 10),
		})
		networks = networks[n:]
	}
	return l
}

// The gate decides and counts as the naive one does, over any sequence of
// admissions, namings, releases, pauses and changes of policy.
func TestGateAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := drawLimits(t)
		g, err := NewGate(limits)
		if err != nil {
			t.Fatal(err)
		}
		m := &model{limits: limits, charges: make(map[string][]charge), observed: make(map[Reason]uint64)}
		start, now := time.Now(), time.Duration(0)

		admit := func(t *rapid.T, addr netip.Addr) {
			n, denied := m.keys(addr)
			l, want := new(modelLease), Reason("")
			switch {
			case denied:
				want = Denied
			case m.open("") >= m.limits.MaxConnections:
				want = MaxConnections
			case addr.IsValid():
				want = m.judge(l, n, now)
			}
			real, got := g.Admit(addr, start.Add(now))
			if got != want || (real == nil) != (got != "") {
				t.Fatalf("Admit(%v) = %v, %q, want %q", addr, real, got, want)
			}
			if want == "" {
				l.real = real
				m.leases = append(m.leases, l)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"admit":       func(t *rapid.T) { admit(t, rapid.SampledFrom(modelAddrs).Draw(t, "addr")) },
			"admit again": func(t *rapid.T) { admit(t, rapid.SampledFrom(modelAddrs[:6]).Draw(t, "addr")) },
			"admit one to be named": func(t *rapid.T) {
				admit(t, netip.Addr{})
			},
			"name": func(t *rapid.T) {
				var unnamed []*modelLease
				for _, l := range m.leases {
					if !l.named && !l.released {
						unnamed = append(unnamed, l)
					}
				}
				if len(unnamed) == 0 {
					t.Skip("all have names")
				}
				l := rapid.SampledFrom(unnamed).Draw(t, "lease")
				addr := rapid.SampledFrom(modelAddrs).Draw(t, "addr")
				n, denied := m.keys(addr)
				var want Reason
				switch {
				case denied:
					want = Denied
				case addr.IsValid():
					want = m.judge(l, n, now)
				default:
					l.named = true
				}
				if got := l.real.Name(addr, start.Add(now)); got != want {
					t.Fatalf("Name(%v) = %q, want %q", addr, got, want)
				}
			},
			"release": func(t *rapid.T) {
				if len(m.leases) == 0 {
					t.Skip("no leases")
				}
				l := rapid.SampledFrom(m.leases).Draw(t, "lease") // released ones among them
				l.released = true
				l.real.Release()
			},
			"wait": func(t *rapid.T) {
				now += time.Duration(rapid.SampledFrom([]int64{1, 2, 1e8, 333_333_333, 333_333_334, 5e8, 1e9 - 1, 1e9, 3e9}).Draw(t, "wait"))
			},
			"set limits": func(t *rapid.T) {
				m.limits = drawLimits(t)
				if err := g.SetLimits(m.limits); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				// Not after every step: rows must also be right while none sweeps them all.
				if rapid.IntRange(0, 2).Draw(t, "look") > 0 {
					return
				}
				got := g.Stats(start.Add(now))
				if n := m.open(""); got.Connections != n {
					t.Fatalf("%d connections, want %d", got.Connections, n)
				}
				if n := m.rows("host", now); got.Hosts != n {
					t.Fatalf("%d hosts, want %d", got.Hosts, n)
				}
				if n := m.rows("site", now); got.Sites != n {
					t.Fatalf("%d sites, want %d", got.Sites, n)
				}
				for _, r := range []Reason{PerIPCap, PerPrefixCap, ConnectionRate} {
					if got.Observed[r] != m.observed[r] {
						t.Fatalf("observed %d of %s, want %d", got.Observed[r], r, m.observed[r])
					}
				}
				g.hosts.check(t)
				g.sites.check(t)
			},
		})
		for _, l := range m.leases {
			l.real.Release()
		}
		if got := g.Stats(start.Add(now + time.Hour)); got.Connections != 0 || got.Hosts != 0 || got.Sites != 0 {
			t.Fatalf("at the end the gate holds %+v", got)
		}
	})
}
