package telemetry

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

const clientAddr = "192.0.2.77"

// endpoint is a Server that serves in a bubble.
type endpoint struct {
	t      *testing.T
	ln     *memconn.Listener
	cancel context.CancelFunc
	done   chan error
	mu     sync.Mutex
	log    bytes.Buffer // guarded by mu
}

// Write makes the endpoint the target of its own log.
func (e *endpoint) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.Write(p)
}

func (e *endpoint) logged() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.String()
}

// inBubble runs f with an endpoint that serves o, and ends it.
func inBubble(t *testing.T, o Options, f func(t *testing.T, e *endpoint)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{t: t, ln: memconn.Listen(netip.MustParseAddrPort("127.0.0.1:9090")), done: make(chan error, 1)}
		o.Log = slog.New(slog.NewTextHandler(e, nil))
		s, err := NewServer(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		e.cancel = cancel
		go func() { e.done <- s.Serve(ctx, e.ln) }()
		f(t, e)
		cancel()
		if err := <-e.done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		time.Sleep(time.Second) // net/http lets an answer travel before it closes on an unread request
		if strings.Contains(e.logged(), clientAddr) {
			t.Errorf("a client's address is in the log: %s", e.logged())
		}
	})
}

func (e *endpoint) dial() *memconn.Conn {
	e.t.Helper()
	c, err := e.ln.Dial(e.t.Context(), netip.MustParseAddrPort(clientAddr+":0"))
	if err != nil {
		e.t.Fatal(err)
	}
	synctest.Wait()
	return c
}

// ask sends a request and leaves the answer for later.
func (e *endpoint) ask(c *memconn.Conn, method, path string) {
	e.t.Helper()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: edge\r\n\r\n", method, path); err != nil {
		e.t.Fatal(err)
	}
	synctest.Wait()
}

func (e *endpoint) answer(c *memconn.Conn, method string) (status int, body string) {
	e.t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		e.t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	_ = c.Close()
	if !res.Close {
		e.t.Error("the connection is kept alive")
	}
	return res.StatusCode, string(b)
}

// wantEnd reads to the end of the connection, which must come after exactly d.
func wantEnd(t *testing.T, c *memconn.Conn, d time.Duration) {
	t.Helper()
	start := time.Now()
	_, _ = io.Copy(io.Discard, c)
	if got := time.Since(start); got != d {
		t.Errorf("the connection ended after %v, want %v", got, d)
	}
	_ = c.Close()
}

func TestRoutes(t *testing.T) {
	notReady := errors.New("No upstream is up.")
	for _, row := range []struct {
		method, path string
		ready        func() error
		status       int
		body         string
	}{
		{"GET", "/healthz", nil, 200, "ok"},
		{"HEAD", "/healthz", nil, 200, ""},
		{"GET", "/healthz", func() error { return notReady }, 200, "ok"},
		{"GET", "/readyz", nil, 200, "ok"},
		{"GET", "/readyz", func() error { return nil }, 200, "ok"},
		{"GET", "/readyz", func() error { return notReady }, 503, "No upstream is up."},
		{"HEAD", "/readyz", func() error { return notReady }, 503, ""},
		{"GET", "/metrics", nil, 200, "# HELP relayedge_x \n# TYPE relayedge_x gauge\nrelayedge_x 1\n"},
		{"HEAD", "/metrics", nil, 200, ""},
		{"GET", "/metrics?name[]=none", nil, 200, ""},
		{"GET", "/", nil, 404, "Only /metrics, /healthz and /readyz are here.\n"},
		{"GET", "/metrics/", nil, 404, "Only /metrics, /healthz and /readyz are here.\n"},
		{"GET", "/debug/pprof/", nil, 404, "Only /metrics, /healthz and /readyz are here.\n"},
		{"POST", "/metrics", nil, 405, "Only GET and HEAD are answered here.\n"},
		{"DELETE", "/healthz", nil, 405, "Only GET and HEAD are answered here.\n"},
		{"OPTIONS", "/metrics", nil, 405, "Only GET and HEAD are answered here.\n"},
	} {
		t.Run(row.method+" "+row.path, func(t *testing.T) {
			o := Options{Ready: row.ready, Groups: []Group{{"relayedge", []Family{{Name: "x", Kind: Gauge, Read: one(1)}}}}}
			inBubble(t, o, func(t *testing.T, e *endpoint) {
				c := e.dial()
				e.ask(c, row.method, row.path)
				if status, body := e.answer(c, row.method); status != row.status || body != row.body {
					t.Fatalf("%d %q, want %d %q", status, body, row.status, row.body)
				}
			})
		})
	}
}

