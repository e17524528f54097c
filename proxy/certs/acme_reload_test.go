package certs

import (
	"crypto/tls"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"relayedge/internal/testca"
)

// reloaded puts the site's section in force and returns the warnings.
func (s *site) reloaded() []string {
	s.Helper()
	return reload(s.T, s.store, Config{ACME: s.cfg, Files: s.files})
}

// obtained waits until as many certificates were issued to the store.
func (s *site) obtained(n float64) {
	s.Helper()
	s.until("the certificates", func() bool { return s.metric("acme_orders_total", "obtained") == n })
}

// Names come and go, while the others keep what they have; what is stored of a
// name that comes back is served at once, and no number of reloads places an order.
func TestReloadOfNames(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org", "b.example.org")
	s.start()
	s.obtained(2)
	s.certified("a.example.org", "b.example.org")
	held, err := s.store.Certificate(&tls.ClientHelloInfo{ServerName: "b.example.org"})
	try(t, err)

	s.cfg.Domains = []string{"c.example.org", "b.example.org"}
	s.cfg.Email, s.cfg.Challenges = "other@example.org", []string{challengeHTTP}
	manager := s.store.acme.Load()
	s.reloaded()
	unknown(t, s.store, "a.example.org")
	if got, err := s.store.Certificate(&tls.ClientHelloInfo{ServerName: "b.example.org"}); err != nil || got != held {
		t.Errorf("b.example.org: another certificate, %v", err)
	}
	s.obtained(3)
	s.certified("b.example.org", "c.example.org")
	if n := s.ca.Orders(); n != 3 {
		t.Errorf("%d orders for three names", n)
	}
	for i := range 20 {
		s.cfg.Domains = []string{"b.example.org", "c.example.org", "a.example.org"}[:2+i%2]
		s.reloaded()
		if i%2 == 1 { // at once
			if cert, err := s.store.Certificate(&tls.ClientHelloInfo{ServerName: "a.example.org"}); err != nil || cert.Leaf.VerifyHostname("a.example.org") != nil {
				t.Fatalf("what is stored is not served: %v", err)
			}
		}
	}
	if s.store.acme.Load() != manager {
		t.Error("the manager is another one")
	}
	s.end()
	if n := s.ca.Orders(); n != 3 {
		t.Errorf("%d orders after 20 reloads", n)
	}
}

// An order that is under way goes on, unless its name is gone.
func TestReloadDuringAnOrder(t *testing.T) {
	for _, stays := range []bool{true, false} {
		name := map[bool]string{true: "the name stays", false: "the name is gone"}[stays]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, testca.Options{}, "a.example.org", "b.example.org")
			s.cfg.Challenges = []string{challengeALPN}
			hang := make(chan struct{})
			s.hang = hang // validations get no answer yet
			s.start()
			s.until("two orders", func() bool { return s.store.challenges.tls.Load() == 2 })
			s.cfg.Email = "other@example.org"
			if !stays {
				s.cfg.Domains = []string{"b.example.org"}
			}
			for range 3 {
				s.reloaded()
			}
			if !stays {
				s.until("the end of the order", func() bool { return s.store.challenges.tls.Load() == 1 })
			}
			close(hang)
			s.certified("b.example.org")
			want := 2.0
			if !stays {
				want = 1
				unknown(t, s.store, "a.example.org")
			}
			s.obtained(want)
			if n := s.metric("acme_orders_total", "failed"); n != 0 || s.ca.Orders() != 2 {
				t.Errorf("%v failed, %d orders", n, s.ca.Orders())
			}
			if stays {
				return
			}
			// It comes back as one whose order failed, and waits.
			s.cfg.Domains = []string{"b.example.org", "a.example.org"}
			s.reloaded()
			if wait := time.Until(s.store.domains()[1].due()); wait < 30*time.Second {
				t.Errorf("the next order waits %v", wait)
			}
		})
	}
}

