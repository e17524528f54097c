package api

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// nonce asks for a challenge.
func (d *desk) nonce(who ed25519.PrivateKey) string {
	d.t.Helper()
	w := d.want(d.do(call{method: "GET", target: "/auth/challenge?identity=" + idOf(who).String(), from: client(1)}), 200, "")
	return decode[struct{ Nonce string }](d.t, w).Nonce
}

// fetching is a good GET /messages, with parameters of its own.
func (d *desk) fetching(who ed25519.PrivateKey, more url.Values) call {
	d.t.Helper()
	nonce := d.nonce(who)
	p := url.Values{"identity": {idOf(who).String()}, "nonce": {nonce}, "signature": {b64(ed25519.Sign(who, wire.MailboxText(idOf(who), nonce)))}}
	for name, values := range more {
		p[name] = values
		if values == nil {
			delete(p, name)
		}
	}
	return call{method: "GET", target: "/messages?" + p.Encode(), from: client(1)}
}

type mail struct {
	Messages []struct {
		ID, Sender string
		Body       []byte
	}
	Next *string
}

func TestFetch(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		w := d.want(d.do(d.fetching(bob, nil)), 200, "")
		if w.Body.String() != "{\"messages\":[]}\n" {
			t.Errorf("%s", w.Body)
		}
		for i, body := range []string{"first", "", "third"} {
			d.want(d.do(post("/messages", letter(alice, messageID(i), body))), 202, "")
		}
		for range 2 { // until they are acknowledged
			got := decode[mail](t, d.want(d.do(d.fetching(bob, nil)), 200, ""))
			if len(got.Messages) != 3 || got.Next != nil {
				t.Fatalf("%+v", got)
			}
			for i, want := range []string{"first", "", "third"} {
				if m := got.Messages[i]; m.ID != messageID(i).String() || m.Sender != idOf(alice).String() || string(m.Body) != want {
					t.Errorf("%+v", m)
				}
			}
		}
		if got := decode[mail](t, d.want(d.do(d.fetching(alice, nil)), 200, "")); len(got.Messages) != 0 {
			t.Errorf("another gets %+v", got)
		}
	})
}

// More than one answer holds comes with the place at which to go on.
func TestFetchPages(t *testing.T) {
	for _, row := range []struct {
		name      string
		messages  int
		size      int
		pages     []int
		sizeLimit bool
	}{
		{"few", 255, 1, []int{255}, false},
		{"as many as there may be", 256, 1, []int{256, 0}, false},
		{"many", 600, 1, []int{256, 256, 88}, false},
		{"long", 40, 60 << 10, []int{18, 18, 4}, true},
	} {
		bubble(t, func(c *admission.MessageLimitsConfig) { *c = admission.MessageLimitsConfig{} }, func(t *testing.T, d *desk) {
			for i := range row.messages {
				d.want(d.do(post("/messages", letter(alice, messageID(i), strings.Repeat("x", row.size)))), 202, "")
			}
			d.t = t
			place, n := url.Values{}, 0
			for i, want := range row.pages {
				w := d.do(d.fetching(bob, place))
				got := decode[mail](t, d.want(w, 200, ""))
				if len(got.Messages) != want || (got.Next == nil) != (i == len(row.pages)-1) {
					t.Fatalf("%s: page %d has %d messages, next %v", row.name, i, len(got.Messages), got.Next)
				}
				for _, m := range got.Messages {
					if m.ID != messageID(n).String() {
						t.Fatalf("%s: %s in place of %d", row.name, m.ID, n)
					}
					n++
				}
				if got.Next != nil {
					place.Set("after", *got.Next)
				}
			}
			if n != row.messages {
				t.Errorf("%s: %d messages came", row.name, n)
			}
		})
	}
	// A first message of any length comes.
	bubble(t, nil, func(t *testing.T, d *desk) {
		m := sized(wire.MaxSend)
		if err := d.shelf.store.Put(m, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := decode[mail](t, d.want(d.do(d.fetching(bob, nil)), 200, "")); len(got.Messages) != 1 || len(got.Messages[0].Body) != len(m.Payload) {
			t.Errorf("%d messages", len(got.Messages))
		}
	})
}

func TestFetchFaults(t *testing.T) {
	without := func(name string) url.Values { return url.Values{name: nil} }
	for _, row := range []struct {
		name   string
		more   url.Values
		status int
		word   Word
		early  bool
	}{
		{"no identity", without("identity"), 400, BadRequest, true},
		{"two identities", url.Values{"identity": {idOf(bob).String(), idOf(bob).String()}}, 400, BadRequest, true},
		{"a short identity", url.Values{"identity": {"00"}}, 400, BadRequest, true},
		{"no nonce", without("nonce"), 400, BadRequest, false},
		{"no signature", without("signature"), 400, BadRequest, false},
		{"two signatures", url.Values{"signature": {"", ""}}, 400, BadRequest, false},
		{"a signature in hex", url.Values{"signature": {strings.Repeat("0", 128)}}, 400, BadRequest, false},
		{"a place that is none", url.Values{"after": {"-1"}}, 400, BadRequest, false},
		{"two places", url.Values{"after": {"1", "2"}}, 400, BadRequest, false},
		{"an empty nonce", url.Values{"nonce": {""}}, 401, BadNonce, false},
		{"a made up nonce", url.Values{"nonce": {strings.Repeat("0", 64)}}, 401, BadNonce, false},
		{"a zero signature", url.Values{"signature": {b64(make([]byte, 64))}}, 401, BadSignature, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, d *desk) {
				d.want(d.do(d.fetching(bob, row.more)), row.status, row.word)
				owes := int64(0)
				if row.word == BadSignature {
					owes = 1
				}
				if len(d.ledger.charged) != 0 || d.unproven(client(1)) != owes {
					t.Errorf("charged %v, %d units of the host", d.ledger.charged, d.unproven(client(1)))
				}
			})
			bubble(t, func(c *admission.MessageLimitsConfig) { c.Sender.Minute = -1 }, func(t *testing.T, d *desk) {
				status, word := 429, RateLimited
				if row.early {
					status, word = row.status, row.word
				}
				d.want(d.do(d.fetching(bob, row.more)), status, word)
			})
		})
	}
	bubble(t, nil, func(t *testing.T, d *desk) {
		d.want(d.do(call{method: "GET", target: "/messages?identity=%zz", from: client(1)}), 400, BadRequest)
	})
}

