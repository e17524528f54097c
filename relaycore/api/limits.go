package api

import (
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// Freshness is how far sent_at may be from the relay's clock, either way: for so
// long a request that somebody has seen could be sent again.
const Freshness = 5 * time.Minute

// attempt is a request in the name of a sender, from the moment at which the name
// was read. It holds a unit of its host's until the sender is proven.
type attempt struct {
	h            *Handler
	q            *request
	identity     wire.Identity
	sender, host admission.Key
	owes         bool // the host's unit is to be given back
}

// attempt looks at the limits that a request in the sender's name would meet. The
// caller ends the attempt.
func (h *Handler) attempt(q *request, sender wire.Identity) (*attempt, *reply) {
	a := &attempt{
		h: h, q: q, identity: sender,
		sender: h.keys.Key("sender", sender.String()), host: h.hostKey(q.client),
	}
	if d := h.messages.Peek(q.Context(), a.sender, time.Now()); !d.Allowed {
		return nil, h.limited(d)
	}
	if d := h.throttle.Take(a.host, time.Now()); !d.Allowed {
		return nil, h.limited(d)
	}
	a.owes = true
	return a, nil
}

// hostKey is the key of a client's host. Those without an address have one together.
func (h *Handler) hostKey(c Client) admission.Key { return h.keys.Key("host", c.Host.String()) }

// attemptFrom is attempt for the sender that a body names in a field. It reads no
// further than that.
func (h *Handler) attemptFrom(q *request, o *object, field string) (*attempt, *reply) {
	if wrong := o.until(field); wrong != nil {
		return nil, wrong
	}
	sender := o.hexDigits(field)
	if o.wrong != nil {
		return nil, o.wrong
	}
	return h.attempt(q, sender)
}

// end gives the host its unit back, unless a proof has failed.
func (a *attempt) end() {
	if a.owes {
		a.owes = false
		a.h.throttle.Return(a.host, time.Now())
	}
}

// fresh judges when the sender has signed.
func (a *attempt) fresh(sentAt time.Time) *reply {
	if away := time.Since(sentAt); away > Freshness || away < -Freshness {
		return refuse(Stale, "sent_at is more than %d minutes from this relay's clock, which the header Date tells", Freshness/time.Minute)
	}
	return nil
}

// prove judges the signature over text. One that does not hold costs the host its
// unit, and the sender nothing.
func (a *attempt) prove(text []byte, signature [64]byte) *reply {
	if !wire.Signed(a.identity, text, signature[:]) {
		a.owes = false
		a.h.Counts.Unproven.Add(1)
		return refuse(BadSignature, "the signature is not the sender's")
	}
	a.end()
	return nil
}

// charge charges the proven sender and the relay as a whole, or neither.
func (a *attempt) charge() *reply {
	if d := a.h.messages.Take(a.q.Context(), a.sender, time.Now()); !d.Allowed {
		return a.h.limited(d)
	}
	return nil
}

// read charges a public read, or returns what refuses it.
func (h *Handler) read(q *request) *reply {
	if d := h.messages.Read(q.Context(), h.hostKey(q.client), time.Now()); !d.Allowed {
		return h.limited(d)
	}
	return nil
}
