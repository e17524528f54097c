package proxy

import (
	"time"
)

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
func (p *pair) Expire() { contain(p, p.look) }

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
