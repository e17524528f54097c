package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// TicketStore keeps the secrets behind session tickets for several edges, as one
// value. Its methods answer within seconds, or fail.
type TicketStore interface {
	// Load returns the value, which version it is, and how long ago it was put there,
	// by one clock for all edges. Where there is none, the version is empty.
	Load(ctx context.Context) (value []byte, version string, age time.Duration, err error)
	// Swap puts a value in the place of a version, and reports whether it did: not
	// where another has been put there before.
	Swap(ctx context.Context, version string, value []byte) (bool, error)
}

// TicketLife is how long a TicketStore keeps a value from its last change on.
const TicketLife = ticketSecrets * ticketRotation

const (
	// ticketLook is how often an edge looks at the shared secrets, give or take a third.
	ticketLook = 30 * time.Second
	// ticketSettling is how long a secret is known to the edges before tickets are
	// made with it: time for three looks.
	ticketSettling = 2 * time.Minute
)

// shareTickets keeps the ticket keys of all listeners in step with those of the
// other edges until ctx ends. While the secrets cannot be had, the edge goes on with
// those that it has, and renews them by itself when their time has come.
func (s *Server) shareTickets(ctx context.Context) {
	renewed := time.Now() // when the newest secret was made
	away := false
	for {
		secrets, age, err := sharedSecrets(ctx, s.shared)
		switch now := time.Now(); {
		case ctx.Err() != nil:
			return
		case err == nil:
			renewed = now.Add(-age)
			if !s.tickets.are(secrets) {
				s.renewTickets(func() { s.tickets.set(secrets) })
			}
		case now.Sub(renewed) >= ticketRotation:
			renewed = now
			s.renewTickets(s.tickets.rotate)
		}
		if (err != nil) != away {
			away = err != nil
			if away {
				s.log.Warn("the ticket keys of all edges cannot be had; this edge goes on with those it has, and sessions of other edges shake hands in full once these differ", "error", err)
			} else {
				s.log.Info("the ticket keys of all edges are to be had again")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(ticketLook*2/3 + rand.N(ticketLook*2/3)):
		}
	}
}

// sharedSecrets returns the secrets in the order of their use, and the age of the
// newest. It makes them, and the next one when its time has come: whoever is first
// does, and the others take what it made.
func sharedSecrets(ctx context.Context, store TicketStore) (secrets []ticketSecret, age time.Duration, err error) {
	for range 3 {
		value, version, age, err := store.Load(ctx)
		if err != nil {
			return nil, 0, err
		}
		secrets, err := readSecrets(value)
		if err != nil {
			return nil, 0, err
		}
		turns := int(age / ticketRotation) // more than one where no edge ran meanwhile
		if len(secrets) > 0 && turns == 0 {
			return inUse(secrets, age), age, nil
		}
		secrets = append([]ticketSecret{newTicketSecret()}, secrets[:min(len(secrets), max(ticketSecrets-max(turns, 1), 0))]...)
		switch ok, err := store.Swap(ctx, version, slices.Concat(bytesOf(secrets)...)); {
		case err != nil:
			return nil, 0, err
		case ok:
			return inUse(secrets, 0), 0, nil
		}
	}
	return nil, 0, errors.New("others change the ticket keys all the time")
}

// inUse puts the secret first that tickets are made with: the newest, unless it is
// so new that an edge may not know it.
func inUse(secrets []ticketSecret, age time.Duration) []ticketSecret {
	if len(secrets) > 1 && age < ticketSettling {
		secrets[0], secrets[1] = secrets[1], secrets[0]
	}
	return secrets
}

// readSecrets reads the secrets of a value, the newest first; nothing is none.
func readSecrets(value []byte) (secrets []ticketSecret, err error) {
	if len(value)%len(ticketSecret{}) != 0 || len(value) > ticketSecrets*len(ticketSecret{}) {
		return nil, errors.New("the stored ticket keys have a form that this version does not know; run one version at all edges")
	}
	for part := range slices.Chunk(value, len(ticketSecret{})) {
		secrets = append(secrets, ticketSecret(part))
	}
	return secrets, nil
}

func bytesOf(secrets []ticketSecret) (parts [][]byte) {
	for _, secret := range secrets {
		parts = append(parts, secret[:])
	}
	return parts
}
