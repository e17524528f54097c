package api

import (
	"crypto/ed25519"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"relayedge/relaycore/wire"
)

const document = "../../docs/protocol.md"

// documented is an example of docs/protocol.md: ```http NAME.
var documented = regexp.MustCompile("(?ms)^```http ([a-z ]+)\n(.*?)^```$")

// said is a request and its answer as the document has them.
func said(c call, w *httptest.ResponseRecorder) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\n", c.method, c.target)
	for _, name := range []string{"Content-Type", "Idempotency-Key"} {
		if v := c.header.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	fmt.Fprintf(&b, "\n%s", c.body)
	if c.body != "" {
		b.WriteString("\n\n")
	}
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\n", w.Code, http.StatusText(w.Code))
	for _, name := range []string{"Content-Type", "Retry-After"} {
		if v := w.Header().Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	fmt.Fprintf(&b, "\n%s", w.Body)
	return b.String()
}

// ordered is a JSON object in the order in which a person would write it.
func ordered(f fields, names ...string) raw {
	var parts []string
	for _, n := range names {
		one := fields{n: f[n]}.String()
		parts = append(parts, one[1:len(one)-1])
	}
	return raw("{" + strings.Join(parts, ",") + "}")
}

// Every kind of request has one worked example in docs/protocol.md, which is what
// the API answers.
func TestDocument(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1) // of the nonce
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)))
		d := newDesk(t, nil)
		id := wire.MessageID(append(append([]byte{0xc0, 0xff, 0xee}, make([]byte, 28)...), 0xff))
		at := moment()
		message := post("/messages", ordered(letter(alice, id, "hello"), "id", "sender", "recipient", "sent_at", "body", "signature")).keyed("8e03978e-40d5-43e8-bc93-6894a57f9324")
		acks := post("/acks", ordered(fields{"sender": idOf(bob).String(), "ids": []string{id.String()}, "sent_at": at,
			"signature": ed25519.Sign(bob, wire.AcksText(idOf(bob), []wire.MessageID{id}, at))}, "sender", "ids", "sent_at", "signature"))
		challenge := call{method: "GET", target: "/auth/challenge?identity=" + idOf(bob).String(), from: client(1)}
		publish := publishing(carol, "bundle", at)
		publish.body = ordered(fields{"bundle": []byte("bundle"), "bundle_signature": ed25519.Sign(carol, wire.BundleText([]byte("bundle"))), "sent_at": at,
			"signature": ed25519.Sign(carol, wire.IdentityText(idOf(carol), []byte("bundle"), at))}, "bundle", "bundle_signature", "sent_at", "signature").String()
		want := map[string]string{}
		example := func(name string, c call) *httptest.ResponseRecorder {
			w := d.do(c)
			want[name] = said(c, w)
			return w
		}
		example("message", message)
		nonce := decode[struct{ Nonce string }](t, example("challenge", challenge)).Nonce
		example("mailbox", call{method: "GET", from: client(1), target: "/messages?" + url.Values{
			"identity": {idOf(bob).String()}, "nonce": {nonce}, "signature": {b64(ed25519.Sign(bob, wire.MailboxText(idOf(bob), nonce)))}}.Encode()})
		example("acks", acks)
		example("publish", publish)
		example("bundle", call{method: "GET", target: "/identities/" + idOf(carol).String(), from: client(1)})
		example("health", call{method: "GET", target: "/health", from: client(1)})
		example("signature", post("/messages", ordered(letter(alice, id, "hello").with("signature", make([]byte, 64)), "id", "sender", "recipient", "sent_at", "body", "signature")))
		for i := range 19 {
			d.want(d.sends(alice, i), 202, "")
		}
		example("limit", post("/messages", ordered(letter(alice, messageID(20), "hello"), "id", "sender", "recipient", "sent_at", "body", "signature")))

		doc, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range documented.FindAllSubmatch(doc, -1) {
			name := string(m[1])
			if want[name] != string(m[2]) {
				t.Errorf("the example %q should be\n%s", name, want[name])
			}
			delete(want, name)
		}
		for name, text := range want {
			t.Errorf("the example %q is missing:\n```http %s\n%s```", name, name, text)
		}
		for word, status := range statuses {
			if row := fmt.Sprintf("| %d | `%s` |", status, word); !strings.Contains(string(doc), row) {
				t.Errorf("the table of errors has no row %s", row)
			}
		}
	})
}
