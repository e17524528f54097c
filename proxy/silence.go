package proxy

import (
	"net"
	"sync"
	"time"
)

// silence decides how long the two readers of a pair may wait:
//
//	first byte   the client may stay silent at the beginning
//	idle         the client (or both, see idle_counts) may stay silent later
//	half-close   both may stay silent once one stream has ended
//
// A byte that was read, a write that was done and a pause that is over all
// count as movement, so that a peer is never blamed for the time in which it
// was not read from. The read deadlines are set rarely: one that is early
// merely looks again.
type silence struct {
	times *times

	mu            sync.Mutex // guards all below, and that the deadlines fit them
	ready         time.Time  // the end of the handshake, or what came before it
	spoken        bool       // a byte of the client's has reached the relay
	client, relay stream
}

// stream is what silence knows of one side.
type stream struct {
	conn  net.Conn
	moved time.Time // when bytes of this side last moved
	ended bool      // its end has been read
	armed time.Time // the read deadline that is set; zero: none
}

// begin starts the clocks; that of the first byte has run since ready.
func (q *silence) begin(t *times, client, relay net.Conn, ready time.Time) {
	now := time.Now()
	q.times, q.ready = t, ready
	q.client = stream{conn: client, moved: now}
	q.relay = stream{conn: relay, moved: now}
}

func (q *silence) clientMoved() { q.move(&q.client) }
func (q *silence) relayMoved()  { q.move(&q.relay) }

func (q *silence) move(s *stream) {
	q.mu.Lock()
	s.moved = time.Now()
	q.mu.Unlock()
}

// clientSpoke: bytes of the client's have reached the relay.
func (q *silence) clientSpoke() {
	q.mu.Lock()
	q.client.moved, q.spoken = time.Now(), true
	q.mu.Unlock()
}

// clientEnded notes the end of the client's stream, and reports whether the
// relay's has ended too. From here the relay's silence is measured.
func (q *silence) clientEnded() bool { return q.end(&q.client, &q.relay) }

// relayEnded is clientEnded for the relay's stream.
func (q *silence) relayEnded() bool { return q.end(&q.relay, &q.client) }

func (q *silence) end(s, other *stream) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	s.ended, s.moved = true, time.Now()
	if !other.ended {
		q.arm(other) // its reader may be waiting by the rule of before
	}
	return other.ended
}

func (q *silence) clientHasEnded() bool { return q.hasEnded(&q.client) }
func (q *silence) relayHasEnded() bool  { return q.hasEnded(&q.relay) }

func (q *silence) hasEnded(s *stream) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return s.ended
}

// armClient sets the read deadline under which the client is waited for.
func (q *silence) armClient() { q.armFor(&q.client) }
func (q *silence) armRelay()  { q.armFor(&q.relay) }

func (q *silence) armFor(s *stream) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arm(s)
}

// arm requires mu. A deadline that lies between the present and the limit stays.
func (q *silence) arm(s *stream) {
	at, _ := q.limit(s)
	if at.IsZero() && s.armed.IsZero() || !s.armed.After(at) && s.armed.After(time.Now()) {
		return
	}
	s.armed = at
	s.conn.SetReadDeadline(at)
}

// clientExpired returns why the wait for the client is over, or nothing if its
// deadline was early.
func (q *silence) clientExpired() Reason { return q.expired(&q.client) }
func (q *silence) relayExpired() Reason  { return q.expired(&q.relay) }

func (q *silence) expired(s *stream) Reason {
	q.mu.Lock()
	defer q.mu.Unlock()
	at, reason := q.limit(s)
	if at.IsZero() || time.Now().Before(at) {
		return ""
	}
	return reason
}

// limit requires mu. It returns when the wait for s is over, and what for; the
// zero time is never.
func (q *silence) limit(s *stream) (time.Time, Reason) {
	both := q.client.moved
	if q.relay.moved.After(both) {
		both = q.relay.moved
	}
	switch {
	case q.client.ended || q.relay.ended:
		return both.Add(q.times.halfClose), HalfCloseTimeout
	case s == &q.relay:
		return time.Time{}, ""
	}
	since := q.client.moved
	if q.times.idleCountsBoth {
		since = both
	}
	idle := since.Add(q.times.idle)
	if first := q.ready.Add(q.times.firstByte); !q.spoken && q.times.firstByte > 0 && first.Before(idle) {
		return first, FirstByteTimeout
	}
	return idle, IdleTimeout
}
