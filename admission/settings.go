package admission

import (
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"
)

// settings is a Limits made ready for the gate. It never changes once built.
type settings struct {
	limits   Limits
	deny     Networks
	ordinary *scopes              // of the addresses that are in no class
	classes  *bart.Table[*scopes] // nil: there are none

	leastHost, leastSite int // the lowest cap of a host and of a site that there is for anybody; 0: none
}

// scopes are what the limits say of the host and the site of an address.
type scopes struct{ host, site scope }

// scope is what the limits say of every host, or of every site.
type scope struct {
	most        int   // connections of one row; 0: no cap
	cost        int64 // nanoseconds that one connection adds to a row's debt; 0: no rate
	burst       int64 // nanoseconds of debt at which the bucket is empty
	observeCap  bool
	observeRate bool
}

func newSettings(l Limits) (*settings, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	l = l.clone()
	next := &settings{limits: l, deny: NewNetworks(l.Deny), ordinary: newScopes(l), classes: newClassTable(l)}
	next.least(l)
	for _, c := range l.Classes {
		next.least(c.within(l))
	}
	return next, nil
}

// least lowers the lowest caps to those of l.
func (s *settings) least(l Limits) {
	lower := func(least *int, most int) {
		if most > 0 && (*least == 0 || most < *least) {
			*least = most
		}
	}
	lower(&s.leastHost, l.MaxConnectionsPerIP)
	lower(&s.leastSite, l.MaxConnectionsPerIPv648)
}

// of returns the scopes of an address that is bare and looked through.
func (s *settings) of(addr netip.Addr) *scopes {
	if s.classes != nil {
		if class, ok := s.classes.Lookup(addr); ok {
			return class
		}
	}
	return s.ordinary
}

func newScopes(l Limits) *scopes {
	observed := func(key string) bool { return slices.Contains(l.Observe, key) }
	return &scopes{
		host: newScope(l.MaxConnectionsPerIP, l.ConnectionRatePerIP, l.ConnectionBurstPerIP, observed(keyHostCap), observed(keyHostRate)),
		site: newScope(l.MaxConnectionsPerIPv648, l.ConnectionRatePerIPv648, l.ConnectionBurstPerIPv648, observed(keySiteCap), observed(keySiteRate)),
	}
}

func newScope(most, rate, burst int, observeCap, observeRate bool) scope {
	s := scope{most: most, observeCap: observeCap, observeRate: observeRate}
	if rate > 0 {
		// Rounded up, so that the rate is never exceeded.
		s.cost = (int64(time.Second) + int64(rate) - 1) / int64(rate)
		s.burst = int64(burst) * s.cost
	}
	return s
}

// payment is what a bucket makes of a connection.
type payment struct {
	full int64 // when the bucket is full again
	ok   bool  // it has paid; if not, its debt stays
}

// charge charges a connection, fold times, at the time at to a bucket that is full
// again at the time full. A full bucket always has enough for one, be it less than that.
func (s *scope) charge(full, at, fold int64) payment {
	if s.cost == 0 {
		return payment{full, true}
	}
	full = max(full, at)
	if full-at > max(0, s.burst-s.cost*fold) {
		return payment{full, false}
	}
	return payment{full + s.cost*fold, true}
}
