package client

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/relaycore/wire"
)

var (
	self   = wire.Identity(testKey.Public().(ed25519.PublicKey))
	friend = wire.Identity(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, 32)).Public().(ed25519.PublicKey))
)

func says(body string) answer { return answer{status: 200, body: strings.NewReader(body)} }

// fields reads the body of a request.
func (s sent) fields(t *testing.T) (f struct {
	ID, Sender, Recipient, Identity, Endpoint, Body, Bundle, Signature string
	IDs                                                                []string
	SentAt                                                             string `json:"sent_at"`
	BundleSignature                                                    string `json:"bundle_signature"`
}) {
	t.Helper()
	if got := s.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("the body is %q", got)
	}
	d := json.NewDecoder(strings.NewReader(s.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		t.Fatalf("%s: %v", s.body, err)
	}
	if at, err := time.Parse(time.RFC3339Nano, f.SentAt); err != nil || !strings.HasSuffix(f.SentAt, "Z") || time.Since(at).Abs() > time.Minute {
		t.Errorf("sent_at is %q", f.SentAt)
	}
	return f
}

func signedBy(t *testing.T, id wire.Identity, text []byte, signature string) {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || !wire.Signed(id, text, b) {
		t.Errorf("the signature %s does not hold", signature)
	}
}

// Each call is the request that docs/protocol.md has, signed as it says.
func TestMailRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := mailTo(t, MailOptions{ServiceKey: "service"}, says(`{"status":"queued"}`), says(`{}`))
		receipt, err := m.Send(t.Context(), Letter{Recipient: friend, Body: []byte("hello")})
		if err != nil || receipt.Status != "queued" {
			t.Fatal(receipt, err)
		}
		f := r.got[0].fields(t)
		if r.got[0].method+r.got[0].path != "POST/messages" || f.ID != receipt.ID.String() || f.Sender != self.String() || f.Recipient != friend.String() || f.Body != "aGVsbG8=" {
			t.Errorf("%+v", r.got[0])
		}
		if strings.Index(r.got[0].body, `"sender"`) > strings.Index(r.got[0].body, `"body"`) {
			t.Error("the relay reads the body before the sender")
		}
		signedBy(t, self, wire.MessageText(receipt.ID, self, friend, f.SentAt, []byte("hello")), f.Signature)
		if got := r.got[0].header.Get("Authorization"); got != "Bearer service" {
			t.Errorf("the credential is %q", got)
		}
		if receipt.ID == (wire.MessageID{}) {
			t.Error("the message has no id")
		}
		again, err := m.Send(t.Context(), Letter{ID: receipt.ID, Recipient: friend})
		if f := r.got[1].fields(t); err != nil || again.ID != receipt.ID || f.ID != receipt.ID.String() || f.Body != "" {
			t.Errorf("%+v %v", r.got[1], err)
		}
	})

	m, r := mailTo(t, MailOptions{}, says(`{}`))
	if err := m.Ack(t.Context(), make([]wire.MessageID, wire.MaxAckIDs+2)...); err != nil || len(r.got) != 2 {
		t.Fatal(len(r.got), err)
	}
	for i, n := range []int{wire.MaxAckIDs, 2} {
		f := r.got[i].fields(t)
		if r.got[i].method+r.got[i].path != "POST/acks" || len(f.IDs) != n || f.Sender != self.String() {
			t.Errorf("%+v", r.got[i])
		}
		signedBy(t, self, wire.AcksText(self, make([]wire.MessageID, n), f.SentAt), f.Signature)
	}
	if r.got[0].header.Get("Authorization") != "" {
		t.Error("a credential that nobody gave")
	}

	m, r = mailTo(t, MailOptions{}, says(`{}`))
	if err := m.Publish(t.Context(), []byte("bundle")); err != nil {
		t.Fatal(err)
	}
	f := r.got[0].fields(t)
	if r.got[0].method+r.got[0].path != "PUT/identities/"+self.String() || f.Bundle != "YnVuZGxl" {
		t.Errorf("%+v", r.got[0])
	}
	signedBy(t, self, wire.BundleText([]byte("bundle")), f.BundleSignature)
	signedBy(t, self, wire.IdentityText(self, []byte("bundle"), f.SentAt), f.Signature)

	m, r = mailTo(t, MailOptions{}, says(`{"status":"ok"}`))
	if err := m.Health(t.Context()); err != nil || r.got[0].method+r.got[0].path != "GET/health" {
		t.Errorf("%+v %v", r.got[0], err)
	}
}

