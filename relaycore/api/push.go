package api

import (
	"errors"
	"net/http"
	"time"

	"relayedge/admission"
	"relayedge/admission/httpguard"
	"relayedge/relaycore/push"
	"relayedge/relaycore/wire"
)

// endpointRequest is a request about an identity's push endpoint, which it has signed.
type endpointRequest struct {
	identity wire.Identity
	endpoint string // "" where none is asked for
	sentAt   time.Time
}

// endpointRequest reads a request, charges it to its identity, and judges what the
// identity has signed: text, of what the request says to the letter. named says that
// it names an endpoint.
func (h *Handler) endpointRequest(q *request, named bool, text func(id wire.Identity, endpoint, sentAt string) []byte) (r endpointRequest, _ *reply) {
	o, wrong := q.open(MaxOtherBody, "identity", "endpoint", "sent_at", "signature")
	if wrong != nil {
		return r, wrong
	}
	a, wrong := h.attemptFrom(q, o, "identity")
	if wrong != nil {
		return r, wrong
	}
	defer a.end()
	if wrong := o.until(""); wrong != nil {
		return r, wrong
	}
	r.identity = a.identity
	if named {
		r.endpoint = o.text("endpoint")
	}
	said, sentAt := o.moment("sent_at")
	r.sentAt = sentAt
	signature := o.signature("signature")
	if o.wrong != nil {
		return r, o.wrong
	}
	if stale := a.fresh(sentAt); stale != nil {
		return r, stale
	}
	if wrong := a.prove(text(r.identity, r.endpoint, said), signature); wrong != nil {
		return r, wrong
	}
	return r, a.charge()
}

// leaveEndpoint answers PUT /push.
func (h *Handler) leaveEndpoint(q *request) *reply {
	r, wrong := h.endpointRequest(q, true, wire.PushText)
	if wrong != nil {
		return wrong
	}
	kept, err := h.push.Register(r.identity, r.endpoint, r.sentAt, q.client.Source)
	if err != nil {
		return notWoken(err)
	}
	return ok(http.StatusOK, wire.PushRegistration{Registration: kept.ID, ExpiresAt: kept.Expires.UTC().Truncate(time.Second)})
}

// takeEndpoint answers DELETE /push.
func (h *Handler) takeEndpoint(q *request) *reply {
	r, wrong := h.endpointRequest(q, false, func(id wire.Identity, _, sentAt string) []byte { return wire.PushOffText(id, sentAt) })
	if wrong != nil {
		return wrong
	}
	if err := h.push.Unregister(r.identity, r.sentAt); err != nil {
		return notWoken(err)
	}
	return ok(http.StatusOK, struct{}{})
}

// tryEndpoint answers POST /push/test.
func (h *Handler) tryEndpoint(q *request) *reply {
	r, wrong := h.endpointRequest(q, false, func(id wire.Identity, _, sentAt string) []byte { return wire.PushTestText(id, sentAt) })
	if wrong != nil {
		return wrong
	}
	result, err := h.push.Test(q.Context(), r.identity)
	switch {
	case err != nil:
		return notWoken(err)
	case result.Outcome != push.Spent:
		return ok(http.StatusOK, wire.PushTest{Outcome: result.Outcome.String()})
	case result.Budget.Unavailable:
		return later(Unavailable, result.Budget.RetryAfter, "the budgets cannot be counted at present")
	}
	return h.spent(q, result.Budget)
}

// spent answers that the budget of a registration is spent, in the shape of the
// request limit; the numbers tell the two apart.
func (h *Handler) spent(q *request, d admission.Decision) *reply {
	return &reply{
		status: http.StatusTooManyRequests, retry: d.RetryAfterSecs(),
		body: httpguard.Fault("rate_limit_exceeded", "The push budget of this registration is spent.", q.client.RequestID, &d),
	}
}

// notWoken is the answer to a request that the waker does not take.
func notWoken(err error) *reply {
	word := BadRequest // the endpoint is none, or none that is called
	switch {
	case errors.Is(err, push.ErrOlder), errors.Is(err, push.ErrBusy):
		word = Conflict
	case errors.Is(err, push.ErrDisabled), errors.Is(err, push.ErrUnknown):
		word = NoRegistration
	case errors.Is(err, push.ErrClosed):
		return later(Unavailable, 0, "the relay is ending")
	}
	return refuse(word, "%v", err)
}
