package push

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

var (
	key = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	own = wire.Identity(key.Public().(ed25519.PublicKey))
)

// requests is a handler whose proofs are signatures alone.
type requests struct {
	*http.ServeMux
	claims []Claim
}

func requestsTo(w *Waker) *requests {
	r := &requests{ServeMux: http.NewServeMux()}
	h := &Handler{
		Waker: w,
		Prove: func(w http.ResponseWriter, _ *http.Request, c Claim) bool {
			r.claims = append(r.claims, c)
			if wire.Signed(c.Identity, c.Text, c.Signature) {
				return true
			}
			w.WriteHeader(http.StatusUnauthorized)
			return false
		},
		Source: func(*http.Request) netip.Prefix { return source },
	}
	h.Route(r.ServeMux)
	return r
}

func signed(text []byte) string { return base64.StdEncoding.EncodeToString(ed25519.Sign(key, text)) }

// ask sends a request and reads its answer.
func (r *requests) ask(t *testing.T, method, path, body string) (*httptest.ResponseRecorder, map[string]any) {
	t.Helper()
	q := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	q.Header.Set("Content-Type", "application/json")
	got := httptest.NewRecorder()
	r.ServeHTTP(got, q)
	var answer map[string]any
	if got.Body.Len() > 0 {
		if err := json.Unmarshal(got.Body.Bytes(), &answer); err != nil {
			t.Fatalf("%q: %v", got.Body, err)
		}
		if got.Header().Get("Content-Type") != "application/json" || got.Header().Get("Content-Length") != fmt.Sprint(got.Body.Len()) {
			t.Errorf("%v", got.Header())
		}
	}
	return got, answer
}

const sentAt = "2026-03-28T12:00:00Z"

func object(endpoint, at, signature string) string {
	b, _ := json.Marshal(request{own.String(), endpoint, at, signature})
	return string(b)
}

// An endpoint is left, tried, and taken back, each under a signature of its own.
func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, func(c *Config) { c.BudgetPerHour = 1 })
		r := requestsTo(w)
		const endpoint = "https://push.example.org/up?a=<&>"
		put := object(endpoint, sentAt, signed(wire.PushText(own, endpoint, sentAt)))
		got, answer := r.ask(t, "PUT", "/push", put)
		expires, _ := time.Parse(time.RFC3339, fmt.Sprint(answer["expires_at"]))
		if got.Code != 200 || len(fmt.Sprint(answer["registration"])) != 32 || !expires.Equal(time.Now().Add(30*24*time.Hour)) {
			t.Fatalf("%d %v", got.Code, answer)
		}
		if c := r.claims[0]; c.Identity != own || c.At.Format(time.RFC3339) != sentAt || !bytes.Equal(c.Text, wire.PushText(own, endpoint, sentAt)) {
			t.Errorf("%+v", c)
		}
		test := object("", sentAt, signed(wire.PushTestText(own, sentAt)))
		began := time.Now()
		if got, answer := r.ask(t, "POST", "/push/test", test); got.Code != 200 || answer["outcome"] != "woken" || s.calls()[0] != endpoint {
			t.Errorf("%d %v %v", got.Code, answer, s.calls())
		}
		// spec/002: the same code and payload as the request limit's, with the budget's own numbers.
		time.Sleep(10*time.Minute + time.Nanosecond)
		got, answer = r.ask(t, "POST", "/push/test", test)
		want := fmt.Sprintf(`{"error":{"code":"rate_limit_exceeded","message":"The push budget of this registration is spent.","rateLimit":{"limit":1,"remaining":0,"resetAt":%d},"requestId":%q}}`,
			began.Add(time.Hour).Unix(), answer["error"].(map[string]any)["requestId"])
		if strings.TrimSpace(got.Body.String()) != want || got.Code != 429 || got.Header().Get("Retry-After") != "2999" {
			t.Errorf("%d %v %s, not %s", got.Code, got.Header(), got.Body, want)
		}
		off := object("", sentAt, signed(wire.PushOffText(own, sentAt)))
		for range 2 {
			if got, _ := r.ask(t, "DELETE", "/push", off); got.Code != 200 {
				t.Error(got.Code)
			}
		}
		if got, answer := r.ask(t, "POST", "/push/test", test); got.Code != 404 || answer["error"] != "no_registration" {
			t.Errorf("%d %v", got.Code, answer)
		}
		if c := w.Stats(); c.Registrations != 0 {
			t.Errorf("%+v", c)
		}
	})
}