func TestMailPush(t *testing.T) {
	const endpoint = "https://push.example.org/up"
	m, r := mailTo(t, MailOptions{}, says(`{"registration":"00ff"}`))
	if id, err := m.SetPush(t.Context(), endpoint); err != nil || id != "00ff" {
		t.Fatal(id, err)
	}
	f := r.got[0].fields(t)
	if r.got[0].method+r.got[0].path != "PUT/push" || f.Identity != self.String() || f.Endpoint != endpoint {
		t.Errorf("%+v", r.got[0])
	}
	signedBy(t, self, wire.PushText(self, endpoint, f.SentAt), f.Signature)

	m, r = mailTo(t, MailOptions{}, says(`{}`))
	if err := m.ClearPush(t.Context()); err != nil {
		t.Fatal(err)
	}
	f = r.got[0].fields(t)
	if r.got[0].method+r.got[0].path != "DELETE/push" || f.Identity != self.String() {
		t.Errorf("%+v", r.got[0])
	}
	signedBy(t, self, wire.PushOffText(self, f.SentAt), f.Signature)

	m, r = mailTo(t, MailOptions{}, says(`{"outcome":"woken"}`))
	if outcome, err := m.TestPush(t.Context()); err != nil || outcome != "woken" {
		t.Fatal(outcome, err)
	}
	f = r.got[0].fields(t)
	if r.got[0].method+r.got[0].path != "POST/push/test" || f.Identity != self.String() {
		t.Errorf("%+v", r.got[0])
	}
	signedBy(t, self, wire.PushTestText(self, f.SentAt), f.Signature)

	// A budget of an hour does not come back within a retry.
	m, r = mailTo(t, MailOptions{}, answer{status: 429, body: strings.NewReader(`{"error":{"code":"rate_limit_exceeded","rateLimit":{"limit":60,"remaining":0,"resetAt":1}}}`)})
	_, err := m.TestPush(t.Context())
	if status, ok := errors.AsType[*StatusError](err); !ok || status.Rate == nil || status.Rate.Limit != 60 || len(r.got) != 1 {
		t.Errorf("%d requests: %v", len(r.got), err)
	}
	if m.patience.retries != maxRetries {
		t.Error("the other calls are not sent again either")
	}
}

// A mailbox is read with a challenge of its own for each attempt: it would be
// over by the time of the next.
func TestMailFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := strings.Repeat("0a", 32)
		m, r := mailTo(t, MailOptions{}, says(`{"nonce":"first"}`), asks(429, "50"), answer{status: 500},
			says(`{"nonce":"second"}`), says(`{"messages":[{"id":"`+id+`","sender":"`+friend.String()+`","body":"aGVsbG8="}],"next":"17"}`))
		page, err := m.Fetch(t.Context(), "")
		if err != nil || len(page.Messages) != 1 || page.Next != "17" {
			t.Fatalf("%+v %v", page, err)
		}
		if w := page.Messages[0]; w.ID.String() != id || w.Sender != friend || string(w.Body) != "hello" {
			t.Errorf("%+v", w)
		}
		for i, nonce := range map[int]string{1: "first", 4: "second"} {
			u, err := url.Parse(r.got[i].path)
			if err != nil || u.Path != "/messages" || u.Query().Get("identity") != self.String() || u.Query().Get("nonce") != nonce || u.Query().Has("after") {
				t.Fatalf("%s %v", r.got[i].path, err)
			}
			signedBy(t, self, wire.MailboxText(self, nonce), u.Query().Get("signature"))
		}
		if want := "/auth/challenge?identity=" + self.String(); r.got[0].path != want || r.got[2].path != want || r.got[3].path != want {
			t.Errorf("%s, %s", r.got[0].path, r.got[3].path)
		}

		m, r = mailTo(t, MailOptions{}, says(`{"nonce":"n"}`), says(`{"messages":[]}`))
		if page, err := m.Fetch(t.Context(), "17"); err != nil || len(page.Messages) != 0 || page.Next != "" {
			t.Fatalf("%+v %v", page, err)
		}
		if !strings.Contains(r.got[1].path, "after=17&") {
			t.Error(r.got[1].path)
		}

		// Retries of both requests are counted together.
		m, r = mailTo(t, MailOptions{}, answer{status: 500})
		if _, err := m.Fetch(t.Context(), ""); err == nil || len(r.got) != 4 {
			t.Errorf("%d requests: %v", len(r.got), err)
		}
	})
}

