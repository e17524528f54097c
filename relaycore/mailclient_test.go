package relaycore

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	mailclient "relayedge/relaycore/client"
	"relayedge/relaycore/push"
	"relayedge/relaycore/wire"
)

// mailOf is the mail of an identity at the relay, over connections of its own.
func (w *world) mailOf(n byte) *mailclient.Mail {
	w.t.Helper()
	m, err := mailclient.NewMail("http://relay.example.org", ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, 32)), mailclient.MailOptions{Options: mailclient.Options{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return w.ln.Dial(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 1000))
		},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// The client over HTTP and the relay's API agree on every request.
func TestMailClient(t *testing.T) {
	bubbleBehind(t, front{}, nil, func(t *testing.T, w *world) {
		a, b := w.mailOf(1), w.mailOf(2)
		defer a.Close()
		defer b.Close()
		must(t, a.Health(t.Context()), a.Publish(t.Context(), []byte("bundle of a")), b.Publish(t.Context(), nil))
		bundle, err := b.Bundle(t.Context(), a.Identity())
		if err != nil || string(bundle) != "bundle of a" {
			t.Errorf("%q %v", bundle, err)
		}
		letter := mailclient.Letter{ID: wire.MessageID{7}, Recipient: b.Identity(), Body: []byte("hello")}
		for range 2 { // the second time is answered as the first was
			receipt, err := a.Send(t.Context(), letter)
			if err != nil || receipt.Status != "queued" || receipt.ID != letter.ID {
				t.Fatalf("%+v %v", receipt, err)
			}
		}
		page, err := b.Fetch(t.Context(), "")
		must(t, err)
		if len(page.Messages) != 1 || page.Next != "" || page.Messages[0].ID != letter.ID || page.Messages[0].Sender != a.Identity() || string(page.Messages[0].Body) != "hello" {
			t.Fatalf("%+v", page)
		}
		must(t, b.Ack(t.Context(), letter.ID))
		if page, err := b.Fetch(t.Context(), ""); err != nil || len(page.Messages) != 0 {
			t.Errorf("%+v %v", page, err)
		}
		_, err = a.Send(t.Context(), mailclient.Letter{Recipient: wire.Identity{9}})
		if status, ok := errors.AsType[*mailclient.StatusError](err); !ok || status.Status != 404 || status.Code == "" {
			t.Errorf("to nobody: %v", err)
		}
	})
}

// spec/000's numbers reach the caller, and what the relay says to wait is enough.
func TestMailClientWaits(t *testing.T) {
	bubbleBehind(t, front{}, func(c *Config) { c.MessageLimits.Sender.Minute = 2 }, func(t *testing.T, w *world) {
		a, b := w.mailOf(1), w.mailOf(2)
		defer a.Close()
		defer b.Close()
		must(t, b.Publish(t.Context(), nil))
		began := time.Now()
		for range 5 {
			if _, err := a.Send(t.Context(), mailclient.Letter{Recipient: b.Identity()}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < 90*time.Second || took > 2*time.Minute {
			t.Errorf("five messages at two a minute took %v", took)
		}
	})
}

// A message for who is away wakes it, whichever way it came; one for who is
// connected does not. The relay itself calls no private address.
func TestMailWakes(t *testing.T) {
	// The resolver keeps a channel of its first look-up, which must not be a bubble's.
	net.DefaultResolver.LookupHost(t.Context(), "localhost")
	bubbleBehind(t, front{}, func(c *Config) {
		c.Push.Enabled, c.Push.AllowedHosts, c.Push.BudgetPerHour = true, []string{"localhost:1"}, 4
	}, func(t *testing.T, w *world) {
		a, b := w.mailOf(1), w.mailOf(2)
		defer a.Close()
		defer b.Close()
		must(t, a.Publish(t.Context(), nil), b.Publish(t.Context(), nil))
		registration, err := b.SetPush(t.Context(), "https://localhost:1/s3cret")
		if err != nil || len(registration) != 32 {
			t.Fatal(registration, err)
		}
		wakes := func() uint64 {
			synctest.Wait()
			c := w.s.push.Stats()
			if c.InFlight != 0 || c.Waiting != 0 || c.Outcomes[push.Woken] != 0 {
				t.Errorf("%+v", c)
			}
			return c.Outcomes[push.Forbidden] + c.Outcomes[push.Failed]
		}
		send := func(status wire.Status) {
			t.Helper()
			if receipt, err := a.Send(t.Context(), mailclient.Letter{Recipient: b.Identity()}); err != nil || receipt.Status != status {
				t.Fatalf("%+v %v", receipt, err)
			}
		}
		send("queued")
		if n := wakes(); n != 1 {
			t.Errorf("%d wake-ups after a message over HTTP", n)
		}
		session := func(n byte) *mailclient.Session {
			s, err := mailclient.Dial(t.Context(), "ws://relay.example.org/relay", mailclient.Options{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return w.ln.Dial(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 2000))
			}})
			must(t, err)
			must(t, s.Publish(t.Context(), ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, 32)), nil))
			return s
		}
		next := func(s *mailclient.Session) wire.Frame {
			f, err := s.Receive(t.Context())
			must(t, err)
			return f
		}
		s, sender := session(2), session(1)
		defer sender.Close()
		send("delivered")
		if n := wakes(); n != 1 {
			t.Errorf("%d wake-ups after a message to who is connected", n)
		}
		next(s)
		next(s) // both messages that have come over HTTP
		for _, member := range []*mailclient.Session{s, sender} {
			_, err := member.AskBlinded(t.Context(), [32]byte{5})
			must(t, err)
		}
		circuit := next(sender).(wire.CircuitOpen).Circuit
		s.Close()
		synctest.Wait()
		_, err = sender.Send(t.Context(), circuit, []byte("by a session"))
		must(t, err)
		if f := next(sender); f.Type() != wire.TypeMessageAck {
			t.Fatal(f.Type())
		}
		if n := wakes(); n != 2 {
			t.Errorf("%d wake-ups after a message on a circuit whose other side is away", n)
		}
		if outcome, err := b.TestPush(t.Context()); err != nil || outcome != "forbidden" && outcome != "failed" {
			t.Errorf("%s %v", outcome, err)
		}
		send("queued")
		if n := wakes(); n != 4 {
			t.Errorf("%d wake-ups", n)
		}
		// Over budget: nothing for the message, its own numbers for a test.
		send("queued")
		_, err = b.TestPush(t.Context())
		status, ok := errors.AsType[*mailclient.StatusError](err)
		if !ok || status.Status != 429 || status.Rate == nil || status.Rate.Limit != 4 || status.Rate.Remaining != 0 || status.RetryAfter < 59*time.Minute {
			t.Errorf("%+v", err)
		}
		if n := wakes(); n != 4 || w.s.push.Stats().Outcomes[push.Spent] != 2 {
			t.Errorf("%d wake-ups, %+v", n, w.s.push.Stats())
		}
		must(t, b.ClearPush(t.Context()))
		if n := w.s.push.Stats().Registrations; n != 0 {
			t.Errorf("%d registrations", n)
		}
		if bytes.Contains(w.log.Bytes(), []byte("s3cret")) || bytes.Contains(w.log.Bytes(), []byte("localhost")) {
			t.Errorf("the log tells the endpoint: %s", w.log)
		}
	})
}
