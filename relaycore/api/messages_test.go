package api

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// raw is a body as it is.
type raw string

func (r raw) String() string { return string(r) }

func TestSend(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		w := d.want(d.do(post("/messages", letter(alice, messageID(1), "hello"))), 202, "")
		if want := fmt.Sprintf("{\"id\":%q,\"status\":\"queued\"}\n", messageID(1)); w.Body.String() != want {
			t.Errorf("%s", w.Body)
		}
		d.shelf.connected[idOf(bob)] = true
		w = d.want(d.do(post("/messages", letter(alice, messageID(2), ""))), 202, "")
		if want := fmt.Sprintf("{\"id\":%q,\"status\":\"delivered\"}\n", messageID(2)); w.Body.String() != want {
			t.Errorf("%s", w.Body)
		}
		want := []mailbox.Message{
			{Recipient: idOf(bob), Sender: idOf(alice), ID: messageID(1), Payload: []byte("hello"), Source: client(1).Source, Contact: true},
			{Recipient: idOf(bob), Sender: idOf(alice), ID: messageID(2), Source: client(1).Source, Contact: true},
		}
		if fmt.Sprint(d.shelf.got) != fmt.Sprint(want) {
			t.Errorf("%+v", d.shelf.got)
		}
		if d.charged(alice) != 2 || d.unproven(client(1)) != 0 || d.Counts.Accepted.Load() != 2 || d.Counts.Requests.Load() != 2 {
			t.Errorf("charged %d, %d units of the host; %d accepted of %d", d.charged(alice), d.unproven(client(1)), d.Counts.Accepted.Load(), d.Counts.Requests.Load())
		}
		// The longest body, fields that nobody knows in every place, and another order.
		long := letter(alice, messageID(3), strings.Repeat("x", wire.MaxBody))
		for i, f := range []fmt.Stringer{
			long,
			long.with("id", messageID(4).String()).with("signature", ed25519.Sign(alice, wire.MessageText(messageID(4), idOf(alice), idOf(bob), moment(), []byte(strings.Repeat("x", wire.MaxBody))))).
				with("Sender", 5).with("a", []any{1, fields{"sender": "x"}}).with("zz", nil),
			raw(`{"x":1,"x":2,` + strings.TrimPrefix(letter(alice, messageID(5), "m").String(), "{") + " \n"),
		} {
			if w := d.do(post("/messages", f)); w.Code != 202 {
				t.Errorf("row %d: %d %s", i, w.Code, w.Body)
			}
		}
	})
}