// A bundle is worth what its signature says.
func TestMailBundle(t *testing.T) {
	signature := base64.StdEncoding.EncodeToString(ed25519.Sign(testKey, wire.BundleText([]byte("bundle"))))
	m, r := mailTo(t, MailOptions{}, answer{status: 200, body: strings.NewReader(`{"bundle":"YnVuZGxl","bundle_signature":"` + signature + `"}`)},
		says(`{"bundle":"YnVuZGxf","bundle_signature":"`+signature+`"}`), says(`{"bundle":"YnVuZGxl","bundle_signature":"`+signature+`"}`))
	if bundle, err := m.Bundle(t.Context(), self); err != nil || string(bundle) != "bundle" || r.got[0].path != "/identities/"+self.String() {
		t.Errorf("%q %v", bundle, err)
	}
	if bundle, err := m.Bundle(t.Context(), self); err == nil {
		t.Errorf("another bundle was taken: %q", bundle)
	}
	if bundle, err := m.Bundle(t.Context(), friend); err == nil {
		t.Errorf("another identity's bundle was taken: %q", bundle)
	}
}

// What is no answer of a relay is an error, once: it would come again.
func TestMailAnswers(t *testing.T) {
	for name, call := range map[string]func(*Mail) error{
		"send":   func(m *Mail) error { _, err := m.Send(t.Context(), Letter{}); return err },
		"fetch":  func(m *Mail) error { _, err := m.Fetch(t.Context(), ""); return err },
		"bundle": func(m *Mail) error { _, err := m.Bundle(t.Context(), friend); return err },
		"push":   func(m *Mail) error { _, err := m.SetPush(t.Context(), "https://push.example.org/"); return err },
	} {
		m, r := mailTo(t, MailOptions{}, says(`<html>`))
		if err := call(m); !errors.Is(err, errAnswer) || len(r.got) != 1 {
			t.Errorf("%s: %d requests: %v", name, len(r.got), err)
		}
	}
	for _, body := range []string{
		`{"messages":[{"id":"0a","sender":"` + friend.String() + `","body":""}]}`,
		`{"messages":[{"id":"` + strings.Repeat("xx", 32) + `","sender":"` + friend.String() + `","body":""}]}`,
		`{"messages":[{"id":"` + strings.Repeat("0a", 33) + `","sender":"` + friend.String() + `","body":""}]}`,
	} {
		m, _ := mailTo(t, MailOptions{}, says(`{"nonce":"n"}`), says(body))
		if page, err := m.Fetch(t.Context(), ""); !errors.Is(err, errAnswer) {
			t.Errorf("%s: %+v %v", body, page, err)
		}
	}
}

