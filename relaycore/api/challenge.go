package api

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/url"
	"time"

	"relayedge/relaycore/wire"
)

// ChallengeLife is how long a challenge can be answered.
const ChallengeLife = time.Minute

// challenges makes nonces and knows its own again without keeping them: a nonce
// is when it was made, in milliseconds since the start, randomness, and a tag that
// binds both to the identity. Within its life it can be answered more than once,
// with the same signature: who could do that has seen a request, and with it the
// answer. The time is the monotonic clock's.
type challenges struct {
	secret [32]byte
	begun  time.Time
}

// The parts of a nonce in bytes: 8 of time, then randomness, then the tag.
const (
	nonceTag  = 16
	nonceSize = 32
)

func newChallenges(now time.Time) *challenges {
	c := &challenges{begun: now}
	rand.Read(c.secret[:])
	return c
}

// issue returns a nonce for an identity, in lower-case hex.
func (c *challenges) issue(id wire.Identity, now time.Time) string {
	var n [nonceSize]byte
	binary.BigEndian.PutUint64(n[:], uint64(now.Sub(c.begun).Milliseconds()))
	rand.Read(n[8:nonceTag])
	copy(n[nonceTag:], c.tag(id, n[:nonceTag]))
	return hex.EncodeToString(n[:])
}

func (c *challenges) tag(id wire.Identity, head []byte) []byte {
	mac := hmac.New(sha256.New, c.secret[:])
	mac.Write(id[:])
	mac.Write(head)
	return mac.Sum(nil)[:nonceSize-nonceTag]
}

// holds reports whether a nonce was issued for the identity and lives.
func (c *challenges) holds(id wire.Identity, nonce string, now time.Time) bool {
	n, err := hex.DecodeString(nonce)
	if err != nil || len(n) != nonceSize || hex.EncodeToString(n) != nonce || !hmac.Equal(n[nonceTag:], c.tag(id, n[:nonceTag])) {
		return false
	}
	age := now.Sub(c.begun) - time.Duration(binary.BigEndian.Uint64(n[:]))*time.Millisecond
	return age < ChallengeLife
}

// challenge answers GET /auth/challenge.
func (h *Handler) challenge(q *request) *reply {
	p, wrong := q.parameters()
	if wrong != nil {
		return wrong
	}
	id, wrong := p.identity()
	if wrong != nil {
		return wrong
	}
	now := time.Now()
	return ok(http.StatusOK, wire.Challenge{
		Nonce: h.challenges.issue(id, now), ExpiresAt: now.Add(ChallengeLife).UTC().Truncate(time.Second),
	})
}

// parameters are those of a URL. Those that nobody asks for are ignored.
type parameters url.Values

func (q *request) parameters() (parameters, *reply) {
	p, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return nil, refuse(BadRequest, "the query cannot be read")
	}
	return parameters(p), nil
}

// one is a parameter that must be there once.
func (p parameters) one(name string) (string, *reply) {
	if len(p[name]) != 1 {
		return "", refuse(BadRequest, "the query must have %s, once", name)
	}
	return p[name][0], nil
}

func (p parameters) identity() (id wire.Identity, _ *reply) {
	s, wrong := p.one("identity")
	if wrong != nil {
		return id, wrong
	}
	if id.UnmarshalText([]byte(s)) != nil {
		return id, refuse(BadRequest, notHex, "identity")
	}
	return id, nil
}