// Each fault has its status, and costs nobody anything; but while the sender's
// limit is met, all that come behind the sender's name get 429.
func TestSendFaults(t *testing.T) {
	good := func() fields { return letter(alice, messageID(1), "hello") }
	object := func(f fields) call { return post("/messages", f) }
	headed := func(name string, values ...string) func() call {
		return func() call {
			c := object(good())
			c.header[name] = values
			return c
		}
	}
	field := func(name string, value any) func() call {
		return func() call { return object(good().with(name, value)) }
	}
	missing := func(name string) func() call { return func() call { return object(good().without(name)) } }
	text := func(s string) func() call { return func() call { return post("/messages", raw(s)) } }
	signedAt := func(at time.Duration, layout string) func() call {
		return func() call {
			when := time.Now().Add(at).Format(layout)
			f := good().with("sent_at", when)
			return object(f.with("signature", ed25519.Sign(alice, wire.MessageText(messageID(1), idOf(alice), idOf(bob), when, []byte("hello")))))
		}
	}
	long := strings.Repeat("x", wire.MaxBody+1)
	for _, row := range []struct {
		name   string
		call   func() call
		status int
		word   Word
		early  bool // judged before the sender is known
	}{
		{"no content type", headed("Content-Type"), 415, MediaType, true},
		{"another content type", headed("Content-Type", "text/plain"), 415, MediaType, true},
		{"compressed", headed("Content-Encoding", "gzip"), 415, MediaType, true},
		{"a body that is announced too long", func() call { return post("/messages", raw(good().String()+strings.Repeat(" ", MaxMessageBody))) }, 413, TooLarge, true},
		{"nothing", text(""), 400, BadRequest, true},
		{"a list", text("[]"), 400, BadRequest, true},
		{"a string", text(`"{}"`), 400, BadRequest, true},
		{"no object", text("{"), 400, BadRequest, true},
		{"no name", text("{1:2}"), 400, BadRequest, true},
		{"no colon", text(`{"a" "b"}`), 400, BadRequest, true},
		{"empty", text("{}"), 400, BadRequest, true},
		{"no sender", missing("sender"), 400, BadRequest, true},
		{"a sender in upper case", field("sender", strings.ToUpper(idOf(alice).String())), 400, BadRequest, true},
		{"a short sender", field("sender", idOf(alice).String()[:62]), 400, BadRequest, true},
		{"a sender that is no text", field("sender", 5), 400, BadRequest, true},
		{"a sender that is null", field("sender", nil), 400, BadRequest, true},
		{"a sender that is no hex", field("sender", strings.Repeat("g", 64)), 400, BadRequest, true},
		{"Sender", func() call { return object(good().without("sender").with("Sender", idOf(alice).String())) }, 400, BadRequest, true},

		{"no end", func() call { return post("/messages", raw(`{"sender":"`+idOf(alice).String()+`"`)) }, 400, BadRequest, false},
		{"a fault behind the sender", func() call { return post("/messages", raw(`{"sender":"`+idOf(alice).String()+`",nonsense}`)) }, 400, BadRequest, false},
		{"something behind", func() call { return post("/messages", raw(good().String()+"{}")) }, 400, BadRequest, false},
		{"a comma behind", func() call { return post("/messages", raw(good().String()+",")) }, 400, BadRequest, false},
		{"two senders", func() call {
			return post("/messages", raw(`{"sender":"`+idOf(alice).String()+`",`+strings.TrimPrefix(good().String(), "{")))
		}, 400, BadRequest, false},
		{"two bodies", func() call { return post("/messages", raw(`{"body":"",`+strings.TrimPrefix(good().String(), "{"))) }, 400, BadRequest, false},
		{"no id", missing("id"), 400, BadRequest, false},
		{"a short id", field("id", "00"), 400, BadRequest, false},
		{"an id that is a number", field("id", 1), 400, BadRequest, false},
		{"no recipient", missing("recipient"), 400, BadRequest, false},
		{"a long recipient", field("recipient", strings.Repeat("0", 66)), 400, BadRequest, false},
		{"no body", missing("body"), 400, BadRequest, false},
		{"a body without padding", field("body", "aGVsbG8"), 400, BadRequest, false},
		{"a body in the other alphabet", field("body", "-_-_"), 400, BadRequest, false},
		{"a body on two lines", field("body", "aGVs\nbG8="), 400, BadRequest, false},
		{"a body with stray bits", field("body", "aGVsbG9="), 400, BadRequest, false},
		{"no sent_at", missing("sent_at"), 400, BadRequest, false},
		{"sent_at is a number", field("sent_at", 1774699200), 400, BadRequest, false},
		{"sent_at is a date", field("sent_at", "2000-01-01"), 400, BadRequest, false},
		{"sent_at is too exact", field("sent_at", "2000-01-01T00:00:00.000000000000000Z"), 400, BadRequest, false},
		{"no signature", missing("signature"), 400, BadRequest, false},
		{"a short signature", field("signature", make([]byte, 63)), 400, BadRequest, false},
		{"a signature in hex", field("signature", strings.Repeat("0", 128)), 400, BadRequest, false},
		{"an empty key", headed("Idempotency-Key", ""), 400, BadRequest, false},
		{"two keys", headed("Idempotency-Key", "a", "b"), 400, BadRequest, false},
		{"a key with a space", headed("Idempotency-Key", "a b"), 400, BadRequest, false},
		{"a long key", headed("Idempotency-Key", strings.Repeat("k", 256)), 400, BadRequest, false},
		{"a body that is too long", func() call { return object(letter(alice, messageID(1), long)) }, 413, TooLarge, false},
		{"older", signedAt(-Freshness-time.Nanosecond, time.RFC3339Nano), 401, Stale, false},
		{"ahead", signedAt(Freshness+time.Nanosecond, time.RFC3339Nano), 401, Stale, false},
		{"an unknown recipient", func() call {
			f := good().with("recipient", idOf(carol).String())
			return object(f.with("signature", ed25519.Sign(alice, wire.MessageText(messageID(1), idOf(alice), idOf(carol), moment(), []byte("hello")))))
		}, 404, Unknown, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, d *desk) {
				w := d.want(d.do(row.call()), row.status, row.word)
				d.unspent()
				if strings.Contains(w.Body.String(), idOf(alice).String()) || strings.Contains(w.Body.String(), "nonsense") {
					t.Errorf("a refusal says what the client has sent: %s", w.Body)
				}
				if n, _ := d.Kept(); n != 0 || len(d.answers.byName) != 0 {
					t.Errorf("%d answers are kept, %d names", n, len(d.answers.byName))
				}
			})
			bubble(t, func(c *admission.MessageLimitsConfig) { c.Sender.Minute = -1 }, func(t *testing.T, d *desk) {
				status, word := 429, RateLimited
				if row.early {
					status, word = row.status, row.word
				}
				d.want(d.do(row.call()), status, word)
				d.unspent()
			})
		})
	}
	t.Run("within", func(t *testing.T) {
		for _, at := range []time.Duration{-Freshness, Freshness} {
			bubble(t, nil, func(t *testing.T, d *desk) { d.want(d.do(signedAt(at, time.RFC3339Nano)()), 202, "") })
		}
		bubble(t, nil, func(t *testing.T, d *desk) {
			d.want(d.do(signedAt(0, "2006-01-02T15:04:05.999999999+00:00")()), 202, "")
		})
	})
}

