package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission/httpguard"
	"relayedge/internal/memconn"
	"relayedge/proxy/upstream"
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

// A drain ends who has no request in flight at once. Who has gets the answer, which
// says that it is the last.
func TestHTTPDrain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				time.Sleep(10 * time.Second)
			}
			io.WriteString(w, "answered")
		}, nil)
		fresh, kept, slow := e.client(), e.client(), e.client()
		kept.ask("GET /")
		slow.ask("GET /")
		slow.send("GET /slow")
		synctest.Wait()
		took := make(chan time.Duration)
		go func() { took <- e.drained() }()
		fresh.wantClosed()
		kept.wantClosed()
		synctest.Wait()
		if n := e.ended(Drain); n != 2 {
			t.Errorf("%d have ended at once, want 2", n)
		}
		if response, body := slow.answer(); body != "answered" || !response.Close {
			t.Errorf("the last answer: %q, %v", body, response.Header)
		}
		slow.wantClosed()
		if after := <-took; after != 10*time.Second {
			t.Errorf("the drain took %v", after)
		}
		if n := e.ended(Drain); n != 3 {
			t.Errorf("%d have ended for the drain, want 3", n)
		}
	})
}

// What is in flight at the end of drain_secs is cut, as what it is.
func TestHTTPDrainThatIsTooShort(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "part of ")
			http.NewResponseController(w).Flush()
			time.Sleep(50 * time.Second)
		}, nil)
		c := e.client()
		c.send("GET /")
		synctest.Wait()
		if took := e.drained(); took != 30*time.Second {
			t.Errorf("the drain took %v", took)
		}
		if _, body, err := c.read(); err == nil {
			t.Errorf("%q was taken for the whole answer", body)
		}
		e.wantEnd(Drain)
		time.Sleep(time.Minute)
	})
}

// A connection goes on as it is over a reload. If its upstream is gone, it is led
// to where the policy in force leads, once its own connection there has ended, and
// tells that relay of its client in that relay's way.
func TestHTTPReload(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		other := memconn.Listen(relayAddr)
		second := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "the other relay for %s and %s", r.Header.Get("X-Real-IP"), r.Header.Get("X-Forwarded-For"))
		})}
		go second.Serve(other)
		defer second.Close()
		e := newHTTPEdge(t, telling, func(cfg *edgeConfig) {
			cfg.dials = map[string]upstream.DialFunc{"127.0.0.1:8888": func(ctx context.Context, _, _ string) (net.Conn, error) {
				return other.Dial(ctx, netip.MustParseAddrPort("127.0.0.1:40001"))
			}}
		})
		c, upgraded := e.client(), e.client()
		c.ask("GET /")
		upgraded.ask("GET /", webSocket...)
		wantRead(t, upgraded.lines, []byte("hello"))
		e.reload(func(cfg *Config) {
			cfg.Limits.MaxRequestHeaderBytes = 1024
			cfg.Listeners[0].Upstream = "other"
			cfg.Upstreams = map[string]upstream.Config{"other": {Addresses: []string{"127.0.0.1:8888"}, ClientAddress: "x-forwarded-for", ConnectTimeoutSecs: 5}}
		})
		// By the limits and to the relay of before.
		long := "Padding: " + strings.Repeat("x", 2000)
		if response, body := c.ask("GET /", long); !strings.Contains(body, "for 192.0.2.10 with") {
			t.Errorf("%s: %s", response.Status, body)
		}
		e.relays.Close() // ends what is kept there
		synctest.Wait()
		if response, body := c.ask("GET /", long); body != "the other relay for  and 192.0.2.10" {
			t.Errorf("%s: %s", response.Status, body)
		}
		if response, _ := e.client().ask("GET /", long); response.StatusCode != 431 {
			t.Errorf("a newcomer with a header of 2000 bytes: %s", response.Status)
		}
		mustWrite(t, upgraded, []byte("still here"))
		wantRead(t, upgraded.lines, []byte("still here"))
	})
}

// A listener that moves closes its socket, and its connections go on.
func TestHTTPListenerThatMoves(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, nil)
		front := memconn.Listen(edgeAddr)
		c := e.client()
		c.ask("GET /")
		e.reload(func(cfg *Config) { cfg.Listeners[0].Socket = front })
		if _, body := c.ask("GET /"); !strings.Contains(body, "for 192.0.2.10 with") {
			t.Error(body)
		}
		conn, err := front.Dial(t.Context(), aliceAddr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, body := newHTTPTester(t, conn).ask("GET /"); !strings.Contains(body, "for 192.0.2.10 with") {
			t.Error(body)
		}
	})
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
