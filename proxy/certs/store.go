// Package certs owns where certificates come from: PEM files, a certificate
// authority (ACME, RFC 8555), and one of our own making for development. It
// chooses the certificate for a client hello and keeps what it serves up to date.
//
// It knows neither listeners nor routes, sends no alert and refuses no
// connection: it answers ErrUnknownName or ErrUnavailable, and the caller acts.
//
// The certificate for a client hello:
//   - a server name is matched without regard to case (and to a final dot, which
//     crypto/tls itself refuses); a certificate that holds the very name comes
//     before one that covers it by a wildcard, which stands for exactly one label;
//   - no server name, or the text of an IP address, gets the first configured
//     certificate: the first of files, or else the first that is ordered, or else
//     our own;
//   - of several certificates for a name (an ECDSA and an RSA pair), the first
//     that the client supports;
//   - a name that no certificate holds, or that is no DNS name: ErrUnknownName;
//   - a hello that offers acme-tls/1 and nothing else gets the answer to the
//     challenge that is open for its name, or ErrUnknownName.
//
// # Certificates from a CA
//
// Each name of the acme section is ordered by itself, and no other name ever is.
// The manager does it in the background, within Watch: neither a handshake nor
// the start waits for the CA. certmagic generates keys, stores what is issued and
// fetches staples; the orders are acmez's, one challenge at a time. The two open
// no socket and keep no time: the challenges are answered by the edge's own
// listeners (validation.go, http01.go), and when to order is decided here, from a
// record for each name that is in the storage before the order is placed.
//
// # Reload
//
// A store is opened by a first reload. [Store.Prepare] does all of another
// section that can fail, and [Reload.Apply] swaps it in: sources that both
// sections have stay what they are, with what they hold.
package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrUnknownName says that no certificate is configured for the server name.
	ErrUnknownName = errors.New("no certificate is configured for this server name")
	// ErrUnavailable says that one is configured but not to be had at the moment.
	ErrUnavailable = errors.New("the certificate for this server name is not available")
)

// pollInterval is how often Watch looks. A look is two stats a pair.
const pollInterval = 2 * time.Second

// source is where one certificate comes from.
type source interface {
	// names are what the certificate is configured for, in canonical form,
	// whether or not it is to be had.
	names() []string
	// certificate is the one in force, with its Leaf, or nil when it is not to be
	// had. It never changes: a newer one is another pointer.
	certificate() *tls.Certificate
	// refresh looks for a newer certificate, which may mean I/O, and reports
	// whether names or certificate answer otherwise than before. It keeps what is
	// in force when it finds nothing better, and logs that itself.
	refresh(now time.Time) bool
}

// Store holds the certificates. Its methods may be called from any goroutine, at
// any time, those that change it aside: see Prepare.
type Store struct {
	log        *slog.Logger
	plain      string      // the http_bind of the start; empty: none
	challenges *challenges // of every manager that this store has had
	orders     orderCounts
	shared     Shared // nil: there is none
	served     atomic.Pointer[snapshot]
	acme       atomic.Pointer[manager] // nil if nothing is ordered
	reloaded   chan struct{}           // acme is another one

	mu      sync.Mutex // held while sources refresh: never by a lookup
	sources []source   // in configured order
}

// Open loads every certificate. A pair that cannot be used is an error that
// names its files, what is wrong and what to do, all pairs' faults in one go; one
// outside its validity is served, with a warning, since clients may still want
// it more than no edge at all.
func Open(cfg Config, log *slog.Logger) (*Store, error) { return OpenShared(cfg, nil, log) }

// OpenShared is Open with a storage that edges share, for certificates.acme.storage:
// redis. What cannot be read there at the start is looked for again, as what cannot be
// ordered is.
func OpenShared(cfg Config, shared Shared, log *slog.Logger) (*Store, error) {
	s := &Store{log: log, shared: shared, challenges: newChallenges(), reloaded: make(chan struct{}, 1), plain: cfg.ACME.plain()}
	r, err := s.Prepare(cfg)
	if err != nil {
		return nil, err
	}
	r.Apply()
	return s, nil
}

// Certificate chooses the certificate for a client hello, as the package comment
// says; it has the shape of tls.Config.GetCertificate. It does no I/O and, with
// one certificate for the name, allocates nothing. Its errors are ErrUnknownName
// and ErrUnavailable, unwrapped.
func (s *Store) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if Validation(hello) {
		return s.challenges.certificate(hello.ServerName)
	}
	candidates, configured := s.served.Load().find(hello.ServerName)
	switch {
	case !configured:
		return nil, ErrUnknownName
	case len(candidates) == 0:
		return nil, ErrUnavailable
	}
	return choose(hello, candidates), nil
}

// NotAfter is the earliest expiry of the certificates served, or the zero time
// when there are none.
func (s *Store) NotAfter() time.Time { return s.served.Load().notAfter }

// OrderOpen reports whether a CA has been asked to validate a name by
// tls-alpn-01 and has not said how that ended: whether a validation may come. Of a
// storage that edges share, the orders of all of them count.
func (s *Store) OrderOpen() bool { return s.challenges.validating() }

// WithoutHTTP01 says that http_bind could not be bound, or is not served any
// longer: from here the other challenge is used alone.
func (s *Store) WithoutHTTP01() { s.challenges.noHTTP.Store(true) }

// Watch keeps the certificates up to date until ctx ends: changed files are
// loaded within seconds, our own certificate is made anew before it expires,
// those of a CA are ordered and renewed. What is no better than the certificate
// in force does not replace it.
func (s *Store) Watch(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	var running *manager
	stop := func() {}
	defer func() { stop() }()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if m := s.acme.Load(); m != running {
			stop()
			running, stop = m, m.start(ctx, &tasks)
		}
		var ordered chan struct{}
		if running != nil {
			ordered = running.changed
		}
		select {
		case <-ctx.Done():
			return
		case <-s.reloaded:
		case <-ordered:
			s.refresh(time.Now())
		case <-tick.C:
			s.refresh(time.Now())
		}
	}
}

func (s *Store) refresh(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for _, src := range s.sources {
		if src.refresh(now) {
			changed = true
		}
	}
	if changed {
		s.served.Store(newSnapshot(s.sources))
	}
}
