package admission

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

// admitted returns how many of n connections from addr are let in, and the
// reason of the first that is not.
func admitted(g *Gate, addr netip.Addr, n int, now time.Time) (in int, reason Reason) {
	for range n {
		if _, why := g.Admit(addr, now); why == "" {
			in++
		} else if reason == "" {
			reason = why
		}
	}
	return in, reason
}

// A class for a carrier's network admits its value per address and leaves the
// neighbours at the default; the most specific network decides, however the
// address and the network are spelled, and however the classes are ordered.
func TestClassOfACarrier(t *testing.T) {
	l := DefaultLimits()
	l.ConnectionRatePerIP, l.ConnectionRatePerIPv648 = 0, 0
	l.Classes = []Class{
		{Name: "carrier", Networks: prefixes("198.51.100.0/24", "2001:db8:100::/40"), MaxConnectionsPerIP: new(350), MaxConnectionsPerIPv648: new(700)},
		{Name: "abused", Networks: prefixes("::ffff:198.51.100.128/121", "2001:db8:140::/48"), MaxConnectionsPerIP: new(10)},
		{Name: "one of them", Networks: prefixes("198.51.100.130/32", "2001:db8:140:1::5/128"), MaxConnectionsPerIP: new(20)},
		{Name: "as all others", Networks: prefixes("198.51.100.131/32")},
		{Name: "all of IPv6", Networks: prefixes("::/0"), MaxConnectionsPerIP: new(90)},
	}
	tests := []struct {
		addr   string
		want   int
		reason Reason
	}{
		{"198.51.100.1", 350, PerIPCap},
		{"198.51.100.127", 350, PerIPCap},
		{"::ffff:198.51.100.1", 350, PerIPCap},
		{"64:ff9b::198.51.100.1", 350, PerIPCap},
		{"198.51.99.255", 64, PerIPCap},
		{"198.51.101.0", 64, PerIPCap},
		{"::ffff:198.51.101.0", 64, PerIPCap},
		{"198.51.100.128", 10, PerIPCap},
		{"::ffff:198.51.100.255", 10, PerIPCap},
		{"64:ff9b::198.51.100.129", 10, PerIPCap},
		{"198.51.100.130", 20, PerIPCap},
		{"::ffff:198.51.100.130", 20, PerIPCap},
		{"198.51.100.131", 64, PerIPCap},
		{"2001:db8:100:1::1", 350, PerIPCap},
		{"2001:db8:1ff:1::1", 350, PerIPCap},
		{"2001:db8:140:1::1", 10, PerIPCap},
		{"2001:db8:140:1::5", 20, PerIPCap},
		{"2001:db8:140:1::5%eth0", 20, PerIPCap},
		{"2001:db8:200:1::1", 90, PerIPCap},
		{"2001:db8:ff:1::1", 90, PerIPCap},
	}
	for _, reversed := range []bool{false, true} {
		l := l.clone()
		if reversed {
			for i, j := 0, len(l.Classes)-1; i < j; i, j = i+1, j-1 {
				l.Classes[i], l.Classes[j] = l.Classes[j], l.Classes[i]
			}
		}
		for _, tt := range tests {
			addr, now := netip.MustParseAddr(tt.addr), time.Now()
			if n, reason := admitted(newGate(t, l), addr, 1000, now); n != tt.want || reason != tt.reason {
				t.Errorf("%v: %d are let in, then %s; want %d, %s", addr, n, reason, tt.want, tt.reason)
			}
			// The same of clients that a PROXY header names.
			g, n := newGate(t, l), 0
			for range 1000 {
				lease := mustAdmit(t, g, nobody, now)
				if lease.Name(addr, now) == "" {
					n++
				}
			}
			if n != tt.want {
				t.Errorf("%v: %d are let in by their header, want %d", addr, n, tt.want)
			}
		}
	}
}

