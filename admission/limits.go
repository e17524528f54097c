package admission

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Limits are the settings of a Gate. The tags are read by the policy file:
// key, default, range and effect; Validate holds Go programs to the same ranges.
type Limits struct {
	MaxConnections          int `key:"max_connections" default:"10000" min:"1" doc:"open connections in all, counted from accept"`
	MaxConnectionsPerIP     int `key:"max_connections_per_ip" default:"64" min:"0" max:"max_connections" zero:"off" doc:"open connections from one IPv4 address or one IPv6 /64"`
	MaxConnectionsPerIPv648 int `key:"max_connections_per_ipv6_48" default:"256" min:"0" max:"max_connections" zero:"off" doc:"open connections from one IPv6 /48"`

	ConnectionRatePerIP      int `key:"connection_rate_per_ip" default:"20" min:"0" max:"100000" zero:"off" doc:"new connections a second from one IPv4 address or one IPv6 /64"`
	ConnectionBurstPerIP     int `key:"connection_burst_per_ip" default:"128" min:"1" max:"1000000" doc:"burst of connection_rate_per_ip"`
	ConnectionRatePerIPv648  int `key:"connection_rate_per_ipv6_48" default:"80" min:"0" max:"100000" zero:"off" doc:"new connections a second from one IPv6 /48"`
	ConnectionBurstPerIPv648 int `key:"connection_burst_per_ipv6_48" default:"512" min:"1" max:"1000000" doc:"burst of connection_rate_per_ipv6_48"`

	// Observe names the limits, by key, that only count what they would have refused.
	Observe []string `key:"observe" default:"[]" enum:"max_connections_per_ip|max_connections_per_ipv6_48|connection_rate_per_ip|connection_rate_per_ipv6_48" doc:"limits that count what they would refuse and let it in"`
	// Classes give other values to the addresses in their networks.
	Classes []Class `key:"classes" default:"[]" doc:"networks with values of their own: carriers that share addresses, bouncers, exits"`
	// Deny lists the networks that are refused. An IPv4 network matches however
	// the client's address is spelled, and so does its IPv4-mapped spelling here;
	// an IPv6 network wider than ::ffff:0:0/96 holds IPv6 addresses alone.
	Deny []netip.Prefix `key:"deny" default:"[]" doc:"networks refused at accept"`
	// EmbeddedIPv4 lists the IPv6 prefixes, of at most 96 bits, whose last 32
	// bits are the client's IPv4 address.
	EmbeddedIPv4 []netip.Prefix `key:"embedded_ipv4" default:"[64:ff9b::/96]" doc:"IPv6 prefixes whose last 32 bits are the client's IPv4 address"`
}

const (
	keyHostCap  = "max_connections_per_ip"
	keySiteCap  = "max_connections_per_ipv6_48"
	keyHostRate = "connection_rate_per_ip"
	keySiteRate = "connection_rate_per_ipv6_48"

	keyHostBurst = "connection_burst_per_ip"
	keySiteBurst = "connection_burst_per_ipv6_48"

	maxRate  = 100_000
	maxBurst = 1_000_000
)

var observable = []string{keyHostCap, keySiteCap, keyHostRate, keySiteRate}

// DefaultLimits returns the defaults of the policy file.
func DefaultLimits() Limits {
	return Limits{
		MaxConnections:           10_000,
		MaxConnectionsPerIP:      64,
		MaxConnectionsPerIPv648:  256,
		ConnectionRatePerIP:      20,
		ConnectionBurstPerIP:     128,
		ConnectionRatePerIPv648:  80,
		ConnectionBurstPerIPv648: 512,
		// The well-known prefix of NAT64, RFC 6052.
		EmbeddedIPv4: []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")},
	}
}

// limitError is a fault of one setting. Its text begins with the key, and
// PolicyKey tells the policy file where the setting stands.
type limitError struct {
	key, fault string
	bound      string // the key that the range hangs on; empty: none
}

func (e *limitError) Error() string     { return e.key + ": " + e.fault }
func (e *limitError) PolicyKey() string { return e.key }

// PolicyBound names the key without which there would be no fault.
func (e *limitError) PolicyBound() string { return e.bound }

// Validate returns an error that names every field out of its range by its
// policy key. It joins one error for each fault.
func (l Limits) Validate() error {
	var faults []error
	fault := func(key, format string, args ...any) {
		faults = append(faults, &limitError{key: key, fault: fmt.Sprintf(format, args...)})
	}
	within := func(key string, value, least, most int) {
		if err := outOfRange(key, value, least, most); err != nil {
			faults = append(faults, err)
		}
	}
	upToAll := func(key string, value int) {
		if err := l.outOfAll(key, value); err != nil {
			faults = append(faults, err)
		}
	}
	if l.MaxConnections < 1 {
		fault("max_connections", "%d is out of range, allowed is 1 or more", l.MaxConnections)
	}
	upToAll(keyHostCap, l.MaxConnectionsPerIP)
	upToAll(keySiteCap, l.MaxConnectionsPerIPv648)
	within(keyHostRate, l.ConnectionRatePerIP, 0, maxRate)
	within(keyHostBurst, l.ConnectionBurstPerIP, 1, maxBurst)
	within(keySiteRate, l.ConnectionRatePerIPv648, 0, maxRate)
	within(keySiteBurst, l.ConnectionBurstPerIPv648, 1, maxBurst)

	for i, name := range l.Observe {
		if !slices.Contains(observable, name) {
			fault(fmt.Sprintf("observe[%d]", i), "%q cannot be observed, allowed are %s", name, strings.Join(observable, ", "))
		}
	}
	faults = append(faults, l.validateClasses()...)
	for i, p := range l.Deny {
		if problem := networkFault(p); problem != "" {
			fault(fmt.Sprintf("deny[%d]", i), "%s", problem)
		}
	}
	for i, p := range l.EmbeddedIPv4 {
		key := fmt.Sprintf("embedded_ipv4[%d]", i)
		if p.IsValid() && (p.Addr().Is4() || p.Bits() > 96) {
			fault(key, "%v leaves no 32 bits for the client, allowed are IPv6 networks of at most 96 bits", p)
		} else if problem := networkFault(p); problem != "" {
			fault(key, "%s", problem)
		}
	}
	return errors.Join(faults...)
}

// outOfRange returns the fault of a value that is not within its range, or nil.
func outOfRange(key string, value, least, most int) error {
	if value >= least && value <= most {
		return nil
	}
	return &limitError{key: key, fault: fmt.Sprintf("%d is out of range, allowed is %d to %d", value, least, most)}
}

// outOfAll is outOfRange for the caps that max_connections bounds.
func (l Limits) outOfAll(key string, value int) error {
	if value >= 0 && value <= l.MaxConnections {
		return nil
	}
	return &limitError{key, fmt.Sprintf("%d is out of range, allowed is 0 to max_connections (%d)", value, l.MaxConnections), "max_connections"}
}

// clone returns a copy that shares no memory with l.
func (l Limits) clone() Limits {
	l.Observe = slices.Clone(l.Observe)
	l.Classes = cloneClasses(l.Classes)
	l.Deny = slices.Clone(l.Deny)
	l.EmbeddedIPv4 = slices.Clone(l.EmbeddedIPv4)
	return l
}
