package api

import (
	"net/http"
	"strings"

	"relayedge/relaycore/wire"
)

// named is the identity in the path.
func (q *request) named() (id wire.Identity, _ *reply) {
	if id.UnmarshalText([]byte(strings.TrimPrefix(q.URL.Path, identitiesPath))) != nil {
		return id, refuse(BadRequest, notHex, "the identity in the path")
	}
	return id, nil
}

// bundle answers GET /identities/{identity}.
func (h *Handler) bundle(q *request) *reply {
	id, wrong := q.named()
	if wrong != nil {
		return wrong
	}
	bundle, signature, known := h.relay.Bundle(id)
	if !known {
		return refuse(Unknown, "nothing is published here under this identity")
	}
	return ok(http.StatusOK, wire.Bundle{Identity: id, Bundle: append([]byte{}, bundle...), Signature: signature[:]})
}

// publish answers PUT /identities/{identity}.
func (h *Handler) publish(q *request) *reply {
	id, wrong := q.named()
	if wrong != nil {
		return wrong
	}
	a, wrong := h.attempt(q, id)
	if wrong != nil {
		return wrong
	}
	defer a.end()
	o, wrong := q.open(MaxOtherBody, "bundle", "bundle_signature", "sent_at", "signature")
	if wrong != nil {
		return wrong
	}
	if wrong := o.until(""); wrong != nil {
		return wrong
	}
	bundle := o.bytes("bundle", wire.MaxBundle)
	own := o.signature("bundle_signature")
	text, sentAt := o.moment("sent_at")
	signature := o.signature("signature")
	if o.wrong != nil {
		return o.wrong
	}
	if stale := a.fresh(sentAt); stale != nil {
		return stale
	}
	if wrong := a.prove(wire.IdentityText(id, bundle, text), signature); wrong != nil {
		return wrong
	}
	if !wire.Signed(id, wire.BundleText(bundle), own[:]) {
		h.Counts.Unproven.Add(1)
		return refuse(BadSignature, "the bundle's own signature is not the identity's")
	}
	outdated := h.relay.Outdated(id, sentAt)
	if !outdated {
		if refused := a.charge(); refused != nil {
			return refused
		}
		outdated = !h.relay.Publish(id, bundle, own, sentAt, q.client)
	}
	if outdated {
		return refuse(Conflict, "a bundle that is newer than sent_at is published already")
	}
	return ok(http.StatusOK, struct {
		Identity wire.Identity `json:"identity"`
	}{id})
}

// health answers GET /health.
func (h *Handler) health(*request) *reply {
	if err := h.relay.Ready(); err != nil {
		return later(Unavailable, 0, "the relay is ending")
	}
	return ok(http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
}