// A signature must be the sender's over just this message. What does not hold
// costs the host a unit and the sender nothing.
func TestSignature(t *testing.T) {
	at := func() string { return moment() }
	for _, row := range []struct {
		name   string
		change func(f fields) fields
	}{
		{"of another", func(f fields) fields {
			return f.with("signature", ed25519.Sign(bob, wire.MessageText(messageID(1), idOf(alice), idOf(bob), at(), []byte("hello"))))
		}},
		{"nothing's", func(f fields) fields { return f.with("signature", make([]byte, 64)) }},
		{"for another purpose", func(f fields) fields {
			return f.with("signature", ed25519.Sign(alice, wire.BundleText([]byte("hello"))))
		}},
		{"another id", func(f fields) fields { return f.with("id", messageID(2).String()) }},
		{"another sender", func(f fields) fields { return f.with("sender", idOf(carol).String()) }},
		{"another recipient", func(f fields) fields { return f.with("recipient", idOf(alice).String()) }},
		{"another body", func(f fields) fields { return f.with("body", []byte("hellp")) }},
		{"another spelling of the time", func(f fields) fields { return f.with("sent_at", strings.Replace(at(), "Z", ".0Z", 1)) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, d *desk) {
				w := d.want(d.do(post("/messages", row.change(letter(alice, messageID(1), "hello")))), 401, BadSignature)
				if w.Header().Get("WWW-Authenticate") == "" {
					t.Error("no WWW-Authenticate")
				}
				if len(d.ledger.charged) != 0 || len(d.shelf.got) != 0 || d.unproven(client(1)) != 1 || d.Counts.Unproven.Load() != 1 {
					t.Errorf("charged %v, %d units of the host", d.ledger.charged, d.unproven(client(1)))
				}
			})
		})
	}
}

// What the mailbox does not take is told with the time to come again, is not
// charged, and can be sent again later.
func TestMailboxFull(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		d.shelf.store.SetLimits(mailbox.Limits{TotalBytes: 1 << 20, RecipientBytes: 1000, TTL: 72 * time.Hour})
		d.want(d.do(post("/messages", letter(alice, messageID(1), "first"))), 202, "")
		w := d.want(d.do(post("/messages", letter(alice, messageID(2), "second"))), 503, MailboxFull)
		if again := w.Header().Get("Retry-After"); again != "60" {
			t.Errorf("Retry-After %s", again)
		}
		if d.charged(alice) != 1 || d.unproven(client(1)) != 0 {
			t.Errorf("charged %d", d.charged(alice))
		}
		d.shelf.store.SetLimits(mailbox.Limits{TotalBytes: 1 << 20, RecipientBytes: 1 << 20, TTL: 72 * time.Hour})
		d.want(d.do(post("/messages", letter(alice, messageID(2), "second"))), 202, "")
		d.shelf.store.Close()
		d.want(d.do(post("/messages", letter(alice, messageID(3), "third"))), 503, Unavailable)
	})
	for _, row := range []struct {
		err  error
		word Word
	}{
		{&mailbox.Refusal{Limit: mailbox.LimitStorage, RetryAfter: 7 * time.Second, Err: errors.New("no space")}, Unavailable},
		{&mailbox.Refusal{Limit: mailbox.LimitTotalBytes, RetryAfter: 7 * time.Second}, MailboxFull},
	} {
		if a := notHeld(row.err); a.status != 503 || a.retry != 7 || !strings.Contains(string(a.body), string(row.word)) || strings.Contains(string(a.body), "no space") {
			t.Errorf("%v: %d %s", row.err, a.status, a.body)
		}
	}
}

