package testca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	stdlog "log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// newOrder is pebble's path for orders.
const newOrder = "/order-plz"

// CA is a running certificate authority.
type CA struct {
	Directory string // its URL
	RootFile  string // PEM of what is trusted for it

	management string

	mu       sync.Mutex
	requests int
	orders   int
	replaces int
	refusal  *Refusal
	clock    time.Duration
	held     chan struct{} // closed when requests go on; nil: they do
}

// Refusal is an answer in place of the CA's own.
type Refusal struct {
	Everything bool // not orders alone
	Status     int
	Header     http.Header
	Problem    string // the problem document; empty: plain text
}

// Start runs a CA until the test's end. Without pebble the test is skipped, or
// fails with RELAYEDGE_REQUIRE_PEERS=1.
func Start(t testing.TB, o Options) *CA {
	t.Helper()
	certificate, key, pair := selfSigned(t)
	behind, management := start(t, o, certificate, key, serveNames(t))
	ca := &CA{RootFile: certificate, management: management}
	proxy := &httputil.ReverseProxy{
		// The Host stays: pebble makes its URLs of it, and holds them against what is signed.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "https", behind
		},
		Transport:      &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 4},
		ModifyResponse: ca.answered,
		ErrorLog:       stdlog.New(io.Discard, "", 0),
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ca.waits(r.Context()); !ca.refuses(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(proxy.Transport.(*http.Transport).CloseIdleConnections)
	ca.Directory = "https://" + server.Listener.Addr().String() + "/dir"
	return ca
}

// Orders is how many orders the CA has taken.
func (ca *CA) Orders() int {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return ca.orders
}

// Replacing is how many orders said which certificate they replace.
func (ca *CA) Replacing() int {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return ca.replaces
}

// Requests is how many requests have come, refused ones included.
func (ca *CA) Requests() int {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return ca.requests
}

// Refuse has orders, or everything, refused from here on; nil ends it.
func (ca *CA) Refuse(r *Refusal) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.refusal = r
}

// IssuerKey is the key that signs the certificates, for who answers in the CA's
// name. It is known of a CA with Options.OCSP.
func (ca *CA) IssuerKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Get("https://" + ca.management + "/intermediate-keys/0")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no key: HTTP %d, %q", response.StatusCode, text)
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Hold has every request wait until release is called.
func (ca *CA) Hold() (release func()) {
	held := make(chan struct{})
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.held = held
	return sync.OnceFunc(func() { close(held) })
}

func (ca *CA) waits(ctx context.Context) {
	ca.mu.Lock()
	held := ca.held
	ca.mu.Unlock()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-ctx.Done():
	}
}

// SetClock has the CA say a time that is off by d.
func (ca *CA) SetClock(d time.Duration) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.clock = d
}

func (ca *CA) refuses(w http.ResponseWriter, r *http.Request) bool {
	replaces := r.URL.Path == newOrder && saysReplaces(r)
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.requests++
	if replaces {
		ca.replaces++
	}
	no := ca.refusal
	if no == nil || !no.Everything && r.URL.Path != newOrder {
		return false
	}
	maps.Copy(w.Header(), no.Header)
	if no.Problem != "" {
		w.Header().Set("Content-Type", "application/problem+json")
	}
	w.WriteHeader(no.Status)
	io.WriteString(w, no.Problem)
	return true
}

// saysReplaces looks into an order, and leaves it to be read again.
func saysReplaces(r *http.Request) bool {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var signed struct{ Payload string }
	if err != nil || json.Unmarshal(body, &signed) != nil {
		return false
	}
	payload, _ := base64.RawURLEncoding.DecodeString(signed.Payload)
	var order struct{ Replaces string }
	return json.Unmarshal(payload, &order) == nil && order.Replaces != ""
}

func (ca *CA) answered(resp *http.Response) error {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if resp.Request.URL.Path == newOrder && resp.StatusCode == http.StatusCreated {
		ca.orders++
	}
	if ca.clock != 0 {
		resp.Header.Set("Date", time.Now().Add(ca.clock).UTC().Format(http.TimeFormat))
	}
	return nil
}

// serveNames answers that every name is at 127.0.0.1, and returns its address.
func serveNames(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{Listener: ln, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		for _, question := range q.Question {
			if question.Qtype == dns.TypeA {
				m.Answer = append(m.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET},
					A:   net.IPv4(127, 0, 0, 1),
				})
			}
		}
		w.WriteMsg(m)
	})}
	served := make(chan error, 1)
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { served <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		server.Shutdown()
		<-served
	})
	return ln.Addr().String()
}

// selfSigned makes a certificate for the loopback address and writes it and its key.
func selfSigned(t testing.TB) (certificate, key string, pair tls.Certificate) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	chainPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	folder := t.TempDir()
	certificate, key = filepath.Join(folder, "ca.pem"), filepath.Join(folder, "ca.key")
	for name, content := range map[string][]byte{certificate: chainPEM, key: keyPEM} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(fmt.Errorf("testca: %w", err))
		}
	}
	if pair, err = tls.X509KeyPair(chainPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	return certificate, key, pair
}
