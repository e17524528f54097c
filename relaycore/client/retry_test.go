package client

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// answer is what a relay made up by a test does with one request.
type answer struct {
	status int
	header http.Header
	body   io.Reader // nil: an empty object
	err    error     // in place of an answer
	hangs  bool      // until the request's context ends
}

// sent is a request as such a relay got it.
type sent struct {
	at     time.Duration // since the relay's beginning
	method string
	path   string
	header http.Header
	body   string
}

// relay gives answers in turn, the last one for ever.
type relay struct {
	answers []answer
	began   time.Time
	got     []sent
}

func (r *relay) RoundTrip(q *http.Request) (*http.Response, error) {
	var body []byte
	if q.Body != nil {
		body, _ = io.ReadAll(q.Body)
		q.Body.Close()
	}
	a := r.answers[min(len(r.got), len(r.answers)-1)]
	r.got = append(r.got, sent{time.Since(r.began), q.Method, q.URL.RequestURI(), q.Header, string(body)})
	if a.hangs {
		<-q.Context().Done()
		return nil, q.Context().Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	if a.body == nil {
		a.body = strings.NewReader("{}")
	}
	closer, ok := a.body.(io.ReadCloser)
	if !ok {
		closer = io.NopCloser(a.body)
	}
	if a.header == nil {
		a.header = http.Header{}
	}
	return &http.Response{StatusCode: a.status, Header: a.header, Body: closer, Request: q}, nil
}

// waits are the times between the requests.
func (r *relay) waits() (all []time.Duration) {
	for i := 1; i < len(r.got); i++ {
		all = append(all, r.got[i].at-r.got[i-1].at)
	}
	return all
}

var testKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))

func mailTo(t *testing.T, o MailOptions, answers ...answer) (*Mail, *relay) {
	t.Helper()
	m, err := NewMail("https://relay.example.org/", testKey, o)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{answers: answers, began: time.Now()}
	m.patience.client.Transport = r
	return m, r
}

func asks(status int, values ...string) answer {
	return answer{status: status, header: http.Header{"Retry-After": values}}
}

