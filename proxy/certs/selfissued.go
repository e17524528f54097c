package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

const (
	selfIssuedLife  = 90 * 24 * time.Hour
	selfIssuedRenew = 30 * 24 * time.Hour // before its end
	// selfIssuedPast lets clients use the certificate whose clock is behind ours.
	selfIssuedPast = time.Hour
)

// selfIssued is the certificate of our own making. It lives in memory: a key on
// disk would ask to be trusted and kept.
type selfIssued struct {
	log     *slog.Logger
	written []string // the names as the section has them
	issued  []string
	cert    *tls.Certificate
}

func openSelfIssued(names []string, now time.Time, log *slog.Logger) (*selfIssued, error) {
	s := &selfIssued{log: log, written: names}
	for _, written := range names {
		name, err := issuableName(written)
		if err != nil {
			return nil, fmt.Errorf("certificates: self_issued: %w", err)
		}
		s.issued = append(s.issued, name)
	}
	cert, err := issue(s.issued, now)
	if err != nil {
		return nil, fmt.Errorf("certificates: self_issued: %w", err)
	}
	s.cert = cert
	return s, nil
}

func (s *selfIssued) names() []string               { return s.issued }
func (s *selfIssued) certificate() *tls.Certificate { return s.cert }

// refresh renews in good time, and also when the clock was set to before the
// certificate's beginning.
func (s *selfIssued) refresh(now time.Time) bool {
	leaf := s.cert.Leaf
	if !now.Before(leaf.NotBefore) && now.Before(leaf.NotAfter.Add(-selfIssuedRenew)) {
		return false
	}
	cert, err := issue(s.issued, now)
	if err != nil {
		// The names made a certificate at Open: this is beyond what can be expected,
		// and the next look tries again.
		s.log.Error("self-issued certificate not renewed", "error", err)
		return false
	}
	s.cert = cert
	s.log.Info("self-issued certificate renewed", "not_after", cert.Leaf.NotAfter)
	return true
}

// issue makes a self-signed ECDSA P-256 certificate for all names.
//
// It is no CA. Whoever imports it as trusted then trusts these names and nothing
// else, whereas the key of a CA in this process's memory could vouch for any
// name. Nothing needs the flag: Chromium, curl, OpenSSL and Go take a
// self-signed leaf as its own anchor, and Firefox refuses a CA's certificate as a
// server's.
func issue(names []string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	// Without a SerialNumber, CreateCertificate takes a random one: browsers refuse
	// two certificates of one issuer and serial.
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "relayedge self-issued"},
		NotBefore:             now.Add(-selfIssuedPast),
		NotAfter:              now.Add(selfIssuedLife),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, name := range names {
		if addr, err := netip.ParseAddr(name); err == nil {
			template.IPAddresses = append(template.IPAddresses, net.IP(addr.AsSlice()))
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
