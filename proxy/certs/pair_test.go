package certs

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// sharedRSA is made once: an RSA key takes long.
var sharedRSA = sync.OnceValue(func() crypto.Signer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func newECDSA(t *testing.T, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newEd25519(t *testing.T) crypto.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// made is a certificate as an issuer would hand it out.
type made struct {
	chain, key string // PEM
	leaf       *x509.Certificate
	signer     crypto.Signer
}

// makeCert returns a self-signed certificate for names, valid from an hour ago for
// life from now. Without a signer it gets a P-256 key.
func makeCert(t *testing.T, signer crypto.Signer, life time.Duration, names ...string) made {
	t.Helper()
	now := time.Now()
	return makeCertBetween(t, signer, now.Add(-time.Hour+min(0, life)), now.Add(life), names...)
}

func makeCertBetween(t *testing.T, signer crypto.Signer, from, to time.Time, names ...string) made {
	t.Helper()
	return makeFrom(t, signer, &x509.Certificate{
		Subject:   pkix.Name{CommonName: "test"},
		NotBefore: from,
		NotAfter:  to,
		DNSNames:  names,
	})
}

func makeFrom(t *testing.T, signer crypto.Signer, template *x509.Certificate) made {
	t.Helper()
	if signer == nil {
		signer = newECDSA(t, elliptic.P256())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		t.Fatal(err)
	}
	return made{block("CERTIFICATE", der), block("PRIVATE KEY", pkcs8), leaf, signer}
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// place is a pair of paths in a folder of the test's own.
func place(t *testing.T) FilePair {
	t.Helper()
	dir := t.TempDir()
	return FilePair{filepath.Join(dir, "fullchain.pem"), filepath.Join(dir, "privkey.pem")}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (m made) writeTo(t *testing.T, at FilePair) {
	t.Helper()
	write(t, at.Certificate, m.chain)
	write(t, at.Key, m.key)
}

// placed writes a certificate to files of its own.
func placed(t *testing.T, m made) FilePair {
	t.Helper()
	at := place(t)
	m.writeTo(t, at)
	return at
}

func mustOpen(t *testing.T, cfg Config, log *slog.Logger) *Store {
	t.Helper()
	s, err := Open(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serves fails the test unless name gets want.
func serves(t *testing.T, s *Store, name string, want made) {
	t.Helper()
	got, err := s.Certificate(&tls.ClientHelloInfo{ServerName: name})
	if err != nil {
		t.Fatalf("%q: %v", name, err)
	}
	if !bytes.Equal(got.Certificate[0], want.leaf.Raw) {
		t.Fatalf("%q: served %v until %v, want %v until %v", name,
			got.Leaf.DNSNames, got.Leaf.NotAfter, want.leaf.DNSNames, want.leaf.NotAfter)
	}
}

// journal keeps what was logged: one line a record, "LEVEL message key=value …".
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) logger() *slog.Logger { return slog.New(&journalHandler{j: j}) }

// take returns the lines since the last take.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

type journalHandler struct {
	j     *journal
	attrs string
}

func (h *journalHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *journalHandler) WithGroup(string) slog.Handler            { return h }
func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := &journalHandler{h.j, h.attrs}
	for _, a := range attrs {
		n.attrs += " " + a.String()
	}
	return n
}

func (h *journalHandler) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message + h.attrs
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	h.j.mu.Lock()
	defer h.j.mu.Unlock()
	h.j.lines = append(h.j.lines, line)
	return nil
}

// logged fails the test unless the lines since the last look are as many as
// wanted and each holds, in order, the words wanted of it.
func (j *journal) logged(t *testing.T, want ...[]string) {
	t.Helper()
	got := j.take()
	if len(got) != len(want) {
		t.Fatalf("logged %d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i, words := range want {
		for _, word := range words {
			if !strings.Contains(got[i], word) {
				t.Errorf("line %q does not hold %q", got[i], word)
			}
		}
	}
}