// A signature for one of them is none for another, and nothing happens without.
func TestHandlerProves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, nil)
		r := requestsTo(w)
		const endpoint = "https://push.example.org/up"
		for _, row := range []struct{ method, path, body string }{
			{"PUT", "/push", object(endpoint, sentAt, signed(wire.PushOffText(own, sentAt)))},
			{"PUT", "/push", object(endpoint, sentAt, signed(wire.PushText(own, endpoint+"x", sentAt)))},
			{"PUT", "/push", object(endpoint, "2026-03-28T12:00:00.0Z", signed(wire.PushText(own, endpoint, sentAt)))},
			{"DELETE", "/push", object("", sentAt, signed(wire.PushTestText(own, sentAt)))},
			{"POST", "/push/test", object("", sentAt, signed(wire.PushOffText(own, sentAt)))},
		} {
			if got, _ := r.ask(t, row.method, row.path, row.body); got.Code != 401 {
				t.Errorf("%s %s %s: %d", row.method, row.path, row.body, got.Code)
			}
		}
		if c := w.Stats(); c.Registrations != 0 || s.count() != 0 {
			t.Errorf("%+v", c)
		}
	})
}

// What cannot be a request is refused before anybody's signature is asked for.
func TestHandlerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := wakerFor(t, nil)
		r := requestsTo(w)
		good := signed(wire.PushText(own, "https://push.example.org/", sentAt))
		fields := func(identity, at, signature string) string {
			return fmt.Sprintf(`{"identity":%q,"endpoint":"https://push.example.org/","sent_at":%q,"signature":%q}`, identity, at, signature)
		}
		fits := fields(own.String(), sentAt, good)
		for _, row := range []struct {
			body   string
			status int
			word   string
		}{
			{``, 400, "bad_request"},
			{`null`, 400, "bad_request"},
			{`[]`, 400, "bad_request"},
			{`{"identity":7}`, 400, "bad_request"},
			{fits + "x", 400, "bad_request"},
			{fields("", sentAt, good), 400, "bad_request"},
			{fields(strings.ToUpper(own.String()), sentAt, good), 400, "bad_request"},
			{fields(own.String()+"00", sentAt, good), 400, "bad_request"},
			{fields(own.String()[2:], sentAt, good), 400, "bad_request"},
			{fields(strings.Repeat("x", 64), sentAt, good), 400, "bad_request"},
			{fields(own.String(), "", good), 400, "bad_request"},
			{fields(own.String(), "2026-03-28T13:00:00+01:00", good), 400, "bad_request"},
			{fields(own.String(), "2026-03-28T12:00:00.0000000001Z", good), 400, "bad_request"},
			{fields(own.String(), sentAt, ""), 400, "bad_request"},
			{fields(own.String(), sentAt, good[:84]), 400, "bad_request"},
			{fields(own.String(), sentAt, strings.TrimRight(good, "=")), 400, "bad_request"},
			{fits + strings.Repeat(" ", maxBody-len(fits)+1), 413, "too_large"},
		} {
			if got, answer := r.ask(t, "PUT", "/push", row.body); got.Code != row.status || answer["error"] != row.word || answer["message"] == "" {
				t.Errorf("%.200q: %d %v", row.body, got.Code, answer)
			}
		}
		if len(r.claims) != 0 {
			t.Error(r.claims)
		}
		q := httptest.NewRequest("PUT", "/push", strings.NewReader(fits))
		got := httptest.NewRecorder()
		if r.ServeHTTP(got, q); got.Code != 415 {
			t.Error(got.Code)
		}
		if got, _ := r.ask(t, "PUT", "/push", fits+strings.Repeat(" ", maxBody-len(fits))); got.Code != 200 {
			t.Errorf("a body of %d bytes: %d", maxBody, got.Code)
		}
		const earlier = "2026-03-28T11:00:00Z"
		for endpoint, status := range map[string]int{"https://push.example.org/": 409, "https://push.example.net/s3cret": 400, "https://10.0.0.1/s3cret": 400, "http://push.example.org/s3cret": 400} {
			got, _ := r.ask(t, "PUT", "/push", object(endpoint, earlier, signed(wire.PushText(own, endpoint, earlier))))
			if got.Code != status || strings.Contains(got.Body.String(), "s3cret") || strings.Contains(got.Body.String(), "example") {
				t.Errorf("%s: %d %s", endpoint, got.Code, got.Body)
			}
		}
	})
}

// away is a store that is away, under a policy that refuses then.
type away struct{}

func (away) Take(context.Context, admission.Key, time.Time) admission.Decision {
	return admission.Decision{Unavailable: true, RetryAfter: 1500 * time.Millisecond}
}

// A fault of ours is not the client's: 503, and when to come again.
func TestHandlerUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, nil)
		w.budget = away{}
		if _, err := w.Register(own, "https://push.example.org/", time.Now(), source); err != nil {
			t.Fatal(err)
		}
		r := requestsTo(w)
		test := object("", sentAt, signed(wire.PushTestText(own, sentAt)))
		if got, answer := r.ask(t, "POST", "/push/test", test); got.Code != 503 || answer["error"] != "unavailable" || got.Header().Get("Retry-After") != "2" {
			t.Errorf("%d %v %v", got.Code, got.Header(), answer)
		}
		w.Close()
		if got, answer := r.ask(t, "POST", "/push/test", test); got.Code != 503 || answer["error"] != "unavailable" || got.Header().Get("Retry-After") != "1" {
			t.Errorf("%d %v %v", got.Code, got.Header(), answer)
		}
		if s.count() != 0 {
			t.Error(s.calls())
		}
	})
}
