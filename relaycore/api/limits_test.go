package api

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/push"
	"relayedge/relaycore/wire"
)

// told is the body of a 429.
type told struct {
	Error   Word
	Message string
	Scope   admission.Scope
	Window  admission.Window
	Limit   int64
	ResetAt string `json:"reset_at"`
}

// limited checks a 429, and that header and body name one moment; it returns how long to wait.
func (d *desk) limited(w *httptest.ResponseRecorder, scope admission.Scope, window admission.Window, limit int64) time.Duration {
	d.t.Helper()
	got := decode[told](d.t, d.want(w, 429, RateLimited))
	if got.Scope != scope || got.Window != window || got.Limit != limit || got.Message == "" {
		d.t.Fatalf("%s; want %s, %s, %d", w.Body, scope, window, limit)
	}
	seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
	reset, errReset := time.Parse("2006-01-02T15:04:05Z", got.ResetAt)
	lengths := map[admission.Window]int{admission.Minute: 60, admission.Hour: 3600, admission.Day: 86400}
	if err != nil || errReset != nil || seconds < 1 || seconds > lengths[window] {
		d.t.Fatalf("Retry-After %q, %s", w.Header().Get("Retry-After"), w.Body)
	}
	if apart := reset.Sub(time.Now().Add(time.Duration(seconds) * time.Second)); apart < -time.Second || apart > time.Second {
		d.t.Fatalf("Retry-After %d and %s are %v apart", seconds, got.ResetAt, apart)
	}
	return time.Duration(seconds) * time.Second
}

// sends sends a message of its own id and returns the answer.
func (d *desk) sends(from ed25519.PrivateKey, n int) *httptest.ResponseRecorder {
	return d.do(post("/messages", letter(from, messageID(n), "")))
}

// spec/000: 20 messages a minute; the body of the 429 is as given there.
func TestSenderLimit(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		for i := range 20 {
			d.want(d.sends(alice, i), 202, "")
		}
		w := d.sends(alice, 20)
		if want := `{"error":"rate_limit_exceeded","message":"this sender's limit for a minute is reached","scope":"sender","window":"minute","limit":20,"reset_at":"2000-01-01T00:00:03Z"}` + "\n"; w.Body.String() != want {
			t.Errorf("%s", w.Body)
		}
		d.limited(w, admission.ScopeSender, admission.Minute, 20)
		// Others have their own, and what is refused has spent nothing.
		d.want(d.sends(bob, 1), 202, "")
		for range 100 {
			d.limited(d.sends(alice, 20), admission.ScopeSender, admission.Minute, 20)
		}
		time.Sleep(3 * time.Second)
		d.want(d.sends(alice, 20), 202, "")
		if d.charged(alice) != 21 || d.unproven(client(1)) != 0 || d.Counts.Limited.Load() != 101 {
			t.Errorf("charged %d, %d units of the host, %d limited", d.charged(alice), d.unproven(client(1)), d.Counts.Limited.Load())
		}
	})
}

// Whatever a sender has signed draws on one allowance.
func TestOneAllowance(t *testing.T) {
	signed := []struct {
		name string
		call func(d *desk, n int) call
	}{
		{"POST /messages", func(_ *desk, n int) call { return post("/messages", letter(alice, messageID(n), "")) }},
		{"POST /acks", func(*desk, int) call {
			return post("/acks", fields{"sender": idOf(alice).String(), "ids": []string{messageID(1).String()}, "sent_at": moment(),
				"signature": ed25519.Sign(alice, wire.AcksText(idOf(alice), []wire.MessageID{messageID(1)}, moment()))})
		}},
		{"GET /messages", func(d *desk, _ int) call { return d.fetching(alice, nil) }},
		{"PUT /identities", func(*desk, int) call { return publishing(alice, "bundle", moment()) }},
		{"DELETE /push", func(*desk, int) call { return taking(moment()) }},
	}
	for _, row := range signed {
		bubble(t, nil, func(t *testing.T, d *desk) {
			d.wakes(t, admission.NewFixedWindows(10, push.BudgetWindow))
			for i := range 20 {
				c := signed[i%len(signed)]
				if w := d.do(c.call(d, i)); w.Code/100 != 2 {
					t.Fatalf("%s: %d %s", c.name, w.Code, w.Body)
				}
			}
			d.t = t
			d.limited(d.do(row.call(d, 99)), admission.ScopeSender, admission.Minute, 20)
			if d.charged(alice) != 20 || d.unproven(client(1)) != 0 {
				t.Errorf("%s: charged %d", row.name, d.charged(alice))
			}
		})
	}
}

