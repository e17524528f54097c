package admission

import (
	"math"
	"math/bits"
	"time"
)

// Rate is how fast a bucket refills and how much it holds: N units every Per,
// at most Burst. N and Per are positive.
type Rate struct {
	N     int64
	Per   time.Duration
	Burst int64
}

// Bucket is a token bucket for one owner; it is not safe for concurrent use.
// The zero Bucket is full. It follows the monotonic reading of the times it is
// given, and a time before an earlier one refills nothing. What it owes it
// remembers as time, so that a change of rate turns no debt into another.
type Bucket struct {
	seen time.Time // the latest time that it was given
	owes span      // time from seen until it is full again
}

// Take takes n units if the bucket holds them, and reports whether it did.
// A refusal takes nothing.
func (b *Bucket) Take(r Rate, n int64, now time.Time) bool {
	b.pass(now)
	owes := b.owes.plus(r.span(n))
	if r.span(r.Burst).less(owes) {
		return false
	}
	b.owes = owes
	return true
}

// Charge takes n units whether the bucket holds them or not, and returns how
// long the owner must wait until the bucket is out of debt: 0 while it is not in debt.
func (b *Bucket) Charge(r Rate, n int64, now time.Time) time.Duration {
	b.pass(now)
	b.owes = b.owes.plus(r.span(n))
	burst := r.span(r.Burst)
	if !burst.less(b.owes) {
		return 0
	}
	wait := b.owes.ns - burst.ns
	if burst.frac < b.owes.frac {
		wait++ // a wait that is rounded down would end in debt
	}
	return time.Duration(wait)
}

// pass refills the bucket up to now.
func (b *Bucket) pass(now time.Time) {
	passed := int64(now.Sub(b.seen))
	if passed <= 0 {
		return
	}
	b.seen = now
	if b.owes.ns < passed {
		b.owes = span{}
		return
	}
	b.owes.ns -= passed
}

// span is a length of time in nanoseconds and 2⁻³² parts of one: a single byte
// at gigabytes a second lasts less than a nanosecond and must not be free.
type span struct {
	ns   int64
	frac uint32
}

// forever is the longest span; longer ones are cut to it. Two of them do not overflow.
const forever = math.MaxInt64 / 2

// span returns how long the refill of n units takes.
func (r Rate) span(n int64) span {
	if r.N <= 0 || r.Per <= 0 {
		panic("admission: a Rate needs a positive N and a positive Per")
	}
	if n <= 0 {
		return span{}
	}
	per, rate := uint64(r.Per), uint64(r.N)
	hi, lo := bits.Mul64(uint64(n), per)
	if hi >= rate {
		return span{ns: forever}
	}
	ns, rest := bits.Div64(hi, lo, rate)
	if ns >= forever {
		return span{ns: forever}
	}
	frac, _ := bits.Div64(rest>>32, rest<<32, rate)
	return span{int64(ns), uint32(frac)}
}

func (s span) plus(t span) span {
	frac := uint64(s.frac) + uint64(t.frac)
	sum := span{s.ns + t.ns + int64(frac>>32), uint32(frac)}
	if sum.ns >= forever {
		return span{ns: forever}
	}
	return sum
}

func (s span) less(t span) bool {
	return s.ns < t.ns || s.ns == t.ns && s.frac < t.frac
}
