package admission

import "time"

// Rate is how fast a bucket refills and how much it holds: N units every Per, at most Burst.
type Rate struct {
	N     int64
	Per   time.Duration
	Burst int64
}

// Bucket is a token bucket for one owner; it is not safe for concurrent use.
// The zero Bucket is full. It follows the monotonic reading of the times it is given.
type Bucket struct {
	full time.Time // when the bucket is full again; the zero time: it is full
}

// Take takes n units if the bucket holds them, and reports whether it did.
// A refusal takes nothing.
func (b *Bucket) Take(r Rate, n int64, now time.Time) bool { panic("stub") }

// Charge takes n units whether the bucket holds them or not, and returns how
// long the owner must wait until the bucket is out of debt: 0 while it is not in debt.
func (b *Bucket) Charge(r Rate, n int64, now time.Time) time.Duration { panic("stub") }
