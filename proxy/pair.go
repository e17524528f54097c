package proxy

import (
	"cmp"
	"crypto/tls"
	"io"
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
//	fromClient   reads the client, unless it waits (clientWaits)
//	fromRelay    reads the relay, unless it waits (relayWaits)
//	flush…       writes what was kept, then goes on reading
//	Expire       looks which limit has come
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
		start: &beginning{header: header, early: f.early, ready: ready, spoken: f.begun},
	}
	p.timer.Owner = p
	return p
}

// interrupt ends the pair for the outcome that was named.
func (p *pair) interrupt() { p.loop.Post(func() { p.contain(p.close) }) }

// contain turns a panic of what does not come by Ready into the end of the pair.
func (p *pair) contain(f func()) {
	defer func() {
		if cause := recover(); cause != nil {
			p.Panicked(cause)
		}
	}()
	f()
}

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
		p.s.wire.flight = nil
		p.arm(p.ticketAt)
	}
	p.moveClient(append(append(p.loop.Plain[:0], start.header...), start.early.client...), len(start.early.client) > 0)
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

// clientWaits reports whether the client is waited for: nothing holds its bytes up.
func (p *pair) clientWaits() bool {
	return !p.clientEOF && p.resumeAt.IsZero() && len(p.toRelay.bytes) == 0 && len(p.toClient.bytes) < clientBacklog
}

func (p *pair) relayWaits() bool { return !p.relayEOF && len(p.toClient.bytes) == 0 }

// fromClient reads the client once and passes on what came.
func (p *pair) fromClient() {
	if p.over || !p.clientWaits() {
		return
	}
	n, err := p.client.TryRead(p.loop.In)
	if err == loop.ErrWouldBlock {
		return
	}
	wire := p.s.wire
	if n > 0 {
		now := p.loop.Now()
		wire.stats.bytesIn.Add(uint64(n))
		p.bucket.Charge(p.times.bytes, int64(n), now)
		p.silence.client.moved = now
		wire.ahead = p.loop.In[:n]
	} else {
		wire.readErr = err // what it means for TLS, its next read tells
	}
	p.moveClient(p.loop.Plain[:0], false)
	if n > 0 && !p.over {
		p.throttle()
		p.clientMore = p.clientMore || n == len(p.loop.In) || p.clientHup
		if p.clientMore {
			p.again()
		}
	}
}

// moveClient passes on what was read from the client, behind what stands in
// before, of which some may be the client's.
func (p *pair) moveClient(before []byte, speaks bool) {
	wire := p.s.wire
	b, err := before, cmp.Or(wire.readErr, errWouldBlock)
	if p.tls == nil {
		speaks = speaks || len(wire.ahead) > 0
		if len(b) == 0 {
			b = wire.ahead
		} else {
			b = append(b, wire.ahead...)
		}
	} else {
		for err = nil; err == nil; {
			if cap(b)-len(b) == 0 { // more than one buffer holds: the rest of a record, and a buffer full of them
				p.passToRelay(b, speaks)
				b = b[:0]
			}
			var n int
			n, err = p.tls.Read(b[len(b):cap(b)])
			b, speaks = b[:len(b)+n], speaks || n > 0
		}
	}
	if len(b) > 0 {
		p.passToRelay(b, speaks)
	}
	wire.drop()
	p.writeOut() // what TLS answers
	switch {
	case p.over || err == errWouldBlock:
	case err == io.EOF:
		p.clientEOF = true
		p.passClientEnd()
	default:
		p.stop(readFault(err, ClientClosed))
	}
}

// throttle stops reading a client that is over its byte rate: it has been passed
// on what came.
func (p *pair) throttle() {
	if debt := p.bucket.Charge(p.times.bytes, 0, p.loop.Now()); debt > 0 {
		p.s.server.stats.refuse(RateLimit)
		p.resumeAt = p.loop.Now().Add(debt)
		p.arm(p.resumeAt)
	}
}