// The pauses that are kept outlast any reload, for a name and for the CA as a whole.
func TestReloadKeepsThePauses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		refusal testca.Refusal
	}{
		{"of a name", testca.Refusal{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"604800"}}, Problem: `{"type":"urn:ietf:params:acme:error:rateLimited","status":429}`}},
		{"of a CA that is down", testca.Refusal{Everything: true, Status: http.StatusServiceUnavailable}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, testca.Options{}, "a.example.org")
			s.ca.Refuse(&tt.refusal)
			s.start()
			s.expect("ERROR", "next_attempt=")
			at := s.metric("acme_retry_seconds", "a.example.org")
			asked := s.ca.Requests()
			names := s.cfg.Domains
			for i := range 20 {
				s.cfg.Email = []string{"ops@example.org", "other@example.org"}[i%2]
				if s.cfg.Domains = names; i%4 == 3 {
					s.cfg.Domains = nil // the whole section goes, and comes back
				}
				s.reloaded()
				time.Sleep(5 * time.Millisecond) // time to order, for one that would
			}
			s.cfg.Domains = names
			s.reloaded()
			if got := s.metric("acme_retry_seconds", "a.example.org"); got != at {
				t.Errorf("the next attempt is at %v, was at %v", got, at)
			}
			s.end()
			if n := s.ca.Requests(); n != asked {
				t.Errorf("%d requests by 20 reloads", n-asked)
			}
		})
	}
}

// The section can come and go; http_bind alone is as at the start.
func TestReloadOfTheSection(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	acme := s.cfg
	s.cfg = ACME{}
	s.files = []FilePair{placed(t, makeCert(t, nil, time.Hour, "file.example.org"))}
	s.start()
	if slices.ContainsFunc(s.store.Families(), hasSamples) {
		t.Error("there are samples of what is not configured")
	}
	s.cfg = acme
	s.cfg.Challenges = []string{challengeHTTP, challengeALPN} // http-01 cannot be answered
	if w := s.reloaded(); len(w) != 1 || !strings.HasPrefix(w[0], "certificates.acme.challenges: http-01 is answered from the next start on") {
		t.Errorf("warnings: %q", w)
	}
	s.obtained(1)
	s.certified("a.example.org")
	if n := s.ca.Orders(); n != 1 {
		t.Errorf("%d orders: the challenge that cannot be answered was tried", n)
	}

	// Another CA: what the first one issued is not its.
	other := testca.Start(t, testca.Options{TLSPort: port(s.tls), HTTPPort: port(s.http)})
	first, err := s.store.Certificate(&tls.ClientHelloInfo{ServerName: "a.example.org"})
	try(t, err)
	s.cfg.DirectoryURL, s.cfg.CARootFile = other.Directory, other.RootFile
	s.reloaded()
	s.obtained(2)
	s.certified("a.example.org")
	if second, err := s.store.Certificate(&tls.ClientHelloInfo{ServerName: "a.example.org"}); err != nil || second == first || second.Leaf.Issuer.CommonName == first.Leaf.Issuer.CommonName {
		t.Errorf("it is served by the first CA's certificate, %v", err)
	}
	// And back: it is stored.
	s.cfg.DirectoryURL, s.cfg.CARootFile = s.ca.Directory, s.ca.RootFile
	s.reloaded()
	if again, err := s.store.Certificate(&tls.ClientHelloInfo{ServerName: "a.example.org"}); err != nil || !again.Leaf.Equal(first.Leaf) {
		t.Errorf("what is stored is not served: %v", err)
	}
	s.cfg = ACME{}
	s.reloaded()
	unknown(t, s.store, "a.example.org")
	if slices.ContainsFunc(s.store.Families(), hasSamples) {
		t.Error("there are samples of what is not configured any longer")
	}
	s.end()
	if n, m := s.ca.Orders(), other.Orders(); n != 1 || m != 1 {
		t.Errorf("%d and %d orders", n, m)
	}
}