// spec/000: any bucket that is exceeded refuses; 0 is off, -1 refuses all.
func TestScopes(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*admission.MessageLimitsConfig)
		admits int
		scope  admission.Scope
		window admission.Window
		limit  int64
	}{
		{"sender, hour", func(c *admission.MessageLimitsConfig) { c.Sender.Minute, c.Sender.Hour = 0, 5 }, 5, admission.ScopeSender, admission.Hour, 5},
		{"sender, day", func(c *admission.MessageLimitsConfig) { c.Sender.Hour, c.Sender.Day = 0, 6 }, 6, admission.ScopeSender, admission.Day, 6},
		{"global, minute", func(c *admission.MessageLimitsConfig) { c.Global.Minute = 7 }, 7, admission.ScopeGlobal, admission.Minute, 7},
		{"global, hour", func(c *admission.MessageLimitsConfig) { c.Global.Hour = 8 }, 8, admission.ScopeGlobal, admission.Hour, 8},
		{"global, day", func(c *admission.MessageLimitsConfig) { c.Global.Day = 9 }, 9, admission.ScopeGlobal, admission.Day, 9},
		{"sender, closed", func(c *admission.MessageLimitsConfig) { c.Sender.Hour = -1 }, 0, admission.ScopeSender, admission.Hour, -1},
		{"global, closed", func(c *admission.MessageLimitsConfig) { c.Global.Day = -1 }, 0, admission.ScopeGlobal, admission.Day, -1},
		{"both sender windows, of which the hour resets last", func(c *admission.MessageLimitsConfig) { c.Sender.Minute, c.Sender.Hour = 4, 4 }, 4, admission.ScopeSender, admission.Hour, 4},
		{"host, closed", func(c *admission.MessageLimitsConfig) { c.UnprovenPerHostMinute = -1 }, 0, admission.ScopeHost, admission.Minute, -1},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, row.change, func(t *testing.T, d *desk) {
				for i := range row.admits {
					d.want(d.sends(alice, i), 202, "")
				}
				wait := d.limited(d.sends(alice, 99), row.scope, row.window, row.limit)
				// -1: reset_at is one window away.
				if whole := map[admission.Window]time.Duration{admission.Minute: time.Minute, admission.Hour: time.Hour, admission.Day: 24 * time.Hour}[row.window]; row.limit == -1 && wait != whole {
					t.Errorf("to be tried again after %v", wait)
				}
				if d.charged(alice) != row.admits {
					t.Errorf("charged %d", d.charged(alice))
				}
			})
		})
	}
	bubble(t, func(c *admission.MessageLimitsConfig) { *c = admission.MessageLimitsConfig{} }, func(t *testing.T, d *desk) {
		for i := range 1100 {
			d.want(d.sends(alice, i), 202, "")
			d.shelf.clear()
		}
		for range 100 {
			d.want(d.do(forged(alice, client(1))), 401, BadSignature)
		}
	})
}

// forged is a message in somebody's name with a signature that is not theirs.
func forged(in ed25519.PrivateKey, from Client) call {
	c := post("/messages", letter(in, messageID(1), "").with("signature", make([]byte, 64)))
	c.from = from
	return c
}

// Unproven senders are throttled by host, before their signatures are looked at.
func TestUnproven(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		for i := range 60 {
			d.want(d.do(forged(keyOf(byte(i)), client(1))), 401, BadSignature)
		}
		for i := range 5 {
			d.limited(d.do(forged(keyOf(byte(i)), client(1))), admission.ScopeHost, admission.Minute, 60)
		}
		if d.Counts.Unproven.Load() != 60 {
			t.Errorf("%d signatures were looked at", d.Counts.Unproven.Load())
		}
		// Whoever shares the address waits too, whatever it has signed; others do not.
		wait := d.limited(d.sends(alice, 1), admission.ScopeHost, admission.Minute, 60)
		other := post("/messages", letter(bob, messageID(2), ""))
		other.from = client(2)
		d.want(d.do(other), 202, "")
		time.Sleep(wait)
		d.want(d.sends(alice, 1), 202, "")
	})
}

