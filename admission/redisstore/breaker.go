package redisstore

import (
	"sync/atomic"
	"time"
)

const (
	// budget is how long a decision waits for the store.
	budget = 50 * time.Millisecond

	// openAfter decisions that failed in a row make the store away.
	openAfter = 5

	// While the store is away it is tried so often, and so many trials in a row must
	// succeed: a store of which every other answer is lost does not come and go.
	probeEvery = 250 * time.Millisecond
	probesGood = 4
)

// breaker knows whether the store is away. While it is, nobody waits for it but
// the one goroutine that tries it. It is safe for concurrent use.
type breaker struct {
	failures atomic.Int32 // in a row
	away     atomic.Bool
	opened   chan struct{} // has room for one: that away became true
}

func newBreaker() *breaker { return &breaker{opened: make(chan struct{}, 1)} }

// failed counts a failure, and reports whether it made the store away.
func (b *breaker) failed() bool {
	return b.failures.Add(1) >= openAfter && b.open()
}

// open makes the store away, and reports whether it was not.
func (b *breaker) open() bool {
	if !b.away.CompareAndSwap(false, true) {
		return false
	}
	b.opened <- struct{}{}
	return true
}

func (b *breaker) succeeded() {
	// Most of the time there is nothing to write, and processors share what is read alone.
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

// close ends it. Only the goroutine that received from opened calls it.
func (b *breaker) close() {
	b.failures.Store(0)
	b.away.Store(false)
}