// passToRelay writes to the relay, or keeps what it does not take.
func (p *pair) passToRelay(b []byte, speaks bool) {
	if p.over {
		return
	}
	if len(p.toRelay.bytes) > 0 {
		p.toRelay.bytes = append(p.toRelay.bytes, b...)
		p.toRelay.speaks = p.toRelay.speaks || speaks
		return
	}
	n, err := p.relay.TryWrite(b)
	if err != nil && err != loop.ErrWouldBlock {
		p.relayFailed(err)
		return
	}
	if n < len(b) {
		p.keep(&p.toRelay, b[n:])
		p.toRelay.speaks = speaks
	} else if speaks {
		p.silence.clientSpoke(p.loop.Now())
	}
}

// relayFailed ends the pair whose relay takes nothing more.
func (p *pair) relayFailed(err error) {
	closed := UpstreamClosed
	if !p.introduced {
		closed = UpstreamUnavailable
	}
	p.stop(writeFault(err, p.silence.relay.ended, closed))
}

// keep has bytes wait for a peer, for as long as it may take none.
func (p *pair) keep(l *backlog, b []byte) {
	l.bytes, l.since = append([]byte(nil), b...), p.loop.Now()
	p.arm(l.since.Add(p.times.writerStall))
}

// flushRelay writes what the relay has not taken, and then reads the client on.
func (p *pair) flushRelay() {
	if p.over || len(p.toRelay.bytes) == 0 {
		return
	}
	if done, err := p.flush(&p.toRelay, p.relay); err != nil {
		p.relayFailed(err)
	} else if done {
		p.introduced = true
		if p.toRelay.speaks {
			p.silence.clientSpoke(p.loop.Now())
		}
		p.passClientEnd()
		p.clientAgain()
	}
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

// clientAgain reads the client in the next turn: what held it up is over.
func (p *pair) clientAgain() {
	if !p.over && p.clientWaits() {
		p.clientMore = true
		p.again()
		p.armSilence()
	}
}

// passClientEnd passes the end of the client's stream on, behind its bytes.
func (p *pair) passClientEnd() {
	if p.over || !p.clientEOF || p.clientDone || len(p.toRelay.bytes) > 0 {
		return
	}
	p.clientDone = true
	p.silence.client.end(p.loop.Now())
	if p.relayDone {
		p.complete(UpstreamClosed)
		return
	}
	p.relay.CloseWrite()
	p.armSilence()
}

// complete ends the pair, both of whose streams have ended, once the client has
// taken the last of TLS: without its close_notify a whole answer looks cut.
func (p *pair) complete(r Reason) {
	p.ending = r
	if len(p.toClient.bytes) == 0 {
		p.stop(r)
	}
}

// fromRelay reads the relay once and passes on what came.
func (p *pair) fromRelay() {
	if p.over || !p.relayWaits() {
		return
	}
	n, err := p.relay.TryRead(p.loop.Plain)
	switch {
	case err == nil:
		p.passToClient(p.loop.Plain[:n])
		if !p.over && (n == len(p.loop.Plain) || p.relayHup) {
			p.relayMore = true
			p.again()
		}
	case err == loop.ErrWouldBlock:
	case err == io.EOF:
		p.relayEOF = true
		p.passRelayEnd()
	default:
		p.stop(readFault(err, UpstreamClosed))
	}
}

// passToClient writes to the client, through TLS where it ends here.
func (p *pair) passToClient(b []byte) {
	if p.tls == nil {
		p.writeClient(b)
	} else if _, err := p.tls.Write(b); err != nil {
		p.clientFailed(err)
	} else {
		p.writeOut()
	}
	if !p.over && len(p.toClient.bytes) == 0 {
		p.silence.relay.moved = p.loop.Now()
	}
}

// writeOut writes what TLS has made, in one go.
func (p *pair) writeOut() {
	out := p.loop.Out
	p.loop.Out = out[:0]
	if len(out) > 0 {
		p.writeClient(out)
	}
}

// writeClient writes to the client, or keeps what it does not take.
func (p *pair) writeClient(b []byte) {
	switch {
	case p.over:
		return
	case len(p.ticket) > 0:
		b = append(p.ticket, b...)
		p.ticket = nil
	}
	if len(p.toClient.bytes) > 0 {
		p.toClient.bytes = append(p.toClient.bytes, b...)
		return
	}
	n, err := p.client.TryWrite(b)
	if err != nil && err != loop.ErrWouldBlock {
		p.clientFailed(err)
		return
	}
	p.s.server.stats.bytesOut.Add(uint64(n))
	if n < len(b) {
		p.keep(&p.toClient, b[n:])
	}
}

func (p *pair) clientFailed(err error) {
	p.stop(writeFault(err, p.silence.client.ended, ClientClosed))
}

// flushClient writes what the client has not taken, and then reads the relay on.
func (p *pair) flushClient() {
	before := len(p.toClient.bytes)
	if p.over || before == 0 {
		return
	}
	done, err := p.flush(&p.toClient, p.client)
	if err != nil {
		p.clientFailed(err)
		return
	}
	p.s.server.stats.bytesOut.Add(uint64(before - len(p.toClient.bytes)))
	if before >= clientBacklog {
		p.clientAgain()
	}
	if done {
		p.silence.relay.moved = p.loop.Now()
		p.passRelayEnd()
		if !p.over && p.ending != "" {
			p.stop(p.ending)
		}
		if !p.over && p.relayWaits() {
			p.relayMore = true
			p.again()
			p.armSilence()
		}
	}
}

// passRelayEnd passes the end of the relay's stream on, behind its bytes: as
// close_notify where there is TLS, because a client that only saw a FIN could not
// tell a whole answer from a cut one.
func (p *pair) passRelayEnd() {
	if p.over || !p.relayEOF || p.relayDone || len(p.toClient.bytes) > 0 {
		return
	}
	p.relayDone = true
	p.silence.relay.end(p.loop.Now())
	if p.tls != nil {
		p.tls.CloseWrite()
		p.writeOut()
	} else if !p.clientDone {
		p.client.CloseWrite()
	}
	switch {
	case p.over:
	case p.clientDone:
		p.complete(ClientClosed)
	default:
		p.armSilence()
	}
}

// arm has Expire come at a time, if it does not come before.
func (p *pair) arm(at time.Time) {
	if !at.IsZero() && (p.armed.IsZero() || at.Before(p.armed)) {
		p.armed = at
		p.loop.SetTimer(&p.timer, at)
	}
}

// armSilence has Expire come when the silence of who is waited for ends.
func (p *pair) armSilence() {
	if p.over {
		return
	}
	if p.clientWaits() {
		at, _ := p.silence.clientLimit()
		p.arm(at)
	}
	if p.relayWaits() {
		at, _ := p.silence.relayLimit()
		p.arm(at)
	}
}

// Expire ends the pair if a limit has come, and else waits for the next one.
func (p *pair) Expire() { p.contain(p.look) }

func (p *pair) look() {
	p.armed = time.Time{}
	now := p.loop.Now()
	if reason := p.expired(now); reason != "" {
		p.stop(reason)
		return
	}
	if p.ticket != nil && !now.Before(p.ticketAt) {
		p.writeClient(nil)
	}
	if !p.resumeAt.IsZero() && !now.Before(p.resumeAt) {
		p.resumeAt = time.Time{}
		p.silence.client.moved = now
		p.clientAgain()
	}
	if p.over {
		return
	}
	for _, l := range []*backlog{&p.toRelay, &p.toClient} {
		if len(l.bytes) > 0 {
			p.arm(l.since.Add(p.times.writerStall))
		}
	}
	p.arm(p.resumeAt)
	if p.ticket != nil {
		p.arm(p.ticketAt)
	}
	p.armSilence()
}

// expired is the limit that has come, if one has.
func (p *pair) expired(now time.Time) Reason {
	for _, l := range []*backlog{&p.toRelay, &p.toClient} {
		if len(l.bytes) > 0 && !now.Before(l.since.Add(p.times.writerStall)) {
			return WriterStall
		}
	}
	if p.clientWaits() {
		if at, reason := p.silence.clientLimit(); !now.Before(at) {
			return reason
		}
	}
	if p.relayWaits() {
		if at, reason := p.silence.relayLimit(); !at.IsZero() && !now.Before(at) {
			return reason
		}
	}
	return ""
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
