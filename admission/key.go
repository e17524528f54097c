package admission

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
)

// Key stands for whom a rate limit counts: a keyed hash, from which nobody
// without the secret learns a credential, an address or a name.
type Key [16]byte

// String returns the key in lower-case hex: 32 characters.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// KeyMaker makes keys: the first half of HMAC-SHA-256 with its secret. It is safe
// for concurrent use. Those of one fleet have one secret, or they would not count
// together.
type KeyMaker struct{ secret []byte }

// NewKeyMaker returns a maker with that secret; with none, one of its own.
func NewKeyMaker(secret []byte) *KeyMaker {
	if len(secret) == 0 {
		secret = make([]byte, 32)
		rand.Read(secret) // never fails: it ends the process instead
	}
	return &KeyMaker{secret: append([]byte(nil), secret...)}
}

// Key returns the key of value among those of a kind: "credential", "ip",
// "sender". Values of different kinds never share a key by being spelled alike.
func (m *KeyMaker) Key(kind, value string) Key {
	mac := hmac.New(sha256.New, m.secret)
	// A kind is a word of ours and has no NUL.
	mac.Write([]byte(kind))
	mac.Write([]byte{0})
	mac.Write([]byte(value))
	return Key(mac.Sum(nil)[:16])
}
