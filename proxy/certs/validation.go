package certs

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// ValidationProtocol is the application protocol of tls-alpn-01 (RFC 8737).
const ValidationProtocol = acmez.ACMETLS1Protocol

// Validation reports whether a hello is that of a CA which validates a name by
// tls-alpn-01: it offers that protocol and no other (RFC 8737, section 3).
func Validation(hello *tls.ClientHelloInfo) bool {
	return len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == ValidationProtocol
}

// challenges are the answers to what a CA has been asked to validate, by this edge or
// by another one that shares its storage. They are in memory alone, so that no
// handshake waits for anything.
type challenges struct {
	tls    atomic.Int32 // how many of certs there are
	noHTTP atomic.Bool  // http-01 cannot be answered
	others atomic.Pointer[answers]

	mu     sync.RWMutex
	certs  map[string]*tls.Certificate // by name
	tokens map[tokenOf]string          // key authorizations
}

// tokenOf is what http-01 asks for.
type tokenOf struct{ name, token string }

func newChallenges() *challenges {
	return &challenges{certs: make(map[string]*tls.Certificate), tokens: make(map[tokenOf]string)}
}

// certificate answers a validation's hello. It does not answer for names whose
// validation has not been asked for.
func (c *challenges) certificate(serverName string) (*tls.Certificate, error) {
	var buf [MaxNameLen]byte
	if c == nil || !c.validating() || len(serverName) > MaxNameLen {
		return nil, ErrUnknownName
	}
	name, ok := AppendName(buf[:0], serverName)
	if !ok {
		return nil, ErrUnknownName
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if cert := c.certs[string(name)]; cert != nil {
		return cert, nil
	}
	if others := c.others.Load(); others != nil && others.certs[string(name)] != nil {
		return others.certs[string(name)], nil
	}
	return nil, ErrUnknownName
}

// keyAuthorization answers http-01, or returns nothing.
func (c *challenges) keyAuthorization(name, token string) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	asked := tokenOf{name, token}
	if answer := c.tokens[asked]; answer != "" {
		return answer
	}
	if others := c.others.Load(); others != nil {
		return others.tokens[asked]
	}
	return ""
}

// validating reports whether a validation by tls-alpn-01 may come.
func (c *challenges) validating() bool {
	if c.tls.Load() > 0 {
		return true
	}
	others := c.others.Load()
	return others != nil && len(others.certs) > 0
}

// alpnSolver and httpSolver tell the challenges what acmez wants answered. They
// open no socket: the edge's own listeners answer.
type alpnSolver struct{ *challenges }

func (s alpnSolver) Present(_ context.Context, chal acme.Challenge) error {
	cert, err := acmez.TLSALPN01ChallengeCert(chal)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.certs[chal.Identifier.Value] = cert
	s.tls.Store(int32(len(s.certs)))
	return nil
}

func (s alpnSolver) CleanUp(_ context.Context, chal acme.Challenge) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.certs, chal.Identifier.Value)
	s.tls.Store(int32(len(s.certs)))
	return nil
}

type httpSolver struct{ *challenges }

func (s httpSolver) Present(_ context.Context, chal acme.Challenge) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[tokenOf{chal.Identifier.Value, chal.Token}] = chal.KeyAuthorization
	return nil
}

func (s httpSolver) CleanUp(_ context.Context, chal acme.Challenge) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tokens, tokenOf{chal.Identifier.Value, chal.Token})
	return nil
}
