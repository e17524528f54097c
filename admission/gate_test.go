package admission

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

var (
	v4     = netip.MustParseAddr("192.0.2.10")
	v6     = netip.MustParseAddr("2001:db8:1:2::1")
	nobody netip.Addr
)

// hostOf returns the first address of the n-th /64 of a /48.
func hostOf(site, n int) netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, byte(site >> 8), byte(site), byte(n >> 8), byte(n), 15: 1})
}

// The names are labels of metrics and words of logs: spec/003 fixes the first
// three, the design the others.
func TestReasons(t *testing.T) {
	for reason, want := range map[Reason]string{
		MaxConnections: "max_connections", PerIPCap: "per_ip_cap", PerPrefixCap: "per_prefix_cap",
		ConnectionRate: "connection_rate", Denied: "denied",
	} {
		if string(reason) != want {
			t.Errorf("%q, want %q", reason, want)
		}
	}
}

// At a cap of N there are N connections, and a slot that is given back can be
// had at once.
func TestCapsAreExact(t *testing.T) {
	scopes := []struct {
		name   string
		limit  func(*Limits, int)
		addr   func(i int) netip.Addr
		reason Reason
	}{
		{"global", func(l *Limits, n int) { l.MaxConnections = n }, func(i int) netip.Addr { return hostOf(i, i) }, MaxConnections},
		{"global, no host", func(l *Limits, n int) { l.MaxConnections = n }, func(int) netip.Addr { return nobody }, MaxConnections},
		{"IPv4 host", func(l *Limits, n int) { l.MaxConnectionsPerIP = n }, func(int) netip.Addr { return v4 }, PerIPCap},
		{"IPv6 host", func(l *Limits, n int) { l.MaxConnectionsPerIP = n }, func(int) netip.Addr { return v6 }, PerIPCap},
		{"site", func(l *Limits, n int) { l.MaxConnectionsPerIPv648 = n }, func(i int) netip.Addr { return hostOf(1, i) }, PerPrefixCap},
	}
	for _, s := range scopes {
		for _, most := range []int{1, 2, 6} {
			t.Run(fmt.Sprintf("%s of %d", s.name, most), func(t *testing.T) {
				l := wide()
				s.limit(&l, most)
				g, now := newGate(t, l), time.Now()
				var held []*Lease
				for i := range most {
					held = append(held, mustAdmit(t, g, s.addr(i), now))
				}
				for i := range 1000 {
					mustRefuse(t, g, s.addr(most), now, s.reason)
					held[i%most].Release()
					held[i%most] = mustAdmit(t, g, s.addr(i%most), now)
				}
				mustRefuse(t, g, s.addr(most), now, s.reason)
				for _, lease := range held {
					lease.Release()
				}
				wantHeld(t, g, now, 0, 0, 0)
			})
		}
	}
}

// What is refused is not counted: after any number of refusals the ten that
// closed make room for ten.
func TestRefusalsAreNotCounted(t *testing.T) {
	scopes := []struct {
		name   string
		limit  func(*Limits)
		reason Reason
	}{
		{"global", func(l *Limits) { l.MaxConnections = 10 }, MaxConnections},
		{"host", func(l *Limits) { l.MaxConnectionsPerIP = 10 }, PerIPCap},
		{"site", func(l *Limits) { l.MaxConnectionsPerIPv648 = 10 }, PerPrefixCap},
	}
	for _, s := range scopes {
		t.Run(s.name, func(t *testing.T) {
			l := wide()
			s.limit(&l)
			g, now := newGate(t, l), time.Now()
			fill := func() (held []*Lease) {
				for range 10 {
					held = append(held, mustAdmit(t, g, v6, now))
				}
				return held
			}
			held := fill()
			for range 100_000 {
				mustRefuse(t, g, v6, now, s.reason)
			}
			wantHeld(t, g, now, 10, 1, 1)
			for _, lease := range held {
				lease.Release()
			}
			wantHeld(t, g, now, 0, 0, 0)
			fill()
			mustRefuse(t, g, v6, now, s.reason)
			wantHeld(t, g, now, 10, 1, 1)
		})
	}
}

// Changing the address inside a /64, or the /64 inside a /48, evades nothing,
// and IPv4 addresses do not share.
func TestRotationWithinASite(t *testing.T) {
	l := wide()
	l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 64, 256
	g, now := newGate(t, l), time.Now()

	for i := range 64 + 5 {
		b := hostOf(1, 0).As16()
		b[15], b[9] = byte(i), byte(3*i) // anywhere in the /64
		if addr := netip.AddrFrom16(b); i < 64 {
			mustAdmit(t, g, addr, now)
		} else {
			mustRefuse(t, g, addr, now, PerIPCap)
		}
	}
	for i := 1; i <= 300; i++ {
		if addr := hostOf(1, i); i <= 256-64 {
			mustAdmit(t, g, addr, now)
		} else {
			mustRefuse(t, g, addr, now, PerPrefixCap)
		}
	}
	// The narrower level is named when both are full.
	mustRefuse(t, g, hostOf(1, 0), now, PerIPCap)
	for i := range 300 {
		mustAdmit(t, g, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), now)
	}
	wantHeld(t, g, now, 256+300, 1+192+300, 1)
}