// However often a sender's name is claimed, its allowance stays whole.
func TestForgedSender(t *testing.T) {
	times := 1_000_000
	if raceEnabled || testing.Short() {
		times = 20_000
	}
	bubble(t, nil, func(t *testing.T, d *desk) {
		call := forged(alice, client(1))
		proved, throttled := 0, 0
		for i := range times {
			call.from = client(1 + i%10)
			switch status := d.status(call); status {
			case 401:
				proved++
			case 429:
				throttled++
			default:
				t.Fatalf("%d", status)
			}
		}
		d.limited(d.do(call), admission.ScopeHost, admission.Minute, 60)
		if proved != 600 || throttled != times-600 {
			t.Errorf("%d signatures were looked at, of 10 hosts with 60 each", proved)
		}
		if len(d.ledger.charged) != 0 {
			t.Fatal("somebody was charged")
		}
		for i := range 20 {
			c := post("/messages", letter(alice, messageID(i), ""))
			c.from = client(100)
			d.want(d.do(c), 202, "")
		}
		c := post("/messages", letter(alice, messageID(20), ""))
		c.from = client(100)
		d.limited(d.do(c), admission.ScopeSender, admission.Minute, 20)
	})
}

// Of simultaneous messages of one sender just the limit are accepted.
func TestSimultaneous(t *testing.T) {
	bubble(t, func(c *admission.MessageLimitsConfig) { c.UnprovenPerHostMinute = 0 }, func(t *testing.T, d *desk) {
		const n = 200
		codes := make(chan int, n)
		for i := range n {
			c := post("/messages", letter(alice, messageID(i), ""))
			go func() { codes <- d.do(c).Code }()
		}
		got := map[int]int{}
		for range n {
			got[<-codes]++
		}
		if got[202] != 20 || got[429] != n-20 || d.charged(alice) != 20 || len(d.shelf.got) != 20 {
			t.Errorf("%v, charged %d, %d messages", got, d.charged(alice), len(d.shelf.got))
		}
	})
}

// Who waits as long as it was told is let in, whatever window was full and in
// whatever phase.
func TestRetryAfterIsEnough(t *testing.T) {
	rows := []func(*admission.MessageLimitsConfig){
		nil,
		func(c *admission.MessageLimitsConfig) { c.Sender.Minute, c.Sender.Hour = 0, 7 },
		func(c *admission.MessageLimitsConfig) { c.Sender.Minute, c.Sender.Day = 0, 7 },
		func(c *admission.MessageLimitsConfig) { c.Global.Minute = 7 },
		func(c *admission.MessageLimitsConfig) { c.Global.Hour = 7 },
	}
	for i, change := range rows {
		bubble(t, change, func(t *testing.T, d *desk) {
			n := 0
			for range 100 {
				for {
					time.Sleep(time.Duration(rand.Int64N(int64(300 * time.Millisecond))))
					n++
					w := d.sends(alice, n)
					if w.Code == 202 {
						continue
					}
					seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
					if err != nil || seconds < 1 || seconds > 86400 {
						t.Fatalf("row %d: Retry-After %q", i, w.Header().Get("Retry-After"))
					}
					time.Sleep(time.Duration(seconds) * time.Second)
					if w = d.sends(alice, n); w.Code != 202 {
						t.Fatalf("row %d: refused after %d s: %s", i, seconds, w.Body)
					}
					d.shelf.clear()
					break
				}
			}
		})
	}
}

// spec/000: public reads are subject to the global limits alone; they have a share
// of those, so that they cannot silence messages.
func TestReads(t *testing.T) {
	reads := []string{"/health", "/identities/" + idOf(alice).String(), "/auth/challenge?identity=" + idOf(alice).String()}
	get := func(target string, n int) call { return call{method: "GET", target: target, from: client(n)} }
	bubble(t, func(c *admission.MessageLimitsConfig) { c.Sender.Minute = -1; c.UnprovenPerHostMinute = -1 }, func(t *testing.T, d *desk) {
		for _, target := range reads {
			d.want(d.do(get(target, 1)), 200, "")
		}
		if d.ledger.reads != len(reads) || len(d.ledger.charged) != 0 {
			t.Errorf("%d reads, charged %v", d.ledger.reads, d.ledger.charged)
		}
	})
	bubble(t, func(c *admission.MessageLimitsConfig) { c.Global.Hour = -1 }, func(t *testing.T, d *desk) {
		for _, target := range append(reads, "/identities/"+idOf(carol).String(), "/auth/challenge") {
			d.limited(d.do(get(target, 1)), admission.ScopeGlobal, admission.Hour, -1)
		}
	})
	bubble(t, func(c *admission.MessageLimitsConfig) { c.Global.Minute = 160 }, func(t *testing.T, d *desk) {
		for i := range 10 { // a sixteenth
			d.want(d.do(get(reads[i%len(reads)], 1)), 200, "")
		}
		d.limited(d.do(get("/health", 1)), admission.ScopeHost, admission.Minute, 10)
		for i := range 70 { // half of all
			d.want(d.do(get("/health", 2+i)), 200, "")
		}
		d.limited(d.do(get("/health", 99)), admission.ScopeGlobal, admission.Minute, 80)
		for i := range 20 {
			d.want(d.sends(alice, i), 202, "")
		}
	})
}