// The retry rules of spec/002, one a row: waits are the least times between the
// requests; each may be longer by a quarter, but no longer than a minute.
func TestRetryRules(t *testing.T) {
	const s = time.Second
	broken := errors.New("connection reset")
	for _, row := range []struct {
		name    string
		answers []answer
		retries *int
		waits   []time.Duration
		status  int // of the StatusError in the end; 0: none
		err     error
	}{
		{name: "200 at once", answers: []answer{{status: 200}}},
		{name: "202 at once", answers: []answer{{status: 202}}},
		{name: "429 asks for seconds", answers: []answer{asks(429, "5"), {status: 200}}, waits: []time.Duration{5 * s}},
		{name: "429 asks for one second", answers: []answer{asks(429, "1"), {status: 200}}, waits: []time.Duration{s}},
		{name: "spaces around", answers: []answer{asks(429, " 7 "), {status: 200}}, waits: []time.Duration{7 * s}},
		{name: "429 asks for 59 s", answers: []answer{asks(429, "59"), {status: 200}}, waits: []time.Duration{59 * s}},
		{name: "429 asks for 60 s", answers: []answer{asks(429, "60"), {status: 200}}, waits: []time.Duration{60 * s}},
		{name: "429 asks for 61 s: capped", answers: []answer{asks(429, "61"), {status: 200}}, waits: []time.Duration{60 * s}},
		{name: "429 asks for a day: capped", answers: []answer{asks(429, "86400"), {status: 200}}, waits: []time.Duration{60 * s}},
		{name: "429 asks for ages: capped", answers: []answer{asks(429, strings.Repeat("9", 40)), {status: 200}}, waits: []time.Duration{60 * s}},
		{name: "429 asks for the end of time: capped", answers: []answer{asks(429, "Fri, 31 Dec 9999 23:59:59 GMT"), {status: 200}}, waits: []time.Duration{60 * s}},
		{name: "nothing asked for", answers: []answer{{status: 429}, {status: 200}}, waits: []time.Duration{s}},
		{name: "empty", answers: []answer{asks(429, ""), {status: 200}}, waits: []time.Duration{s}},
		{name: "0", answers: []answer{asks(429, "0"), {status: 200}}, waits: []time.Duration{s}},
		{name: "negative", answers: []answer{asks(429, "-30"), {status: 200}}, waits: []time.Duration{s}},
		{name: "signed", answers: []answer{asks(429, "+30"), {status: 200}}, waits: []time.Duration{s}},
		{name: "a fraction", answers: []answer{asks(429, "30.5"), {status: 200}}, waits: []time.Duration{s}},
		{name: "an exponent", answers: []answer{asks(429, "3e1"), {status: 200}}, waits: []time.Duration{s}},
		{name: "a unit", answers: []answer{asks(429, "30s"), {status: 200}}, waits: []time.Duration{s}},
		{name: "words", answers: []answer{asks(429, "soon"), {status: 200}}, waits: []time.Duration{s}},
		{name: "two of them", answers: []answer{asks(429, "30", "40"), {status: 200}}, waits: []time.Duration{s}},
		{name: "503 asks for seconds", answers: []answer{asks(503, "5"), {status: 200}}, waits: []time.Duration{5 * s}},
		{name: "503 asks for a day: capped", answers: []answer{asks(503, "86400"), {status: 200}}, waits: []time.Duration{60 * s}},
		{name: "500 cannot ask", answers: []answer{asks(500, "30"), {status: 200}}, waits: []time.Duration{s}},
		{name: "502 cannot ask", answers: []answer{asks(502, "30"), {status: 200}}, waits: []time.Duration{s}},
		{name: "5xx: 1, 2, 4 s", answers: []answer{{status: 500}, {status: 502}, {status: 504}, {status: 200}}, waits: []time.Duration{s, 2 * s, 4 * s}},
		{name: "the attempt counts, not the kind", answers: []answer{asks(429, "3"), {status: 500}, {status: 200}}, waits: []time.Duration{3 * s, 2 * s}},
		{name: "three retries", answers: []answer{{status: 503}}, waits: []time.Duration{s, 2 * s, 4 * s}, status: 503},
		{name: "three retries of 429", answers: []answer{asks(429, "2")}, waits: []time.Duration{2 * s, 2 * s, 2 * s}, status: 429},
		{name: "no retries", answers: []answer{{status: 429}}, retries: new(0), status: 429},
		{name: "more retries: 8 s at most", answers: []answer{{status: 599}}, retries: new(6),
			waits: []time.Duration{s, 2 * s, 4 * s, 8 * s, 8 * s, 8 * s}, status: 599},
		{name: "400", answers: []answer{{status: 400}}, status: 400},
		{name: "401", answers: []answer{asks(401, "1")}, status: 401},
		{name: "404", answers: []answer{{status: 404}}, status: 404},
		{name: "408", answers: []answer{{status: 408}}, status: 408},
		{name: "409", answers: []answer{{status: 409}}, status: 409},
		{name: "413", answers: []answer{{status: 413}}, status: 413},
		{name: "a redirect", answers: []answer{{status: 307, header: http.Header{"Location": {"https://other.example.org/"}}}}, status: 307},
		{name: "600", answers: []answer{{status: 600}}, status: 600},
		{name: "no answer", answers: []answer{{err: broken}, {status: 200}}, waits: []time.Duration{s}},
		{name: "no answer ever", answers: []answer{{err: broken}}, waits: []time.Duration{s, 2 * s, 4 * s}, err: broken},
		{name: "half an answer", answers: []answer{{status: 200, body: io.MultiReader(strings.NewReader(`{"st`), fails{broken})}, {status: 200}}, waits: []time.Duration{s}},
		{name: "half a refusal", answers: []answer{{status: 400, body: fails{broken}}}, status: 400},
		{name: "an attempt has its time", answers: []answer{{hangs: true}, {status: 200}}, waits: []time.Duration{attemptTime + s}},
		{name: "an answer without an end", answers: []answer{{status: 200, body: endless{}}}, err: errTooLong},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, r := mailTo(t, MailOptions{MaxRetries: row.retries}, row.answers...)
				err := m.Health(t.Context())
				status, _ := errors.AsType[*StatusError](err)
				switch {
				case row.err != nil && !errors.Is(err, row.err), row.status != 0 && (status == nil || status.Status != row.status):
					t.Fatal(err)
				case row.err == nil && row.status == 0 && err != nil:
					t.Fatal(err)
				}
				waits := r.waits()
				if len(waits) != len(row.waits) {
					t.Fatalf("the waits are %v", waits)
				}
				for i, least := range row.waits {
					most := max(least, min(least+least/4, time.Minute))
					if least > time.Minute {
						most = least + s/4 // of which an attempt took most
					}
					if waits[i] < least || waits[i] > most {
						t.Errorf("wait %d is %v, not %v to %v", i, waits[i], least, most)
					}
				}
			})
		})
	}
}

// fails is a body that breaks off.
type fails struct{ err error }

func (f fails) Read([]byte) (int, error) { return 0, f.err }

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// Whoever was refused together does not come back together.
func TestRetryJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[jittered(8*time.Second)] = true
	}
	if len(seen) < 50 {
		t.Fatalf("%d different waits of 100", len(seen))
	}
}

