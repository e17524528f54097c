package proxy

import (
	"crypto/tls"
	"time"

	"relayedge/admission"
	"relayedge/proxy/loop"
)

const (
	// clientBacklog is how many bytes may wait for a client until it is not read any
	// further: what TLS answers inside a read (KeyUpdate) waits with them.
	clientBacklog = 2 * loop.BufferBytes
	// ticketWait is how long session tickets wait for bytes to leave with.
	ticketWait = time.Second
)

// pair is the forwarding of a connection in an event loop: what forwarding is in
// the stream engine, in the loop's goroutine and without waiting. Each direction
// reads once when it may, a buffer at most, passes that on, and keeps what the
// other side does not take; until it has, nothing more is read:
//
//	fromClient   reads the client while it is waited for (clientWaits): pairclient.go
//	fromRelay    reads the relay while it is waited for (relayWaits): pairrelay.go
//	flush…       writes what was kept, then goes on reading
//	Expire       looks which limit has come: pairtime.go
//
// Everything in it is the loop's goroutine's.
type pair struct {
	s             *session
	loop          *loop.Loop
	times         *times
	tls           *tls.Conn // nil: the client's bytes pass as they are
	client, relay loop.Stream
	bucket        admission.Bucket
	silence       silence
	timer         loop.Timer
	armed         time.Time // when the timer is due; zero: it is not set

	toRelay, toClient backlog
	start             *beginning // nil: it has begun
	ticket            []byte     // session tickets that have not left
	ticketAt          time.Time  // when they leave alone
	resumeAt          time.Time  // when a throttled client is read again; zero: it is not throttled

	introduced            bool   // the relay has taken the PROXY header, if there is one
	clientEOF, relayEOF   bool   // the end was read; it is passed on once nothing waits
	clientHup, relayHup   bool   // the end will be read: a short read is not the last
	clientMore, relayMore bool   // the next turn goes on reading
	crowded               bool   // the client's records are short
	clientDone, relayDone bool   // the end was passed on
	ending                Reason // both streams have ended; the client has not taken all
	queued, over          bool
}

// backlog is what a peer has not taken yet.
type backlog struct {
	bytes  []byte
	since  time.Time // when the peer last took some, or did not take the first
	speaks bool      // some are the client's own
}

// beginning is what a pair begins with.
type beginning struct {
	header []byte // for the relay
	early  early
	ready  time.Time
	spoken bool
}

// newPair makes a pair of what was to be forwarded.
func newPair(f *forwarding, l *loop.Loop, client, relay loop.Stream, header []byte, ready time.Time) *pair {
	p := &pair{
		s: f.s, loop: l, times: f.times, tls: f.tls, client: client, relay: relay, bucket: f.bucket,
		start: &beginning{header: header, early: f.early, ready: ready, spoken: f.begun}, crowded: f.tls != nil,
	}
	p.timer.Owner = p
	p.s.lighten()
	return p
}

// interrupt ends the pair for the outcome that was named.
func (p *pair) interrupt() { p.loop.Post(func() { contain(p, p.close) }) }

// Ready does what a connection has become ready for.
func (p *pair) Ready(c loop.Stream, e loop.Event) {
	if p.over {
		return
	}
	if p.start != nil {
		p.begin()
	}
	switch c {
	case p.client:
		p.clientHup = p.clientHup || e.Ended
		if e.Writable || e.Ended {
			p.flushClient()
		}
		if e.Readable || e.Ended {
			p.fromClient()
		}
	case p.relay:
		p.relayHup = p.relayHup || e.Ended
		if e.Writable || e.Ended {
			p.flushRelay()
		}
		if e.Readable || e.Ended {
			p.fromRelay()
		}
	default:
		p.goOn()
	}
}

// Reads reports whether a connection is read as soon as there is something.
func (p *pair) Reads(c loop.Stream) bool {
	switch {
	case p.over || p.start != nil:
		return false
	case c == p.client:
		return p.clientWaits()
	}
	return p.relayWaits()
}

