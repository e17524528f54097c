package api

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// send answers POST /messages.
func (h *Handler) send(q *request) *reply {
	o, wrong := q.open(MaxMessageBody, "id", "sender", "recipient", "sent_at", "body", "signature")
	if wrong != nil {
		return wrong
	}
	a, wrong := h.attemptFrom(q, o, "sender")
	if wrong != nil {
		return wrong
	}
	defer a.end()
	if wrong := o.until(""); wrong != nil {
		return wrong
	}
	m := mailbox.Message{
		Sender: a.identity, ID: o.hexDigits("id"), Recipient: o.hexDigits("recipient"),
		Payload: o.bytes("body", wire.MaxBody), Source: q.client.Source,
	}
	text, sentAt := o.moment("sent_at")
	signature := o.signature("signature")
	if o.wrong != nil {
		return o.wrong
	}
	key, wrong := q.idempotencyKey()
	if wrong != nil {
		return wrong
	}
	if stale := a.fresh(sentAt); stale != nil {
		return stale
	}
	if wrong := a.prove(wire.MessageText(m.ID, m.Sender, m.Recipient, text, m.Payload), signature); wrong != nil {
		return wrong
	}
	content := sha256.New()
	content.Write(m.ID[:])
	content.Write(m.Recipient[:])
	content.Write(m.Payload)
	mine, first, conflict := h.answers.claim(q.Context(), q.client.Source, namesOf(m.Sender, m.ID, key), [32]byte(content.Sum(nil)))
	switch {
	case conflict:
		return refuse(Conflict, "another message has been sent under this id or Idempotency-Key")
	case first != nil:
		h.Counts.Replayed.Add(1)
		return first
	case mine == nil:
		return later(Unavailable, 0, "the same message is still being decided about")
	}
	var accepted *reply
	defer func() { h.answers.settle(mine, accepted) }()
	answer := h.deliver(a, m)
	if answer.status == http.StatusAccepted {
		accepted = answer
	}
	return answer
}

// deliver has the relay take a message whose sender is proven.
func (h *Handler) deliver(a *attempt, m mailbox.Message) *reply {
	if !h.relay.Known(m.Recipient) {
		return refuse(Unknown, "nothing is published here under the recipient's identity")
	}
	// What there is no room for is not charged.
	if full := h.relay.Refuses(m); full != nil {
		return notHeld(full)
	}
	if refused := a.charge(); refused != nil {
		return refused
	}
	connected, err := h.relay.Deliver(m)
	if err != nil {
		return notHeld(err)
	}
	h.Counts.Accepted.Add(1)
	status := wire.Queued
	if connected {
		status = wire.Delivered
	}
	return ok(http.StatusAccepted, wire.Accepted{ID: m.ID, Status: status})
}

// notHeld is the answer to a message that the mailbox does not take.
func notHeld(err error) *reply {
	full, is := errors.AsType[*mailbox.Refusal](err)
	switch {
	case !is:
		return later(Unavailable, 0, "the relay is ending")
	case full.Limit == mailbox.LimitStorage:
		return later(Unavailable, full.RetryAfter, "the relay's storage takes nothing at present")
	}
	return later(MailboxFull, full.RetryAfter, "the mailbox takes nothing more: %v", full.Limit)
}

// idempotencyKey is the header, or "" without one.
func (q *request) idempotencyKey() (string, *reply) {
	keys := q.Header["Idempotency-Key"]
	if len(keys) == 0 {
		return "", nil
	}
	if len(keys) != 1 || !wire.IsIdempotencyKey(keys[0]) {
		return "", refuse(BadRequest, "Idempotency-Key may stand there once, with 1 to %d printable ASCII characters without spaces", wire.MaxIdempotencyKey)
	}
	return keys[0], nil
}

// What one GET /messages gives at most, and what it reads from the mailbox at once.
const (
	FetchMessages = 256
	FetchBytes    = 1 << 20 // of payload; a first message may be longer
	portionCount  = 32
	portionBytes  = 128 << 10
)

// fetch answers GET /messages.
func (h *Handler) fetch(q *request) *reply {
	p, wrong := q.parameters()
	if wrong != nil {
		return wrong
	}
	id, wrong := p.identity()
	if wrong != nil {
		return wrong
	}
	a, wrong := h.attempt(q, id)
	if wrong != nil {
		return wrong
	}
	defer a.end()
	nonce, wrong := p.one("nonce")
	if wrong != nil {
		return wrong
	}
	text, wrong := p.one("signature")
	if wrong != nil {
		return wrong
	}
	signature, isBase64 := parseBase64(text)
	if !isBase64 || len(signature) != 64 {
		return refuse(BadRequest, notSignature, "signature")
	}
	var after uint64
	if p["after"] != nil {
		if text, wrong = p.one("after"); wrong != nil {
			return wrong
		}
		var err error
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return refuse(BadRequest, "after must be the next of an earlier answer")
		}
	}
	if !h.challenges.holds(id, nonce, time.Now()) {
		h.Counts.Unproven.Add(1)
		return refuse(BadNonce, "the nonce is none of this relay's for this identity, or older than %v", ChallengeLife)
	}
	if wrong := a.prove(wire.MailboxText(id, nonce), [64]byte(signature)); wrong != nil {
		return wrong
	}
	if refused := a.charge(); refused != nil {
		return refused
	}
	return &reply{status: http.StatusOK, stream: func(w http.ResponseWriter) { h.stream(w, id, after) }}
}

// stream writes a [wire.Mailbox] of what waits behind a place, a portion at a time.
func (h *Handler) stream(w http.ResponseWriter, id wire.Identity, after uint64) {
	begin, sent, size := `{"messages":[`, 0, 0
	for sent < FetchMessages && size < FetchBytes {
		portion := h.relay.Fetch(id, after, min(portionCount, FetchMessages-sent), min(portionBytes, FetchBytes-size))
		for _, m := range portion {
			b, err := json.Marshal(wire.Waiting{ID: m.ID, Sender: m.Sender, Body: m.Payload})
			if err != nil {
				panic("api: " + err.Error())
			}
			if _, err := w.Write(append([]byte(begin), b...)); err != nil {
				return
			}
			begin = ","
			sent, size, after = sent+1, size+len(m.Payload), m.Seq
		}
		if len(portion) == 0 {
			if sent == 0 {
				w.Write([]byte(begin))
			}
			w.Write([]byte("]}\n"))
			return
		}
	}
	w.Write([]byte(`],"next":"` + strconv.FormatUint(after, 10) + "\"}\n"))
}

// acknowledge answers POST /acks.
func (h *Handler) acknowledge(q *request) *reply {
	o, wrong := q.open(MaxOtherBody, "sender", "ids", "sent_at", "signature")
	if wrong != nil {
		return wrong
	}
	a, wrong := h.attemptFrom(q, o, "sender")
	if wrong != nil {
		return wrong
	}
	defer a.end()
	if wrong := o.until(""); wrong != nil {
		return wrong
	}
	ids := o.hexList("ids")
	text, sentAt := o.moment("sent_at")
	signature := o.signature("signature")
	if o.wrong != nil {
		return o.wrong
	}
	if stale := a.fresh(sentAt); stale != nil {
		return stale
	}
	if wrong := a.prove(wire.AcksText(a.identity, ids, text), signature); wrong != nil {
		return wrong
	}
	if refused := a.charge(); refused != nil {
		return refused
	}
	return ok(http.StatusOK, wire.Acknowledged{Acknowledged: h.relay.Acknowledge(a.identity, ids)})
}