// Every value of a class stands for itself; the others stay the default's.
func TestClassValues(t *testing.T) {
	addr, other := hostOf(1, 1), hostOf(2, 1)
	limits := Limits{
		MaxConnections: 1000, MaxConnectionsPerIP: 20, MaxConnectionsPerIPv648: 30,
		ConnectionRatePerIP: 1, ConnectionBurstPerIP: 12, ConnectionRatePerIPv648: 1, ConnectionBurstPerIPv648: 14,
	}
	tests := []struct {
		name   string
		class  Class
		want   int // of 100 at once
		later  int // of 100 more, one second later, when the others have gone
		reason Reason
	}{
		{"nothing", Class{}, 12, 1, ConnectionRate},
		{"cap, lower", Class{MaxConnectionsPerIP: new(5)}, 5, 5, PerIPCap},
		{"site's cap, lower", Class{MaxConnectionsPerIPv648: new(6)}, 6, 6, PerPrefixCap},
		{"burst, higher", Class{ConnectionBurstPerIP: new(13)}, 13, 1, ConnectionRate},
		{"burst, lower", Class{ConnectionBurstPerIP: new(2)}, 2, 1, ConnectionRate},
		{"site's burst, lower", Class{ConnectionBurstPerIPv648: new(3)}, 3, 1, ConnectionRate},
		{"rate", Class{ConnectionRatePerIP: new(2)}, 12, 2, ConnectionRate},
		{"site's rate", Class{ConnectionRatePerIP: new(4), ConnectionRatePerIPv648: new(2), ConnectionBurstPerIPv648: new(12)}, 12, 2, ConnectionRate},
		{"rate off", Class{ConnectionRatePerIP: new(0)}, 14, 1, ConnectionRate},
		{"both rates off", Class{ConnectionRatePerIP: new(0), ConnectionRatePerIPv648: new(0)}, 20, 20, PerIPCap},
		{"rates and cap off", Class{ConnectionRatePerIP: new(0), ConnectionRatePerIPv648: new(0), MaxConnectionsPerIP: new(0)}, 30, 30, PerPrefixCap},
		{"site's cap off", Class{ConnectionRatePerIP: new(0), ConnectionRatePerIPv648: new(0), MaxConnectionsPerIP: new(0), MaxConnectionsPerIPv648: new(0)}, 100, 100, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := limits
			tt.class.Name, tt.class.Networks = "class", prefixes("2001:db8:1::/48")
			l.Classes = []Class{tt.class}
			g, now := newGate(t, l), time.Now()
			batch := func(addr netip.Addr, now time.Time) (n int, reason Reason) {
				var leases []*Lease
				for range 100 {
					lease, why := g.Admit(addr, now)
					if why == "" {
						leases = append(leases, lease)
					} else if reason == "" {
						reason = why
					}
				}
				for _, lease := range leases {
					lease.Release()
				}
				return len(leases), reason
			}
			if n, reason := batch(addr, now); n != tt.want || reason != tt.reason {
				t.Errorf("%d are let in, then %q; want %d, %q", n, reason, tt.want, tt.reason)
			}
			if n, _ := batch(addr, now.Add(time.Second)); n != tt.later {
				t.Errorf("a second later %d are let in, want %d", n, tt.later)
			}
			if n, reason := batch(other, now); n != 12 || reason != ConnectionRate {
				t.Errorf("of the neighbour %d are let in, then %s; want 12, %s", n, reason, ConnectionRate)
			}
		})
	}
}

// The counts are the host's and the site's own: neither do the addresses of a
// class share one, nor does an address bring a count of its own with its class.
func TestClassIsNoPool(t *testing.T) {
	now := time.Now()
	l := wide()
	l.Classes = []Class{
		{Name: "carrier", Networks: prefixes("192.0.2.0/24", "2001:db8:1::/48"), MaxConnectionsPerIP: new(3), MaxConnectionsPerIPv648: new(5)},
		{Name: "half", Networks: prefixes("2001:db8:1:8000::/49"), MaxConnectionsPerIPv648: new(7)},
		{Name: "one address", Networks: prefixes("2001:db8:1:1::1/128"), MaxConnectionsPerIP: new(4), MaxConnectionsPerIPv648: new(5)},
	}
	g := newGate(t, l)
	for i := range 256 {
		if n, _ := admitted(g, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 4, now); n != 3 {
			t.Fatalf("%d of 192.0.2.%d are let in, want 3", n, i)
		}
	}
	// Two addresses of one host, of different classes: it has one count, and the
	// value of the newcomer's class binds.
	if n, _ := admitted(g, netip.MustParseAddr("2001:db8:1:1::2"), 9, now); n != 3 {
		t.Errorf("%d are let in, want 3", n)
	}
	if n, _ := admitted(g, netip.MustParseAddr("2001:db8:1:1::1"), 9, now); n != 1 {
		t.Errorf("%d of the other class are let in, want the fourth of the host", n)
	}
	// So with hosts of one site: four are open, and 5 and 7 are the caps.
	if n, reason := admitted(g, netip.MustParseAddr("2001:db8:1:2::1"), 9, now); n != 1 || reason != PerPrefixCap {
		t.Errorf("%d are let in, then %s, want the fifth of the site", n, reason)
	}
	if n, reason := admitted(g, netip.MustParseAddr("2001:db8:1:8001::1"), 9, now); n != 2 || reason != PerPrefixCap {
		t.Errorf("%d of the other half are let in, then %s, want the sixth and seventh of the site", n, reason)
	}
	if n, reason := admitted(g, netip.MustParseAddr("2001:db8:1:3::1"), 9, now); n != 0 || reason != PerPrefixCap {
		t.Errorf("%d are let in at a site above their cap, %s", n, reason)
	}
}

