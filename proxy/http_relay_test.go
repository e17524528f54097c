package proxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission/httpguard"
	"relayedge/internal/memconn"
)

// answering is a relay that writes this for each connection once a request's
// header has come, and then does what then says; nil: it closes.
func (e *httpEdge) answering(answer string, then func(*memconn.Conn)) {
	for {
		conn, err := e.relay.Accept()
		if err != nil {
			return
		}
		c := conn.(*memconn.Conn)
		go func() {
			defer c.Close()
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				return
			}
			io.WriteString(c, answer)
			if then != nil {
				then(c)
			}
		}()
	}
}

// stay keeps the connection open until its other end closes.
func stay(c *memconn.Conn) { io.Copy(io.Discard, c) }

// What the relay fails to do is answered, in a body that says nothing of it, and
// is the reason of the connection's end.
func TestHTTPRelayThatFails(t *testing.T) {
	const begun = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"
	down := func(cfg *edgeConfig) {
		cfg.dial = func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
	}
	silent := func(cfg *edgeConfig) {
		cfg.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	noPorts := func(cfg *edgeConfig) {
		cfg.dial = func(context.Context, string, string) (net.Conn, error) { return nil, syscall.EADDRNOTAVAIL }
	}
	for _, row := range []struct {
		name   string
		change func(*edgeConfig)
		answer string
		then   func(*memconn.Conn)
		fields []string
		status int // 0: what comes is cut
		after  time.Duration
		reason Reason
	}{
		{"down", down, "", nil, nil, 502, 0, UpstreamUnavailable},
		{"no port is left", noPorts, "", nil, nil, 503, 0, LocalPorts},
		{"does not answer the dial", silent, "", nil, nil, 504, 5 * time.Second, UpstreamTimeout},
		{"does not answer the request", nil, "", stay, nil, 504, 60 * time.Second, UpstreamTimeout},
		{"does not answer an upgrade", nil, "", stay, webSocket, 504, 60 * time.Second, UpstreamTimeout},
		{"closes without an answer", nil, "", nil, nil, 502, 0, UpstreamUnavailable},
		{"resets", nil, "", (*memconn.Conn).Reset, nil, 502, 0, UpstreamUnavailable},
		{"speaks something else", nil, ":irc.example.org NOTICE * :*** Looking up your hostname\r\n", stay, nil, 502, 0, UpstreamUnavailable},
		{"has a header that is too long", nil, "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", maxAnswerHeaderBytes+10000), stay, nil, 502, 0, UpstreamUnavailable},
		{"switches protocols unasked", nil, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", stay, nil, 502, 0, UpstreamUnavailable},
		{"switches to another protocol", nil, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", stay, webSocket, 502, 0, UpstreamUnavailable},
		{"switches to none", nil, "HTTP/1.1 101 Switching Protocols\r\n\r\n", stay, webSocket, 502, 0, UpstreamUnavailable},
		{"cuts its answer", nil, begun, nil, nil, 0, 0, UpstreamClosed},
		{"comes to a halt in its answer", nil, begun, stay, nil, 0, 300 * time.Second, IdleTimeout},
		{"cuts an answer that ends with the connection", nil, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n", nil, nil, 0, 0, UpstreamClosed},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newHTTPEdge(t, nil, row.change)
				go e.answering(row.answer, row.then)
				c := e.client()
				began := time.Now()
				response, body, err := c.ask0("GET /", row.fields...)
				if took := time.Since(began); took != row.after {
					t.Errorf("it took %v, want %v", took, row.after)
				}
				if row.status == 0 {
					if err == nil {
						t.Errorf("%s, %q was taken for the whole answer", response.Status, body)
					}
				} else if err != nil || response.StatusCode != row.status || !response.Close || !strings.HasPrefix(body, `{"error":{"code":"upstream_`) {
					t.Errorf("%v, %q, %v; want %d", response, body, err, row.status)
				} else {
					if strings.Contains(body, "127.0.0.1") || strings.Contains(body, "relay") {
						t.Errorf("the answer tells of the relay: %s", body)
					}
					c.wantClosed()
				}
				e.wantEnd(row.reason)
			})
		})
	}
}

// ask0 is ask for an answer that may not come.
func (c *httpTester) ask0(first string, fields ...string) (*http.Response, string, error) {
	c.t.Helper()
	c.send(first, fields...)
	return c.read()
}

