package certs

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"relayedge/internal/memconn"
	"relayedge/internal/telemetry"
)

const (
	errnoReadOnly = syscall.EROFS
	errnoNoSpace  = syscall.ENOSPC
)

func pendingStore(t *testing.T) (*Store, acme.Challenge) {
	t.Helper()
	cfg := goodACME()
	cfg.Storage = t.TempDir()
	return mustOpen(t, Config{ACME: cfg}, quiet), acme.Challenge{
		Identifier: acme.Identifier{Type: "dns", Value: "a.example.org"}, Token: "token", KeyAuthorization: "token.thumb",
	}
}

func TestHTTPHandler(t *testing.T) {
	s, chal := pendingStore(t)
	solver := httpSolver{s.challenges}
	try(t, solver.Present(t.Context(), chal))
	const path = "/.well-known/acme-challenge/token"
	ask := func(method, host, target string) *http.Response {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, "http://x/", nil)
		r.Host = host
		u, err := r.URL.Parse(target)
		try(t, err)
		if r.URL = u; target == "*" {
			r.URL.Path = "*"
		}
		s.HTTPHandler().ServeHTTP(w, r)
		return w.Result()
	}
	for _, tt := range []struct {
		name, method, host, target string
		status                     int
		want                       string // Location, or the body
	}{
		{"challenge", "GET", "a.example.org", path, 200, "token.thumb"},
		{"with a port, upper case", "GET", "A.Example.ORG:5002", path, 200, "token.thumb"},
		{"by HEAD", "HEAD", "a.example.org", path, 200, "token.thumb"},
		{"by POST", "POST", "a.example.org", path, 308, "https://a.example.org" + path},
		{"of another name", "GET", "b.example.org", path, 301, "https://b.example.org" + path},
		{"another token", "GET", "a.example.org", path + "2", 301, "https://a.example.org" + path + "2"},
		{"no token", "GET", "a.example.org", "/.well-known/acme-challenge/", 301, "https://a.example.org/.well-known/acme-challenge/"},
		{"redirect", "GET", "a.example.org", "/x?y=1%20z", 301, "https://a.example.org/x?y=1%20z"},
		{"redirect to the default port", "GET", "a.example.org:8080", "/", 301, "https://a.example.org/"},
		{"redirect that keeps the method", "PUT", "a.example.org", "/x", 308, "https://a.example.org/x"},
		{"the whole server", "OPTIONS", "a.example.org", "*", 308, "https://a.example.org/"},
		{"no host", "GET", "", "/", 400, ""},
		{"a host that is no name", "GET", "a b", "/", 400, ""},
		{"a host that ends the URL", "GET", "evil.example/?", "/", 400, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := ask(tt.method, tt.host, tt.target)
			body, _ := io.ReadAll(resp.Body)
			got := resp.Header.Get("Location")
			if resp.StatusCode == 200 {
				got = string(body)
			}
			if resp.StatusCode != tt.status || got != tt.want {
				t.Errorf("%d %q, want %d %q", resp.StatusCode, got, tt.status, tt.want)
			}
		})
	}
	try(t, solver.CleanUp(t.Context(), chal))
	if resp := ask("GET", "a.example.org", path); resp.StatusCode != 301 {
		t.Errorf("%d after the challenge is over", resp.StatusCode)
	}
}

