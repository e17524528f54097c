package client

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
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
	if !isWord(o.ServiceKey, len(o.ServiceKey)) {
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

// Receipt is the relay's answer to a letter.
type Receipt struct {
	ID     wire.MessageID
	Status string // delivered, or queued for a recipient who is away
}

// Send sends a message. On an error it may have arrived nevertheless: sent again
// with the same ID it still arrives once.
func (m *Mail) Send(ctx context.Context, l Letter) (Receipt, error) {
	if len(l.Body) > wire.MaxBody {
		return Receipt{}, fmt.Errorf("a message of %d bytes is longer than %d", len(l.Body), wire.MaxBody)
	}
	for l.ID == (wire.MessageID{}) {
		rand.Read(l.ID[:])
	}
	sentAt := moment()
	// The sender stands early: the relay looks at its limits before it reads on.
	body, err := m.write(ctx, http.MethodPost, "/messages", l.IdempotencyKey, struct {
		Sender    string `json:"sender"`
		ID        string `json:"id"`
		Recipient string `json:"recipient"`
		SentAt    string `json:"sent_at"`
		Body      string `json:"body"`
		Signature string `json:"signature"`
	}{
		m.identity.String(), l.ID.String(), l.Recipient.String(), sentAt, base64Of(l.Body),
		m.sign(wire.MessageText(l.ID, m.identity, l.Recipient, sentAt, l.Body)),
	})
	if err != nil {
		return Receipt{}, err
	}
	var answer struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return Receipt{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	return Receipt{l.ID, answer.Status}, nil
}

// Ack has the relay forget messages that have been fetched.
func (m *Mail) Ack(ctx context.Context, ids ...wire.MessageID) error {
	for len(ids) > 0 {
		n := min(len(ids), wire.MaxAckIDs)
		names := make([]string, n)
		for i, id := range ids[:n] {
			names[i] = id.String()
		}
		sentAt := moment()
		if _, err := m.write(ctx, http.MethodPost, "/acks", "", struct {
			Sender    string   `json:"sender"`
			IDs       []string `json:"ids"`
			SentAt    string   `json:"sent_at"`
			Signature string   `json:"signature"`
		}{m.identity.String(), names, sentAt, m.sign(wire.AcksText(m.identity, ids[:n], sentAt))}); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// Waiting is a message that waited in the mailbox.
type Waiting struct {
	ID     wire.MessageID
	Sender wire.Identity
	Body   []byte
}

// Page is a part of what waits.
type Page struct {
	Messages []Waiting
	// Next is what the next part is fetched after; "": that was all.
	Next string
}

// Fetch returns the part of what waits in the mailbox behind the place after, ""
// being its beginning. A message stays there until it is acknowledged, and comes
// again until then.
func (m *Mail) Fetch(ctx context.Context, after string) (Page, error) {
	// A challenge lives for less than a wait may last: each attempt has its own.
	once := patience{client: m.patience.client}
	body, err := m.patience.again(ctx, func(ctx context.Context) ([]byte, error) {
		b, err := once.do(ctx, maxSmallAnswer, m.get("/auth/challenge?identity="+m.identity.String()))
		if err != nil {
			return nil, err
		}
		var challenge struct {
			Nonce string `json:"nonce"`
		}
		if err := json.Unmarshal(b, &challenge); err != nil {
			return nil, &finalError{fmt.Errorf("%w: %w", errAnswer, err)}
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
		return Page{}, err
	}
	var answer struct {
		Next     string `json:"next"`
		Messages []struct {
			ID     name   `json:"id"`
			Sender name   `json:"sender"`
			Body   []byte `json:"body"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return Page{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	page := Page{Messages: make([]Waiting, len(answer.Messages)), Next: answer.Next}
	for i, w := range answer.Messages {
		page.Messages[i] = Waiting{wire.MessageID(w.ID), wire.Identity(w.Sender), w.Body}
	}
	return page, nil
}

// Publish publishes a bundle under the identity.
func (m *Mail) Publish(ctx context.Context, bundle []byte) error {
	if len(bundle) > wire.MaxBundle {
		return fmt.Errorf("a bundle of %d bytes is longer than %d", len(bundle), wire.MaxBundle)
	}
	sentAt := moment()
	_, err := m.write(ctx, http.MethodPut, "/identities/"+m.identity.String(), "", struct {
		Bundle          string `json:"bundle"`
		BundleSignature string `json:"bundle_signature"`
		SentAt          string `json:"sent_at"`
		Signature       string `json:"signature"`
	}{base64Of(bundle), m.sign(wire.BundleText(bundle)), sentAt, m.sign(wire.IdentityText(m.identity, bundle, sentAt))})
	return err
}

// Bundle returns the bundle of an identity, which its signature has been checked for.
func (m *Mail) Bundle(ctx context.Context, identity wire.Identity) ([]byte, error) {
	body, err := m.patience.do(ctx, maxSmallAnswer, m.get("/identities/"+identity.String()))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Bundle    []byte `json:"bundle"`
		Signature []byte `json:"bundle_signature"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%w: %w", errAnswer, err)
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

// name is 32 bytes as JSON has them: 64 hexadecimal digits.
type name [32]byte

func (n *name) UnmarshalText(text []byte) error {
	if len(text) != 2*len(n) {
		return fmt.Errorf("%d bytes in place of %d hexadecimal digits", len(text), 2*len(n))
	}
	_, err := hex.Decode(n[:], text)
	return err
}

// maxIdempotencyKey is the longest Idempotency-Key that relays take, in bytes.
const maxIdempotencyKey = 255

// isWord reports whether s can be sent in a header as it is.
func isWord(s string, most int) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) <= most
}

// moment is the present as sent_at has it.
func moment() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

// sign signs text, in base64.
func (m *Mail) sign(text []byte) string { return base64Of(ed25519.Sign(m.key, text)) }

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// write sends an object as JSON, the same bytes under the same key each time.
func (m *Mail) write(ctx context.Context, method, path, key string, object any) ([]byte, error) {
	content, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	if key == "" {
		key = rand.Text()
	}
	if !isWord(key, maxIdempotencyKey) {
		return nil, fmt.Errorf("an Idempotency-Key is at most %d printable ASCII bytes without spaces", maxIdempotencyKey)
	}
	return m.patience.do(ctx, maxSmallAnswer, m.request(method, path, content, http.Header{
		"Content-Type": {"application/json"}, "Idempotency-Key": {key},
	}))
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
