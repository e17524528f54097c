package proxy

import (
	"io"

	"relayedge/proxy/loop"
)

func (p *pair) relayWaits() bool { return !p.relayEOF && len(p.toClient.bytes) == 0 }

// complete ends the pair, both of whose streams have ended, once the client has
// taken the last of TLS: without its close_notify a whole answer looks cut.
func (p *pair) complete(r Reason) {
	p.loop.Settle(p.client)
	if p.over {
		return
	}
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
	p.loop.Write(p.client, b, p)
}

// wroteClient follows what the client has taken, and what not.
func (p *pair) wroteClient(n int, rest []byte, err error) {
	if err != nil {
		p.clientFailed(err)
		return
	}
	p.s.server.stats.bytesOut.Add(uint64(n))
	if len(rest) > 0 {
		p.keep(&p.toClient, rest)
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
	p.loop.Settle(p.client)
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
