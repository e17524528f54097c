package push

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// Claim is what a request says of itself: that the identity has signed Text.
type Claim struct {
	Identity  wire.Identity
	At        time.Time // when it says that it has
	Text      []byte
	Signature []byte // 64 bytes
}

// Handler answers the three requests about registrations: PUT /push, DELETE /push
// and POST /push/test.
type Handler struct {
	Waker *Waker
	// Prove judges a claim: the limits of whom it speaks for, the freshness of At
	// and the signature. Where it reports false it has answered.
	Prove func(http.ResponseWriter, *http.Request, Claim) bool
	// Source returns whose share a registration is kept in.
	Source func(*http.Request) netip.Prefix
}

// Route adds the requests to mux.
func (h *Handler) Route(mux *http.ServeMux) {
	mux.HandleFunc("PUT /push", h.put)
	mux.HandleFunc("DELETE /push", h.remove)
	mux.HandleFunc("POST /push/test", h.test)
}

// maxBody is the longest body of such a request, in bytes.
const maxBody = 8 << 10

// request is the body of all three.
type request struct {
	Identity  string `json:"identity"`
	Endpoint  string `json:"endpoint"`
	SentAt    string `json:"sent_at"`
	Signature string `json:"signature"`
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request) {
	body, at, ok := h.proven(w, r, func(id wire.Identity, q request) []byte {
		return wire.PushText(id, q.Endpoint, q.SentAt)
	})
	if !ok {
		return
	}
	kept, err := h.Waker.Register(body.identity, body.Endpoint, at, h.Source(r))
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{
		"registration": kept.ID, "expires_at": kept.Expires.UTC().Format(time.RFC3339),
	})
}

func (h *Handler) remove(w http.ResponseWriter, r *http.Request) {
	body, at, ok := h.proven(w, r, func(id wire.Identity, q request) []byte {
		return wire.PushOffText(id, q.SentAt)
	})
	if !ok {
		return
	}
	if err := h.Waker.Unregister(body.identity, at); err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{})
}

func (h *Handler) test(w http.ResponseWriter, r *http.Request) {
	body, _, ok := h.proven(w, r, func(id wire.Identity, q request) []byte {
		return wire.PushTestText(id, q.SentAt)
	})
	if !ok {
		return
	}
	result, err := h.Waker.Test(r.Context(), body.identity)
	switch {
	case r.Context().Err() != nil: // nobody is there to answer
	case err != nil:
		refuse(w, err)
	case result.Outcome != Spent:
		answer(w, http.StatusOK, map[string]any{"outcome": result.Outcome.String()})
	case result.Budget.Unavailable:
		w.Header().Set("Retry-After", strconv.FormatInt(result.Budget.RetryAfterSecs(), 10))
		answer(w, http.StatusServiceUnavailable, fault("unavailable", "the budgets cannot be counted at present"))
	default:
		spent(w, result.Budget)
	}
}

// spent answers that the budget of a registration is spent, in the shape of the
// request limit; the numbers tell the two apart.
func spent(w http.ResponseWriter, d admission.Decision) {
	w.Header().Set("Retry-After", strconv.FormatInt(d.RetryAfterSecs(), 10))
	answer(w, http.StatusTooManyRequests, map[string]any{"error": map[string]any{
		"code": "rate_limit_exceeded", "message": "The push budget of this registration is spent.",
		"requestId": rand.Text(),
		"rateLimit": map[string]int64{
			"limit": d.Limit, "remaining": d.Remaining,
			"resetAt": d.ResetSecs(),
		},
	}})
}

// proved is a body whose claim holds.
type proved struct {
	request
	identity wire.Identity
}

// proven reads a body and has its claim judged. Where it reports false it has answered.
func (h *Handler) proven(w http.ResponseWriter, r *http.Request, text func(wire.Identity, request) []byte) (p proved, at time.Time, ok bool) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		answer(w, http.StatusUnsupportedMediaType, fault("unsupported_media_type", "the body must be application/json"))
		return p, at, false
	}
	bad := func(message string) (proved, time.Time, bool) {
		answer(w, http.StatusBadRequest, fault("bad_request", message))
		return p, at, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, is := errors.AsType[*http.MaxBytesError](err); is {
		answer(w, http.StatusRequestEntityTooLarge, fault("too_large", "the body is longer than "+strconv.Itoa(maxBody)+" bytes"))
		return p, at, false
	}
	if err != nil || !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) || json.Unmarshal(body, &p.request) != nil {
		return bad("the body is no JSON object of texts")
	}
	identity, err := hex.DecodeString(p.Identity)
	if err != nil || len(identity) != len(p.identity) || strings.ToLower(p.Identity) != p.Identity {
		return bad("identity must be 64 lower-case hexadecimal digits")
	}
	copy(p.identity[:], identity)
	at, err = time.Parse(time.RFC3339Nano, p.SentAt)
	if err != nil || len(p.SentAt) > len("2026-03-28T12:01:00.123456789Z") || !strings.HasSuffix(p.SentAt, "Z") {
		return bad("sent_at must be a time as in 2026-03-28T12:01:00Z")
	}
	signature, err := base64.StdEncoding.Strict().DecodeString(p.Signature)
	if err != nil || len(signature) != 64 {
		return bad("signature must be 64 bytes in padded base64")
	}
	claim := Claim{Identity: p.identity, At: at, Text: text(p.identity, p.request), Signature: signature}
	return p, at, h.Prove(w, r, claim)
}

// refuse answers with what a Waker's method says.
func refuse(w http.ResponseWriter, err error) {
	status, word := http.StatusBadRequest, "bad_request"
	switch err {
	case errOlder, ErrBusy:
		status, word = http.StatusConflict, "conflict"
	case ErrDisabled, ErrUnknown:
		status, word = http.StatusNotFound, "no_registration"
	case ErrClosed:
		status, word = http.StatusServiceUnavailable, "unavailable"
		w.Header().Set("Retry-After", "1")
	}
	answer(w, status, fault(word, err.Error()))
}

func fault(word, message string) map[string]any {
	return map[string]any{"error": word, "message": message}
}

func answer(w http.ResponseWriter, status int, body map[string]any) {
	b, err := json.Marshal(body)
	if err != nil {
		panic("push: " + err.Error()) // it is ours: texts and numbers
	}
	head := w.Header()
	head.Set("Content-Type", "application/json")
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}
