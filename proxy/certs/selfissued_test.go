package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestSelfIssued(t *testing.T) {
	before := time.Now()
	open := func() *x509.Certificate {
		s := mustOpen(t, Config{SelfIssued: []string{"localhost", "Relay.Example.ORG", "*.example.org", "127.0.0.1", "::1", "::ffff:192.0.2.1"}}, quiet)
		cert, err := s.Certificate(&tls.ClientHelloInfo{ServerName: "relay.example.org"})
		if err != nil {
			t.Fatal(err)
		}
		if !s.NotAfter().Equal(cert.Leaf.NotAfter) {
			t.Errorf("NotAfter %v, want %v", s.NotAfter(), cert.Leaf.NotAfter)
		}
		return cert.Leaf
	}
	leaf := open()
	for _, name := range []string{"localhost", "relay.example.org", "any.example.org", "127.0.0.1", "::1", "192.0.2.1"} {
		if err := leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"localhost", "relay.example.org", "*.example.org"}; !slices.Equal(leaf.DNSNames, want) {
		t.Errorf("DNS names %q", leaf.DNSNames)
	}
	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("key %T", leaf.PublicKey)
	}
	if leaf.IsCA || !leaf.BasicConstraintsValid || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("CA %v, constraints %v, usage %v", leaf.IsCA, leaf.BasicConstraintsValid, leaf.KeyUsage)
	}
	if life := leaf.NotAfter.Sub(before); life < selfIssuedLife-time.Second || life > selfIssuedLife+time.Minute {
		t.Errorf("life %v", life)
	}
	if !leaf.NotBefore.Before(before.Add(-selfIssuedPast + time.Minute)) {
		t.Errorf("begins %v", leaf.NotBefore)
	}
	// Without the CA flag it is still its own anchor for those who import it.
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"}); err != nil {
		t.Error(err)
	}
	again := open()
	if leaf.SerialNumber.Cmp(again.SerialNumber) == 0 || leaf.SerialNumber.BitLen() < 64 {
		t.Errorf("serials %v and %v", leaf.SerialNumber, again.SerialNumber)
	}
	if leaf.PublicKey.(*ecdsa.PublicKey).Equal(again.PublicKey) {
		t.Error("the same key twice")
	}
}

func TestSelfIssuedIsRenewed(t *testing.T) {
	var j journal
	s := mustOpen(t, Config{SelfIssued: []string{"localhost"}}, j.logger())
	ends := s.NotAfter()
	cert := func() *tls.Certificate { return s.served.Load().fallback[0] }
	first := cert()

	s.refresh(ends.Add(-selfIssuedRenew - time.Nanosecond))
	if cert() != first {
		t.Fatal("renewed too early")
	}
	j.logged(t)
	at := ends.Add(-selfIssuedRenew)
	s.refresh(at)
	if cert() == first || !s.NotAfter().Equal(at.Add(selfIssuedLife).Truncate(time.Second)) {
		t.Fatalf("not renewed: until %v", s.NotAfter())
	}
	j.logged(t, []string{"INFO", "renewed"})
	if first.Leaf.PublicKey.(*ecdsa.PublicKey).Equal(cert().Leaf.PublicKey) {
		t.Error("renewed with the old key")
	}
	// A clock set back to before the beginning: clients would refuse it.
	back := cert().Leaf.NotBefore
	s.refresh(back)
	j.logged(t)
	s.refresh(back.Add(-time.Nanosecond))
	if validAt(cert().Leaf, back.Add(-time.Second)) == false {
		t.Error("not renewed for a clock that was set back")
	}
}

func TestWatchRenewsSelfIssued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Config{SelfIssued: []string{"localhost"}}, quiet)
		first := s.served.Load().fallback[0]
		time.Sleep(selfIssuedLife - selfIssuedRenew - time.Second)
		go s.Watch(t.Context())
		look(t)
		if s.served.Load().fallback[0] == first {
			t.Error("not renewed")
		}
	})
}