// spec/003: each with a 5-second header … timeout
func TestHeaderTimeout(t *testing.T) {
	t.Run("silence", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) { wantEnd(t, e.dial(), 5*time.Second) })
	})
	t.Run("a drip does not extend it", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			c := e.dial()
			var drip sync.WaitGroup
			drip.Go(func() {
				for _, b := range []byte("GET /metrics HTTP/1.1\r\n") {
					if _, err := c.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
			wantEnd(t, c, 5*time.Second)
			drip.Wait()
		})
	})
	t.Run("just in time", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			c := e.dial()
			time.Sleep(5*time.Second - time.Nanosecond)
			e.ask(c, "GET", "/healthz")
			if status, _ := e.answer(c, "GET"); status != 200 {
				t.Fatal(status)
			}
		})
	})
}

// A body that is announced and does not come keeps nobody's place once the answer
// is given, whatever it was given to.
func TestBodyThatDoesNotCome(t *testing.T) {
	for _, head := range []string{
		"GET /metrics HTTP/1.1\r\nHost: edge\r\nContent-Length: 9\r\n\r\n",
		"GET /healthz HTTP/1.1\r\nHost: edge\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
		"GET /nowhere HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nx",
		"POST /status HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			c := e.dial()
			_, _ = io.WriteString(c, head)
			start := time.Now()
			got, _ := io.ReadAll(c)
			if took := time.Since(start); !strings.HasPrefix(string(got), "HTTP/1.1 ") || took > 6*time.Second {
				t.Errorf("%.20q: %.20q, and an end after %v", head, got, took)
			}
			_ = c.Close()
		})
	}
}

func TestHeaderBytes(t *testing.T) {
	for size, want := range map[int]int{7 << 10: 200, 9 << 10: 431, 60 << 10: 431} {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			c := e.dial()
			_, _ = fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: edge\r\nX-Long: %s\r\n\r\n", strings.Repeat("x", size))
			if status, _ := e.answer(c, "GET"); status != want {
				t.Errorf("%d bytes of header: %d, want %d", size, status, want)
			}
		})
	}
}

func TestServeEnds(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
		silent, waiting := e.dial(), []*memconn.Conn{}
		for range 10 {
			waiting = append(waiting, e.dial())
		}
		start := time.Now()
		e.cancel()
		for _, c := range append(waiting, silent) {
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Error("a connection outlived the endpoint")
			}
		}
		err := <-e.done
		if err != nil || time.Since(start) != 0 {
			t.Errorf("Serve: %v after %v", err, time.Since(start))
		}
		if _, err := e.ln.Dial(context.Background(), netip.MustParseAddrPort("192.0.2.1:1")); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the listener is open: %v", err)
		}
		e.done <- err
	})
}

func TestServeBeforeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ln := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:9090"))
		if err := s.Serve(ctx, ln); err != nil {
			t.Fatal(err)
		}
		if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("the listener is open: %v", err)
		}
	})
}

func TestReadyPanics(t *testing.T) {
	inBubble(t, Options{Ready: func() error { panic("no policy") }}, func(t *testing.T, e *endpoint) {
		c := e.dial()
		e.ask(c, "GET", "/readyz")
		if status, _ := e.answer(c, "GET"); status != 500 {
			t.Fatal(status)
		}
		if !strings.Contains(e.logged(), "no policy") {
			t.Fatalf("logged %q", e.logged())
		}
		c = e.dial()
		e.ask(c, "GET", "/healthz")
		if status, _ := e.answer(c, "GET"); status != 200 {
			t.Fatal(status)
		}
	})
}

// The same over real sockets, once, since the rest is in memory.
func TestServeTCP(t *testing.T) {
	ln, err := Listen(Config{BindAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(Options{Groups: []Group{{"relayedge", []Family{{Name: "x_total", Read: one(1)}}}}, Process: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln) }()
	for range 20 { // more than there are places
		res, err := http.Get("http://" + ln.Addr().String() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || !strings.Contains(string(body), "\nrelayedge_x_total 1\n") || !strings.Contains(string(body), "\nprocess_") {
			t.Fatalf("%v\n%s", err, body)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
