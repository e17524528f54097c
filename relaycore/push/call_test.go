package push

import (
	"bytes"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/admission"
)

// service is a push service on loopback, over TLS; it counts connections, and
// has a name that resolves to loopback.
type service struct {
	*httptest.Server
	connections atomic.Int64
	requests    atomic.Int64
	port        string
}

func serve(t *testing.T, handler http.HandlerFunc) *service {
	t.Helper()
	s := new(service)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		handler(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	_, s.port, _ = net.SplitHostPort(s.Listener.Addr().String())
	if addrs, err := net.DefaultResolver.LookupHost(t.Context(), "localhost"); err != nil || len(addrs) == 0 {
		t.Skipf("localhost does not resolve: %v", err)
	}
	return s
}

// calling returns a waker that takes the addresses which permitted does, and has
// identity 1 leave an endpoint at the service.
func calling(t *testing.T, s *service, path string, permitted func(netip.AddrPort) bool) *Waker {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Enabled, cfg.AllowedHosts = true, []string{"localhost:" + s.port}
	transport := newTransport(permitted)
	transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	transport.TLSClientConfig.RootCAs.AddCert(s.Certificate())
	transport.TLSClientConfig.ServerName = "example.com" // of the test server's certificate
	w := newWaker(cfg, Options{Budget: admission.NewFixedWindows(60, BudgetWindow), Keys: admission.NewKeyMaker(nil)}, transport)
	t.Cleanup(w.Close)
	if _, err := w.Register(who(1), "https://localhost:"+s.port+path, time.Now(), source); err != nil {
		t.Fatal(err)
	}
	return w
}

func anywhere(netip.AddrPort) bool { return true }

func outcome(t *testing.T, w *Waker) Outcome {
	t.Helper()
	result, err := w.Test(t.Context(), who(1))
	if err != nil {
		t.Fatal(err)
	}
	return result.Outcome
}

// The request is a POST without a body that tells nothing of who is woken.
func TestCall(t *testing.T) {
	got := make(chan *http.Request, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		got <- r
		w.WriteHeader(201)
	})
	w := calling(t, s, "/up?token=s3cret", anywhere)
	if o := outcome(t, w); o != Woken {
		t.Fatal(o)
	}
	r := <-got
	body, _ := io.ReadAll(r.Body)
	if r.Method != "POST" || r.RequestURI != "/up?token=s3cret" || r.ContentLength != 0 || len(body) != 0 || r.TransferEncoding != nil || r.Host != "localhost:"+s.port {
		t.Errorf("%+v", r)
	}
	for name := range r.Header {
		if !strings.Contains(" Content-Length Ttl Topic User-Agent ", " "+name+" ") {
			t.Errorf("%s: %s", name, r.Header.Get(name))
		}
	}
	// RFC 8030, section 5.2: a push service needs it.
	if r.Header.Get("Ttl") != "86400" {
		t.Error(r.Header)
	}
}

// The transport of the relay itself connects to no private address, whatever
// name leads there: not a byte is sent.
func TestCallPrivateAddress(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	cfg := DefaultConfig()
	cfg.Enabled, cfg.AllowedHosts = true, []string{"localhost:" + s.port}
	w := New(cfg, Options{Budget: admission.NewFixedWindows(60, BudgetWindow), Keys: admission.NewKeyMaker(nil)})
	defer w.Close()
	if _, err := w.Register(who(1), "https://localhost:"+s.port+"/", time.Now(), source); err != nil {
		t.Fatal(err)
	}
	if o := outcome(t, w); o != Forbidden || s.connections.Load() != 0 {
		t.Errorf("%v over %d connections", o, s.connections.Load())
	}
}

// The address that is asked about is the one that is connected to.
func TestCallAsksOfEachConnection(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Connection", "close") })
	var asked atomic.Int64
	w := calling(t, s, "/", func(a netip.AddrPort) bool {
		if !a.Addr().IsLoopback() || netip.MustParseAddrPort("127.0.0.1:"+s.port).Port() != a.Port() {
			t.Errorf("asked about %v", a)
		}
		// As if the name led elsewhere the second time.
		return asked.Add(1) <= 2 && s.requests.Load() == 0
	})
	if o := outcome(t, w); o != Woken {
		t.Fatal(o)
	}
	if o := outcome(t, w); o != Forbidden || s.requests.Load() != 1 {
		t.Errorf("%v after %d requests", o, s.requests.Load())
	}
}

// A redirect is an answer like any other: nobody follows it.
func TestCallRedirects(t *testing.T) {
	inside := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", inside.URL)
			w.WriteHeader(status)
		})
		w := calling(t, s, "/", anywhere)
		if o := outcome(t, w); o != Refused || inside.connections.Load() != 0 {
			t.Errorf("%d: %v, %d connections", status, o, inside.connections.Load())
		}
	}
}

// A certificate that does not hold is no push service.
func TestCallVerifies(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	w := calling(t, s, "/", anywhere)
	transport := w.client.Transport.(*http.Transport)
	transport.TLSClientConfig.ServerName = "" // localhost: not the certificate's
	if o := outcome(t, w); o != Failed || s.requests.Load() != 0 {
		t.Errorf("%v after %d requests", o, s.requests.Load())
	}
	transport.TLSClientConfig.ServerName, transport.TLSClientConfig.RootCAs = "example.com", x509.NewCertPool()
	if o := outcome(t, w); o != Failed || s.requests.Load() != 0 {
		t.Errorf("%v after %d requests", o, s.requests.Load())
	}
	if newTransport(anywhere).TLSClientConfig.InsecureSkipVerify || newTransport(anywhere).Proxy != nil {
		t.Error("the transport trusts somebody")
	}
}

// An answer of any length ends; a short one leaves its connection for the next.
func TestCallBoundsAnswers(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/short" {
			w.Write(make([]byte, maxAnswer-1))
			return
		}
		for range 1 << 20 {
			if _, err := w.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	})
	// net/http gives up a connection whose writer it does not hear from within 50 ms.
	const tries = 3
	for i := 1; ; i++ {
		before, w := s.connections.Load(), calling(t, s, "/short", anywhere)
		for range 3 {
			if o := outcome(t, w); o != Woken {
				t.Fatal(o)
			}
		}
		n := s.connections.Load() - before
		if n == 1 {
			break
		}
		if i == tries {
			t.Fatalf("%d connections for short answers", n)
		}
	}
	if o := outcome(t, calling(t, s, "/long", anywhere)); o != Woken {
		t.Error(o)
	}
}

// A head that is too long is no answer.
func TestCallBoundsHeads(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("x", 64<<10))
	})
	if o := outcome(t, calling(t, s, "/", anywhere)); o != Failed {
		t.Error(o)
	}
}