// An answer that takes longer than any limit for silence goes on while bytes come.
func TestHTTPStream(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
			for range 5 {
				time.Sleep(299 * time.Second)
				io.WriteString(w, "tick ")
				http.NewResponseController(w).Flush()
			}
		}, func(cfg *edgeConfig) { cfg.limits.ResponseTimeoutSecs = 300 })
		c := e.client()
		c.send("GET /")
		response, err := http.ReadResponse(c.lines, nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i := range 5 {
			wantRead(t, response.Body, []byte("tick "))
			if after := time.Since(began); after != time.Duration(i)*299*time.Second {
				t.Errorf("tick %d came after %v", i, after)
			}
		}
		wantEOF(t, response.Body)
	})
}

// A relay that closes what is kept is reached anew by the next request.
func TestHTTPRelayThatClosesWhatIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, nil, func(relay *http.Server) { relay.IdleTimeout = 10 * time.Second })
		c := e.client()
		for range 3 {
			if response, body := c.ask("GET /"); response.StatusCode != 200 {
				t.Fatalf("%s: %s", response.Status, body)
			}
			time.Sleep(20 * time.Second)
		}
		c.ask("GET /")
		c.ask("GET /")
		if n := e.opened.Load(); n != 4 {
			t.Errorf("%d connections to the relay, want 4", n)
		}
		if up := e.server.upstreams["relay"].Status()[0].Connections; up != 1 {
			t.Errorf("the upstream counts %d connections", up)
		}
	})
}

// A relay that takes nothing of a body ends the request as in tcp mode.
func TestHTTPRelayThatStalls(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, nil, nil)
		go func() {
			conn, err := e.relay.Accept()
			if err == nil {
				time.Sleep(time.Hour)
				conn.Close()
			}
		}()
		c := e.client()
		c.send("POST /", "Content-Length: 1000000")
		go c.Write(make([]byte, 1_000_000))
		began := time.Now()
		response, body := c.answer()
		if took := time.Since(began).Round(time.Second); response.StatusCode != 504 || took != 30*time.Second {
			t.Errorf("%s after %v: %s", response.Status, took, body)
		}
		c.Close()
		time.Sleep(time.Hour)
		e.wantEnd(WriterStall)
	})
}

// One client's faults are no other's: each has a connection to the relay of its own.
func TestHTTPConnectionsAreNotShared(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, nil)
		clients := []*httpTester{e.client(), e.client(), e.client()}
		for range 3 {
			for _, c := range clients {
				c.ask("GET /")
			}
		}
		if n := e.opened.Load(); n != 3 {
			t.Errorf("%d connections to the relay for 3 clients", n)
		}
		for _, c := range clients {
			c.Close()
		}
		synctest.Wait()
		if up := e.server.upstreams["relay"].Status()[0].Connections; up != 0 {
			t.Errorf("the upstream counts %d connections of clients that are gone", up)
		}
	})
}

// A panic while a request is served ends that connection alone.
func TestHTTPPanic(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, nil)
		guard, err := httpguard.New(httpguard.DefaultConfig(), httpguard.Options{Addr: func(r *http.Request) netip.Addr {
			if r.URL.Path == "/fault" {
				panic("a fault of ours")
			}
			return netip.Addr{}
		}})
		if err != nil {
			t.Fatal(err)
		}
		e.reload(func(cfg *Config) { cfg.Guard = guard })
		bystander, c := e.client(), e.client()
		bystander.ask("GET /")
		if response, _, err := c.ask0("GET /fault"); err == nil {
			t.Errorf("%s", response.Status)
		}
		e.wantEnd(TaskPanic)
		if !strings.Contains(e.logged(), "a fault of ours") {
			t.Error("the log does not tell of it")
		}
		bystander.ask("GET /")
	})
}

// Interim answers reach the clients that know them, and of a flood a few do (RFC
// 9110, section 15.2).
func TestHTTPInterimAnswers(t *testing.T) {
	for _, row := range []struct {
		version    string
		sent, want int
	}{{"1.1", 0, 0}, {"1.1", 3, 3}, {"1.1", maxInterim, maxInterim}, {"1.1", 10_000, maxInterim}, {"1.0", 3, 0}} {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, nil, nil)
			go e.answering(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", row.sent)+"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", stay)
			c := e.client()
			mustWrite(t, c, []byte("GET / HTTP/"+row.version+"\r\nHost: a\r\n\r\n"))
			interim := 0
			response, body := c.answer()
			for ; response.StatusCode == 103 && interim <= row.sent; interim++ {
				response, body = c.answer()
			}
			if interim != row.want || response.StatusCode != 200 || body != "ok" || response.Header.Get("Link") != "" {
				t.Errorf("HTTP/%s, %d sent: %d came, then %s %q %v", row.version, row.sent, interim, response.Status, body, response.Header)
			}
		})
	}
}
