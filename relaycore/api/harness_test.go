package api

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// shelf is a relay that is a mailbox and what was published. All are contacts.
type shelf struct {
	store mailbox.Store

	mu        sync.Mutex
	published map[wire.Identity]published
	connected map[wire.Identity]bool
	ready     error
	enter     func() // called by Deliver
	got       []mailbox.Message
}

type published struct {
	bundle    []byte
	signature [64]byte
	at        time.Time
}

var _ Relay = (*shelf)(nil)

func (s *shelf) Ready() error { return s.ready }

func (s *shelf) Known(id wire.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.published[id]
	return ok || s.connected[id]
}

func (s *shelf) Bundle(id wire.Identity) ([]byte, [64]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.published[id]
	return p.bundle, p.signature, ok
}

func (s *shelf) Outdated(id wire.Identity, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return at.Before(s.published[id].at)
}

func (s *shelf) Publish(id wire.Identity, bundle []byte, signature [64]byte, at time.Time, _ Client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published[id] = published{bytes.Clone(bundle), signature, at}
	return true
}

func (s *shelf) Refuses(m mailbox.Message) *mailbox.Refusal {
	m.Contact = true
	return s.store.Refuses(m, time.Now())
}

func (s *shelf) Deliver(m mailbox.Message) (bool, error) {
	if s.enter != nil {
		s.enter()
	}
	m.Contact = true
	if err := s.store.Put(m, time.Now()); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.Payload = bytes.Clone(m.Payload)
	s.got = append(s.got, m)
	return s.connected[m.Recipient], nil
}

func (s *shelf) Fetch(id wire.Identity, after uint64, n, size int) []mailbox.Held {
	held, _ := s.store.Read(id, after, n, size, time.Now())
	return held
}

func (s *shelf) Acknowledge(id wire.Identity, ids []wire.MessageID) int {
	return s.store.Ack(id, ids, time.Now())
}

// clear has bob read and forget what waits for him.
func (s *shelf) clear() {
	for _, m := range s.Fetch(idOf(bob), 0, 2000, 1<<20) {
		s.Acknowledge(idOf(bob), []wire.MessageID{m.ID})
	}
}

// desk is the API of a shelf.
type desk struct {
	t testing.TB
	*Handler
	shelf    *shelf
	limits   *admission.MessageLimits
	ledger   *ledger
	throttle *admission.Throttle
}

func newDesk(t testing.TB, change func(*admission.MessageLimitsConfig)) *desk {
	t.Helper()
	c := admission.DefaultMessageLimits()
	if change != nil {
		change(&c)
	}
	limits, err := admission.NewMessageLimits(c, admission.MessageLengths{})
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, limits: limits, ledger: &ledger{Messages: limits, charged: make(map[admission.Key]int)}, throttle: admission.NewThrottle(int64(c.UnprovenPerHostMinute))}
	d.shelf = &shelf{
		store:     mailbox.NewMemory(mailbox.Limits{TotalBytes: 1 << 30, RecipientBytes: 1 << 28, TTL: 72 * time.Hour}, time.Now()),
		published: make(map[wire.Identity]published), connected: make(map[wire.Identity]bool),
	}
	d.Handler = New(Options{Relay: d.shelf, Messages: d.ledger, Throttle: d.throttle, Keys: admission.NewKeyMaker(nil)})
	for _, who := range []ed25519.PrivateKey{alice, bob} {
		bundle := []byte("bundle")
		d.shelf.published[idOf(who)] = published{bundle, [64]byte(ed25519.Sign(who, wire.BundleText(bundle))), time.Time{}}
	}
	return d
}

// bubble runs f with a desk in synthetic time.
func bubble(t *testing.T, change func(*admission.MessageLimitsConfig), f func(t *testing.T, d *desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newDesk(t, change)) })
}

func keyOf(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func idOf(key ed25519.PrivateKey) wire.Identity {
	return wire.Identity(key.Public().(ed25519.PublicKey))
}

var alice, bob, carol = keyOf(1), keyOf(2), keyOf(3)

func messageID(n int) (id wire.MessageID) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	return id
}

// client is the client number n, each with a host and a source of its own.
func client(n int) Client {
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(n >> 8), byte(n)}), 32)
	return Client{Host: p, Source: p}
}

// call is one request.
type call struct {
	method, target string
	header         http.Header
	body           string
	from           Client
	ctx            context.Context
}

// object is the JSON of a request, whose fields a test may change.
type fields map[string]any

func (f fields) with(name string, value any) fields {
	f = maps.Clone(f)
	f[name] = value
	return f
}