// Wrote follows what became of what was written to a connection.
func (p *pair) Wrote(c loop.Stream, n int, rest []byte, err error) {
	switch {
	case p.over:
	case c == p.client:
		p.wroteClient(n, rest, err)
	default:
		p.wroteRelay(rest, err)
	}
}

// goOn reads on where the last turn left something.
func (p *pair) goOn() {
	p.queued = false
	client, relay := p.clientMore, p.relayMore
	p.clientMore, p.relayMore = false, false
	if client {
		p.fromClient()
	}
	if relay {
		p.fromRelay()
	}
}

// again asks for another turn, after those of the others.
func (p *pair) again() {
	if !p.queued && !p.over {
		p.queued = true
		p.loop.Again(p)
	}
}

// begin introduces the client to the relay, at once: a relay that speaks first
// waits for it. What the client has sent by then leaves in the same write.
func (p *pair) begin() {
	start, now := p.start, p.loop.Now()
	p.start = nil
	p.silence = newSilence(p.times, start.ready, now)
	if start.spoken {
		p.silence.clientSpoke(now)
	}
	p.s.wire.gather = &p.loop.Out
	if len(p.s.wire.flight) > 0 {
		p.ticket, p.ticketAt = p.s.wire.flight, now.Add(ticketWait)
		p.arm(p.ticketAt)
	}
	p.s.wire.flight = nil
	p.moveClient(append(append(p.loop.Plain[:0], start.header...), start.early.client...), len(start.early.client) > 0)
	p.loop.Settle(p.relay)
	if p.over {
		return
	}
	p.introduced = len(p.toRelay.bytes) == 0
	if len(start.early.relay) > 0 {
		p.passToClient(start.early.relay)
	}
	if !p.over {
		p.armSilence()
	}
}

// keep has bytes wait for a peer, for as long as it may take none.
func (p *pair) keep(l *backlog, b []byte) {
	if l.bytes = append(l.bytes, b...); len(l.bytes) > len(b) {
		return
	}
	l.since = p.loop.Now()
	p.arm(l.since.Add(p.times.writerStall))
}

// flush writes what waits, and reports whether nothing does any longer.
func (p *pair) flush(l *backlog, to loop.Stream) (done bool, err error) {
	n, err := to.TryWrite(l.bytes)
	if err == loop.ErrWouldBlock {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.since = p.loop.Now()
	if n < len(l.bytes) {
		l.bytes = l.bytes[n:]
		return false, nil
	}
	l.bytes = nil
	return true, nil
}

// stop ends the pair.
func (p *pair) stop(r Reason) {
	p.s.end(r)
	p.close()
}

// Panicked ends the pair whose handling has panicked, and no other.
func (p *pair) Panicked(cause any) {
	p.loop.Out = p.loop.Out[:0]
	p.s.panicked(cause)
	p.close()
}

// close ends the pair for the outcome that was named. A client that has taken
// all so far is told the end of TLS, as far as it takes that without being waited for.
func (p *pair) close() {
	if !p.over {
		p.loop.Settle(p.relay)
		p.loop.Settle(p.client)
	}
	if p.over {
		return
	}
	p.over = true
	p.loop.ClearTimer(&p.timer)
	p.loop.Out = p.loop.Out[:0]
	if p.s.release() {
		abort(p.client)
		abort(p.relay)
	} else if p.tls != nil && len(p.toClient.bytes) == 0 {
		p.s.wire.gather = &p.loop.Out
		p.tls.CloseWrite()
		tickets := append(p.ticket, p.s.wire.flight...) // of a pair that has not begun
		if goodbye := append(tickets, p.loop.Out...); len(goodbye) > 0 {
			n, _ := p.client.TryWrite(goodbye)
			p.s.server.stats.bytesOut.Add(uint64(n))
		}
		p.loop.Out = p.loop.Out[:0]
	}
	p.client.Close()
	p.relay.Close()
	p.s.finish()
}