func TestValidationHello(t *testing.T) {
	s, chal := pendingStore(t)
	solver := alpnSolver{s.challenges}
	hello := func(name string, protocols ...string) *tls.ClientHelloInfo {
		h := helloFor(tls.VersionTLS13, name, tls.ECDSAWithP256AndSHA256)
		h.SupportedProtos = protocols
		return h
	}
	ask := func(h *tls.ClientHelloInfo, want error) *tls.Certificate {
		t.Helper()
		cert, err := s.Certificate(h)
		if err != want {
			t.Errorf("%q %q: %v, want %v", h.ServerName, h.SupportedProtos, err, want)
		}
		return cert
	}
	ask(hello("a.example.org", "acme-tls/1"), ErrUnknownName)
	if s.OrderOpen() {
		t.Error("an order is open before it is placed")
	}
	try(t, solver.Present(t.Context(), chal))
	if !s.OrderOpen() {
		t.Error("no order is open")
	}
	for _, name := range []string{"a.example.org", "A.EXAMPLE.ORG"} {
		if cert := ask(hello(name, "acme-tls/1"), nil); cert == nil || cert.Leaf.Subject.CommonName != "ACME challenge" {
			t.Errorf("%s: %v", name, cert)
		}
	}
	ask(hello("b.example.org", "acme-tls/1"), ErrUnknownName)
	ask(hello("", "acme-tls/1"), ErrUnknownName)
	ask(hello(strings.Repeat("a", 400), "acme-tls/1"), ErrUnknownName)
	// These want the certificate, which is not there yet.
	ask(hello("a.example.org"), ErrUnavailable)
	ask(hello("a.example.org", "acme-tls/1", "http/1.1"), ErrUnavailable)
	ask(hello("a.example.org", "http/1.1"), ErrUnavailable)
	try(t, solver.CleanUp(t.Context(), chal))
	if s.OrderOpen() {
		t.Error("an order is open after its end")
	}
	ask(hello("a.example.org", "acme-tls/1"), ErrUnknownName)
	// Without the section nothing is answered.
	none := mustOpen(t, Config{SelfIssued: []string{"a.example.org"}}, quiet)
	if _, err := none.Certificate(hello("a.example.org", "acme-tls/1")); err != ErrUnknownName || none.OrderOpen() || slices.ContainsFunc(none.Families(), hasSamples) {
		t.Error("a store that orders nothing answers a validation")
	}
}

func hasSamples(f telemetry.Family) (has bool) {
	f.Read(func(string, float64) { has = true })
	return has
}

func TestServeHTTP01Bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := pendingStore(t)
		ln := memconn.Listen(netip.MustParseAddrPort("192.0.2.1:80"))
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.ServeHTTP01(ctx, ln) }()
		dial := func() net.Conn {
			t.Helper()
			conn, err := ln.Dial(ctx, netip.MustParseAddrPort("198.51.100.1:4000"))
			try(t, err)
			synctest.Wait()
			return conn
		}
		request := func(conn net.Conn, header string) string {
			t.Helper()
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a.example.org\r\n"+header+"\r\n")
			line, _ := bufio.NewReader(conn).ReadString('\n')
			return strings.TrimSpace(line)
		}
		ended := func(conn net.Conn) bool {
			conn.SetReadDeadline(time.Now().Add(time.Nanosecond))
			_, err := conn.Read(make([]byte, 1))
			return err != nil && !strings.Contains(err.Error(), "timeout")
		}

		// Whoever holds all connections does not keep a newcomer out: the oldest goes.
		var silent []net.Conn
		for range plainConnections {
			silent = append(silent, dial())
		}
		if got := request(dial(), ""); got != "HTTP/1.1 301 Moved Permanently" {
			t.Errorf("a newcomer gets %q", got)
		}
		synctest.Wait()
		if !ended(silent[0]) || ended(silent[1]) {
			t.Error("the oldest makes room, and no other")
		}
		time.Sleep(plainTimeout)
		synctest.Wait()
		for i, conn := range silent {
			if !ended(conn) {
				t.Errorf("connection %d is open after %s of silence", i, plainTimeout)
			}
		}
		if got := request(dial(), "X: "+strings.Repeat("a", 7000)+"\r\n"); got != "HTTP/1.1 301 Moved Permanently" {
			t.Errorf("7000 bytes of header: %q", got)
		}
		if got := request(dial(), "X: "+strings.Repeat("a", plainHeaderBytes)+"\r\n"); got != "HTTP/1.1 431 Request Header Fields Too Large" {
			t.Errorf("more than 8 KiB of header: %q", got)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second) // net/http lingers after a 431
	})
}
