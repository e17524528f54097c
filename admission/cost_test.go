package admission

import (
	"net/netip"
	"strconv"
	"testing"
	"time"
)

// refusals are gates that refuse addr, one for each reason and one for each
// limit behind a reason.
func refusals(t testing.TB) []struct {
	name string
	gate *Gate
	addr netip.Addr
	want Reason
} {
	now := time.Now()
	gate := func(narrow func(*Limits), first ...netip.Addr) *Gate {
		l := wide()
		l.EmbeddedIPv4 = prefixes("64:ff9b::/96")
		g := newGate(t, l)
		for _, addr := range first {
			mustAdmit(t, g, addr, now)
		}
		narrow(&l)
		setLimits(t, g, l)
		return g
	}
	deny := func(l *Limits) { l.Deny = prefixes("10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32") }
	return []struct {
		name string
		gate *Gate
		addr netip.Addr
		want Reason
	}{
		{"denied, IPv4", gate(deny), v4, Denied},
		{"denied, IPv6", gate(deny), v6, Denied},
		{"per_ip_cap of a class", gate(func(l *Limits) {
			l.Classes = []Class{{Name: "a", Networks: prefixes("192.0.2.0/24"), MaxConnectionsPerIP: new(1)}}
		}, v4), v4, PerIPCap},
		{"denied, embedded", gate(deny), netip.MustParseAddr("64:ff9b::192.0.2.10"), Denied},
		{"max_connections", gate(func(l *Limits) { l.MaxConnections = 1 }, v4), v6, MaxConnections},
		{"per_ip_cap, IPv4", gate(func(l *Limits) { l.MaxConnectionsPerIP = 1 }, v4), v4, PerIPCap},
		{"per_ip_cap, IPv6 with a zone", gate(func(l *Limits) { l.MaxConnectionsPerIP = 1 }, v6), v6.WithZone("eth0"), PerIPCap},
		{"per_prefix_cap", gate(func(l *Limits) { l.MaxConnectionsPerIPv648 = 1 }, hostOf(1, 1)), hostOf(1, 2), PerPrefixCap},
		{"connection_rate of the host", rateSpent(t, func(l *Limits) { l.ConnectionRatePerIP = 1 }, v4), v4, ConnectionRate},
		{"connection_rate of the site", rateSpent(t, func(l *Limits) { l.ConnectionRatePerIPv648 = 1 }, hostOf(1, 1)), hostOf(1, 2), ConnectionRate},
	}
}

// rateSpent returns a gate in which addr has spent its burst for a long time to come.
func rateSpent(t testing.TB, narrow func(*Limits), addr netip.Addr) *Gate {
	l := wide()
	narrow(&l)
	g := newGate(t, l)
	mustAdmit(t, g, addr, time.Now().Add(24*time.Hour))
	return g
}

func TestRefusalsAllocateNothing(t *testing.T) {
	for _, tt := range refusals(t) {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Now()
			if n := testing.AllocsPerRun(1000, func() { mustRefuse(t, tt.gate, tt.addr, now, tt.want) }); n != 0 {
				t.Errorf("a refusal allocates %v times", n)
			}
			lease, reason := tt.gate.Admit(nobody, now)
			if tt.want == MaxConnections {
				return // there is no slot to name
			}
			if reason != "" {
				t.Fatal(reason)
			}
			if n := testing.AllocsPerRun(1000, func() {
				if got := lease.Name(tt.addr, now); got != tt.want {
					t.Fatalf("Name = %q, want %q", got, tt.want)
				}
			}); n != 0 {
				t.Errorf("a refusal to name allocates %v times", n)
			}
		})
	}
}

// manyClasses are a thousand classes with nested networks around the addresses
// of the benchmarks; their values are the highest, as the defaults are there.
func manyClasses() []Class {
	values := Class{ConnectionRatePerIP: new(maxRate), ConnectionBurstPerIP: new(maxBurst), ConnectionRatePerIPv648: new(maxRate), ConnectionBurstPerIPv648: new(maxBurst)}
	class := func(name string, networks ...netip.Prefix) Class {
		c := values
		c.Name, c.Networks = name, networks
		return c
	}
	classes := []Class{class("all", prefixes("192.0.0.0/16", "192.0.0.0/18", "2001:db8::/32", "2001:db8::/40")...)}
	for i := range 1000 {
		site, _ := hostOf(i, 0).Prefix(siteBits)
		classes = append(classes, class(strconv.Itoa(i), site, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 32)))
	}
	return classes
}

func BenchmarkAdmitRelease(b *testing.B) {
	classes := manyClasses()
	benchmarks := []struct {
		name    string
		addr    func(i int) netip.Addr
		classes []Class
	}{
		{"IPv4", func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }, nil},
		{"IPv6", func(i int) netip.Addr { return hostOf(i>>6, i) }, nil},
		{"no host", func(int) netip.Addr { return netip.Addr{} }, nil},
		{"IPv4 of a class", func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }, classes},
		{"IPv6 of a class", func(i int) netip.Addr { return hostOf(i>>6, i) }, classes},
	}
	for _, bb := range benchmarks {
		b.Run(bb.name, func(b *testing.B) {
			// The rates at their highest, and 5,000 other connections open.
			l := DefaultLimits()
			l.ConnectionRatePerIP, l.ConnectionBurstPerIP = maxRate, maxBurst
			l.ConnectionRatePerIPv648, l.ConnectionBurstPerIPv648 = maxRate, maxBurst
			l.Deny = prefixes("10.0.0.0/8", "2001:db9::/32")
			l.Classes = bb.classes
			g, start := newGate(b, l), time.Now()
			for i := range 5000 {
				mustAdmit(b, g, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), start)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				lease, reason := g.Admit(bb.addr(i&4095), start.Add(time.Duration(i)*time.Microsecond))
				if reason != "" {
					b.Fatal(reason)
				}
				lease.Release()
			}
		})
	}
}

func BenchmarkRefuse(b *testing.B) {
	for _, bb := range refusals(b) {
		b.Run(bb.name, func(b *testing.B) {
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				if _, reason := bb.gate.Admit(bb.addr, now); reason != bb.want {
					b.Fatal(reason)
				}
			}
		})
	}
}

func BenchmarkParallel(b *testing.B) {
	l := wide()
	l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 64, 256
	g := newGate(b, l)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := time.Now()
		for i := 0; pb.Next(); i++ {
			lease, reason := g.Admit(hostOf(i>>6, i), now)
			if reason != "" {
				b.Fatal(reason)
			}
			lease.Release()
		}
	})
}

// The worst table there can be: full of debtors, of whom each newcomer drives one out.
func BenchmarkFullOfDebtors(b *testing.B) {
	l := wide()
	l.ConnectionRatePerIP, l.ConnectionBurstPerIP = 1, maxBurst
	g, now := newGate(b, l), time.Now()
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range debtorBound {
		mustAdmit(b, g, addr(i), now).Release()
	}
	b.ReportAllocs()
	i := debtorBound
	for b.Loop() {
		i++
		mustAdmit(b, g, addr(i), now.Add(time.Duration(i))).Release()
	}
	if n := g.Stats(now).Hosts; n != debtorBound {
		b.Fatalf("%d rows, want %d", n, debtorBound)
	}
}
