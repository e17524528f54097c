package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// StatusError is an answer of the relay, or of what stands before it, that is not
// the one which was asked for.
type StatusError struct {
	Status     int
	Code       string        // the answer's own word for it, such as rate_limit_exceeded; "" without one
	Message    string        // its words for people, if any
	RequestID  string        // what its sender's log calls the request, if it says
	RetryAfter time.Duration // as the header asks for it; 0: it does not, or not in a form that means something
	Rate       *Rate         // the limit that was met; nil where none is named
}

// Rate is a limit that was met. Two kinds of limits are told apart by what they
// say: the request limit of a credential and the budget of a push registration
// give Remaining, the message limits Scope and Window.
type Rate struct {
	Limit     int64     // units a window; -1: everything is refused
	Remaining int64     // units left in it
	Reset     time.Time // when its count resets; zero: unknown
	Scope     string    // sender, global or host; "" where there is one scope only
	Window    string    // minute, hour or day; "" where there is one window only
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("HTTP status %d (%s)", e.Status, http.StatusText(e.Status))
	if e.Code != "" {
		text += ", " + strconv.Quote(e.Code)
	}
	if e.Message != "" {
		text += ": " + strconv.Quote(e.Message)
	}
	if e.Rate != nil {
		text += fmt.Sprintf("; limit %d", e.Rate.Limit)
		if e.Rate.Scope != "" {
			text += fmt.Sprintf(" (%s, %s)", strconv.Quote(e.Rate.Scope), strconv.Quote(e.Rate.Window))
		}
	}
	return text
}

// maxWord is how much is kept of a text in a refusal.
const maxWord = 200

// newStatusError reads an answer that is no success. There are two shapes: an
// error that is an object, of the request limit and the budgets, and one that is
// a word, of everything else. A body of neither shape is no more than its status.
func newStatusError(answer *http.Response, body []byte, now time.Time) *StatusError {
	e := &StatusError{Status: answer.StatusCode, RetryAfter: retryAfter(answer.Header, now)}
	var shape struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Scope   string          `json:"scope"`
		Window  string          `json:"window"`
		Limit   *int64          `json:"limit"`
		ResetAt string          `json:"reset_at"`
	}
	if json.Unmarshal(body, &shape) != nil {
		return e
	}
	if json.Unmarshal(shape.Error, &e.Code) == nil {
		e.Code, e.Message = clip(e.Code), clip(shape.Message)
		if shape.Limit != nil {
			e.Rate = &Rate{Limit: *shape.Limit, Scope: clip(shape.Scope), Window: clip(shape.Window)}
			// A time that is none is left zero.
			e.Rate.Reset, _ = time.Parse(time.RFC3339Nano, shape.ResetAt)
		}
		return e
	}
	var nested struct {
		Code      string `json:"code"`
		Message   string `json:"message"`
		RequestID string `json:"requestId"`
		RateLimit *struct {
			Limit     int64 `json:"limit"`
			Remaining int64 `json:"remaining"`
			ResetAt   int64 `json:"resetAt"` // seconds since 1970
		} `json:"rateLimit"`
	}
	if json.Unmarshal(shape.Error, &nested) != nil {
		return e
	}
	e.Code, e.Message, e.RequestID = clip(nested.Code), clip(nested.Message), clip(nested.RequestID)
	if r := nested.RateLimit; r != nil {
		e.Rate = &Rate{Limit: r.Limit, Remaining: r.Remaining}
		if r.ResetAt > 0 {
			e.Rate.Reset = time.Unix(r.ResetAt, 0)
		}
	}
	return e
}

func clip(s string) string { return s[:min(len(s), maxWord)] }