// One /64 that is refused again and again takes nothing from its /48: neither
// connections nor the rate.
func TestNeighboursOfARefusedHost(t *testing.T) {
	l := wide()
	l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 4, 8
	l.ConnectionRatePerIP, l.ConnectionBurstPerIP = 1, 6
	l.ConnectionRatePerIPv648, l.ConnectionBurstPerIPv648 = 1, 10
	g, start := newGate(t, l), time.Now()

	// By the cap, a thousand times a second.
	var held []*Lease
	for range 4 {
		held = append(held, mustAdmit(t, g, hostOf(1, 0), start))
	}
	for range 1000 {
		mustRefuse(t, g, hostOf(1, 0), start, PerIPCap)
	}
	for i := range 4 {
		held = append(held, mustAdmit(t, g, hostOf(1, 1+i), start))
	}
	mustRefuse(t, g, hostOf(1, 9), start, PerPrefixCap)
	for _, lease := range held {
		lease.Release()
	}
	// By the host's rate: the eight so far have left the site two tokens, and
	// the host pays for two more before it is refused.
	mustAdmit(t, g, hostOf(1, 0), start).Release()
	mustAdmit(t, g, hostOf(1, 0), start).Release()
	for range 1000 {
		mustRefuse(t, g, hostOf(1, 0), start, ConnectionRate)
	}
	later := start.Add(2 * time.Second)
	for i := range 2 {
		mustAdmit(t, g, hostOf(1, 20+i), later).Release()
	}
	mustRefuse(t, g, hostOf(1, 30), later, ConnectionRate)
	wantHeld(t, g, later.Add(time.Hour), 0, 0, 0)
}

func TestRefusedKeysLeaveNothingBehind(t *testing.T) {
	now := time.Now()
	held := func(l Limits, addr netip.Addr) *Gate {
		g := newGate(t, l)
		mustAdmit(t, g, addr, now)
		return g
	}
	t.Run("denied", func(t *testing.T) {
		l := wide()
		l.Deny = prefixes("2001:db8::/32")
		g := newGate(t, l)
		mustRefuse(t, g, v6, now, Denied)
		wantHeld(t, g, now, 0, 0, 0)
	})
	t.Run("max_connections", func(t *testing.T) {
		l := wide()
		l.MaxConnections = 1
		g := held(l, nobody)
		mustRefuse(t, g, v6, now, MaxConnections)
		wantHeld(t, g, now, 1, 0, 0)
	})
	t.Run("per_prefix_cap", func(t *testing.T) {
		l := wide()
		l.MaxConnectionsPerIPv648 = 1
		g := held(l, hostOf(1, 1))
		mustRefuse(t, g, hostOf(1, 2), now, PerPrefixCap)
		wantHeld(t, g, now, 1, 1, 1)
	})
	t.Run("connection_rate", func(t *testing.T) {
		l := wide()
		l.ConnectionRatePerIPv648 = 1
		g := held(l, hostOf(1, 1))
		mustRefuse(t, g, hostOf(1, 2), now, ConnectionRate)
		wantHeld(t, g, now, 1, 1, 1)
	})
}

// Deny list, global cap, host, site, rates: the first that refuses is named.
func TestOrderOfLooking(t *testing.T) {
	l := Limits{
		MaxConnections: 1, MaxConnectionsPerIP: 1, MaxConnectionsPerIPv648: 1,
		ConnectionRatePerIP: 1, ConnectionBurstPerIP: 1, ConnectionRatePerIPv648: 1, ConnectionBurstPerIPv648: 1,
		Deny: prefixes("2001:db8:1::/48"),
	}
	g, now := newGate(t, wide()), time.Now()
	setLimits(t, g, func() Limits { l := l; l.Deny = nil; return l }())
	mustAdmit(t, g, v6, now)
	for _, step := range []struct {
		want Reason
		lift func()
	}{
		{Denied, func() { l.Deny = nil }},
		{MaxConnections, func() { l.MaxConnections = 2 }},
		{PerIPCap, func() { l.MaxConnectionsPerIP = 2 }},
		{PerPrefixCap, func() { l.MaxConnectionsPerIPv648 = 2 }},
		{ConnectionRate, func() { l.ConnectionRatePerIP = 0 }},
		{ConnectionRate, func() { l.ConnectionRatePerIPv648 = 0 }},
	} {
		setLimits(t, g, l)
		mustRefuse(t, g, v6, now, step.want)
		step.lift()
	}
	setLimits(t, g, l)
	mustAdmit(t, g, v6, now)
}

