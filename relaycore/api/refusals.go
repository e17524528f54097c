package api

import (
	"fmt"
	"net/http"
	"time"

	"relayedge/admission"
)

// Word is an error's name for programs. The list is closed.
type Word string

// The words, each with the status that it always has.
const (
	BadRequest     Word = "bad_request"            // 400: it can never be taken as it is
	BadSignature   Word = "bad_signature"          // 401
	BadNonce       Word = "bad_nonce"              // 401: no challenge of this relay, for another identity, or too old
	Stale          Word = "stale"                  // 401: sent_at is too far from the relay's clock
	Unknown        Word = "unknown_identity"       // 404: nothing is published under it
	NoRegistration Word = "no_registration"        // 404: it has left no push endpoint, or nobody is woken
	Conflict       Word = "conflict"               // 409: another request has this id or key, or a newer one was taken
	TooLarge       Word = "too_large"              // 413
	MediaType      Word = "unsupported_media_type" // 415
	RateLimited    Word = "rate_limit_exceeded"    // 429
	MailboxFull    Word = "mailbox_full"           // 503
	Unavailable    Word = "unavailable"            // 503
)

var statuses = map[Word]int{
	BadRequest: http.StatusBadRequest, BadSignature: http.StatusUnauthorized, BadNonce: http.StatusUnauthorized,
	Stale: http.StatusUnauthorized, Unknown: http.StatusNotFound, NoRegistration: http.StatusNotFound, Conflict: http.StatusConflict,
	TooLarge: http.StatusRequestEntityTooLarge, MediaType: http.StatusUnsupportedMediaType,
	RateLimited: http.StatusTooManyRequests, MailboxFull: http.StatusServiceUnavailable, Unavailable: http.StatusServiceUnavailable,
}

// fault is the body of an error.
type fault struct {
	Error   Word   `json:"error"`
	Message string `json:"message"`
}

// refuse is an answer that says what is wrong. What a client has sent is no part
// of it.
func refuse(word Word, format string, args ...any) *reply {
	return ok(statuses[word], fault{word, fmt.Sprintf(format, args...)})
}

// later is a refusal that passes by itself.
func later(word Word, wait time.Duration, format string, args ...any) *reply {
	a := refuse(word, format, args...)
	a.retry = admission.Decision{RetryAfter: wait}.RetryAfterSecs()
	return a
}

// limited is the answer to a request that a message limit refuses.
func (h *Handler) limited(d admission.Decision) *reply {
	if d.Unavailable {
		a := refuse(Unavailable, "limits cannot be looked at now")
		a.retry = d.RetryAfterSecs()
		return a
	}
	h.Counts.Limited.Add(1)
	whose := map[admission.Scope]string{
		admission.ScopeSender: "this sender's", admission.ScopeGlobal: "the relay's", admission.ScopeHost: "this address's",
	}[d.Scope]
	length := map[admission.Window]string{admission.Minute: "a minute", admission.Hour: "an hour", admission.Day: "a day"}[d.Window]
	// The time is rounded up, as Retry-After is: who waits for either is not early.
	reset := d.Reset.UTC().Add(time.Second - time.Nanosecond).Truncate(time.Second)
	a := ok(http.StatusTooManyRequests, struct {
		fault
		Scope   admission.Scope  `json:"scope"`
		Window  admission.Window `json:"window"`
		Limit   int64            `json:"limit"`
		ResetAt string           `json:"reset_at"`
	}{fault{RateLimited, fmt.Sprintf("%s limit for %s is reached", whose, length)}, d.Scope, d.Window, d.Limit, reset.Format(time.RFC3339)})
	a.retry = d.RetryAfterSecs()
	return a
}