// A date is counted from the clock that wrote it, else from ours.
func TestRetryDate(t *testing.T) {
	now := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, row := range []struct {
		name        string
		after, date string
		want        time.Duration
	}{
		{"by our clock", date(7 * time.Second), "", 7 * time.Second},
		{"by the relay's", date(7*time.Second - time.Hour), date(-time.Hour), 7 * time.Second},
		{"a Date that is none", date(7 * time.Second), "yesterday", 7 * time.Second},
		{"past", date(-time.Second), "", 0},
		{"at present", date(0), "", 0},
	} {
		h := http.Header{"Retry-After": {row.after}}
		if row.date != "" {
			h.Set("Date", row.date)
		}
		if got := retryAfter(h, now); got != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}

// The context ends a wait at once, and the call says what it had waited for.
func TestRetryContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the user went away")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Second, func() { cancel(why) })
		m, r := mailTo(t, MailOptions{}, asks(429, "50"))
		began := time.Now()
		err := m.Health(ctx)
		if took := time.Since(began); took != 10*time.Second || len(r.got) != 1 {
			t.Errorf("%d requests in %v", len(r.got), took)
		}
		if status, ok := errors.AsType[*StatusError](err); !ok || status.Status != 429 || !errors.Is(err, why) {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		m, r := mailTo(t, MailOptions{}, answer{hangs: true})
		if err := m.Health(ctx); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "after") || len(r.got) != 1 {
			t.Errorf("%d requests: %v", len(r.got), err)
		}
	})
}

// watched is a body that says when it was read to its end and closed.
type watched struct {
	*bytes.Reader
	began  time.Time
	closed time.Duration
	left   int
}

func (w *watched) Close() error {
	w.closed, w.left = time.Since(w.began), w.Len()
	return nil
}

// The body of a refusal is drained and closed before the wait, whatever its size
// is, but no more of it is read than an answer of ours could have.
func TestRetryDrains(t *testing.T) {
	for size, left := range map[int]int{0: 0, 100: 0, maxFault + 1: 0, maxFault + maxDrained: 0, 10 << 20: 10<<20 - maxFault - 1 - maxDrained} {
		synctest.Test(t, func(t *testing.T) {
			body := &watched{Reader: bytes.NewReader(make([]byte, size)), began: time.Now(), closed: -1}
			m, r := mailTo(t, MailOptions{}, answer{status: 503, body: body}, answer{status: 200})
			if err := m.Health(t.Context()); err != nil {
				t.Fatal(err)
			}
			if body.closed != 0 || body.left != left || len(r.got) != 2 {
				t.Errorf("of %d bytes %d were left when it was closed, after %v", size, body.left, body.closed)
			}
		})
	}
}

// The same Idempotency-Key and the same bytes go with every attempt of a call,
// another key with the next call, and the caller's where it has one.
func TestRetryIsTheSameRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, call := range []struct {
			name string
			do   func(*Mail) error
		}{
			{"POST /messages", func(m *Mail) error { _, err := m.Send(t.Context(), Letter{Body: []byte("hello")}); return err }},
			{"POST /acks", func(m *Mail) error { return m.Ack(t.Context(), [32]byte{1}) }},
			{"PUT /identities", func(m *Mail) error { return m.Publish(t.Context(), []byte("bundle")) }},
			{"PUT /push", func(m *Mail) error { _, err := m.SetPush(t.Context(), "https://push.example.org/up"); return err }},
			{"DELETE /push", func(m *Mail) error { return m.ClearPush(t.Context()) }},
		} {
			m, r := mailTo(t, MailOptions{}, answer{status: 500}, answer{err: io.ErrUnexpectedEOF}, asks(429, "1"), answer{status: 200})
			if err := call.do(m); err != nil {
				t.Fatal(call.name, err)
			}
			if err := call.do(m); err != nil {
				t.Fatal(call.name, err)
			}
			key := func(i int) string { return r.got[i].header.Get("Idempotency-Key") }
			for i := 1; i < 4; i++ {
				if r.got[i].body != r.got[0].body || r.got[i].body == "" || key(i) != key(0) || key(i) == "" {
					t.Errorf("%s: attempt %d is %q under %q, the first was %q under %q", call.name, i, r.got[i].body, key(i), r.got[0].body, key(0))
				}
			}
			if len(r.got) != 5 || key(4) == key(0) || len(key(4)) < 16 {
				t.Errorf("%s: the next call's key is %q after %q", call.name, key(4), key(0))
			}
		}
		m, r := mailTo(t, MailOptions{}, answer{status: 500}, answer{status: 202})
		if _, err := m.Send(t.Context(), Letter{IdempotencyKey: "mine"}); err != nil {
			t.Fatal(err)
		}
		for _, got := range r.got {
			if got.header.Get("Idempotency-Key") != "mine" {
				t.Error(fmt.Sprint(got.header))
			}
		}
	})
}
