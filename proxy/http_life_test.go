package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"relayedge/admission/httpguard"
	"relayedge/internal/memconn"
)

// Requests that come in one piece are served one after the other, also by a
// client that has ended its stream behind them.
func TestHTTPPipelining(t *testing.T) {
	for _, ended := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				telling(w, r)
			}, nil)
			c := e.client()
			var all strings.Builder
			for i := range 5 {
				fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", i)
			}
			mustWrite(t, c, []byte(all.String()))
			if ended {
				c.Conn.(*memconn.Conn).CloseWrite()
			}
			for i := range 5 {
				if _, body := c.answer(); !strings.HasPrefix(body, fmt.Sprintf("POST /%d a for 192.0.2.10 with 4 bytes", i)) {
					t.Errorf("answer %d: %q", i, body)
				}
			}
			if !ended {
				c.Conn.(*memconn.Conn).CloseWrite()
			}
			c.wantClosed()
			e.wantEnd(ClientClosed)
		})
	}
}

// A body that has two framings is taken by one, and what follows it is no request,
// whether or not the guard lets it in.
func TestHTTPTwoFramings(t *testing.T) {
	for _, refused := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			var got []http.Header
			e := newHTTPEdge(t, recording(&got), nil)
			guard, err := httpguard.New(httpguard.Config{Limit: 1, WindowSecs: 60, NewCredentialsPerHostMinute: 1}, httpguard.Options{})
			if err != nil {
				t.Fatal(err)
			}
			e.reload(func(cfg *Config) { cfg.Guard = guard })
			c := e.client()
			status := 200
			if refused {
				c.ask("GET /")
				got, status = nil, 429
			}
			c.send("POST /", "Content-Length: 6", "Transfer-Encoding: chunked")
			mustWrite(t, c, []byte("0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
			if response, body := c.answer(); response.StatusCode != status || !response.Close {
				t.Errorf("%s, %q", response.Status, body)
			}
			c.wantClosed()
			if !refused && (len(got) != 1 || got[0].Get("Content-Length") != "") || refused && len(got) != 0 {
				t.Errorf("the relay was asked %v", got)
			}
		})
	}
}

// HTTP/1.0 has no Transfer-Encoding (RFC 9112, section 6.1), and net/http does not
// say where one was: what follows a request of it is none.
func TestHTTPFramingOfOldVersion(t *testing.T) {
	for _, head := range []string{
		"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5c\r\n",
		"POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: identity\r\n\r\n",
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
	} {
		inBubble(t, func(t *testing.T) {
			var got []http.Header
			e := newHTTPEdge(t, recording(&got), nil)
			c := e.client()
			mustWrite(t, c, []byte(head+"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
			if response, body := c.answer(); response.StatusCode != 200 || !response.Close {
				t.Errorf("%q: %s, %q", head, response.Status, body)
			}
			c.wantClosed()
			if len(got) != 1 {
				t.Errorf("%q: the relay was asked %d times", head, len(got))
			}
		})
	}
}

// An answer whose end is the connection's is never cut so that it looks whole,
// whatever cuts it.
func TestHTTPAnswersThatAreCut(t *testing.T) {
	for _, row := range []struct {
		name string
		cut  func(e *httpEdge, c *httpTester)
	}{
		{"drain", func(e *httpEdge, _ *httpTester) { e.drained() }},
		{"the relay is silent", func(*httpEdge, *httpTester) { time.Sleep(300 * time.Second) }},
		{"the client's stream has ended", func(_ *httpEdge, c *httpTester) {
			c.Conn.(*memconn.Conn).CloseWrite()
			time.Sleep(60 * time.Second)
		}},
		{"the relay closes", func(e *httpEdge, _ *httpTester) { e.relays.Close() }},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
					io.WriteString(w, "part")
					http.NewResponseController(w).Flush()
					<-r.Context().Done()
				}, nil)
				c := e.client()
				mustWrite(t, c, []byte("GET / HTTP/1.0\r\n\r\n"))
				response, err := http.ReadResponse(c.lines, nil)
				if err != nil {
					t.Fatal(err)
				}
				wantRead(t, response.Body, []byte("part"))
				row.cut(e, c)
				if rest, err := io.ReadAll(response.Body); err == nil {
					t.Errorf("%q ended the answer as if it were whole", rest)
				}
			})
		})
	}
}