func TestClassIsObserved(t *testing.T) {
	now := time.Now()
	l := DefaultLimits()
	l.Observe = []string{keyHostCap, keyHostRate}
	l.Classes = []Class{{Name: "exit", Networks: prefixes("192.0.2.0/24"), MaxConnectionsPerIP: new(2), ConnectionBurstPerIP: new(5)}}
	g := newGate(t, l)
	if n, reason := admitted(g, v4, 10, now); n != 10 {
		t.Fatalf("%d are let in, then %s; want all, observed", n, reason)
	}
	if got := g.Stats(now).Observed; got[PerIPCap] != 8 || got[ConnectionRate] != 5 {
		t.Errorf("observed %v, want 8 of %s and 5 of %s", got, PerIPCap, ConnectionRate)
	}
}

// A policy that changes the classes binds newcomers by them, and counts stay.
func TestClassesChange(t *testing.T) {
	now := time.Now()
	l := wide()
	l.MaxConnectionsPerIP = 2
	g := newGate(t, l)
	if n, _ := admitted(g, v4, 9, now); n != 2 {
		t.Fatalf("%d, want 2", n)
	}
	l.Classes = []Class{{Name: "bouncer", Networks: prefixes("192.0.2.10/32"), MaxConnectionsPerIP: new(5)}}
	setLimits(t, g, l)
	if n, _ := admitted(g, v4, 9, now); n != 3 {
		t.Errorf("%d more with a class of 5, want 3", n)
	}
	l.Classes[0].MaxConnectionsPerIP = new(6) // what the gate was given is its own
	if n, _ := admitted(g, v4, 9, now); n != 0 {
		t.Errorf("%d more by a change that was not set", n)
	}
	l.Classes = nil
	setLimits(t, g, l)
	if n, _ := admitted(g, v4, 9, now); n != 0 {
		t.Errorf("%d more without the class", n)
	}
	wantHeld(t, g, now, 5, 1, 0)
}

func TestGateKeepsItsOwnClasses(t *testing.T) {
	given := DefaultLimits()
	// Every value is set, so that one that is shared is found.
	class := reflect.New(reflect.TypeFor[Class]()).Elem()
	for i := range class.NumField() {
		if class.Field(i).Kind() == reflect.Pointer {
			class.Field(i).Set(reflect.ValueOf(new(7)))
		}
	}
	class.FieldByName("Name").SetString("carrier")
	class.FieldByName("Networks").Set(reflect.ValueOf(prefixes("192.0.2.0/24")))
	given.Classes = []Class{class.Interface().(Class)}
	want := fmt.Sprintf("%+v", spelled(given.Classes))
	g := newGate(t, given)
	spoil := func(c *Class) {
		c.Networks[0] = prefixes("10.0.0.0/8")[0]
		for i, v := 0, reflect.ValueOf(*c); i < v.NumField(); i++ {
			if v.Field(i).Kind() == reflect.Pointer {
				v.Field(i).Elem().SetInt(9)
			}
		}
		c.Name = "x"
	}
	spoil(&given.Classes[0])
	got := g.Limits()
	if s := spelled(got.Classes); s != want {
		t.Errorf("the gate shares the caller's classes: %s", s)
	}
	spoil(&got.Classes[0])
	if s := spelled(g.Limits().Classes); s != want {
		t.Errorf("Limits hands out the gate's own classes: %s", s)
	}
}

// spelled writes classes with what their pointers point to.
func spelled(classes []Class) string {
	var b strings.Builder
	for _, c := range classes {
		for i, v := 0, reflect.ValueOf(c); i < v.NumField(); i++ {
			fmt.Fprint(&b, reflect.Indirect(v.Field(i)), " ")
		}
	}
	return b.String()
}

// A listener for relays in Go goes by the classes too.
func TestListenerGoesByClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := wide()
		l.MaxConnectionsPerIP = 1
		l.Classes = []Class{{Name: "bouncer", Networks: prefixes("192.0.2.0/24"), MaxConnectionsPerIP: new(3)}}
		below, refused := memconn.Listen(relayAddr), 0
		ln := NewListener(below, newGate(t, l), func(Reason) { refused++ })
		defer ln.Close()
		other := netip.MustParseAddr("192.0.3.10")
		for _, from := range []netip.Addr{other, v4, other, v4, v4, v4} {
			dial(t, below, from)
		}
		dial(t, below, v6) // the last, so that no Accept waits
		for _, want := range []netip.Addr{other, v4, v4, v4, v6} {
			c, err := ln.Accept()
			if err != nil || AddrOf(c.RemoteAddr()) != want {
				t.Fatalf("Accept = %v, %v, want a connection from %v", c, err, want)
			}
			defer c.Close()
		}
		if refused != 2 {
			t.Errorf("%d were refused, want the second of the neighbour and the fourth of the class", refused)
		}
	})
}
