package proxy

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"relayedge/internal/memconn"
)

// An upgraded connection lives by the rules of tcp mode.
func TestHTTPUpgraded(t *testing.T) {
	upgrade := func(t *testing.T, e *httpEdge, c *httpTester) {
		t.Helper()
		if response, _ := c.ask("GET /socket", webSocket...); response.StatusCode != 101 || response.Header.Get("X-Told") != "192.0.2.10" {
			t.Fatalf("%s, %v", response.Status, response.Header)
		}
		wantRead(t, c.lines, []byte("hello"))
	}
	t.Run("bytes right behind the request", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, telling, nil)
			c := e.client()
			early := strings.Repeat("early ", 3000)
			mustWrite(t, c, []byte("GET / HTTP/1.1\r\nHost: a\r\n"+crlf(webSocket)+"\r\n"+early))
			if response, _ := c.answer(); response.StatusCode != 101 {
				t.Fatal(response.Status)
			}
			wantRead(t, c.lines, []byte("hello"+early))
		})
	})
	t.Run("half-close by the client", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
				conn, buffered, _ := http.NewResponseController(w).Hijack()
				defer conn.Close()
				io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
				said, err := io.ReadAll(buffered)
				fmt.Fprintf(conn, "%d bytes, %v", len(said), err)
			}, nil)
			c := e.client()
			c.ask("GET /", webSocket...)
			mustWrite(t, c, []byte("12345"))
			c.Conn.(*memconn.Conn).CloseWrite()
			wantRead(t, c.lines, []byte("5 bytes, <nil>"))
			c.wantClosed()
			e.wantEnd(ClientClosed)
		})
	})
	t.Run("idle", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, telling, func(cfg *edgeConfig) { cfg.limits.FirstByteTimeoutSecs = 10 })
			c := e.client()
			upgrade(t, e, c)
			time.Sleep(299 * time.Second)
			mustWrite(t, c, []byte("a"))
			wantRead(t, c.lines, []byte("a"))
			time.Sleep(300*time.Second - time.Nanosecond)
			e.wantOpen()
			time.Sleep(time.Nanosecond)
			c.wantClosed()
			e.wantEnd(IdleTimeout)
		})
	})
	t.Run("reset by the client", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, telling, nil)
			c := e.client()
			upgrade(t, e, c)
			c.Conn.(*memconn.Conn).Reset()
			e.wantEnd(Reset)
		})
	})
	t.Run("writer stall", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, telling, nil)
			c := e.client()
			upgrade(t, e, c)
			go c.Write(make([]byte, 8<<20)) // which come back, and are not read
			time.Sleep(time.Minute)
			e.wantEnd(WriterStall)
		})
	})
	t.Run("drain", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, telling, nil)
			c := e.client()
			upgrade(t, e, c)
			go e.drained()
			time.Sleep(29 * time.Second)
			mustWrite(t, c, []byte("a"))
			wantRead(t, c.lines, []byte("a"))
			time.Sleep(2 * time.Second)
			c.wantClosed()
			e.wantEnd(Drain)
		})
	})
	t.Run("through TLS", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, telling, terminating)
			c := newHTTPTester(t, e.handshake(e.dial(aliceAddr), nil))
			upgrade(t, e, c)
			mustWrite(t, c, []byte("a"))
			wantRead(t, c.lines, []byte("a"))
			c.Conn.(*tls.Conn).CloseWrite()
			c.wantClosed()
			e.wantEnd(ClientClosed)
		})
	})
}

// What is no WebSocket is no upgrade: the request is served without.
func TestHTTPOtherUpgrades(t *testing.T) {
	for _, row := range []struct {
		name, first string
		fields      []string
		body        string
	}{
		{"h2c", "GET /", []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"}, ""},
		{"h2c beside WebSocket", "GET /", []string{"Connection: Upgrade", "Upgrade: h2c, websocket"}, ""},
		{"two fields", "GET /", []string{"Connection: Upgrade", "Upgrade: websocket", "Upgrade: h2c"}, ""},
		{"POST", "POST /", webSocket, ""},
		{"a body", "GET /", append([]string{"Content-Length: 2"}, webSocket...), "ab"},
		{"not for this hop", "GET /", []string{"Upgrade: websocket"}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var got []http.Header
				e := newHTTPEdge(t, recording(&got), nil)
				c := e.client()
				c.send(row.first, row.fields...)
				mustWrite(t, c, []byte(row.body))
				if response, body := c.answer(); response.StatusCode != 200 || !strings.Contains(body, "for 192.0.2.10") {
					t.Errorf("%s: %s", response.Status, body)
				}
				for _, name := range []string{"Upgrade", "Http2-Settings"} {
					if values := got[0][name]; values != nil {
						t.Errorf("%s: %q", name, values)
					}
				}
			})
		})
	}
}
