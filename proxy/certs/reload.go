package certs

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Reload is another certificates section, ready to be put in force.
type Reload struct {
	store     *Store
	config    Config
	sources   []source
	acme      *manager   // the one in force, or another
	authority *authority // of acme
	domains   []*domain
}

// Prepare does all of a change to cfg that can fail, and touches nothing that is
// in force: files are read, what is stored of names is loaded. Its error is that
// of Open, and then nothing changes.
//
// What is the same in both sections goes on: a pair of the same files keeps its
// certificate, whatever the files hold by now, and takes what they hold as it
// does at any time; a CA of the same directory and storage keeps its orders, its
// pauses and the certificates of the names that stay. Where http-01 is answered
// changes with the next start alone. Prepare and Apply are for one caller at a
// time, and a Reload holds until the next one is applied.
func (s *Store) Prepare(cfg Config) (*Reload, error) {
	if err := errors.Join(cfg.Validate(), cfg.ACME.Validate()); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	s.mu.Lock()
	held := s.sources
	s.mu.Unlock()
	r := &Reload{store: s, config: cfg}
	now := time.Now()
	faults := r.openPairs(held, now)
	if cfg.ACME.Enabled() {
		if err := r.openNames(now); err != nil {
			faults = append(faults, err)
		}
	}
	if len(cfg.SelfIssued) > 0 {
		src, err := s.ownMaking(cfg.SelfIssued, held, now)
		if err != nil {
			faults = append(faults, err)
		}
		r.sources = append(r.sources, src)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return r, nil
}

// openPairs has a source for each pair: the one that is held, or another.
func (r *Reload) openPairs(held []source, now time.Time) (faults []error) {
	held = slices.Clone(held)
	for _, pair := range r.config.Files {
		at := slices.IndexFunc(held, func(src source) bool {
			p, ok := src.(*filePair)
			return ok && p.FilePair == pair
		})
		if at >= 0 {
			r.sources = append(r.sources, held[at])
			held = slices.Delete(held, at, at+1) // a pair that is written twice has two
			continue
		}
		src, err := openPair(pair, now, r.store.log)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		r.sources = append(r.sources, src)
	}
	return faults
}

// openNames has a source for each name that is ordered.
func (r *Reload) openNames(now time.Time) (err error) {
	s, cfg := r.store, r.config.ACME
	if m := s.acme.Load(); m != nil && m.fits(cfg) {
		r.acme = m
		if r.authority, err = m.newAuthority(cfg); err != nil {
			return err
		}
		if r.domains, err = m.openDomains(cfg.Domains, m.current(), now); err != nil {
			return err
		}
	} else {
		if r.acme, err = openACME(cfg, s.shared, s.challenges, &s.orders, now, s.log); err != nil {
			return err
		}
		r.authority, r.domains = r.acme.authority.Load(), r.acme.domains
	}
	for _, d := range r.domains {
		r.sources = append(r.sources, d)
	}
	return nil
}

// ownMaking is the certificate of our own making: the one that is held, if its
// names are the same.
func (s *Store) ownMaking(names []string, held []source, now time.Time) (source, error) {
	for _, src := range held {
		if own, ok := src.(*selfIssued); ok && slices.Equal(own.written, names) {
			return own, nil
		}
	}
	return openSelfIssued(names, now, s.log)
}

// Apply puts the section in force. Handshakes that are under way end as they
// began. It returns what the operator should mend though nothing is refused for
// it: pairs whose files cannot be used, while an older certificate of theirs is in
// force and stays so; http-01, where it was not answered before.
func (r *Reload) Apply() (warnings []string) {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.acme != nil {
		r.acme.take(r.authority, r.domains)
		if s.plain == "" && r.config.ACME.UsesHTTP() {
			s.WithoutHTTP01()
			warnings = append(warnings, "certificates.acme.challenges: http-01 is answered from the next start on; until then the other challenge is used alone")
		}
	}
	if r.acme != nil {
		if fault := r.acme.fault(); fault != "" {
			warnings = append(warnings, "certificates.acme: nothing is ordered, since it could not be kept: "+fault)
		}
	}
	s.sources = r.sources
	s.acme.Store(r.acme)
	now := time.Now()
	for _, src := range s.sources {
		src.refresh(now) // what files hold by now, and what was issued since Prepare
		if p, ok := src.(*filePair); ok && p.fault != "" {
			warnings = append(warnings, fmt.Sprintf("certificate %s with key %s: %s; the certificate in force stays", p.Certificate, p.Key, p.fault))
		}
	}
	s.served.Store(newSnapshot(s.sources))
	select {
	case s.reloaded <- struct{}{}:
	default: // Watch will look anyway
	}
	return warnings
}

// plain is where http-01 is to be answered; empty: nowhere.
func (c ACME) plain() string {
	if c.UsesHTTP() {
		return c.HTTPBind
	}
	return ""
}
