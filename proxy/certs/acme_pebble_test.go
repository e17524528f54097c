package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"relayedge/internal/testca"
)

// These tests run against a real CA on the loopback addresses, in real time.

func TestMain(m *testing.M) {
	code := m.Run()
	testca.Remove()
	os.Exit(code)
}

const patience = 2 * time.Minute

// site is a machine whose names a CA validates: its two sockets and its storage.
type site struct {
	*testing.T
	ca      *testca.CA
	tls     net.Listener
	http    net.Listener
	cfg     ACME
	files   []FilePair
	j       journal
	store   *Store
	before  func()        // called before Watch
	hang    chan struct{} // if set, TLS is not answered until it is closed
	stop    context.CancelFunc
	running sync.WaitGroup
}

// newSite has the CA and the sockets; start starts the edge's part.
func newSite(t *testing.T, o testca.Options, domains ...string) *site {
	t.Helper()
	s := &site{T: t, tls: listen(t), http: listen(t)}
	o.TLSPort, o.HTTPPort = port(s.tls), port(s.http)
	s.ca = testca.Start(t, o)
	s.cfg = ACME{
		Domains: domains, Email: "ops@example.org", AgreeToTerms: true,
		DirectoryURL: s.ca.Directory, CARootFile: s.ca.RootFile,
		Challenges: []string{challengeALPN, challengeHTTP}, HTTPBind: s.http.Addr().String(),
		Storage: filepath.Join(t.TempDir(), "storage"),
	}
	// A storage that has been used: the first order of a new one waits.
	try(t, os.MkdirAll(filepath.Join(s.cfg.Storage, "orders"), 0o700))
	t.Cleanup(func() {
		s.tls.Close()
		s.http.Close()
	})
	return s
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func port(ln net.Listener) int { return ln.Addr().(*net.TCPAddr).Port }

// start opens the store and serves both sockets, as the edge does, until end.
func (s *site) start() {
	s.Helper()
	s.store = mustOpen(s.T, Config{ACME: s.cfg, Files: s.files}, s.j.logger())
	if s.before != nil {
		s.before()
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.serve(ctx)
	s.running.Go(func() { s.store.Watch(ctx) })
	s.Cleanup(s.end)
}

func (s *site) end() {
	s.stop()
	s.running.Wait()
}

// passed has every pause end that is kept.
func (s *site) passed() {
	s.Helper()
	m := s.store.acme.Load()
	keys := []string{m.recordKey("ca")}
	for _, d := range m.domains {
		keys = append(keys, m.recordKey(path.Join("names", d.name)))
	}
	for _, key := range keys {
		r := loadRecord(s.Context(), m.storage, key, time.Now())
		r.Next = time.Time{}
		try(s.T, r.store(s.Context(), m.storage, key))
	}
}

// serve answers on the two sockets; they stay open for the next start.
func (s *site) serve(ctx context.Context) {
	validation := &tls.Config{NextProtos: []string{ValidationProtocol}, GetCertificate: s.store.Certificate}
	cfg := &tls.Config{
		NextProtos: []string{"http/1.1"}, GetCertificate: s.store.Certificate,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if Validation(hello) {
				return validation, nil
			}
			return nil, nil
		},
	}
	hang := s.hang
	s.running.Go(func() {
		accept(ctx, s.tls, func(conn net.Conn) {
			if hang != nil {
				<-hang
			}
			tls.Server(conn, cfg).HandshakeContext(ctx)
			conn.Close()
		})
	})
	s.running.Go(func() {
		ln := kept{s.http.(*net.TCPListener)}
		ln.SetDeadline(time.Time{})
		if err := s.store.ServeHTTP01(ctx, ln); err != nil {
			s.Error(err)
		}
	})
}

// kept is a listener that outlasts its Close.
type kept struct{ *net.TCPListener }

func (l kept) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// accept takes connections until ctx ends, and leaves the listener open.
func accept(ctx context.Context, ln net.Listener, serve func(net.Conn)) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tcp := ln.(*net.TCPListener)
	stop := context.AfterFunc(ctx, func() { tcp.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	tcp.SetDeadline(time.Time{})
	for ctx.Err() == nil {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		conn.SetDeadline(time.Now().Add(patience))
		tasks.Go(func() { serve(conn) })
	}
}

// until waits for what the manager or the CA does.
func (s *site) until(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) { // another process is part of it
		if time.Now().After(deadline) {
			s.Fatalf("not within %s: %s; logged:\n%s", patience, what, strings.Join(s.j.take(), "\n"))
		}
	}
}

// certified waits until each name has its certificate in handshakes.
func (s *site) certified(names ...string) {
	s.Helper()
	for _, name := range names {
		s.until("a certificate for "+name, func() bool {
			state, err := handshake(s.tls.Addr().String(), name)
			return err == nil && state.PeerCertificates[0].VerifyHostname(name) == nil &&
				state.PeerCertificates[0].Issuer.CommonName != "ACME challenge"
		})
	}
}

func handshake(address, name string) (*tls.ConnectionState, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	secure := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err := secure.Handshake(); err != nil {
		return nil, err
	}
	state := secure.ConnectionState()
	return &state, nil
}

// expect fails the test unless one line of the log holds all the parts.
func (s *site) expect(parts ...string) {
	s.Helper()
	var lines []string
	s.until(fmt.Sprintf("a line with %q", parts), func() bool {
		lines = append(lines, s.j.take()...)
		return slices.ContainsFunc(lines, func(line string) bool {
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
		})
	})
}

// metric reads one sample of the store's families.
func (s *site) metric(name, label string) (value float64) {
	s.Helper()
	found := false
	for _, f := range s.store.Families() {
		if f.Name == name {
			f.Read(func(l string, v float64) {
				if l == label {
					value, found = v, true
				}
			})
		}
	}
	if !found {
		s.Fatalf("there is no %s{%s}", name, label)
	}
	return value
}

func TestThreeNamesByEachChallenge(t *testing.T) {
	for _, flaky := range []bool{false, true} {
		for _, challenge := range []string{challengeALPN, challengeHTTP} {
			t.Run(fmt.Sprintf("%s, flaky %v", challenge, flaky), func(t *testing.T) {
				t.Parallel()
				names := []string{"a.example.org", "b.example.org", "c.example.org"}
				s := newSite(t, testca.Options{Flaky: flaky}, names...)
				s.cfg.Challenges = []string{challenge}
				s.start()
				if _, err := s.store.Certificate(&tls.ClientHelloInfo{ServerName: names[0]}); err != ErrUnavailable {
					t.Errorf("before there is a certificate: %v, want ErrUnavailable", err)
				}
				sawOpen := false
				s.until("three certificates", func() bool {
					sawOpen = sawOpen || s.store.OrderOpen()
					return s.metric("acme_orders_total", "obtained") == 3
				})
				s.certified(names...)
				if sawOpen != (challenge == challengeALPN) {
					t.Errorf("an order was open for tls-alpn-01: %v", sawOpen)
				}
				if s.store.OrderOpen() {
					t.Error("an order is open after the last")
				}
				if n := s.ca.Orders(); n != 3 {
					t.Errorf("%d orders for three names", n)
				}
				// A name that is not listed is never ordered.
				if _, err := handshake(s.tls.Addr().String(), "d.example.org"); err == nil {
					t.Error("a name that is not listed got a certificate")
				}
				if at := s.store.NotAfter(); at.Before(time.Now().Add(24 * time.Hour)) {
					t.Errorf("NotAfter %v", at)
				}
				s.end()
				if n := s.ca.Orders(); n != 3 {
					t.Errorf("%d orders in the end", n)
				}
			})
		}
	}
}