// away is a store that refuses because it cannot decide.
type away struct{ admission.Messages }

func (away) Peek(context.Context, admission.Key, time.Time) admission.Decision {
	return admission.Decision{Unavailable: true, RetryAfter: 1500 * time.Millisecond}
}

func (away) Read(ctx context.Context, k admission.Key, now time.Time) admission.Decision {
	return away{}.Peek(ctx, k, now)
}

// A store that is away is our fault, not the sender's.
func TestLimitsUnavailable(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		d.messages = away{}
		for _, c := range []call{post("/messages", letter(alice, messageID(1), "")), {method: "GET", target: "/health"}} {
			if w := d.want(d.do(c), 503, Unavailable); w.Header().Get("Retry-After") != "2" {
				t.Errorf("Retry-After %s", w.Header().Get("Retry-After"))
			}
		}
		if d.Counts.Limited.Load() != 0 {
			t.Error("counted as limited")
		}
	})
}

// The sender is judged before what stands behind its name has come.
func TestNoFurtherThanTheSender(t *testing.T) {
	bubble(t, func(c *admission.MessageLimitsConfig) { c.Sender.Minute = -1 }, func(t *testing.T, d *desk) {
		c := post("/messages", raw(""))
		r := httptest.NewRequest(c.method, c.target, &never{t: t, b: strings.NewReader(`{"id":[{"sender":"x"}],"sender":"` + idOf(alice).String() + `","body":"`)})
		r.Header = c.header
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		synctest.Wait()
		d.limited(w, admission.ScopeSender, admission.Minute, -1)
	})
}

// never is a body that must not be read beyond its beginning.
type never struct {
	t *testing.T
	b *strings.Reader
}

func (n *never) Read(p []byte) (int, error) {
	if n.b.Len() == 0 {
		n.t.Error("read on")
		return 0, fmt.Errorf("read on")
	}
	return n.b.Read(p)
}

// FuzzObject reads bytes as the object of a message, in pieces of a size: the
// reader agrees with encoding/json on what an object is, and gives the sender of
// every object that has a good one.
func FuzzObject(f *testing.F) {
	f.Add([]byte(letter(alice, messageID(1), "hello").String()), 7)
	for _, s := range []string{"", "{", "{}", `{"sender":"`, `{"sender":1}`, `{"a":[[[]]],"sender":"0000000000000000000000000000000000000000000000000000000000000000"}`, `{"sender":"","sender":""}`, `{"\u0073ender":"x"} {}`, "[1]", "null", "{\"a\":\xff}"} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, body []byte, step int) {
		if len(body) > 1<<16 {
			return
		}
		r := httptest.NewRequest("POST", "/messages", &pieces{body, max(1, step)})
		r.Header.Set("Content-Type", "application/json")
		q := &request{Request: r, body: httptest.NewRecorder()}
		o, wrong := q.open(MaxMessageBody, "id", "sender")
		if wrong == nil {
			wrong = o.until("sender")
		}
		read := wrong == nil
		if read {
			wrong = o.until("")
		}
		var all map[string]json.RawMessage
		valid := json.Unmarshal(body, &all) == nil && all != nil
		if wrong == nil && !valid {
			t.Fatalf("%q was taken", body)
		}
		if wrong != nil && wrong.status != 400 {
			t.Fatalf("%q: status %d", body, wrong.status)
		}
		if !valid {
			return
		}
		if _, has := all["sender"]; has != read {
			t.Fatalf("%q: the sender was read: %v", body, read)
		}
		if wrong == nil && string(all["sender"]) != string(o.fields["sender"]) {
			t.Fatalf("%q: the sender is %q", body, o.fields["sender"])
		}
	})
}

// pieces is a body that comes in pieces.
type pieces struct {
	b    []byte
	step int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.step)], p.b)
	p.b = p.b[n:]
	return n, nil
}
