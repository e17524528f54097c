package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

func contextFor(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// echo serves one connection that sends back what it gets, with the store's
// certificates, and returns the client's end and the server's handshake error.
func echo(t *testing.T, s *Store, cfg *tls.Config) (*tls.Conn, <-chan error) {
	t.Helper()
	near, far := net.Pipe()
	deadline := time.Now().Add(10 * time.Second)
	try(t, near.SetDeadline(deadline))
	try(t, far.SetDeadline(deadline))
	client := tls.Client(near, cfg)
	server := tls.Server(far, &tls.Config{GetCertificate: s.Certificate, MinVersion: tls.VersionTLS12})
	result := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer far.Close()
		err := server.Handshake()
		result <- err
		if err == nil {
			_, _ = io.Copy(server, server)
		}
	})
	t.Cleanup(func() { near.Close(); wg.Wait() })
	return client, result
}

// says fails the test unless the connection gives back what is sent.
func says(t *testing.T, c *tls.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("%q, %v", got, err)
	}
}

// trusting is a client's configuration that accepts just these certificates.
func trusting(name string, version uint16, certs ...made) *tls.Config {
	roots := x509.NewCertPool()
	for _, c := range certs {
		roots.AddCert(c.leaf)
	}
	return &tls.Config{ServerName: name, RootCAs: roots, MinVersion: version, MaxVersion: version}
}

func TestHandshake(t *testing.T) {
	ec := makeCert(t, nil, time.Hour, "relay.example.org", "ec.example.org")
	rsa := makeCert(t, sharedRSA(), time.Hour, "relay.example.org", "rsa.example.org")
	s := mustOpen(t, Config{Files: []FilePair{placed(t, ec), placed(t, rsa)}}, quiet)
	for _, tt := range []struct {
		name    string
		sni     string
		version uint16
		suite   uint16
		want    made
	}{
		{"1.3, ECDSA", "ec.example.org", tls.VersionTLS13, 0, ec},
		{"1.3, RSA", "rsa.example.org", tls.VersionTLS13, 0, rsa},
		{"1.3, both", "relay.example.org", tls.VersionTLS13, 0, ec},
		{"1.2, ECDSA", "ec.example.org", tls.VersionTLS12, 0, ec},
		{"1.2, RSA", "rsa.example.org", tls.VersionTLS12, 0, rsa},
		{"1.2, both", "relay.example.org", tls.VersionTLS12, 0, ec},
		{"1.2, both, RSA client", "relay.example.org", tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, rsa},
		{"1.2, both, ECDSA client", "relay.example.org", tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, ec},
		{"upper case", "EC.example.ORG", tls.VersionTLS13, 0, ec},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := trusting(tt.sni, tt.version, ec, rsa)
			if tt.suite != 0 {
				cfg.CipherSuites = []uint16{tt.suite}
			}
			client, result := echo(t, s, cfg)
			says(t, client, "hello")
			if err := <-result; err != nil {
				t.Fatal(err)
			}
			state := client.ConnectionState()
			if !state.PeerCertificates[0].Equal(tt.want.leaf) || state.Version != tt.version {
				t.Errorf("%v, version %x", state.PeerCertificates[0].DNSNames, state.Version)
			}
		})
	}
}

// The caller tells the two errors apart in what its handshake returns.
func TestHandshakeReturnsTheStoresErrors(t *testing.T) {
	s := &Store{sources: []source{&pending{issued: []string{"pending.example.org"}}}}
	s.served.Store(newSnapshot(s.sources))
	for name, want := range map[string]error{"pending.example.org": ErrUnavailable, "other.example.org": ErrUnknownName} {
		client, result := echo(t, s, trusting(name, tls.VersionTLS13))
		if err := client.Handshake(); err == nil {
			t.Errorf("%s: served", name)
		}
		if err := <-result; !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

func TestSelfIssuedHandshake(t *testing.T) {
	s := mustOpen(t, Config{SelfIssued: []string{"localhost", "127.0.0.1"}}, quiet)
	own := made{leaf: s.served.Load().fallback[0].Leaf}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, name := range []string{"localhost", "127.0.0.1"} { // crypto/tls sends no server name for the second
			client, _ := echo(t, s, trusting(name, version, own))
			says(t, client, "hello")
		}
	}
}

// A pair that is swapped during traffic serves those who come afterwards, and
// disturbs nobody who is there.
func TestSwapDuringTraffic(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			watching(t, func(w *watched) {
				renewed := makeCert(t, sharedRSA(), 20*time.Hour, "a.example")
				before, _ := echo(w.T, w.s, trusting("a.example", version, w.old))
				says(t, before, "one")
				renewed.writeTo(t, w.at)
				says(t, before, "two")
				look(t)
				after, _ := echo(w.T, w.s, trusting("a.example", version, renewed))
				says(t, after, "three")
				says(t, before, "four")
				if !before.ConnectionState().PeerCertificates[0].Equal(w.old.leaf) || !after.ConnectionState().PeerCertificates[0].Equal(renewed.leaf) {
					t.Error("served to the wrong connection")
				}
				late, _ := echo(w.T, w.s, trusting("a.example", version, w.old))
				if err := late.Handshake(); err == nil {
					t.Error("a new connection got the old certificate")
				}
			})
		})
	}
}
