package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"relayedge/internal/memconn"
)

// httpEdge is an edge with a listener for requests, in front of a relay that
// reads X-Real-IP.
type httpEdge struct {
	*testEdge
	relays *http.Server
	opened atomic.Int64 // connections to the relay
}

// newHTTPEdge starts both. The relay answers as relay says; change may be nil.
func newHTTPEdge(t *testing.T, relay http.HandlerFunc, change func(*edgeConfig), tune ...func(*http.Server)) *httpEdge {
	t.Helper()
	e := &httpEdge{testEdge: newEdge(t, func(cfg *edgeConfig) {
		cfg.listener.Protocol = "http"
		cfg.upstream.ClientAddress = "x-real-ip"
		if change != nil {
			change(cfg)
		}
	})}
	if relay == nil {
		return e
	}
	e.relays = &http.Server{Handler: relay, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			e.opened.Add(1)
		}
	}}
	for _, f := range tune {
		f(e.relays)
	}
	go e.relays.Serve(e.relay)
	t.Cleanup(func() { e.relays.Close() })
	return e
}

// httpTester is a client that writes what it likes and reads answers.
type httpTester struct {
	net.Conn
	t     *testing.T
	lines *bufio.Reader
}

func (e *httpEdge) client() *httpTester { return e.clientFrom(aliceAddr) }

func (e *httpEdge) clientFrom(addr netip.AddrPort) *httpTester {
	e.t.Helper()
	conn := e.dial(addr)
	e.t.Cleanup(func() { conn.Close() })
	return newHTTPTester(e.t, conn)
}

func newHTTPTester(t *testing.T, conn net.Conn) *httpTester {
	return &httpTester{conn, t, bufio.NewReader(conn)}
}

// ask sends a request without a body, of the first line and the fields given.
func (c *httpTester) ask(first string, fields ...string) (*http.Response, string) {
	c.t.Helper()
	c.send(first, fields...)
	return c.answer()
}

func (c *httpTester) send(first string, fields ...string) {
	c.t.Helper()
	mustWrite(c.t, c, []byte(first+" HTTP/1.1\r\nHost: relay.example.org\r\n"+crlf(fields)+"\r\n"))
}

func crlf(fields []string) (text string) {
	for _, f := range fields {
		text += f + "\r\n"
	}
	return text
}

func (c *httpTester) answer() (*http.Response, string) {
	c.t.Helper()
	response, body, err := c.read()
	if err != nil {
		c.t.Fatalf("the answer: %v", err)
	}
	return response, body
}

func (c *httpTester) read() (*http.Response, string, error) {
	response, err := http.ReadResponse(c.lines, nil)
	if err != nil {
		return nil, "", err
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		return response, "", nil
	}
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

// wantClosed checks that the connection ends without a further byte.
func (c *httpTester) wantClosed() {
	c.t.Helper()
	if p, err := io.ReadAll(c.lines); err != nil || len(p) > 0 {
		c.t.Errorf("after the last answer came %q, %v; want the end", p, err)
	}
}

// telling is a relay that answers with what it is told of the client, and
// consents to WebSocket, whose bytes it sends back.
func telling(w http.ResponseWriter, r *http.Request) {
	told := strings.Join(r.Header.Values("X-Real-IP"), ",")
	if r.Header.Get("Upgrade") != "websocket" {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s for %s with %d bytes (%v)", r.Method, r.RequestURI, r.Host, told, len(body), err)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Told: %s\r\n\r\nhello", told)
	io.Copy(conn, buffered)
}

var webSocket = []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}

// The relay sees the true address, for plain requests and upgrades.
func TestHTTPTellsTheClient(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, nil)
		c := e.client()
		response, body := c.ask("GET /path?q=1;2&%zz")
		if response.StatusCode != 200 || body != "GET /path?q=1;2&%zz relay.example.org for 192.0.2.10 with 0 bytes (<nil>)" {
			t.Errorf("%s: %s", response.Status, body)
		}
		response, _ = c.ask("GET /socket", webSocket...)
		if response.StatusCode != 101 || response.Header.Get("X-Told") != "192.0.2.10" || response.Header.Get("Upgrade") != "websocket" {
			t.Errorf("the upgrade: %s, %v", response.Status, response.Header)
		}
		wantRead(t, c.lines, []byte("hello"))
		mustWrite(t, c, []byte("bytes of another protocol"))
		wantRead(t, c.lines, []byte("bytes of another protocol"))
		c.Conn.(*memconn.Conn).CloseWrite()
		c.wantClosed()
		c.Close()
		e.wantEnd(ClientClosed)
	})
}
