package client

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// Both shapes of errors are read, with their numbers, and whatever else comes is
// no more than its status.
func TestStatusError(t *testing.T) {
	reset := time.Unix(1756654380, 0)
	for _, row := range []struct {
		name, body string
		want       StatusError
		rate       Rate // zero: none
	}{
		{"the request limit", `{"error":{"code":"rate_limit_exceeded","message":"Too many requests.","requestId":"01J8Z","rateLimit":{"limit":6000,"remaining":0,"resetAt":1756654380}}}`,
			StatusError{Code: "rate_limit_exceeded", Message: "Too many requests.", RequestID: "01J8Z"}, Rate{Limit: 6000, Reset: reset}},
		{"a budget", `{"error":{"code":"rate_limit_exceeded","rateLimit":{"limit":60,"remaining":3,"resetAt":1756654380}}}`,
			StatusError{Code: "rate_limit_exceeded"}, Rate{Limit: 60, Remaining: 3, Reset: reset}},
		{"a message limit", `{"error":"rate_limit_exceeded","scope":"sender","window":"minute","limit":20,"reset_at":"2025-08-31T15:33:00Z"}`,
			StatusError{Code: "rate_limit_exceeded"}, Rate{Limit: 20, Reset: reset, Scope: "sender", Window: "minute"}},
		{"everything is refused", `{"error":"rate_limit_exceeded","scope":"global","window":"day","limit":-1,"reset_at":"2025-08-31T15:33:00Z"}`,
			StatusError{Code: "rate_limit_exceeded"}, Rate{Limit: -1, Reset: reset, Scope: "global", Window: "day"}},
		{"a limit without a time", `{"error":"rate_limit_exceeded","limit":20,"reset_at":"soon"}`,
			StatusError{Code: "rate_limit_exceeded"}, Rate{Limit: 20}},
		{"a word", `{"error":"bad_signature","message":"it does not hold"}`, StatusError{Code: "bad_signature", Message: "it does not hold"}, Rate{}},
		{"an object without a limit", `{"error":{"code":"unauthorized","message":"who?"}}`, StatusError{Code: "unauthorized", Message: "who?"}, Rate{}},
		{"no body", ``, StatusError{}, Rate{}},
		{"a page", `<html>502 Bad Gateway</html>`, StatusError{}, Rate{}},
		{"another object", `{"detail":"no"}`, StatusError{}, Rate{}},
		{"a number", `{"error":7}`, StatusError{}, Rate{}},
		{"null", `{"error":null}`, StatusError{}, Rate{}},
		{"a list", `[1]`, StatusError{}, Rate{}},
		{"too large a number", `{"error":{"code":"x","rateLimit":{"limit":1e99}}}`, StatusError{}, Rate{}},
		{"long texts", `{"error":"` + strings.Repeat("x", 1000) + `"}`, StatusError{Code: strings.Repeat("x", maxWord)}, Rate{}},
	} {
		got := newStatusError(&http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"9"}}}, []byte(row.body), time.Now())
		rate := Rate{}
		if got.Rate != nil {
			rate = *got.Rate
		}
		if !rate.Reset.Equal(row.rate.Reset) {
			t.Errorf("%s: it resets at %v", row.name, rate.Reset)
		}
		rate.Reset = row.rate.Reset
		if rate != row.rate {
			t.Errorf("%s: the limit is %+v", row.name, rate)
		}
		got.Rate = nil
		row.want.Status, row.want.RetryAfter = 429, 9*time.Second
		if *got != row.want {
			t.Errorf("%s: %+v", row.name, *got)
		}
	}
}

// What the other end says is quoted, so that it cannot forge a line of a log.
func TestStatusErrorIsOneLine(t *testing.T) {
	e := newStatusError(&http.Response{StatusCode: 503, Header: http.Header{}},
		[]byte(`{"error":"a\nb","message":"c\u001bd","limit":3,"scope":"e\rf","window":"g"}`), time.Now())
	want := `HTTP status 503 (Service Unavailable), "a\nb": "c\x1bd"; limit 3 ("e\rf", "g")`
	if e.Error() != want {
		t.Error(e)
	}
}