// A client that ends its stream behind its request gets the answer, as long as it
// comes before half_close_timeout_secs are over, or bytes of it keep coming.
func TestHTTPClientThatEndsItsStream(t *testing.T) {
	for _, row := range []struct {
		name   string
		relay  http.HandlerFunc
		whole  bool
		after  time.Duration
		reason Reason
	}{
		{"in time", func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(59 * time.Second)
			io.WriteString(w, "an answer")
		}, true, 59 * time.Second, ClientClosed},
		{"piece by piece", func(w http.ResponseWriter, r *http.Request) {
			for range 9 {
				time.Sleep(40 * time.Second)
				io.WriteString(w, "a")
				http.NewResponseController(w).Flush()
			}
		}, true, 360 * time.Second, ClientClosed},
		{"too late", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "a")
			http.NewResponseController(w).Flush()
			time.Sleep(61 * time.Second)
		}, false, 60 * time.Second, HalfCloseTimeout},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newHTTPEdge(t, row.relay, nil)
				c := e.client()
				began := time.Now()
				c.send("GET /")
				c.Conn.(*memconn.Conn).CloseWrite()
				response, body, err := c.read()
				if whole := err == nil && response.StatusCode == 200 && len(body) == 9; whole != row.whole {
					t.Errorf("%v, %q, %v", response, body, err)
				}
				if took := time.Since(began); took != row.after {
					t.Errorf("it took %v", took)
				}
				e.wantEnd(row.reason)
				time.Sleep(time.Minute) // the relay's own
			})
		})
	}
}

// The guard is asked for every request, before what is wrong with it is said, by
// the true client; what it refuses is counted, and the connection goes on.
func TestHTTPGuard(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		asked := 0
		e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) { asked++ }, nil)
		guard, err := httpguard.New(httpguard.Config{Limit: 3, WindowSecs: 60, NewCredentialsPerHostMinute: 1}, httpguard.Options{
			Addr:      func(r *http.Request) netip.Addr { return netip.MustParseAddrPort(r.RemoteAddr).Addr() },
			RequestID: func(r *http.Request) string { return r.Header.Get(RequestID) },
		})
		if err != nil {
			t.Fatal(err)
		}
		e.reload(func(cfg *Config) { cfg.Guard = guard })
		c := e.client()
		c.ask("GET /")
		if response, _ := c.ask("CONNECT a:1"); response.StatusCode != 405 { // a public route, and an error of the edge's own
			t.Errorf("CONNECT: %s", response.Status)
		}
		c = e.client()
		c.ask("GET /", webSocket...)
		for i := range 3 {
			response, body := c.ask("POST /", "X-Real-IP: 203.0.113.66", "X-Request-Id: mine", "Content-Length: 0", "Upgrade: websocket", "Connection: Upgrade")
			id := response.Header.Get(RequestID)
			if response.StatusCode != 429 || response.Header.Get("Retry-After") == "" || !ids.MatchString(id) || !strings.Contains(body, `"requestId":"`+id+`"`) {
				t.Errorf("refusal %d: %s, %v, %s", i, response.Status, response.Header, body)
			}
		}
		if response, _ := e.clientFrom(netip.MustParseAddrPort("192.0.2.99:1")).ask("GET /"); response.StatusCode != 200 {
			t.Errorf("another host: %s", response.Status)
		}
		if asked != 3 {
			t.Errorf("the relay was asked %d times, want 3", asked)
		}
		if n := e.server.stats.rejected[RequestRate].Load(); n != 3 {
			t.Errorf("%d refusals were counted", n)
		}
		time.Sleep(time.Minute)
		if response, _ := c.ask("GET /"); response.StatusCode != 200 {
			t.Errorf("when the window is over: %s", response.Status)
		}
	})
}
