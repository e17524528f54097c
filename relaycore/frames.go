package relaycore

import (
	"crypto/rand"
	"math"
	"time"

	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// frame takes one frame of the client.
func (c *session) frame(b []byte, now time.Time) {
	if len(b) > 0 && wire.Type(b[0]) == wire.TypeSend {
		var f wire.Send
		if f.Decode(b) != nil {
			c.malformed()
			return
		}
		c.send(&f, b, now)
		return
	}
	c.settle() // the others may take their time
	decoded, err := wire.DecodeClient(b)
	switch {
	case err == wire.ErrUnknownType:
		c.end(endUnknownFrame)
		return
	case err != nil:
		c.malformed()
		return
	}
	switch f := decoded.(type) {
	case wire.Hello:
		c.hello(f, now)
	case wire.Publish:
		c.publish(f, now)
	case wire.Ask:
		c.ask(f, now)
	case wire.Close:
		c.closeCircuit(f)
	case wire.Ack:
		c.acknowledged(f.IDs, now)
	case wire.Keepalive:
	}
}

func (c *session) malformed() {
	c.server.count.malformed.Add(1)
	c.end(endMalformed)
}

// refuse answers a frame that will not be taken.
func (c *session) refuse(what wire.Refused, fault wire.Fault, text string) {
	c.reply(wire.Error{Refused: what, Fault: fault, Text: text})
}

// mayAuth charges the budget of hellos and publishes.
func (c *session) mayAuth(now time.Time) bool {
	if c.greeting == nil {
		c.greeting = new(greeting)
	}
	if c.greeting.auth.Take(authRate, 1, now) {
		return true
	}
	c.end(endAuthRate)
	return false
}

func (c *session) hello(f wire.Hello, now time.Time) {
	if !c.mayAuth(now) {
		return
	}
	if f.Version != wire.Version {
		c.refuse(wire.Refused{Frame: wire.TypeHello}, wire.FaultVersion, "this relay speaks version 1")
		c.end(endVersion)
		return
	}
	g := c.greeting
	rand.Read(g.nonce[:])
	g.welcome = true
	l := c.server.inForce.Load().limits
	binding := wire.BindingNone
	if c.server.bound {
		binding = wire.BindingExporter
	}
	c.tell(wire.Welcome{
		Version:                   wire.Version,
		Nonce:                     g.nonce,
		Binding:                   binding,
		MaxMessageBytes:           uint32(min(c.limits.MaxMessageBytes, wire.MaxSend)),
		ConnectionTimeoutSecs:     uint32(c.limits.ConnectionTimeoutSecs),
		IdentificationTimeoutSecs: uint32(c.limits.IdentificationTimeoutSecs),
		RateLimitBPS:              uint64(l.RateLimitBPS),
		MaxPendingPerConnection:   uint32(l.MaxPendingPerConnection),
		MaxCircuitsPerConnection:  uint32(l.MaxCircuitsPerConnection),

		MaxPendingBlindPerConnection: uint32(l.MaxPendingBlindPerConnection),
		BlindAskBurst:                uint32(l.BlindAskBurst),
		BlindAskRefillPerSec:         uint32(l.BlindAskRefillPerSec),
	})
}

func (c *session) publish(f wire.Publish, now time.Time) {
	if !c.mayAuth(now) {
		return
	}
	s := c.server
	what := wire.Refused{Frame: wire.TypePublish}
	if !c.greeting.welcome {
		c.refuse(what, wire.FaultOrder, "HELLO comes first")
		return
	}
	var binding [32]byte
	if s.bound {
		if c.binding == nil {
			s.count.reject(ReasonKeyAuth)
			c.refuse(what, wire.FaultBinding, "no channel binding reached the relay: the front end must send it, and the TLS session must have one")
			return
		}
		binding = *c.binding
	}
	if !f.Verify(c.greeting.nonce, binding) {
		s.count.reject(ReasonKeyAuth)
		c.refuse(what, wire.FaultKeyAuth, "the bundle's signature or the proof does not hold for this connection")
		return
	}
	replaced, told, ok := s.dir.join(c, &f, now)
	told.send()
	if !ok {
		c.refuse(what, wire.FaultOtherIdentity, "this connection has another identity")
		return
	}
	c.identified, c.identity = true, f.Identity
	c.parser.Allow(c.limits.MaxMessageBytes)
	if replaced != nil {
		replaced.end(endReplaced)
	}
	c.tell(wire.Published{Identity: f.Identity})
	if s.dir.receive(c, s.mail.store) {
		c.backlog()
	}
}

func (c *session) ask(f wire.Ask, now time.Time) {
	s := c.server
	what := wire.Refused{Frame: wire.TypeAsk, RequestID: f.RequestID}
	a := s.dir.ask(c, &f, now)
	a.told.send()
	switch {
	case a.fault == wire.FaultOrder:
		if f.Mode == wire.Blinded {
			s.count.blindUnproven.Add(1)
		}
		c.refuse(what, a.fault, "PUBLISH comes first")
	case a.fault == wire.FaultTarget:
		c.refuse(what, a.fault, "the target is the asker")
	case a.fault == wire.FaultBusy:
		c.refuse(what, a.fault, "two others have met under this token")
	case a.limit != 0:
		reason := ReasonPendingTargets
		switch a.limit {
		case wire.LimitCircuits, wire.LimitCircuitsPerMember, wire.LimitCircuitsPerSource:
			reason = ReasonCircuitCap
		}
		s.count.reject(reason)
		retry := max(1, math.Ceil(a.retry.Seconds()))
		c.tell(wire.RateLimited{Refused: what, Limit: a.limit, RetryAfterSecs: uint32(retry)})
	case a.circuit != 0:
		c.tell(wire.CircuitOpen{RequestID: f.RequestID, Circuit: a.circuit})
	case a.target != nil:
		if !a.target.knock(a.knock) {
			s.dir.keepKnock(c, wire.Identity(f.Key), f.Content)
			a.target.backlog()
		}
	}
}

// send forwards a message, or has it kept for who is away. b is the whole frame:
// what a connected recipient gets differs from it in its type alone.
func (c *session) send(f *wire.Send, b []byte, now time.Time) {
	what := wire.Refused{Frame: wire.TypeSend, MessageID: f.ID}
	if len(b) > wire.MaxSend {
		c.refuse(what, wire.FaultTooLarge, "longer than clients take")
		return
	}
	r, ok := c.server.dir.route(c, f.Circuit)
	if !ok {
		c.refuse(what, wire.FaultNoCircuit, "no such circuit")
		return
	}
	if r.to == nil || c.server.mail.store.Waits(r.peer, c.identity, now) {
		c.keep(f, r.peer)
		return
	}
	out := newFrame()
	out.buf = websocket.AppendHeader(out.buf, websocket.Binary, len(b))
	at := len(out.buf)
	out.buf = append(out.buf, b...)
	out.buf[at] = byte(wire.TypeMessage)
	// f.ID is a copy: b's buffer stays this session's while deliver waits.
	if c.deliver(r.to, out) != queued {
		if !c.over() {
			c.keep(f, r.peer)
		}
		return
	}
	c.server.count.relayMessages.Add(1)
	c.server.count.relayBytes.Add(uint64(len(b)))
	c.acknowledge(f.ID)
}

func (c *session) closeCircuit(f wire.Close) { c.server.dir.part(c, f.Circuit).send() }
