package admission

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// Class gives the addresses in its networks values of their own, higher or
// lower. A value that is nil stays the one of the Limits around it; a class
// without any takes its networks out of a wider class. Of all networks of all
// classes the most specific one that holds an address decides, as for Networks
// by address and not by spelling, and after the embedded prefixes were looked
// through. Counts and buckets stay the host's and the site's own: a class is no
// pool. Where the hosts of one site are of different classes, it is the
// newcomer's class whose values of the site bind.
type Class struct {
	Name     string         `key:"name" required:"true" doc:"the class's name, for those who read the file"`
	Networks []netip.Prefix `key:"networks" required:"true" doc:"its networks; of all classes the most specific network that holds the client decides"`

	MaxConnectionsPerIP      *int `key:"max_connections_per_ip" min:"0" zero:"off" doc:"in place of limits.max_connections_per_ip; at most max_connections"`
	ConnectionRatePerIP      *int `key:"connection_rate_per_ip" min:"0" max:"100000" zero:"off" doc:"in place of limits.connection_rate_per_ip"`
	ConnectionBurstPerIP     *int `key:"connection_burst_per_ip" min:"1" max:"1000000" doc:"in place of limits.connection_burst_per_ip"`
	MaxConnectionsPerIPv648  *int `key:"max_connections_per_ipv6_48" min:"0" zero:"off" doc:"in place of limits.max_connections_per_ipv6_48; at most max_connections"`
	ConnectionRatePerIPv648  *int `key:"connection_rate_per_ipv6_48" min:"0" max:"100000" zero:"off" doc:"in place of limits.connection_rate_per_ipv6_48"`
	ConnectionBurstPerIPv648 *int `key:"connection_burst_per_ipv6_48" min:"1" max:"1000000" doc:"in place of limits.connection_burst_per_ipv6_48"`
}

// validateClasses returns what is wrong with the classes, by the key of each fault.
func (l Limits) validateClasses() (faults []error) {
	names, networks := make(map[string]int), make(map[netip.Prefix]string)
	for i, c := range l.Classes {
		fault := func(key, format string, args ...any) {
			faults = append(faults, &limitError{key: fmt.Sprintf("classes[%d].%s", i, key), fault: fmt.Sprintf(format, args...)})
		}
		if first, twice := names[c.Name]; c.Name == "" {
			fault("name", "is empty, every class has a name")
		} else if twice {
			fault("name", "%q is the name of classes[%d] already, every class has its own", c.Name, first)
		} else {
			names[c.Name] = i
		}
		if len(c.Networks) == 0 {
			fault("networks", "is empty, a class has at least one network")
		}
		for n, p := range c.Networks {
			key := fmt.Sprintf("networks[%d]", n)
			if problem := networkFault(p); problem != "" {
				fault(key, "%s", problem)
				continue
			}
			p = unmapPrefix(p)
			if first, twice := networks[p]; twice {
				fault(key, "%v stands at %s already, a network is in one class, once", p, first)
				continue
			}
			networks[p] = fmt.Sprintf("classes[%d].%s", i, key)
			for _, e := range l.EmbeddedIPv4 {
				if e.IsValid() && e.Bits() <= p.Bits() && e.Contains(p.Addr()) {
					fault(key, "%v lies in %v of embedded_ipv4, whose addresses count as the IPv4 ones in them, write the IPv4 network", p, e)
					break
				}
			}
		}
		faults = append(faults, c.validateValues(l, fmt.Sprintf("classes[%d].", i))...)
	}
	return faults
}

// validateValues returns what is wrong with the values that c writes; at is the
// path of their keys.
func (c Class) validateValues(l Limits, at string) (faults []error) {
	upToAll := func(key string, value *int) {
		if value == nil {
			return
		}
		if err := l.outOfAll(at+key, *value); err != nil {
			faults = append(faults, err)
		}
	}
	within := func(key string, value *int, least, most int) {
		if value == nil {
			return
		}
		if err := outOfRange(at+key, *value, least, most); err != nil {
			faults = append(faults, err)
		}
	}
	upToAll(keyHostCap, c.MaxConnectionsPerIP)
	within(keyHostRate, c.ConnectionRatePerIP, 0, maxRate)
	within(keyHostBurst, c.ConnectionBurstPerIP, 1, maxBurst)
	upToAll(keySiteCap, c.MaxConnectionsPerIPv648)
	within(keySiteRate, c.ConnectionRatePerIPv648, 0, maxRate)
	within(keySiteBurst, c.ConnectionBurstPerIPv648, 1, maxBurst)
	return faults
}

// within returns l with the values that c writes.
func (c Class) within(l Limits) Limits {
	l.MaxConnectionsPerIP = *cmp.Or(c.MaxConnectionsPerIP, &l.MaxConnectionsPerIP)
	l.ConnectionRatePerIP = *cmp.Or(c.ConnectionRatePerIP, &l.ConnectionRatePerIP)
	l.ConnectionBurstPerIP = *cmp.Or(c.ConnectionBurstPerIP, &l.ConnectionBurstPerIP)
	l.MaxConnectionsPerIPv648 = *cmp.Or(c.MaxConnectionsPerIPv648, &l.MaxConnectionsPerIPv648)
	l.ConnectionRatePerIPv648 = *cmp.Or(c.ConnectionRatePerIPv648, &l.ConnectionRatePerIPv648)
	l.ConnectionBurstPerIPv648 = *cmp.Or(c.ConnectionBurstPerIPv648, &l.ConnectionBurstPerIPv648)
	return l
}

// newClassTable returns the scopes of the classes of l by their networks, nil
// without a class: then an address costs no lookup.
func newClassTable(l Limits) *bart.Table[*scopes] {
	if len(l.Classes) == 0 {
		return nil
	}
	table := new(bart.Table[*scopes])
	for _, c := range l.Classes {
		s := newScopes(c.within(l))
		for _, p := range c.Networks {
			table.Insert(unmapPrefix(p), s)
		}
	}
	return table
}

// cloneClasses returns a copy that shares no memory with classes.
func cloneClasses(classes []Class) []Class {
	classes = slices.Clone(classes)
	for i := range classes {
		c := &classes[i]
		c.Networks = slices.Clone(c.Networks)
		for _, value := range []**int{
			&c.MaxConnectionsPerIP, &c.ConnectionRatePerIP, &c.ConnectionBurstPerIP,
			&c.MaxConnectionsPerIPv648, &c.ConnectionRatePerIPv648, &c.ConnectionBurstPerIPv648,
		} {
			if *value != nil {
				*value = new(**value)
			}
		}
	}
	return classes
}
