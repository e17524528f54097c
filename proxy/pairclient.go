package proxy

import (
	"cmp"
	"io"

	"relayedge/proxy/loop"
)

const (
	// crowdedRead is how much is read at once of a client whose records are shorter
	// than crowdedRecord: each costs a turn some time, however short it is.
	crowdedRead   = 4 << 10
	crowdedRecord = 512
)

// clientWaits reports whether the client is waited for: nothing holds its bytes up.
func (p *pair) clientWaits() bool {
	return !p.clientEOF && p.resumeAt.IsZero() && len(p.toRelay.bytes) == 0 && len(p.toClient.bytes) < clientBacklog
}

// fromClient reads the client once and passes on what came.
func (p *pair) fromClient() {
	if p.over || !p.clientWaits() {
		return
	}
	in, wire := p.loop.In, p.s.wire
	if p.crowded {
		in = in[:crowdedRead]
	}
	n, err := p.client.TryRead(in)
	if err == loop.ErrWouldBlock {
		return
	}
	records := wire.records.whole
	if n > 0 {
		now := p.loop.Now()
		wire.stats.bytesIn.Add(uint64(n))
		p.bucket.Charge(p.times.bytes, int64(n), now)
		p.silence.client.moved = now
		wire.ahead = in[:n]
	} else {
		wire.readErr = err // what it means for TLS, its next read tells
	}
	p.moveClient(p.loop.Plain[:0], false)
	if n > 0 && !p.over && !p.clientEOF {
		p.crowded = int(wire.records.whole-records) > n/crowdedRecord
		p.throttle()
		p.clientMore = p.clientMore || n == len(in) || p.clientHup
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
			n, err = wire.readTLS(p.tls, b[len(b):cap(b)])
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
	if debt := p.bucket.Charge(p.times.bytes, p.s.wire.records.due(), p.loop.Now()); debt > 0 {
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
	p.toRelay.speaks = p.toRelay.speaks || speaks
	if len(p.toRelay.bytes) > 0 {
		p.toRelay.bytes = append(p.toRelay.bytes, b...)
		return
	}
	p.loop.Write(p.relay, b, p)
}

// wroteRelay follows what the relay has taken, and what not.
func (p *pair) wroteRelay(rest []byte, err error) {
	switch {
	case err != nil:
		p.relayFailed(err)
	case len(rest) > 0:
		p.keep(&p.toRelay, rest)
	default:
		p.relayTook()
	}
}

// relayTook: nothing waits for the relay.
func (p *pair) relayTook() {
	p.introduced = true
	if p.toRelay.speaks {
		p.toRelay.speaks = false
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

// flushRelay writes what the relay has not taken, and then reads the client on.
func (p *pair) flushRelay() {
	if p.over || len(p.toRelay.bytes) == 0 {
		return
	}
	if done, err := p.flush(&p.toRelay, p.relay); err != nil {
		p.relayFailed(err)
	} else if done {
		p.relayTook()
		p.passClientEnd()
		p.clientAgain()
	}
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
	p.loop.Settle(p.relay)
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