// A challenge is for one identity, at the relay that gave it, for a minute.
func TestChallenge(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		w := d.want(d.do(call{method: "GET", target: "/auth/challenge?x=1&identity=" + idOf(bob).String()}), 200, "")
		if !strings.HasSuffix(w.Body.String(), ",\"expires_at\":\"2000-01-01T00:01:00Z\"}\n") {
			t.Errorf("%s", w.Body)
		}
		one, two := d.nonce(bob), d.nonce(bob)
		if one == two || len(one) != 64 {
			t.Errorf("%s, %s", one, two)
		}
		good := d.fetching(bob, nil)
		other := d.fetching(bob, url.Values{"nonce": {d.nonce(alice)}})
		d.want(d.do(other), 401, BadNonce)
		d.want(newDesk(t, nil).do(good), 401, BadNonce)
		for _, i := range []int{0, 16, 32, 63} {
			bent := []byte(one)
			bent[i] ^= 1
			d.want(d.do(d.fetching(bob, url.Values{"nonce": {string(bent)}})), 401, BadNonce)
		}
		time.Sleep(ChallengeLife - time.Millisecond)
		d.want(d.do(good), 200, "")
		time.Sleep(time.Millisecond)
		d.want(d.do(good), 401, BadNonce)
		for _, query := range []string{"", "?identity=", "?identity=00", "?identity=" + strings.ToUpper(idOf(bob).String()), "?identity=%"} {
			d.want(d.do(call{method: "GET", target: "/auth/challenge" + query}), 400, BadRequest)
		}
	})
}

// publishing is a good PUT of a bundle, signed at a time.
func publishing(who ed25519.PrivateKey, bundle, at string) call {
	c := post("/identities/"+idOf(who).String(), fields{
		"bundle": []byte(bundle), "bundle_signature": ed25519.Sign(who, wire.BundleText([]byte(bundle))), "sent_at": at,
		"signature": ed25519.Sign(who, wire.IdentityText(idOf(who), []byte(bundle), at)),
	})
	c.method = "PUT"
	return c
}

