package proxy

import "time"

// silence knows how long the two sides of a pair may be silent:
//
//	first byte   the client may stay silent at the beginning
//	idle         the client (or both, see idle_counts) may stay silent later
//	half-close   both may stay silent once one stream has ended
//
// A byte that was read, a write that was done and a pause that is over all
// count as movement, so that a peer is never blamed for the time in which it
// was not read from. Whoever waits for a side asks for its limit, and again when
// the limit has come: it may have moved. It needs no clock.
type silence struct {
	times         *times
	ready         time.Time // the end of the handshake, or what came before it
	spoken        bool      // a byte of the client's has reached the relay
	client, relay speaker
}

// speaker is what silence knows of one side.
type speaker struct {
	moved time.Time // when bytes of this side last moved
	ended bool      // its end has been read
}

// newSilence starts the clocks; that of the first byte has run since ready.
func newSilence(t *times, ready, now time.Time) silence {
	return silence{times: t, ready: ready, client: speaker{moved: now}, relay: speaker{moved: now}}
}

// clientSpoke: bytes of the client's have reached the relay.
func (q *silence) clientSpoke(now time.Time) { q.client.moved, q.spoken = now, true }

// end notes the end of a side's stream. From here the silence of the other is
// measured.
func (s *speaker) end(now time.Time) { s.ended, s.moved = true, now }

// clientLimit is when the wait for the client is over, and what for.
func (q *silence) clientLimit() (time.Time, Reason) {
	if q.client.ended || q.relay.ended {
		return q.halfClosed()
	}
	since := q.client.moved
	if q.times.idleCountsBoth {
		since = q.bothMoved()
	}
	idle := since.Add(q.times.idle)
	if first := q.ready.Add(q.times.firstByte); !q.spoken && q.times.firstByte > 0 && first.Before(idle) {
		return first, FirstByteTimeout
	}
	return idle, IdleTimeout
}

// relayLimit is clientLimit for the relay; the zero time is never.
func (q *silence) relayLimit() (time.Time, Reason) {
	if q.client.ended || q.relay.ended {
		return q.halfClosed()
	}
	return time.Time{}, ""
}

func (q *silence) halfClosed() (time.Time, Reason) {
	return q.bothMoved().Add(q.times.halfClose), HalfCloseTimeout
}

func (q *silence) bothMoved() time.Time {
	if q.relay.moved.After(q.client.moved) {
		return q.relay.moved
	}
	return q.client.moved
}