// What the relay would refuse is not sent; what just fits is.
func TestMailLimits(t *testing.T) {
	m, r := mailTo(t, MailOptions{}, says(`{}`))
	if _, err := m.Send(t.Context(), Letter{Body: make([]byte, wire.MaxBody+1)}); err == nil {
		t.Error("a message that is too long was sent")
	}
	if err := m.Publish(t.Context(), make([]byte, wire.MaxBundle+1)); err == nil {
		t.Error("a bundle that is too long was sent")
	}
	if len(r.got) != 0 {
		t.Fatal(r.got)
	}
	m, _ = mailTo(t, MailOptions{}, says(`{}`), says(`{}`))
	if _, err := m.Send(t.Context(), Letter{Body: make([]byte, wire.MaxBody)}); err != nil {
		t.Error(err)
	}
	if err := m.Publish(t.Context(), make([]byte, wire.MaxBundle)); err != nil {
		t.Error(err)
	}
}

func TestNewMail(t *testing.T) {
	for _, base := range []string{"", "relay.example.org", "wss://relay.example.org", "https://", "https://relay.example.org:99999",
		"https://user@relay.example.org", "https://relay.example.org?a=b", "https://relay.example.org?", "https://relay.example.org#a", "ht tp://x"} {
		if m, err := NewMail(base, testKey, MailOptions{}); !errors.Is(err, errURL) {
			t.Errorf("%s: %v %v", base, m, err)
		}
	}
	for base, want := range map[string]string{
		"https://relay.example.org": "https://relay.example.org", "http://127.0.0.1:7777/": "http://127.0.0.1:7777",
		"https://example.org/relay//": "https://example.org/relay",
	} {
		if m, err := NewMail(base, testKey, MailOptions{}); err != nil || m.base != want {
			t.Errorf("%s: %v", base, err)
		}
	}
	for _, key := range []string{"a b", "a\r\nHost: b", "\x00", "ü"} {
		if _, err := NewMail("https://a.example", testKey, MailOptions{ServiceKey: key}); err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("the service key %q: %v", key, err)
		}
		m, r := mailTo(t, MailOptions{}, says(`{}`))
		if _, err := m.Send(t.Context(), Letter{IdempotencyKey: key}); err == nil || len(r.got) != 0 {
			t.Errorf("the Idempotency-Key %q: %v", key, err)
		}
	}
	for n, ok := range map[int]bool{255: true, 256: false} {
		m, _ := mailTo(t, MailOptions{}, says(`{}`))
		if _, err := m.Send(t.Context(), Letter{IdempotencyKey: strings.Repeat("k", n)}); (err == nil) != ok {
			t.Errorf("an Idempotency-Key of %d bytes: %v", n, err)
		}
	}
	if _, err := NewMail("https://a.example", testKey[:10], MailOptions{}); err == nil {
		t.Error("half a key")
	}
	if _, err := NewMail("https://a.example", testKey, MailOptions{MaxRetries: new(-1)}); err == nil {
		t.Error("less than no retries")
	}
}

// Over connections as they are: they are used again after a refusal whose body
// was drained, and a redirect takes a signature nowhere.
func TestMailConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777"))
		n, dials := 0, 0
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			n++
			switch {
			case q.Host != "relay.example.org":
				t.Errorf("%s was asked", q.Host)
			case n == 1:
				w.Header().Set("Retry-After", "2")
				w.WriteHeader(429)
				w.Write(bytes.Repeat([]byte("x"), maxFault+100))
			case n == 2:
				w.Write([]byte(`{"status":"delivered"}`))
			default:
				http.Redirect(w, q, "http://other.example.org/messages", http.StatusTemporaryRedirect)
			}
		})}
		served := make(chan error, 1)
		go func() { served <- server.Serve(ln) }()
		m, err := NewMail("http://relay.example.org", testKey, MailOptions{Options: Options{
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				dials++
				return ln.Dial(ctx, netip.MustParseAddrPort("192.0.2.1:1000"))
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if receipt, err := m.Send(t.Context(), Letter{Recipient: friend}); err != nil || receipt.Status != "delivered" || dials != 1 {
			t.Errorf("%+v %v over %d connections", receipt, err, dials)
		}
		_, err = m.Send(t.Context(), Letter{Recipient: friend})
		if status, ok := errors.AsType[*StatusError](err); !ok || status.Status != 307 || n != 3 {
			t.Errorf("%d requests: %v", n, err)
		}
		m.Close()
		server.Close()
		<-served
	})
}