// A network is denied by address, however network and client are spelled.
func TestDeny(t *testing.T) {
	tests := []struct {
		deny   string
		denied []string
		passes []string
	}{
		{"10.0.0.0/8", []string{"10.1.2.3", "::ffff:10.1.2.3", "::ffff:10.1.2.3%eth0", "64:ff9b::10.1.2.3", "64:ff9b::10.1.2.3%1"}, []string{"11.0.0.1", "::10.1.2.3", "::1", "64:ff9b::11.0.0.1"}},
		{"::ffff:10.0.0.0/104", []string{"10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"}, []string{"11.0.0.1", "::ffff:11.0.0.1", "2001:db8::1"}},
		{"::ffff:10.0.0.1/128", []string{"10.0.0.1"}, []string{"10.0.0.2"}},
		{"::ffff:0.0.0.0/96", []string{"10.0.0.1", "::ffff:10.0.0.1"}, []string{"2001:db8::1"}},
		{"0.0.0.0/0", []string{"10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::1.2.3.4"}, []string{"::", "2001:db8::1"}},
		{"::/0", []string{"::", "2001:db8::1", "fe80::1%eth0", "64:ff9b::1.2.3.4"}, []string{"10.0.0.1", "::ffff:10.0.0.1"}},
		{"64:ff9b::/96", []string{"64:ff9b::10.1.2.3"}, []string{"10.1.2.3", "64:ff9b:1::1"}},
		{"fe80::/10", []string{"fe80::1", "fe80::1%eth0"}, []string{"fec0::1"}},
		{"::1/128", []string{"::1", "0:0:0:0:0:0:0:1"}, []string{"::2", "0.0.0.1"}},
	}
	for _, tt := range tests {
		t.Run(tt.deny, func(t *testing.T) {
			l := DefaultLimits()
			l.Deny = prefixes("203.0.113.0/24", tt.deny)
			g, now := newGate(t, l), time.Now()
			for _, addr := range addrs(tt.denied...) {
				mustRefuse(t, g, addr, now, Denied)
			}
			for _, addr := range addrs(tt.passes...) {
				mustAdmit(t, g, addr, now)
			}
			mustAdmit(t, g, nobody, now)
		})
	}
}

// The gate charges the keys that Keys names: spellings of one host share its cap.
func TestSpellingsShareACap(t *testing.T) {
	l := wide()
	l.MaxConnectionsPerIP = 3
	l.EmbeddedIPv4 = prefixes("64:ff9b::/96")
	g, now := newGate(t, l), time.Now()
	for _, addr := range addrs("192.0.2.10", "::ffff:192.0.2.10", "64:ff9b::192.0.2.10") {
		mustAdmit(t, g, addr, now)
	}
	mustRefuse(t, g, v4, now, PerIPCap)
	for _, addr := range addrs("fe80::1", "fe80::2%eth0", "fe80::1%3") {
		mustAdmit(t, g, addr, now)
	}
	mustRefuse(t, g, netip.MustParseAddr("fe80::1%eth1"), now, PerIPCap)
	// Peers without a host are not the unspecified address, and share no cap.
	for range 10 {
		mustAdmit(t, g, nobody, now)
	}
	for _, addr := range addrs("0.0.0.0", "0.0.0.0", "0.0.0.0") {
		mustAdmit(t, g, addr, now)
	}
	mustRefuse(t, g, netip.IPv4Unspecified(), now, PerIPCap)
	wantHeld(t, g, now, 19, 3, 1)
}

// A host is hashed with a key of the gate's own, and a host, a site and an
// IPv4 address of the same bytes have different hashes.
func TestHashIsKeyed(t *testing.T) {
	g, other := newGate(t, wide()), newGate(t, wide())
	host, site := Keys(netip.MustParseAddr("c000:20a::"), nil)
	ipv4, _ := Keys(v4, nil)
	seen := make(map[key]bool)
	for _, k := range []key{g.hash(host), g.hash(site), g.hash(ipv4), other.hash(host), other.hash(site), other.hash(ipv4)} {
		if seen[k] {
			t.Errorf("the hash %x stands for two keys", k)
		}
		seen[k] = true
	}
}