func (f fields) without(name string) fields {
	f = maps.Clone(f)
	delete(f, name)
	return f
}

func (f fields) String() string {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func moment() string { return time.Now().UTC().Format(time.RFC3339) }

// letter is a good message to bob.
func letter(from ed25519.PrivateKey, id wire.MessageID, body string) fields {
	at := moment()
	return fields{
		"id": id.String(), "sender": idOf(from).String(), "recipient": idOf(bob).String(), "sent_at": at,
		"body": []byte(body), "signature": ed25519.Sign(from, wire.MessageText(id, idOf(from), idOf(bob), at, []byte(body))),
	}
}

// post is a request with a JSON body.
func post(target string, f fmt.Stringer) call {
	return call{method: "POST", target: target, body: f.String(), header: http.Header{"Content-Type": {"application/json"}}, from: client(1)}
}

func (c call) keyed(key string) call {
	c.header = c.header.Clone()
	c.header.Set("Idempotency-Key", key)
	return c
}

// status has the desk answer a request, of which it returns the status alone.
func (d *desk) status(c call) int {
	ctx := WithClient(d.t.Context(), c.from)
	r := (&http.Request{Method: c.method, URL: &url.URL{Path: c.target}, Header: c.header, Body: io.NopCloser(strings.NewReader(c.body)), ContentLength: int64(len(c.body))}).WithContext(ctx)
	w := statusOnly{head: make(http.Header)}
	d.ServeHTTP(&w, r)
	return w.status
}

type statusOnly struct {
	head   http.Header
	status int
}

func (w *statusOnly) Header() http.Header         { return w.head }
func (w *statusOnly) WriteHeader(status int)      { w.status = status }
func (w *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

func (d *desk) do(c call) *httptest.ResponseRecorder {
	r := httptest.NewRequest(c.method, c.target, strings.NewReader(c.body))
	maps.Copy(r.Header, c.header)
	ctx := c.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	r = r.WithContext(WithClient(ctx, c.from))
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

// want checks an answer's status, and its word where it is a refusal.
func (d *desk) want(w *httptest.ResponseRecorder, status int, word Word) *httptest.ResponseRecorder {
	d.t.Helper()
	var got fault
	json.Unmarshal(w.Body.Bytes(), &got)
	if w.Code != status || got.Error != word || word != "" && (got.Message == "" || statuses[word] != status) {
		d.t.Fatalf("status %d, %s; want %d %s", w.Code, w.Body, status, word)
	}
	if w.Header().Get("Content-Type") != "application/json" || w.Header().Get("Cache-Control") != "no-store" {
		d.t.Fatalf("%v", w.Header())
	}
	if again := w.Header().Get("Retry-After"); (again != "") != (status == 429 || status == 503) {
		d.t.Fatalf("status %d with Retry-After %q", w.Code, again)
	}
	return w
}

// ledger counts what the limits have charged.
type ledger struct {
	admission.Messages
	mu      sync.Mutex
	charged map[admission.Key]int
	reads   int
}

func (l *ledger) Take(ctx context.Context, sender admission.Key, now time.Time) admission.Decision {
	d := l.Messages.Take(ctx, sender, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.Allowed {
		l.charged[sender]++
	}
	return d
}

func (l *ledger) Read(ctx context.Context, host admission.Key, now time.Time) admission.Decision {
	d := l.Messages.Read(ctx, host, now)
	if d.Allowed {
		l.reads++
	}
	return d
}

// charged is how often a sender was charged.
func (d *desk) charged(from ed25519.PrivateKey) int {
	d.ledger.mu.Lock()
	defer d.ledger.mu.Unlock()
	return d.ledger.charged[d.keys.Key("sender", idOf(from).String())]
}

// unproven is how many units a host owes.
func (d *desk) unproven(host Client) int64 {
	now := time.Now()
	left := d.throttle.Take(d.hostKey(host), now)
	if !left.Allowed {
		return left.Limit
	}
	d.throttle.Return(d.hostKey(host), now)
	return left.Limit - left.Remaining - 1
}

// unspent checks that nothing was charged to anybody, and no message is held.
func (d *desk) unspent() {
	d.t.Helper()
	if len(d.ledger.charged) > 0 || d.ledger.reads > 0 || d.unproven(client(1)) != 0 || len(d.shelf.got) > 0 {
		d.t.Fatalf("charged %v, %d reads, %d units of the host; %d messages", d.ledger.charged, d.ledger.reads, d.unproven(client(1)), len(d.shelf.got))
	}
}

func decode[T any](t testing.TB, w *httptest.ResponseRecorder) (v T) {
	t.Helper()
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return v
}

var errNotReady = errors.New("ending")

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
