package admission

import (
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// field is one key of Limits as its tags describe it.
type field struct {
	index    int
	key      string
	tag      reflect.StructTag
	min, max int
	bounded  bool // has a max
}

// integers returns the integer keys of Limits.
func integers(t *testing.T) []field {
	t.Helper()
	number := func(s string) int {
		if s == "max_connections" {
			return DefaultLimits().MaxConnections
		}
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var fields []field
	for i, f := range reflect.VisibleFields(reflect.TypeFor[Limits]()) {
		if f.Type.Kind() != reflect.Int {
			continue
		}
		one := field{index: i, key: f.Tag.Get("key"), tag: f.Tag, min: number(f.Tag.Get("min"))}
		if most, ok := f.Tag.Lookup("max"); ok {
			one.max, one.bounded = number(most), true
		}
		fields = append(fields, one)
	}
	return fields
}

func TestDefaultLimitsAreThoseOfTheTags(t *testing.T) {
	v := reflect.ValueOf(DefaultLimits())
	for i, f := range reflect.VisibleFields(v.Type()) {
		var got string
		switch value := v.Field(i).Interface().(type) {
		case int:
			got = strconv.Itoa(value)
		default:
			got = strings.ReplaceAll(fmt.Sprint(value), " ", ", ")
		}
		if want := f.Tag.Get("default"); got != want {
			t.Errorf("%s: the default is %s, the tag says %s", f.Tag.Get("key"), got, want)
		}
	}
	if err := DefaultLimits().Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateHoldsTheRangesOfTheTags(t *testing.T) {
	validate := func(f field, value int) error {
		l := DefaultLimits()
		if f.key == "max_connections" {
			l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 0, 0
		}
		reflect.ValueOf(&l).Elem().Field(f.index).SetInt(int64(value))
		return l.Validate()
	}
	fields := integers(t)
	if len(fields) != 7 {
		t.Fatalf("%d integer keys, want 7", len(fields))
	}
	for _, f := range fields {
		accept := func(value int) {
			t.Helper()
			if err := validate(f, value); err != nil {
				t.Errorf("%s: %d is refused: %v", f.key, value, err)
			}
		}
		refuse := func(value int) {
			t.Helper()
			if err := validate(f, value); err == nil || !strings.HasPrefix(err.Error(), f.key+": ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %d gives the error %v, want one of its own", f.key, value, err)
			}
		}
		accept(f.min)
		refuse(f.min - 1)
		if f.bounded {
			accept(f.max)
			refuse(f.max + 1)
		} else {
			accept(1 << 40)
		}
	}
}

func TestObserveHoldsTheEnumOfTheTag(t *testing.T) {
	f, _ := reflect.TypeFor[Limits]().FieldByName("Observe")
	l := DefaultLimits()
	l.Observe = strings.Split(f.Tag.Get("enum"), "|")
	if len(l.Observe) != 4 {
		t.Fatalf("%d limits can be observed, want 4", len(l.Observe))
	}
	if err := l.Validate(); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"max_connections", "deny", "connection_burst_per_ip", ""} {
		l.Observe = []string{"connection_rate_per_ip", key}
		if err := l.Validate(); err == nil || !strings.HasPrefix(err.Error(), "observe[1]: ") {
			t.Errorf("observe %q gives the error %v", key, err)
		}
	}
}

func TestValidateNetworks(t *testing.T) {
	tests := []struct {
		name           string
		deny, embedded []netip.Prefix
		want           string // the whole error; "": accepted
	}{
		{"plain", prefixes("10.0.0.0/8", "2001:db8::/32", "::/0", "0.0.0.0/0", "::1/128"), prefixes("64:ff9b::/96", "2001:db8::/32"), ""},
		{"mapped", prefixes("::ffff:10.0.0.0/104"), nil, ""},
		{"host bits", prefixes("10.0.0.0/8", "10.0.0.1/8"), nil, "deny[1]: 10.0.0.1/8 has bits beyond its length, write 10.0.0.0/8"},
		{"host bits, IPv6", prefixes("2001:db8::1/32"), nil, "deny[0]: 2001:db8::1/32 has bits beyond its length, write 2001:db8::/32"},
		{"no network", make([]netip.Prefix, 1), nil, "deny[0]: not a network"},
		{"embedded, no network", nil, make([]netip.Prefix, 1), "embedded_ipv4[0]: not a network"},
		{"embedded, host bits", nil, prefixes("64:ff9b::1:0:0/96", "64:ff9b::1/64"), "embedded_ipv4[1]: 64:ff9b::1/64 has bits beyond its length, write 64:ff9b::/64"},
		{"embedded, too long", nil, prefixes("64:ff9b::/97"), "embedded_ipv4[0]: 64:ff9b::/97 leaves no 32 bits for the client, allowed are IPv6 networks of at most 96 bits"},
		{"embedded, IPv4", nil, prefixes("10.0.0.0/8"), "embedded_ipv4[0]: 10.0.0.0/8 leaves no 32 bits for the client, allowed are IPv6 networks of at most 96 bits"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := DefaultLimits()
			l.Deny, l.EmbeddedIPv4 = tt.deny, tt.embedded
			var got string
			if err := l.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestZonedNetworksCannotBeWritten(t *testing.T) {
	for _, s := range []string{"fe80::%2/64", "fe80::1%eth0/64", "fe80::1%eth0/128", "10.0.0.0/33"} {
		var p netip.Prefix
		if err := p.UnmarshalText([]byte(s)); err == nil {
			t.Errorf("%s is read as %v", s, p)
		}
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	l := Limits{
		MaxConnectionsPerIP: 1, MaxConnectionsPerIPv648: -1,
		ConnectionRatePerIP: -1, ConnectionRatePerIPv648: 100_001,
		Observe: []string{"all"}, Deny: make([]netip.Prefix, 1), EmbeddedIPv4: prefixes("10.0.0.0/8"),
	}
	joined, ok := l.Validate().(interface{ Unwrap() []error })
	if !ok {
		t.Fatal("the faults are not joined")
	}
	var keys []string
	for _, err := range joined.Unwrap() {
		key := err.(interface{ PolicyKey() string }).PolicyKey()
		if !strings.HasPrefix(err.Error(), key+": ") {
			t.Errorf("the error %v does not begin with its key %s", err, key)
		}
		keys = append(keys, key)
	}
	want := []string{
		"max_connections", "max_connections_per_ip", "max_connections_per_ipv6_48",
		"connection_rate_per_ip", "connection_burst_per_ip", "connection_rate_per_ipv6_48", "connection_burst_per_ipv6_48",
		"observe[0]", "deny[0]", "embedded_ipv4[0]",
	}
	if !reflect.DeepEqual(keys, want) {
		t.Errorf("the faults are at %v, want %v", keys, want)
	}
}

func TestGateKeepsItsOwnLimits(t *testing.T) {
	given := DefaultLimits()
	given.Deny = prefixes("10.0.0.0/8")
	given.Observe = []string{keyHostCap}
	g := newGate(t, given)
	given.Deny[0] = netip.MustParsePrefix("192.0.2.0/24")
	given.Observe[0] = keySiteCap
	got := g.Limits()
	if got.Deny[0] != netip.MustParsePrefix("10.0.0.0/8") || got.Observe[0] != keyHostCap {
		t.Error("the gate shares the caller's lists")
	}
	got.EmbeddedIPv4[0] = netip.MustParsePrefix("2001:db8::/96")
	if !reflect.DeepEqual(g.Limits().EmbeddedIPv4, DefaultLimits().EmbeddedIPv4) {
		t.Error("Limits hands out the gate's own list")
	}
	bad := DefaultLimits()
	bad.MaxConnections = 0
	if err := g.SetLimits(bad); err == nil || g.Limits().MaxConnections != DefaultLimits().MaxConnections {
		t.Errorf("SetLimits of bad limits: error %v, limits %v", err, g.Limits())
	}
	if _, err := NewGate(bad); err == nil {
		t.Error("NewGate takes bad limits")
	}
	good := DefaultLimits()
	good.MaxConnections = 500
	setLimits(t, g, good)
	if g.Limits().MaxConnections != 500 {
		t.Error("Limits does not return the limits in force")
	}
}
