package api

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/push"
	"relayedge/relaycore/wire"
)

// wakes has the desk wake clients, none of whose services has a public address.
func (d *desk) wakes(t *testing.T, budget admission.Windows) *push.Waker {
	t.Helper()
	cfg := push.DefaultConfig()
	cfg.Enabled, cfg.AllowedHosts = true, []string{"*.example.org", "localhost:1"}
	w := push.New(cfg, push.Options{Budget: budget, Keys: d.keys})
	t.Cleanup(w.Close)
	d.push = w
	return w
}

// about is a request about alice's endpoint, for which she has signed text.
func about(method, target string, f fields, text []byte) call {
	c := post(target, f.with("signature", ed25519.Sign(alice, text)))
	c.method = method
	return c
}

func leaving(endpoint, at string) call {
	return about("PUT", "/push", fields{"identity": idOf(alice).String(), "endpoint": endpoint, "sent_at": at}, wire.PushText(idOf(alice), endpoint, at))
}

func taking(at string) call {
	return about("DELETE", "/push", fields{"identity": idOf(alice).String(), "sent_at": at}, wire.PushOffText(idOf(alice), at))
}

func trying(at string) call {
	return about("POST", "/push/test", fields{"identity": idOf(alice).String(), "sent_at": at}, wire.PushTestText(idOf(alice), at))
}

// noBudgets is a store that is away, under a policy that refuses then.
type noBudgets struct{}

func (noBudgets) Take(context.Context, admission.Key, time.Time) admission.Decision {
	return admission.Decision{Unavailable: true, RetryAfter: 1500 * time.Millisecond}
}

// An endpoint is left, tried, and taken back, each under a signature of its own,
// and each is charged.
func TestEndpoint(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		w := d.wakes(t, admission.NewFixedWindows(-1, push.BudgetWindow))
		const endpoint = "https://push.example.org/up?a=<&>"
		got := decode[wire.PushRegistration](t, d.want(d.do(leaving(endpoint, moment())), 200, ""))
		if len(got.Registration) != 32 || !got.ExpiresAt.Equal(time.Now().Add(30*24*time.Hour)) {
			t.Errorf("%+v", got)
		}
		if c := w.Stats(); c.Registrations != 1 || d.charged(alice) != 1 {
			t.Errorf("%+v, charged %d", c, d.charged(alice))
		}
		// spec/002: the same code and payload as the request limit's, with the budget's own numbers.
		time.Sleep(time.Second / 2)
		c := trying(moment())
		c.from.RequestID = "7-1"
		answer := d.do(c)
		want := fmt.Sprintf(`{"error":{"code":"rate_limit_exceeded","message":"The push budget of this registration is spent.","requestId":"7-1","rateLimit":{"limit":-1,"remaining":0,"resetAt":%d}}}`,
			time.Now().Add(time.Hour+time.Second/2).Unix())
		if answer.Code != 429 || answer.Body.String() != want || answer.Header().Get("Retry-After") != "3600" {
			t.Errorf("%d %v %s, not %s", answer.Code, answer.Header(), answer.Body, want)
		}
		for range 2 {
			if w := d.want(d.do(taking(moment())), 200, ""); w.Body.String() != "{}\n" {
				t.Errorf("%s", w.Body)
			}
		}
		d.want(d.do(trying(moment())), 404, NoRegistration)
		if c := w.Stats(); c.Registrations != 0 || d.charged(alice) != 5 || d.unproven(client(1)) != 0 {
			t.Errorf("%+v, charged %d", c, d.charged(alice))
		}
	})
}

// A signature for one of them is none for another, and nothing happens without. It
// costs the host a unit, and the identity nothing.
func TestEndpointSignatures(t *testing.T) {
	const endpoint = "https://push.example.org/up"
	for i, request := range []func(at string) call{
		func(at string) call {
			c := taking(at)
			c.method = "PUT"
			c.body = strings.Replace(c.body, "{", `{"endpoint":"`+endpoint+`",`, 1)
			return c
		},
		func(at string) call {
			c := leaving(endpoint, at)
			c.body = strings.Replace(c.body, "/up", "/upx", 1)
			return c
		},
		func(at string) call {
			c := leaving(endpoint, at)
			c.body = strings.Replace(c.body, at, at[:19]+".0Z", 1)
			return c
		},
		func(at string) call { c := trying(at); c.method, c.target = "DELETE", "/push"; return c },
		func(at string) call { c := taking(at); c.method, c.target = "POST", "/push/test"; return c },
	} {
		bubble(t, nil, func(t *testing.T, d *desk) {
			w := d.wakes(t, admission.NewFixedWindows(10, push.BudgetWindow))
			d.want(d.do(request(moment())), 401, BadSignature)
			if c := w.Stats(); c.Registrations != 0 || d.charged(alice) != 0 || d.unproven(client(1)) != 1 {
				t.Errorf("%d: %+v, charged %d", i, c, d.charged(alice))
			}
		})
	}
}

