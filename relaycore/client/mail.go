package client

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"relayedge/relaycore/wire"
)

// What answers are long at most, in bytes.
const (
	maxSmallAnswer   = 64 << 10 // a bundle in base64 fits
	maxMailboxAnswer = 8 << 20  // 1 MiB of messages, or one of 4 MiB behind them, in base64
)

// attemptTime is how long one attempt may take, its answer included.
const attemptTime = 30 * time.Second

// MailOptions are what NewMail may be told. The zero MailOptions are for a relay
// with a public certificate.
type MailOptions struct {
	// Options are for the connections below. HTTP/1.1 is spoken.
	Options
	// ServiceKey is the credential that the relay's request limit counts by, sent as
	// a bearer token; empty: requests are counted by address.
	ServiceKey string
	// MaxRetries is how often a call is sent again; nil: 3 times.
	MaxRetries *int
}

// Mail is an identity's use of a relay over HTTP: it sends and fetches messages
// without a session. It is safe for concurrent use.
//
// Every call is sent again, up to MaxRetries times, where the relay answers 429
// or 5xx or where no whole answer comes. It waits in between: for as long as
// Retry-After asks, but a minute at most, or else 1, 2, 4, 8 seconds, and a little
// longer at random. It is the same request each time, with the same Idempotency-Key,
// so its effect is that of one. The context ends everything at once. Redirects
// are not followed: what is signed goes to the relay it was meant for alone.
type Mail struct {
	base     string // without a slash at its end
	key      ed25519.PrivateKey
	identity wire.Identity
	service  string
	patience patience
}

// NewMail returns the mail of key's identity at the relay whose HTTP API stands
// at base, an https or http URL.
func NewMail(base string, key ed25519.PrivateKey, o MailOptions) (*Mail, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || !validPort(u.Port()):
		return nil, fmt.Errorf("%w: it begins with https:// or http:// and names a host", errURL)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, fmt.Errorf("%w: it has a name, a query or a fragment in it", errURL)
	}
	if len(key) != ed25519.PrivateKeySize {
		return nil, errors.New("the key is no Ed25519 private key")
	}
	if strings.ContainsFunc(o.ServiceKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the service key has other bytes than printable ASCII without spaces")
	}
	retries := maxRetries
	if o.MaxRetries != nil {
		retries = *o.MaxRetries
	}
	if retries < 0 {
		return nil, fmt.Errorf("MaxRetries is %d, allowed is 0 or more", retries)
	}
	return &Mail{
		base: strings.TrimRight(u.String(), "/"), key: key, service: o.ServiceKey,
		identity: wire.Identity(key.Public().(ed25519.PublicKey)),
		patience: patience{
			retries: retries, attempt: attemptTime,
			client: &http.Client{
				Transport: transport(o.Options),
				CheckRedirect: func(*http.Request, []*http.Request) error {
					return http.ErrUseLastResponse
				},
			},
		},
	}, nil
}

func transport(o Options) *http.Transport {
	dial := o.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	cfg := &tls.Config{}
	if o.TLS != nil {
		cfg = o.TLS.Clone()
	}
	cfg.NextProtos = []string{"http/1.1"}
	return &http.Transport{
		DialContext: dial, TLSClientConfig: cfg,
		TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		// What inflates would have to be bounded twice.
		DisableCompression: true,
	}
}

// Close lets go of connections that are not in use.
func (m *Mail) Close() { m.patience.client.CloseIdleConnections() }

// Identity returns whose mail it is.
func (m *Mail) Identity() wire.Identity { return m.identity }

// Letter is a message to send over HTTP.
type Letter struct {
	ID        wire.MessageID // zero: the client makes one up
	Recipient wire.Identity
	Body      []byte // at most wire.MaxBody bytes
	// IdempotencyKey names this call to the relay; the same letter sent again under
	// the same key gets the first answer again. Empty: the client makes one up.
	IdempotencyKey string
}

// Send sends a message. On an error it may have arrived nevertheless: sent again
// with the same ID it still arrives once.
func (m *Mail) Send(ctx context.Context, l Letter) (wire.Accepted, error) {
	if len(l.Body) > wire.MaxBody {
		return wire.Accepted{}, fmt.Errorf("a message of %d bytes is longer than %d", len(l.Body), wire.MaxBody)
	}
	for l.ID == (wire.MessageID{}) {
		rand.Read(l.ID[:])
	}
	sentAt := moment()
	// The sender stands early: the relay looks at its limits before it reads on.
	var answer wire.Accepted
	err := m.write(ctx, http.MethodPost, "/messages", l.IdempotencyKey, struct {
		Sender    wire.Identity  `json:"sender"`
		ID        wire.MessageID `json:"id"`
		Recipient wire.Identity  `json:"recipient"`
		SentAt    string         `json:"sent_at"`
		Body      string         `json:"body"`
		Signature string         `json:"signature"`
	}{
		m.identity, l.ID, l.Recipient, sentAt, base64Of(l.Body),
		m.sign(wire.MessageText(l.ID, m.identity, l.Recipient, sentAt, l.Body)),
	}, &answer)
	answer.ID = l.ID
	return answer, err
}

