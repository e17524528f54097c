package admission

import (
	"sync"
	"time"
)

// throttleRows is how many hosts a Throttle counts apart. A row takes about 100
// bytes with its place in the index: 7 MB in all.
const throttleRows = 1 << 16

// pace is a token bucket's rate as lengths of time in nanoseconds: what one unit
// costs, rounded up, and what it holds. A limit of n a length holds n units.
type pace struct{ cost, burst int64 }

// paceOf returns the pace of a positive limit.
func paceOf(limit, length int64) pace {
	cost := (length + limit - 1) / limit
	return pace{cost, cost * limit}
}

// tokens is a token bucket: the time at which it is full again. The zero bucket is full.
type tokens int64

// wait returns how long it takes until there is a unit, 0 if there is one.
func (t tokens) wait(p pace, at int64) int64 {
	return max(0, t.owes(at)+p.cost-p.burst)
}

// left returns how many units there are.
func (t tokens) left(p pace, at int64) int64 {
	return max(0, p.burst-t.owes(at)) / p.cost
}

// owes returns how long it takes until the bucket is full.
func (t tokens) owes(at int64) int64 { return max(0, int64(t)-at) }

func (t *tokens) take(p pace, at int64) { *t = tokens(at + t.owes(at) + p.cost) }

// Throttle holds each host to so many units a minute, by a token bucket: requests
// in the name of senders who have not proven who they are. A unit is given back
// once the proof stands, so only what stays unproven spends. It is safe for
// concurrent use and follows the monotonic reading of the times that it is given.
//
// It counts 65,536 hosts apart, in about 7 MB. The hosts that come while as many
// owe something share 256 buckets of the same limit; nobody's debt is forgotten
// for them. A host without debt has no row.
type Throttle struct {
	mu sync.Mutex
	// Guarded by mu.
	limit int64
	clock stopwatch
	rows  roster[tokens]
}

// NewThrottle allows each host limit units a minute; 0 allows all, -1 refuses
// all. It panics if limit is less than -1.
func NewThrottle(limit int64) *Throttle {
	t := &Throttle{rows: roster[tokens]{bound: throttleRows}}
	t.SetLimit(limit)
	return t
}

// SetLimit changes the limit. What a bucket owes stays, as time.
func (t *Throttle) SetLimit(limit int64) {
	if limit < -1 {
		panic("admission: a throttle needs a limit of -1 or more")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = limit
	t.rows.life = int64(time.Minute)
	if limit > 0 {
		t.rows.life = paceOf(limit, int64(time.Minute)).burst
	}
}

// Take takes one unit of the host's, or none if it is refused. Where the limit is
// off, the decision's Limit is 0.
func (t *Throttle) Take(host Key, now time.Time) Decision {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.clock.read(now)
	t.rows.sweep(at, sweepKeys)
	v := newVerdict()
	if t.limit == 0 {
		return v.decision(now)
	}
	bucket := tokens(0)
	if row := t.rows.find(host, at); row != nil {
		bucket = row.held
	}
	v.bucket(ScopeHost, t.limit, int64(time.Minute), bucket, at)
	if v.wait == 0 {
		row := t.rows.open(host, at)
		row.held.take(paceOf(t.limit, int64(time.Minute)), at)
		t.rows.renew(row, at)
		v.spend()
	}
	return v.decision(now)
}

// Return gives back one unit that Take has allowed the host.
func (t *Throttle) Return(host Key, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.clock.read(now)
	if t.limit <= 0 {
		return
	}
	if row := t.rows.find(host, at); row != nil {
		row.held -= tokens(paceOf(t.limit, int64(time.Minute)).cost)
	}
}

// Rows drops the rows of the hosts that owe nothing and returns how many are left.
func (t *Throttle) Rows(now time.Time) int {
	return countRows(&t.mu, &t.clock, &t.rows, now)
}
