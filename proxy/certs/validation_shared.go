package certs

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"path"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// A CA that validates a name connects to whichever edge its address leads to, and
// often from several places to several edges. So an edge that orders tells the others
// what to answer, through the storage that they share, and gives them the time to
// look before it tells the CA to come. No handshake asks the storage.
const (
	// challengeLook is how often an edge looks for what others have been asked.
	challengeLook = time.Second
	// challengeSpread is the time that they get: for three looks.
	challengeSpread = 3 * challengeLook
	// maxShared bounds the challenges of others that are answered.
	maxShared = 2 * maxDomains

	challengeFolder = "challenges"
)

// answers are those to what other edges have been asked to show. They do not change.
type answers struct {
	certs  map[string]*tls.Certificate // by name
	tokens map[tokenOf]string          // key authorizations
}

// shown is a challenge as it is stored.
type shown struct {
	Type             string `json:"type"`
	Name             string `json:"name"`
	Token            string `json:"token"`
	KeyAuthorization string `json:"key_authorization"`
}

// sharedSolver has the other edges answer as well.
type sharedSolver struct {
	acmez.Solver
	storage *sharedStorage
}

var _ acmez.Waiter = sharedSolver{}

// solver returns what answers a challenge here, and at the others if there are any.
func solver(here acmez.Solver, others *sharedStorage) acmez.Solver {
	if others == nil {
		return here
	}
	return sharedSolver{here, others}
}

// challengeName is another one for each token, so that a name tells which challenge
// of a domain is known already.
func challengeName(chal acme.Challenge) string {
	digest := sha256.Sum256([]byte(chal.Token))
	return path.Join(challengeFolder, chal.Type, chal.Identifier.Value, hex.EncodeToString(digest[:8]))
}

func (s sharedSolver) Present(ctx context.Context, chal acme.Challenge) error {
	if err := s.Solver.Present(ctx, chal); err != nil {
		return err
	}
	data, err := json.Marshal(shown{chal.Type, chal.Identifier.Value, chal.Token, chal.KeyAuthorization})
	if err != nil {
		return err
	}
	return s.storage.shared.Put(ctx, challengeName(chal), data, attemptTimeout)
}

// Wait implements acmez.Waiter.
func (s sharedSolver) Wait(ctx context.Context, _ acme.Challenge) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(challengeSpread):
		return nil
	}
}

func (s sharedSolver) CleanUp(ctx context.Context, chal acme.Challenge) error {
	err := s.Solver.CleanUp(ctx, chal)
	// Where it cannot be removed, it ends by itself.
	s.storage.shared.Delete(context.WithoutCancel(ctx), challengeName(chal))
	return err
}

// watchChallenges keeps what the other edges have been asked among the answers until
// ctx ends.
func (s *sharedStorage) watchChallenges(ctx context.Context, c *challenges) {
	defer c.others.Store(nil)
	known := make(map[string]shown)
	looked := time.Now()
	tick := time.NewTicker(challengeLook)
	defer tick.Stop()
	for {
		switch changed, err := s.lookForChallenges(ctx, known); {
		case err == nil:
			looked = time.Now()
			if changed {
				c.others.Store(answersTo(known))
			}
		case time.Since(looked) > attemptTimeout: // none of them is open any longer
			clear(known)
			c.others.Store(nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lookForChallenges brings what is known into step with the storage, and reports
// whether that has changed it.
func (s *sharedStorage) lookForChallenges(ctx context.Context, known map[string]shown) (changed bool, err error) {
	names, err := s.shared.List(ctx, challengeFolder)
	if err != nil {
		return false, err
	}
	open := make(map[string]bool, len(names))
	for _, name := range names[:min(len(names), maxShared)] {
		open[name] = true
		if _, ok := known[name]; ok {
			continue
		}
		data, err := s.shared.Get(ctx, name)
		var read shown
		if err != nil || json.Unmarshal(data, &read) != nil || len(read.Name) > MaxNameLen {
			continue // it is over, or looked at again
		}
		known[name] = read
		changed = true
	}
	for name := range known {
		if !open[name] {
			delete(known, name)
			changed = true
		}
	}
	return changed, nil
}

// answersTo makes the answers to challenges.
func answersTo(known map[string]shown) *answers {
	a := &answers{certs: make(map[string]*tls.Certificate), tokens: make(map[tokenOf]string)}
	for _, k := range known {
		switch k.Type {
		case challengeHTTP:
			a.tokens[tokenOf{k.Name, k.Token}] = k.KeyAuthorization
		case challengeALPN:
			cert, err := acmez.TLSALPN01ChallengeCert(acme.Challenge{
				Identifier: acme.Identifier{Type: "dns", Value: k.Name}, Token: k.Token, KeyAuthorization: k.KeyAuthorization,
			})
			if err == nil {
				a.certs[k.Name] = cert
			}
		}
	}
	return a
}