// Ack has the relay forget messages that have been fetched.
func (m *Mail) Ack(ctx context.Context, ids ...wire.MessageID) error {
	for len(ids) > 0 {
		n := min(len(ids), wire.MaxAckIDs)
		sentAt := moment()
		if err := m.write(ctx, http.MethodPost, "/acks", "", struct {
			Sender    wire.Identity    `json:"sender"`
			IDs       []wire.MessageID `json:"ids"`
			SentAt    string           `json:"sent_at"`
			Signature string           `json:"signature"`
		}{m.identity, ids[:n], sentAt, m.sign(wire.AcksText(m.identity, ids[:n], sentAt))}, nil); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// Fetch returns the part of what waits in the mailbox behind the place after, ""
// being its beginning. A message stays there until it is acknowledged, and comes
// again until then.
func (m *Mail) Fetch(ctx context.Context, after string) (wire.Mailbox, error) {
	// A challenge lives for less than a wait may last: each attempt has its own.
	once := patience{client: m.patience.client}
	body, err := m.patience.again(ctx, func(ctx context.Context) ([]byte, error) {
		b, err := once.do(ctx, maxSmallAnswer, m.get("/auth/challenge?identity="+m.identity.String()))
		if err != nil {
			return nil, err
		}
		var challenge wire.Challenge
		if err := read(b, &challenge); err != nil {
			return nil, &finalError{err}
		}
		query := url.Values{
			"identity":  {m.identity.String()},
			"nonce":     {challenge.Nonce},
			"signature": {m.sign(wire.MailboxText(m.identity, challenge.Nonce))},
		}
		if after != "" {
			query.Set("after", after)
		}
		return once.do(ctx, maxMailboxAnswer, m.get("/messages?"+query.Encode()))
	})
	if err != nil {
		return wire.Mailbox{}, err
	}
	var answer wire.Mailbox
	if err := read(body, &answer); err != nil {
		return wire.Mailbox{}, err
	}
	return answer, nil
}

// Publish publishes a bundle under the identity.
func (m *Mail) Publish(ctx context.Context, bundle []byte) error {
	if len(bundle) > wire.MaxBundle {
		return fmt.Errorf("a bundle of %d bytes is longer than %d", len(bundle), wire.MaxBundle)
	}
	sentAt := moment()
	return m.write(ctx, http.MethodPut, "/identities/"+m.identity.String(), "", struct {
		Bundle          string `json:"bundle"`
		BundleSignature string `json:"bundle_signature"`
		SentAt          string `json:"sent_at"`
		Signature       string `json:"signature"`
	}{base64Of(bundle), m.sign(wire.BundleText(bundle)), sentAt, m.sign(wire.IdentityText(m.identity, bundle, sentAt))}, nil)
}

// Bundle returns the bundle of an identity, which its signature has been checked for.
func (m *Mail) Bundle(ctx context.Context, identity wire.Identity) ([]byte, error) {
	body, err := m.patience.do(ctx, maxSmallAnswer, m.get("/identities/"+identity.String()))
	if err != nil {
		return nil, err
	}
	var answer wire.Bundle
	if err := read(body, &answer); err != nil {
		return nil, err
	}
	if !wire.Signed(identity, wire.BundleText(answer.Bundle), answer.Signature) {
		return nil, errors.New("the bundle is not signed by the identity")
	}
	return answer.Bundle, nil
}

// Health reports whether the relay serves.
func (m *Mail) Health(ctx context.Context) error {
	_, err := m.patience.do(ctx, maxSmallAnswer, m.get("/health"))
	return err
}

// errAnswer means that a 2xx answer is not what the relay's protocol says.
var errAnswer = errors.New("the answer is not a relay's")

// read reads a 2xx answer.
func read(body []byte, answer any) error {
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%w: %w", errAnswer, err)
	}
	return nil
}

// moment is the present as sent_at has it.
func moment() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

// sign signs text, in base64.
func (m *Mail) sign(text []byte) string { return base64Of(ed25519.Sign(m.key, text)) }

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// write sends an object as JSON, the same bytes under the same key each time, and
// reads the answer; nil: what it says beside 2xx is no matter.
func (m *Mail) write(ctx context.Context, method, path, key string, object, answer any) error {
	content, err := json.Marshal(object)
	if err != nil {
		return err
	}
	if key == "" {
		key = rand.Text()
	}
	if !wire.IsIdempotencyKey(key) {
		return fmt.Errorf("an Idempotency-Key is 1 to %d printable ASCII characters without spaces", wire.MaxIdempotencyKey)
	}
	body, err := m.patience.do(ctx, maxSmallAnswer, m.request(method, path, content, http.Header{
		"Content-Type": {"application/json"}, "Idempotency-Key": {key},
	}))
	if err != nil || answer == nil {
		return err
	}
	return read(body, answer)
}

func (m *Mail) get(path string) func(context.Context) (*http.Request, error) {
	return m.request(http.MethodGet, path, nil, http.Header{})
}

// request returns what makes a request anew for each attempt.
func (m *Mail) request(method, path string, content []byte, header http.Header) func(context.Context) (*http.Request, error) {
	return func(ctx context.Context) (*http.Request, error) {
		var body io.Reader
		if content != nil {
			body = bytes.NewReader(content)
		}
		r, err := http.NewRequestWithContext(ctx, method, m.base+path, body)
		if err != nil {
			return nil, err
		}
		r.Header = header.Clone()
		r.Header.Set("Accept", "application/json")
		if m.service != "" {
			r.Header.Set("Authorization", "Bearer "+m.service)
		}
		return r, nil
	}
}
