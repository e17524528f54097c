package proxy

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"sync"
	"time"
)

const (
	ticketRotation = 12 * time.Hour
	// ticketSecrets are kept: the one that tickets are made with, and those of the
	// 36 hours before. Older sessions shake hands in full.
	ticketSecrets = 4
)

// ticketSecret is what the keys of tickets are derived from.
type ticketSecret = [32]byte

// tickets are the secrets behind session tickets, one set for the process, or for
// all edges that share them. Each listener has keys of its own derived from them, so
// that a session which one listener made (without asking for a client certificate,
// say) is none at another, and none at the same one once it asks for others.
type tickets struct {
	mu      sync.Mutex
	secrets []ticketSecret // the one that tickets are made with first
}

func newTickets() *tickets {
	t := new(tickets)
	t.rotate()
	return t
}

func newTicketSecret() (secret ticketSecret) {
	rand.Read(secret[:]) // never fails: it ends the process instead
	return secret
}

// rotate makes a secret and forgets the oldest.
func (t *tickets) rotate() {
	secret := newTicketSecret()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.secrets = append([]ticketSecret{secret}, t.secrets[:min(len(t.secrets), ticketSecrets-1)]...)
}

// set puts other secrets in the place of all there are.
func (t *tickets) set(secrets []ticketSecret) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.secrets = secrets
}

// are reports whether these are the secrets, in this order.
func (t *tickets) are(secrets []ticketSecret) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Equal(t.secrets, secrets)
}

// of derives the keys for one use, in the order of the secrets.
func (t *tickets) of(use string) [][32]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([][32]byte, len(t.secrets))
	for i, secret := range t.secrets {
		key, err := hkdf.Key(sha256.New, secret[:], nil, "session tickets of listener "+use, len(keys[i]))
		if err != nil {
			panic("proxy: HKDF: " + err.Error()) // for lengths that these are not
		}
		copy(keys[i][:], key)
	}
	return keys
}

// renewTickets changes the secrets, and puts the keys that follow from them in
// force on every listener, those of a reload at the same moment included.
func (s *Server) renewTickets(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	for _, l := range s.listeners {
		s.keyTickets(l.terms.Load())
	}
}

// keyTickets puts the present keys in force for a listener's terms.
func (s *Server) keyTickets(t *terms) {
	if t.tls != nil {
		t.tls.SetSessionTicketKeys(s.tickets.of(t.tickets))
	}
}

// rotateTickets renews the ticket keys of all listeners until ctx ends.
func (s *Server) rotateTickets(ctx context.Context) {
	tick := time.NewTicker(ticketRotation)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.renewTickets(s.tickets.rotate)
		}
	}
}