func TestIdentities(t *testing.T) {
	target := "/identities/" + idOf(carol).String()
	bubble(t, nil, func(t *testing.T, d *desk) {
		get := call{method: "GET", target: target}
		d.want(d.do(get), 404, Unknown)
		put := publishing(carol, "her bundle", moment())
		for range 2 { // and once more, for an answer that was lost
			if w := d.want(d.do(put), 200, ""); w.Body.String() != fmt.Sprintf("{\"identity\":%q}\n", idOf(carol)) {
				t.Errorf("%s", w.Body)
			}
		}
		got := decode[struct {
			Identity  string
			Bundle    []byte
			Signature []byte `json:"bundle_signature"`
		}](t, d.want(d.do(get), 200, ""))
		if got.Identity != idOf(carol).String() || string(got.Bundle) != "her bundle" || !wire.Signed(idOf(carol), wire.BundleText(got.Bundle), got.Signature) {
			t.Errorf("%+v", got)
		}
		// Longest, empty, and an older one that somebody has kept.
		time.Sleep(time.Second)
		d.want(d.do(publishing(carol, strings.Repeat("x", wire.MaxBundle), moment())), 200, "")
		time.Sleep(time.Second)
		d.want(d.do(publishing(carol, "", moment())), 200, "")
		if w := d.want(d.do(get), 200, ""); !strings.Contains(w.Body.String(), `"bundle":""`) {
			t.Errorf("%s", w.Body)
		}
		charged := d.charged(carol)
		d.want(d.do(put), 409, Conflict)
		if d.charged(carol) != charged {
			t.Error("charged for what was refused")
		}
		d.want(d.do(call{method: "GET", target: "/identities/xyz"}), 400, BadRequest)
	})
	good := func() fields {
		at := moment()
		return fields{"bundle": []byte("b"), "bundle_signature": ed25519.Sign(carol, wire.BundleText([]byte("b"))), "sent_at": at,
			"signature": ed25519.Sign(carol, wire.IdentityText(idOf(carol), []byte("b"), at))}
	}
	for _, row := range []struct {
		name   string
		f      func() fields
		status int
		word   Word
	}{
		{"no bundle", func() fields { return good().without("bundle") }, 400, BadRequest},
		{"no bundle signature", func() fields { return good().without("bundle_signature") }, 400, BadRequest},
		{"no sent_at", func() fields { return good().without("sent_at") }, 400, BadRequest},
		{"no signature", func() fields { return good().without("signature") }, 400, BadRequest},
		{"a long bundle", func() fields { return good().with("bundle", make([]byte, wire.MaxBundle+1)) }, 413, TooLarge},
		{"a bundle signature of another", func() fields { return good().with("bundle_signature", ed25519.Sign(bob, wire.BundleText([]byte("b")))) }, 401, BadSignature},
		{"a signature of another", func() fields {
			return good().with("signature", ed25519.Sign(bob, wire.IdentityText(idOf(carol), []byte("b"), moment())))
		}, 401, BadSignature},
		{"stale", func() fields {
			at := time.Now().Add(-Freshness - time.Second).UTC().Format(time.RFC3339)
			return good().with("sent_at", at).with("signature", ed25519.Sign(carol, wire.IdentityText(idOf(carol), []byte("b"), at)))
		}, 401, Stale},
	} {
		bubble(t, nil, func(t *testing.T, d *desk) {
			d.t = t
			c := post(target, row.f())
			c.method = "PUT"
			d.want(d.do(c), row.status, row.word)
			if len(d.ledger.charged) != 0 || d.shelf.Known(idOf(carol)) {
				t.Errorf("%s: charged, or published", row.name)
			}
		})
		bubble(t, func(c *admission.MessageLimitsConfig) { c.Sender.Minute = -1 }, func(t *testing.T, d *desk) {
			c := post(target, row.f())
			c.method = "PUT"
			d.limited(d.do(c), admission.ScopeSender, admission.Minute, -1)
		})
	}
}

func TestHealth(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		if w := d.want(d.do(call{method: "GET", target: "/health"}), 200, ""); w.Body.String() != "{\"status\":\"ok\"}\n" {
			t.Errorf("%s", w.Body)
		}
		d.shelf.ready = errNotReady
		d.want(d.do(call{method: "GET", target: "/health"}), 503, Unavailable)
	})
}

func TestRoutes(t *testing.T) {
	id := idOf(alice).String()
	for _, row := range []struct {
		method, path string
		want         bool
	}{
		{"POST", "/messages", true}, {"GET", "/messages", true}, {"POST", "/acks", true}, {"GET", "/auth/challenge", true},
		{"GET", "/identities/" + id, true}, {"PUT", "/identities/" + id, true}, {"GET", "/identities/x", true}, {"GET", "/health", true},
		{"HEAD", "/health", true}, {"HEAD", "/identities/" + id, true}, {"HEAD", "/auth/challenge", true},
		{"HEAD", "/messages", false}, {"HEAD", "/acks", false}, {"PUT", "/messages", false}, {"DELETE", "/messages", false}, {"GET", "/acks", false},
		{"POST", "/identities/" + id, false}, {"GET", "/identities/", false}, {"GET", "/identities", false}, {"GET", "/identities/" + id + "/", false},
		{"GET", "/identities/" + id + "/x", false}, {"GET", "/", false}, {"GET", "", false}, {"GET", "/relay", false}, {"GET", "/health/", false},
		{"GET", "//health", false}, {"GET", "/Health", false}, {"get", "/health", false}, {"OPTIONS", "*", false}, {"POST", "/health", false},
	} {
		if got := Serves(row.method, row.path); got != row.want {
			t.Errorf("%s %s: %v", row.method, row.path, got)
		}
	}
	bubble(t, nil, func(t *testing.T, d *desk) {
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/elsewhere", nil))
		if w.Code != 404 || w.Body.Len() > 0 || d.Counts.Requests.Load() != 0 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// One without a client has a host too.
		d.want(d.do(call{method: "HEAD", target: "/health"}), 200, "")
	})
}

// No refusal tells what a client has sent, and every word has a status of its kind.
func TestWords(t *testing.T) {
	for word, status := range statuses {
		if a := refuse(word, "x"); a.status != status || !bytes.Contains(a.body, []byte(word)) {
			t.Errorf("%s: %d", word, a.status)
		}
	}
}
