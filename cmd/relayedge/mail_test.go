package main_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"relayedge/internal/testredis"
	"relayedge/relaycore/client"
	"relayedge/relaycore/wire"
)

// mailOf is the mail of a new identity at each of the relays. It does not ask twice.
func mailOf(t testing.TB, bases ...string) (mails []*client.Mail) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, base := range bases {
		m, err := client.NewMail(base, key, client.MailOptions{
			Options: client.Options{TLS: &tls.Config{InsecureSkipVerify: true}}, MaxRetries: new(0),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		mails = append(mails, m)
	}
	return mails
}

// A message is posted, fetched and acknowledged over HTTP, through the edge in either
// of its ways, by processes of their own.
func TestMailThroughTheEdge(t *testing.T) {
	t.Parallel()
	_, relay := runRelay(t, "  proxy_protocol: true\n  require_channel_binding: false\n")
	e := runEdge(t, fmt.Sprintf(`
listeners:
  - {name: tcp, bind: "127.0.0.1:0"}
  - {name: http, bind: "127.0.0.1:0", protocol: http}
upstreams: {relay: {addresses: [%q]}}
`, relay))
	for name, address := range e.listeners {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			from, to := mailOf(t, "https://"+address)[0], mailOf(t, "https://"+address)[0]
			if err := errors.Join(from.Health(ctx), to.Publish(ctx, []byte("bundle"))); err != nil {
				t.Fatal(err)
			}
			if bundle, err := from.Bundle(ctx, to.Identity()); err != nil || string(bundle) != "bundle" {
				t.Errorf("%q, %v", bundle, err)
			}
			receipt, err := from.Send(ctx, client.Letter{Recipient: to.Identity(), Body: []byte("hello")})
			if err != nil || receipt.Status != "queued" {
				t.Fatalf("%+v, %v", receipt, err)
			}
			page, err := to.Fetch(ctx, "")
			if err != nil || len(page.Messages) != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			if got := page.Messages[0]; got.ID != receipt.ID || got.Sender != from.Identity() || string(got.Body) != "hello" {
				t.Errorf("%+v", got)
			}
			if err := to.Ack(ctx, receipt.ID); err != nil {
				t.Error(err)
			}
			if page, err := to.Fetch(ctx, ""); err != nil || len(page.Messages) != 0 {
				t.Errorf("after the acknowledgement: %+v, %v", page, err)
			}
			_, err = from.Send(ctx, client.Letter{Recipient: wire.Identity{9}})
			if status, ok := errors.AsType[*client.StatusError](err); !ok || status.Status != 404 {
				t.Errorf("to nobody: %v", err)
			}
		})
	}
}

// Two relays over one store hold a sender to one limit, to the very number, whichever
// of them it comes to.
func TestRelaysHoldOneMessageLimit(t *testing.T) {
	t.Parallel()
	const limit, clients, sends = 40, 4, 15
	store := testredis.Start(t)
	policy := fmt.Sprintf(`  message_limits: {sender: {minute: 0, hour: %d, day: 0}, global: {minute: 0, hour: 0, day: 0}}
`, limit) + strings.Replace(redisSection(t, store), "}", ", on_failure: {message_limits: refuse}}", 1)
	var bases []string
	for range 2 {
		_, address := runRelay(t, policy)
		bases = append(bases, "http://"+address)
	}
	to := mailOf(t, bases...)
	if err := eventually(func() error { return errors.Join(to[0].Publish(t.Context(), nil), to[1].Publish(t.Context(), nil)) }); err != nil {
		t.Fatal(err)
	}
	// As with requests: a decision that the store was too slow for may stand charged. Of
	// fewer at once, fewer are late.
	for attempt := range 8 {
		var a tally
		var work sync.WaitGroup
		atOnce := max(clients>>attempt, 1) // at each relay
		for _, m := range mailOf(t, bases...) {
			for range atOnce {
				work.Go(func() {
					for range clients * sends / atOnce {
						_, err := m.Send(t.Context(), client.Letter{Recipient: to[0].Identity(), Body: []byte("x")})
						status, refused := errors.AsType[*client.StatusError](err)
						switch {
						case err == nil:
							a.ok.Add(1)
						case refused && status.Status == 429:
							a.limited.Add(1)
						case refused && status.Status == 503:
							a.unavailable.Add(1)
						default:
							t.Error(err)
						}
					}
				})
			}
		}
		work.Wait()
		t.Log(a.String())
		ok, late := a.ok.Load(), a.unavailable.Load()
		if ok > limit || ok+late < limit || t.Failed() {
			t.Fatalf("%v; the limit is %d", &a, limit)
		}
		if late == 0 {
			return
		}
	}
	t.Error("the store was too slow each time")
}
