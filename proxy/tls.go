package proxy

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"relayedge/internal/plainfile"
	"relayedge/proxy/certs"
)

// chooseCertificate has the shape of tls.Config.GetCertificate; its errors are
// those of certs.Store.Certificate.
type chooseCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// unrecognized has no certificate, which is what makes crypto/tls answer with
// the alert unrecognized_name; an error from a callback would be internal_error,
// as if the fault were ours.
var unrecognized = &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}

// endTLS makes the listener end TLS. Its config is the one that tickets are
// made and read by, whatever config a route has.
func (t *terms) endTLS(certificate chooseCertificate) error {
	t.tickets = t.config.Name
	c := &tls.Config{
		MinVersion: map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[t.config.TLSMinVersion],
		NextProtos: t.config.ALPN,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err := certificate(hello)
			hello.Conn.(*wire).certErr = err
			return cert, err
		},
	}
	if t.config.ClientCAFile != "" {
		var err error
		var digest string
		if c.ClientCAs, digest, err = readCAs(t.config.ClientCAFile); err != nil {
			return fmt.Errorf("client_ca_file: %w", err)
		}
		t.tickets += " for clients of " + digest // a session that other CAs vouched for is none here
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	for _, r := range t.routes.all {
		r.tls = c.Clone() // before there are ticket keys in c: a route's config has none of its own
		r.tls.NextProtos = offer(t.config.ALPN, r.speaks)
	}
	// A CA's validation is answered by itself (RFC 8737): neither the listener's
	// protocols nor its client certificates are asked for, nor a route.
	validation := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{certs.ValidationProtocol}, SessionTicketsDisabled: true, GetCertificate: c.GetCertificate}
	// This is asked at resumptions too, which need no certificate.
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		w := hello.Conn.(*wire)
		config := validation
		if !certs.Validation(hello) {
			if w.route = t.routes.find(hello.ServerName); w.route == nil {
				w.certErr = certs.ErrUnknownName
				return unrecognized, nil
			}
			config = w.route.tls
		}
		if _, err := certificate(hello); errors.Is(err, certs.ErrUnknownName) {
			w.certErr = err
			return unrecognized, nil
		}
		return config, nil
	}
	t.tls = c
	return nil
}

// maxCAFileBytes is several times what all CAs of the web take up.
const maxCAFileBytes = 1 << 20

// readCAs reads the CAs of a PEM file, and gives the digest of what it says.
func readCAs(file string) (pool *x509.CertPool, digest string, err error) {
	pem, err := plainfile.Read(file, maxCAFileBytes)
	if err != nil {
		return nil, "", err
	}
	pool = x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, "", fmt.Errorf("%s holds no PEM certificate", file)
	}
	return pool, fmt.Sprintf("%x", sha256.Sum256(pem)), nil
}
