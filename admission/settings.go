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
	return &settings{limits: l, deny: NewNetworks(l.Deny), ordinary: newScopes(l), classes: newClassTable(l)}, nil
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

// capped reports whether r may have no further connection.
func (s *scope) capped(r *row) bool {
	return s.most > 0 && int(r.open) >= s.most
}

// charge returns when the bucket of r will be full again once it has paid for
// a connection at the time at. If it cannot pay, ok is false and its debt stays.
func (s *scope) charge(r *row, at int64) (full int64, ok bool) {
	if s.cost == 0 {
		return r.full, true
	}
	full = max(r.full, at) + s.cost
	if full-at > s.burst {
		return r.full, false
	}
	return full, true
}