// These requests are read as all others are: names with their case, once each, one
// way to write a value; the limits before every other fault, whose refusal costs nothing.
func TestEndpointFaults(t *testing.T) {
	good := func() call { return leaving("https://push.example.org/", moment()) }
	replaced := func(old, with string) func() call {
		return func() call { c := good(); c.body = strings.Replace(c.body, old, with, 1); return c }
	}
	headed := func(name, value string) func() call {
		return func() call { c := good(); c.header.Set(name, value); return c }
	}
	for _, row := range []struct {
		name   string
		call   func() call
		status int
		word   Word
		early  bool // judged before the identity is known
	}{
		{"another content type", headed("Content-Type", "text/plain"), 415, MediaType, true},
		{"compressed", headed("Content-Encoding", "gzip"), 415, MediaType, true},
		{"long", func() call { c := good(); c.body += strings.Repeat(" ", MaxOtherBody); return c }, 413, TooLarge, true},
		{"nothing", func() call { c := good(); c.body = ""; return c }, 400, BadRequest, true},
		{"no identity", replaced(`"identity"`, `"x"`), 400, BadRequest, true},
		{"identity in another case", replaced(`"identity"`, `"Identity"`), 400, BadRequest, true},
		{"identity in upper case", func() call {
			c := good()
			c.body = strings.Replace(c.body, idOf(alice).String(), strings.ToUpper(idOf(alice).String()), 1)
			return c
		}, 400, BadRequest, true},
		{"two endpoints", func() call { c := good(); c.body = c.body[:len(c.body)-1] + `,"endpoint":""}`; return c }, 400, BadRequest, false},
		{"something behind", func() call { c := good(); c.body += "{}"; return c }, 400, BadRequest, false},
		{"no endpoint", replaced(`"endpoint"`, `"x"`), 400, BadRequest, false},
		{"no sent_at", replaced(`"sent_at"`, `"x"`), 400, BadRequest, false},
		{"sent_at is a date", func() call { c := good(); c.body = strings.Replace(c.body, moment(), "2000-01-01", 1); return c }, 400, BadRequest, false},
		{"no signature", replaced(`"signature"`, `"x"`), 400, BadRequest, false},
		{"a signature on two lines", replaced(`"signature":"`, `"signature":"\n`), 400, BadRequest, false},
		{"stale", func() call {
			return leaving("https://push.example.org/", time.Now().Add(-Freshness-time.Second).UTC().Format(time.RFC3339))
		}, 401, Stale, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, d *desk) {
				d.wakes(t, admission.NewFixedWindows(10, push.BudgetWindow))
				d.want(d.do(row.call()), row.status, row.word)
				d.unspent()
			})
			// Where the limit is spent, it is what is told, once the identity is known.
			bubble(t, func(c *admission.MessageLimitsConfig) { c.Sender.Minute = -1 }, func(t *testing.T, d *desk) {
				d.wakes(t, admission.NewFixedWindows(10, push.BudgetWindow))
				status, word := 429, RateLimited
				if row.early {
					status, word = row.status, row.word
				}
				d.want(d.do(row.call()), status, word)
			})
		})
	}
}

// What the waker does not take is told without the endpoint, which is a secret.
func TestEndpointNotTaken(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		w := d.wakes(t, noBudgets{})
		for _, endpoint := range []string{"https://push.example.net/s3cret", "https://10.0.0.1/s3cret", "http://push.example.org/s3cret", ""} {
			got := d.want(d.do(leaving(endpoint, moment())), 400, BadRequest)
			if strings.Contains(got.Body.String(), "s3cret") || strings.Contains(got.Body.String(), "example") {
				t.Errorf("%s", got.Body)
			}
		}
		d.want(d.do(leaving("https://push.example.org/", moment())), 200, "")
		d.want(d.do(leaving("https://push.example.org/", time.Now().Add(-time.Minute).UTC().Format(time.RFC3339))), 409, Conflict)
		// A fault of ours is not the client's: 503, and when to come again.
		if got := d.want(d.do(trying(moment())), 503, Unavailable); got.Header().Get("Retry-After") != "2" {
			t.Errorf("%v", got.Header())
		}
		w.Close()
		d.want(d.do(trying(moment())), 503, Unavailable)
	})
	bubble(t, nil, func(t *testing.T, d *desk) {
		w := d.wakes(t, noBudgets{})
		w.SetConfig(push.DefaultConfig()) // which wakes nobody
		d.want(d.do(leaving("https://push.example.org/", moment())), 404, NoRegistration)
		d.push = nil
		if got := d.do(leaving("https://push.example.org/", moment())); got.Code != http.StatusNotFound || got.Body.Len() != 0 {
			t.Errorf("%d %s", got.Code, got.Body)
		}
	})
}
