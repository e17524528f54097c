package admission

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestValidateClasses(t *testing.T) {
	networks := func(texts ...string) []Class { return []Class{{Name: "a", Networks: prefixes(texts...)}} }
	both := func(first, second string) []Class {
		return []Class{{Name: "a", Networks: prefixes("192.0.2.0/24", first)}, {Name: "b", Networks: prefixes(second)}}
	}
	tests := []struct {
		name    string
		classes []Class
		want    string // all errors; "": accepted
	}{
		{"nested", networks("10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/32", "0.0.0.0/0", "::/0", "2001:db8::1/128"), ""},
		{"wider than an embedded prefix", networks("64:ff9b::/95", "64::/16"), ""},
		{"no name", []Class{{Networks: prefixes("10.0.0.0/8")}}, "classes[0].name: is empty, every class has a name"},
		{"name twice", []Class{{Name: "a", Networks: prefixes("10.0.0.0/8")}, {Name: "b", Networks: prefixes("11.0.0.0/8")}, {Name: "a", Networks: prefixes("12.0.0.0/8")}},
			`classes[2].name: "a" is the name of classes[0] already, every class has its own`},
		{"no networks", []Class{{Name: "a"}}, "classes[0].networks: is empty, a class has at least one network"},
		{"no network", []Class{{Name: "a", Networks: make([]netip.Prefix, 1)}}, "classes[0].networks[0]: not a network"},
		{"host bits", both("198.51.100.0/24", "10.0.0.1/8"), "classes[1].networks[0]: 10.0.0.1/8 has bits beyond its length, write 10.0.0.0/8"},
		{"one network twice", networks("10.0.0.0/8", "11.0.0.0/8", "10.0.0.0/8"), "classes[0].networks[2]: 10.0.0.0/8 stands at classes[0].networks[0] already, a network is in one class, once"},
		{"one network in two", both("10.0.0.0/8", "10.0.0.0/8"), "classes[1].networks[0]: 10.0.0.0/8 stands at classes[0].networks[1] already, a network is in one class, once"},
		{"the same, mapped", both("10.0.0.0/8", "::ffff:10.0.0.0/104"), "classes[1].networks[0]: 10.0.0.0/8 stands at classes[0].networks[1] already, a network is in one class, once"},
		{"the same, IPv6", both("2001:db8::/32", "2001:db8::/32"), "classes[1].networks[0]: 2001:db8::/32 stands at classes[0].networks[1] already, a network is in one class, once"},
		{"looked through", networks("64:ff9b::c000:200/120"), "classes[0].networks[0]: 64:ff9b::c000:200/120 lies in 64:ff9b::/96 of embedded_ipv4, whose addresses count as the IPv4 ones in them, write the IPv4 network"},
		{"looked through as a whole", networks("64:ff9b::/96"), "classes[0].networks[0]: 64:ff9b::/96 lies in 64:ff9b::/96 of embedded_ipv4, whose addresses count as the IPv4 ones in them, write the IPv4 network"},
		{"cap beyond all", []Class{{Name: "a", Networks: prefixes("10.0.0.0/8"), MaxConnectionsPerIP: new(10_001)}},
			"classes[0].max_connections_per_ip: 10001 is out of range, allowed is 0 to max_connections (10000)"},
		{"every fault", []Class{{MaxConnectionsPerIP: new(-1), ConnectionRatePerIP: new(-1), ConnectionBurstPerIP: new(0), MaxConnectionsPerIPv648: new(-1), ConnectionRatePerIPv648: new(-1), ConnectionBurstPerIPv648: new(0)}},
			"classes[0].name: is empty, every class has a name\n" +
				"classes[0].networks: is empty, a class has at least one network\n" +
				"classes[0].max_connections_per_ip: -1 is out of range, allowed is 0 to max_connections (10000)\n" +
				"classes[0].connection_rate_per_ip: -1 is out of range, allowed is 0 to 100000\n" +
				"classes[0].connection_burst_per_ip: 0 is out of range, allowed is 1 to 1000000\n" +
				"classes[0].max_connections_per_ipv6_48: -1 is out of range, allowed is 0 to max_connections (10000)\n" +
				"classes[0].connection_rate_per_ipv6_48: -1 is out of range, allowed is 0 to 100000\n" +
				"classes[0].connection_burst_per_ipv6_48: 0 is out of range, allowed is 1 to 1000000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := DefaultLimits()
			l.Classes = tt.classes
			var got string
			if err := l.Validate(); err != nil {
				got = err.Error()
				for err := range strings.Lines(got) {
					key, _, _ := strings.Cut(err, ": ")
					if !strings.HasPrefix(key, "classes[") {
						t.Errorf("the error %q does not begin with its key", err)
					}
				}
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if _, err := NewGate(l); (err == nil) != (tt.want == "") {
				t.Errorf("NewGate: %v", err)
			}
		})
	}
}

// A class may write each number of the limits that binds one client, by the
// same key and in the same range; what is not written is not there.
func TestClassHasTheRangesOfTheLimits(t *testing.T) {
	optional := 0
	for _, of := range integers(t) {
		if of.key == "max_connections" {
			continue
		}
		name := reflect.TypeFor[Limits]().Field(of.index).Name
		f, ok := reflect.TypeFor[Class]().FieldByName(name)
		if !ok || f.Type != reflect.TypeFor[*int]() {
			t.Errorf("%s is no optional integer of a class", of.key)
			continue
		}
		optional++
		for _, tag := range []string{"key", "min", "max", "zero"} {
			want := of.tag.Get(tag)
			if want == "max_connections" {
				want = "" // no key of the class
			}
			if got := f.Tag.Get(tag); got != want {
				t.Errorf("%s: the tag %s is %q for a class, want %q", of.key, tag, got, want)
			}
		}
		for value, taken := range map[int]bool{of.min: true, of.min - 1: false, of.max: true, of.max + 1: false} {
			c := Class{Name: "a", Networks: prefixes("192.0.2.0/24")}
			reflect.ValueOf(&c).Elem().FieldByName(name).Set(reflect.ValueOf(&value))
			l := DefaultLimits()
			l.Classes = []Class{c}
			if err := l.Validate(); (err == nil) != taken || err != nil && !strings.HasPrefix(err.Error(), "classes[0]."+of.key+": ") {
				t.Errorf("%s: %d of a class gives %v", of.key, value, err)
			}
		}
	}
	if optional != 6 {
		t.Errorf("%d values, want 6", optional)
	}
}
