package wire

import (
	"encoding/hex"
	"errors"
	"strings"
	"time"
)

// Sizes of what the HTTP API takes, in bytes.
const (
	// MaxBody is the longest body of a message.
	MaxBody = 64 << 10
	// MaxIdempotencyKey is the longest Idempotency-Key. Its bytes are those that
	// IsIdempotencyKey takes.
	MaxIdempotencyKey = 255
)

// IsIdempotencyKey reports whether s can name a request: 1 to MaxIdempotencyKey
// printable ASCII characters, none of them a space.
func IsIdempotencyKey(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= MaxIdempotencyKey
}

// ErrText means that a text is not the one in which 32 bytes are written over HTTP.
var ErrText = errors.New("64 lower-case hexadecimal digits are wanted")

// parseText reads 32 bytes. There is one way to write them.
func parseText(text []byte) (b [32]byte, err error) {
	if len(text) != 2*len(b) || strings.ToLower(string(text)) != string(text) {
		return b, ErrText
	}
	if _, err := hex.Decode(b[:], text); err != nil {
		return b, ErrText
	}
	return b, nil
}

// MarshalText returns the form that String returns.
func (id Identity) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText reads that form and no other, or returns ErrText.
func (id *Identity) UnmarshalText(text []byte) (err error) {
	*id, err = parseText(text)
	return err
}

// MarshalText returns the form that String returns.
func (id MessageID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText reads that form and no other, or returns ErrText.
func (id *MessageID) UnmarshalText(text []byte) (err error) {
	*id, err = parseText(text)
	return err
}

// Status says what has become of a message that was accepted. The list is closed.
type Status string

const (
	Delivered Status = "delivered" // its recipient is connected, and it is on its way
	Queued    Status = "queued"    // it waits for its recipient
)

// Accepted answers POST /messages.
type Accepted struct {
	ID     MessageID `json:"id"`
	Status Status    `json:"status"`
}

// Challenge answers GET /auth/challenge.
type Challenge struct {
	Nonce     string    `json:"nonce"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Waiting is a message in the answer to GET /messages.
type Waiting struct {
	ID     MessageID `json:"id"`
	Sender Identity  `json:"sender"`
	Body   []byte    `json:"body"`
}

// Mailbox answers GET /messages. Next is what the rest is fetched after; "": there
// is none.
type Mailbox struct {
	Messages []Waiting `json:"messages"`
	Next     string    `json:"next,omitempty"`
}

// Acknowledged answers POST /acks: how many messages were forgotten.
type Acknowledged struct {
	Acknowledged int `json:"acknowledged"`
}

// Bundle answers GET /identities/{identity}.
type Bundle struct {
	Identity  Identity `json:"identity"`
	Bundle    []byte   `json:"bundle"`
	Signature []byte   `json:"bundle_signature"`
}

// PushRegistration answers PUT /push.
type PushRegistration struct {
	Registration string    `json:"registration"`
	ExpiresAt    time.Time `json:"expires_at"`
}

// PushTest answers POST /push/test.
type PushTest struct {
	Outcome string `json:"outcome"`
}
