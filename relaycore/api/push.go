package api

import (
	"net/http"
	"net/netip"

	"relayedge/relaycore/push"
)

// pushRoutes are the requests about push endpoints. Package push answers them;
// who may make them is judged as for all that an identity has signed.
func (h *Handler) pushRoutes(waker *push.Waker) http.Handler {
	mux := http.NewServeMux()
	(&push.Handler{
		Waker: waker,
		Prove: h.provePush,
		Source: func(r *http.Request) netip.Prefix {
			client, _ := r.Context().Value(clientKey{}).(Client)
			return client.Source
		},
	}).Route(mux)
	return mux
}

// provePush judges a claim, and answers where it does not hold.
func (h *Handler) provePush(w http.ResponseWriter, r *http.Request, c push.Claim) bool {
	if wrong := h.claimed(requestOf(w, r), c); wrong != nil {
		wrong.write(w)
		return false
	}
	return true
}

func (h *Handler) claimed(q *request, c push.Claim) *reply {
	a, wrong := h.attempt(q, c.Identity)
	if wrong != nil {
		return wrong
	}
	defer a.end()
	if stale := a.fresh(c.At); stale != nil {
		return stale
	}
	if wrong := a.prove(c.Text, [64]byte(c.Signature)); wrong != nil {
		return wrong
	}
	return a.charge()
}
