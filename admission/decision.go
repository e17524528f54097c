package admission

import (
	"context"
	"time"
)

// Decision is the answer of a rate limiter. The zero Decision refuses.
type Decision struct {
	Allowed   bool
	Limit     int64 // units a window; -1: everything is refused
	Remaining int64 // units left in the window that is named, at least 0
	// Reset is when that window's count resets, by the wall clock: where it was
	// refused when there is room again, else when nothing counts there any longer,
	// what this request was charged included.
	Reset time.Time
	// RetryAfter is how long to wait before the same request can be allowed, by the
	// clock that decided; 0 where it was.
	RetryAfter time.Duration
	Scope      Scope
	Window     Window
	// Unavailable says that the store was away and the policy refuses then: a fault
	// of ours, not the caller's.
	Unavailable bool
}

// RetryAfterSecs returns RetryAfter as the Retry-After header has it: whole
// seconds, rounded up, at least 1.
func (d Decision) RetryAfterSecs() int64 {
	return max(1, int64((d.RetryAfter+time.Second-1)/time.Second))
}

// ResetSecs returns Reset as answers have it: Unix seconds, rounded up, so that at
// that second it has come.
func (d Decision) ResetSecs() int64 { return d.Reset.Add(time.Second - 1).Unix() }

// Scope says whose limit a decision names. The list is closed.
type Scope string

const (
	ScopeSender Scope = "sender" // one sender's
	ScopeGlobal Scope = "global" // the relay's as a whole
	ScopeHost   Scope = "host"   // one host's
)

// Window is the length over which a limit counts, as clients are told.
type Window string

const (
	Minute Window = "minute"
	Hour   Window = "hour"
	Day    Window = "day"
)

// Windows counts requests of many keys in fixed windows: a key's first request
// opens its window, and the count resets as a whole when that is over. A refused
// request counts for nothing. Implementations are safe for concurrent use, and
// exact under it: of any number of simultaneous requests just the limit are
// allowed, and each of them is told another Remaining.
//
// A store that is away does not make Take wait for long, nor fail: Take then
// decides by what this process knows, or refuses with Unavailable.
type Windows interface {
	// Take counts one request of key. now gives the process's own clocks; a
	// shared store decides by its own.
	Take(ctx context.Context, key Key, now time.Time) Decision
}

// Messages holds each sender, and all of them together, to so many messages a
// minute, an hour and a day. Implementations are safe for concurrent use, and
// exact under it. The minute is a token bucket; hour and day slide, and no window
// of their length ever holds more than the limit.
type Messages interface {
	// Peek says whether a message of sender would be refused for the sender's own
	// limits or the global ones. It spends nothing.
	Peek(ctx context.Context, sender Key, now time.Time) Decision

	// Take charges sender and global together, or neither.
	Take(ctx context.Context, sender Key, now time.Time) Decision

	// Read charges one public read of a host to the global limits, of which reads
	// have a part and each host a share, so that reads cannot silence messages.
	Read(ctx context.Context, host Key, now time.Time) Decision
}
