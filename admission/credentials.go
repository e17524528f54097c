package admission

import (
	"sync"
	"time"
)

// credentialRows is how many credentials are known at once: half as many as a
// FixedWindows counts apart, so that the hosts always have the other half.
const credentialRows = fixedRows / 2

// Credentials tells the credentials that it has seen from new ones, of which each
// host may bring so many a minute: whoever invents them gets no window for each.
// It is safe for concurrent use and follows the monotonic reading of the times
// that it is given.
//
// It knows 65,536 credentials, in about 6 MB, and forgets the ones that were not
// seen for its life. Beyond as many no new one is taken.
type Credentials struct {
	hosts *Throttle // of new credentials; locked within mu

	mu sync.Mutex
	// Guarded by mu.
	clock stopwatch
	rows  roster[struct{}]
}

// NewCredentials lets each host bring perHostMinute new credentials a minute, and
// forgets what was not seen for life. It panics unless both are positive.
func NewCredentials(perHostMinute int64, life time.Duration) *Credentials {
	c := &Credentials{hosts: NewThrottle(0), rows: roster[struct{}]{bound: credentialRows}}
	c.SetLimit(perHostMinute, life)
	return c
}

// SetLimit changes both. What is known stays known.
func (c *Credentials) SetLimit(perHostMinute int64, life time.Duration) {
	if perHostMinute < 1 || life <= 0 {
		panic("admission: credentials need a positive limit and a positive life")
	}
	c.hosts.SetLimit(perHostMinute)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows.life = int64(life)
}

// Apart reports whether the credential is counted apart from its host: whether it
// is known, or new and the host may still bring one.
func (c *Credentials) Apart(credential, host Key, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.clock.read(now)
	c.rows.sweep(at, sweepKeys)
	row := c.rows.find(credential, at)
	if row == nil {
		if len(c.rows.index) >= c.rows.bound || !c.hosts.Take(host, now).Allowed {
			return false
		}
		row = c.rows.open(credential, at)
	}
	c.rows.renew(row, at)
	return true
}

// Rows drops the credentials that are to be forgotten and returns how many are known.
func (c *Credentials) Rows(now time.Time) int {
	return countRows(&c.mu, &c.clock, &c.rows, now)
}