func TestLimitsChangeUnderLeases(t *testing.T) {
	l := wide()
	l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 100, 100
	g, now := newGate(t, l), time.Now()
	addr := netip.MustParseAddr("64:ff9b::192.0.2.10")
	var held []*Lease
	for range 100 {
		held = append(held, mustAdmit(t, g, addr, now))
	}
	// Lowering evicts nobody and binds newcomers; counts taken while a cap was off count too.
	l.MaxConnectionsPerIP = 0
	setLimits(t, g, l)
	mustRefuse(t, g, addr, now, PerPrefixCap)
	l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 50, 0
	setLimits(t, g, l)
	for i := range 50 {
		mustRefuse(t, g, addr, now, PerIPCap)
		held[i].Release()
	}
	mustRefuse(t, g, addr, now, PerIPCap)
	held[50].Release()
	held[50] = mustAdmit(t, g, addr, now)
	mustRefuse(t, g, addr, now, PerIPCap)
	l.MaxConnectionsPerIP = 80
	setLimits(t, g, l)
	for range 30 {
		held = append(held, mustAdmit(t, g, addr, now))
	}
	mustRefuse(t, g, addr, now, PerIPCap)
	// The same address has another host by other limits; the leases give back what they took.
	l.EmbeddedIPv4 = prefixes("64:ff9b::/96")
	setLimits(t, g, l)
	wantHeld(t, g, now, 80, 1, 1)
	inner := mustAdmit(t, g, addr, now)
	wantHeld(t, g, now, 81, 2, 1)
	for _, lease := range held {
		lease.Release()
	}
	wantHeld(t, g, now, 1, 1, 0)
	inner.Release()
	wantHeld(t, g, now, 0, 0, 0)
}

func TestObservedFromTheStart(t *testing.T) {
	g := newGate(t, wide())
	want := map[Reason]uint64{PerIPCap: 0, PerPrefixCap: 0, ConnectionRate: 0}
	if got := g.Stats(time.Now()).Observed; !reflect.DeepEqual(got, want) {
		t.Errorf("observed %v, want %v", got, want)
	}
	for _, r := range []Reason{Denied, MaxConnections, ""} {
		if n := g.Observed(r); n != 0 {
			t.Errorf("observed %d of %q, which cannot be observed", n, r)
		}
	}
}

func TestObserve(t *testing.T) {
	// Every limit allows one, and a second connection follows at once.
	tight := func(observe ...string) Limits {
		return Limits{
			MaxConnections: 10, MaxConnectionsPerIP: 1, MaxConnectionsPerIPv648: 1,
			ConnectionRatePerIP: 1, ConnectionBurstPerIP: 1, ConnectionRatePerIPv648: 1, ConnectionBurstPerIPv648: 1,
			Observe: observe,
		}
	}
	tests := []struct {
		name     string
		limits   Limits
		addrs    [2]netip.Addr
		want     Reason
		observed map[Reason]uint64
	}{
		{"none", tight(), [2]netip.Addr{v6, v6}, PerIPCap, nil},
		{"the host's cap", tight(keyHostCap), [2]netip.Addr{v6, v6}, PerPrefixCap, nil},
		{"both caps", tight(keyHostCap, keySiteCap), [2]netip.Addr{v6, v6}, ConnectionRate, nil},
		{"all but the site's rate", tight(keyHostCap, keySiteCap, keyHostRate), [2]netip.Addr{v6, v6}, ConnectionRate, nil},
		{"all but the host's rate", tight(keyHostCap, keySiteCap, keySiteRate), [2]netip.Addr{v6, v6}, ConnectionRate, nil},
		{"all but the site's cap", tight(keyHostCap, keyHostRate, keySiteRate), [2]netip.Addr{v6, v6}, PerPrefixCap, nil},
		{"all", tight(observable...), [2]netip.Addr{v6, v6}, "", map[Reason]uint64{PerIPCap: 1, PerPrefixCap: 1, ConnectionRate: 2}},
		{"all, IPv4", tight(observable...), [2]netip.Addr{v4, v4}, "", map[Reason]uint64{PerIPCap: 1, ConnectionRate: 1}},
		{"another host of the site", tight(keySiteCap, keySiteRate), [2]netip.Addr{hostOf(1, 0), hostOf(1, 1)}, "", map[Reason]uint64{PerPrefixCap: 1, ConnectionRate: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, now := newGate(t, tt.limits), time.Now()
			first := mustAdmit(t, g, tt.addrs[0], now)
			second, reason := g.Admit(tt.addrs[1], now)
			if reason != tt.want {
				t.Fatalf("reason = %q, want %q", reason, tt.want)
			}
			want := map[Reason]uint64{PerIPCap: 0, PerPrefixCap: 0, ConnectionRate: 0}
			maps.Copy(want, tt.observed)
			if got := g.Stats(now).Observed; !reflect.DeepEqual(got, want) {
				t.Errorf("observed %v, want %v", got, want)
			}
			first.Release()
			second.Release()
			wantHeld(t, g, now.Add(time.Minute), 0, 0, 0)
		})
	}
}