func TestAcks(t *testing.T) {
	acks := func(who ed25519.PrivateKey, ids ...wire.MessageID) fields {
		names := []string{}
		for _, id := range ids {
			names = append(names, id.String())
		}
		return fields{"sender": idOf(who).String(), "ids": names, "sent_at": moment(), "signature": ed25519.Sign(who, wire.AcksText(idOf(who), ids, moment()))}
	}
	many := func(n int) (ids []wire.MessageID) {
		for i := range n {
			ids = append(ids, messageID(i))
		}
		return ids
	}
	bubble(t, nil, func(t *testing.T, d *desk) {
		for i := 1; i <= 3; i++ {
			d.want(d.do(post("/messages", letter(alice, messageID(i), "m"))), 202, "")
		}
		d.shelf.store.Read(idOf(bob), 0, 2, 1000, time.Now())
		again := post("/acks", acks(bob, messageID(1), messageID(3), messageID(9)))
		for _, want := range []string{"{\"acknowledged\":1}\n", "{\"acknowledged\":0}\n"} {
			if w := d.want(d.do(again), 200, ""); w.Body.String() != want {
				t.Errorf("%s, want %s", w.Body, want)
			}
		}
		if d.charged(bob) != 2 {
			t.Errorf("charged %d", d.charged(bob))
		}
		if st := d.shelf.store.Stats(time.Now()); st.Messages != 2 {
			t.Errorf("%d messages are left", st.Messages)
		}
		// Another's acknowledgement is another's.
		d.shelf.store.Read(idOf(bob), 0, 9, 1000, time.Now())
		if w := d.want(d.do(post("/acks", acks(carol, messageID(2)))), 200, ""); w.Body.String() != "{\"acknowledged\":0}\n" {
			t.Errorf("%s", w.Body)
		}
		d.want(d.do(post("/acks", acks(bob, many(wire.MaxAckIDs)...))), 200, "")
	})
	for _, row := range []struct {
		name   string
		f      func() fields
		status int
		word   Word
	}{
		{"no ids", func() fields { return acks(bob) }, 400, BadRequest},
		{"ids missing", func() fields { return acks(bob, messageID(1)).without("ids") }, 400, BadRequest},
		{"too many", func() fields { return acks(bob, many(wire.MaxAckIDs+1)...) }, 400, BadRequest},
		{"no list", func() fields { return acks(bob, messageID(1)).with("ids", messageID(1).String()) }, 400, BadRequest},
		{"null", func() fields { return acks(bob, messageID(1)).with("ids", []any{nil}) }, 400, BadRequest},
		{"a short id", func() fields { return acks(bob, messageID(1)).with("ids", []string{"00"}) }, 400, BadRequest},
		{"long", func() fields { return acks(bob, messageID(1)).with("x", strings.Repeat("x", MaxOtherBody)) }, 413, TooLarge},
		{"other ids", func() fields { return acks(bob, messageID(1)).with("ids", []string{messageID(2).String()}) }, 401, BadSignature},
		{"stale", func() fields {
			old := time.Now().Add(-Freshness - time.Second).UTC().Format(time.RFC3339)
			return acks(bob, messageID(1)).with("sent_at", old).with("signature", ed25519.Sign(bob, wire.AcksText(idOf(bob), []wire.MessageID{messageID(1)}, old)))
		}, 401, Stale},
	} {
		bubble(t, nil, func(t *testing.T, d *desk) {
			d.t = t
			d.want(d.do(post("/acks", row.f())), row.status, row.word)
			if len(d.ledger.charged) != 0 {
				t.Errorf("%s: charged", row.name)
			}
		})
		bubble(t, func(c *admission.MessageLimitsConfig) { c.Sender.Minute = -1 }, func(t *testing.T, d *desk) {
			if row.status != http.StatusRequestEntityTooLarge {
				d.want(d.do(post("/acks", row.f())), 429, RateLimited)
			}
		})
	}
}
