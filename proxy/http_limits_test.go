package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

// The header of a request has its time in all, from its first byte: whoever sends
// a line now and then is cut off. Before that a connection may be silent.
func TestHTTPSlowHeader(t *testing.T) {
	for _, row := range []struct {
		name    string
		earlier bool // the connection has served a request
	}{{"first", false}, {"later", true}} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newHTTPEdge(t, telling, nil)
				c := e.client()
				if row.earlier {
					c.ask("GET /")
				}
				time.Sleep(100 * time.Second) // silence is no header
				mustWrite(t, c, []byte("GET / HTTP/1.1\r\n"))
				for range 9 {
					time.Sleep(time.Second)
					mustWrite(t, c, []byte("A: b\r\n"))
				}
				time.Sleep(time.Second - time.Nanosecond)
				e.wantOpen()
				time.Sleep(time.Nanosecond)
				c.wantClosed()
				e.wantEnd(IdleTimeout)
			})
		})
	}
}

// A request that is written behind another is a header that has begun.
func TestHTTPSlowHeaderBehindAnother(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, nil)
		c := e.client()
		mustWrite(t, c, []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /two HTTP/1.1\r\n"))
		c.answer()
		time.Sleep(10 * time.Second)
		c.wantClosed()
		e.wantEnd(IdleTimeout)
	})
}

// The connection of a client that has nothing to ask ends as in tcp mode.
func TestHTTPIdle(t *testing.T) {
	for _, row := range []struct {
		name      string
		firstByte int
		requests  int
		after     time.Duration
		reason    Reason
	}{
		{"never asks", 0, 0, 300 * time.Second, IdleTimeout},
		{"never asks, with first_byte_timeout_secs", 15, 0, 15 * time.Second, FirstByteTimeout},
		{"kept", 15, 2, 300 * time.Second, IdleTimeout},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newHTTPEdge(t, telling, func(cfg *edgeConfig) { cfg.limits.FirstByteTimeoutSecs = row.firstByte })
				c := e.client()
				for range row.requests {
					time.Sleep(10 * time.Second)
					c.ask("GET /")
				}
				time.Sleep(row.after - time.Nanosecond)
				e.wantOpen()
				time.Sleep(time.Nanosecond)
				c.wantClosed()
				e.wantEnd(row.reason)
			})
		})
	}
}

// A body's time begins anew with each byte.
func TestHTTPSlowBody(t *testing.T) {
	for _, framing := range []string{"Content-Length: 30", "Transfer-Encoding: chunked"} {
		t.Run(framing, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newHTTPEdge(t, telling, nil)
				c := e.client()
				c.send("POST /", framing)
				for range 10 {
					time.Sleep(20*time.Second - time.Nanosecond)
					mustWrite(t, c, []byte("1"))
				}
				e.wantOpen()
				began := time.Now()
				response, body := c.answer()
				if response.StatusCode != 408 || !strings.Contains(body, `"code":"request_timeout"`) || !response.Close {
					t.Errorf("%s: %s", response.Status, body)
				}
				if took := time.Since(began); took != 20*time.Second {
					t.Errorf("the answer came after %v", took)
				}
				c.wantClosed()
				e.wantEnd(IdleTimeout)
			})
		})
	}
}

// The time in which the relay takes nothing of a body is not the client's.
func TestHTTPBodyThatTheRelayIsSlowToTake(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(25 * time.Second)
			telling(w, r)
		}, nil)
		c := e.client()
		const size = 900_000
		c.send("POST /", fmt.Sprint("Content-Length: ", size))
		mustWrite(t, c, make([]byte, size))
		if response, body := c.answer(); response.StatusCode != 200 || !strings.Contains(body, fmt.Sprintf("with %d bytes", size)) {
			t.Errorf("%s: %s", response.Status, body)
		}
	})
}

// Each bound is met exactly, and exceeded by one.
func TestHTTPBounds(t *testing.T) {
	const headerBytes, bodyBytes = 2048, 5000
	// The request line, Host and the padding field with their ends, and the empty line.
	padding := func(total int) string {
		const rest = "GET / HTTP/1.1\r\nHost: relay.example.org\r\nPadding: \r\n\r\n"
		return "Padding: " + strings.Repeat("x", total-len(rest))
	}
	body := strings.Repeat("x", bodyBytes)
	chunked := func(body string) string {
		return fmt.Sprintf("%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", 10, body[:10], len(body)-10, body[10:])
	}
	length := func(n int) string { return fmt.Sprint("Content-Length: ", n) }
	for _, row := range []struct {
		name, first string
		fields      []string
		body        string
		status      int
		reaches     bool // the relay is asked; of what is refused midway it may or may not be
	}{
		{"a header of just the size", "GET /", []string{padding(headerBytes)}, "", 200, true},
		{"a header of one byte more", "GET /", []string{padding(headerBytes + 1)}, "", 431, false},
		{"a header of ten times the size", "GET /", []string{padding(10 * headerBytes)}, "", 431, false},
		{"a path of ten times the size", "GET /" + strings.Repeat("x", 10*headerBytes), nil, "", 431, false},
		{"a body of just the size", "POST /", []string{length(bodyBytes)}, body, 200, true},
		{"a body of one byte more", "POST /", []string{length(bodyBytes + 1)}, body + "x", 413, false},
		{"a body that is announced as huge", "POST /", []string{"Content-Length: 9223372036854775807"}, "", 413, false},
		{"a body that is longer than can be", "POST /", []string{"Content-Length: 9223372036854775808"}, "", 400, false},
		{"a body of no length", "POST /", []string{"Content-Length: "}, "", 400, false},
		{"a negative length", "POST /", []string{"Content-Length: -1"}, "", 400, false},
		{"two lengths", "POST /", []string{"Content-Length: 1", "Content-Length: 2"}, "xx", 400, false},
		{"chunks of just the size", "POST /", []string{"Transfer-Encoding: chunked"}, chunked(body), 200, true},
		{"chunks of one byte more", "POST /", []string{"Transfer-Encoding: chunked"}, chunked(body + "x"), 413, false},
		{"chunks that are none", "POST /", []string{"Transfer-Encoding: chunked"}, "zz\r\n", 400, false},
		{"another transfer encoding", "POST /", []string{"Transfer-Encoding: gzip, chunked"}, "", 501, false},
		{"two transfer encodings", "POST /", []string{"Transfer-Encoding: chunked", "Transfer-Encoding: identity"}, "", 501, false},
		{"CONNECT", "CONNECT relay.example.org:22", nil, "", 405, false},
		{"a second Host", "GET /", []string{"Host: other.example.org"}, "", 400, false},
		{"a Host that is none", "GET http://a/b", []string{"Bad Name: x"}, "", 400, false},
		{"a field with a space before its colon", "GET /", []string{"X-Real-IP : 203.0.113.66"}, "", 400, false},
		{"a control in a value", "GET /", []string{"A: b\x00c"}, "", 400, false},
		{"an expectation that nobody knows", "GET /", []string{"Expect: more"}, "", 417, false},
		{"a length with a sign", "POST /", []string{"Content-Length: +3"}, "xxx", 400, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var asked atomic.Bool
				e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
					asked.Store(true)
					telling(w, r)
				}, func(cfg *edgeConfig) {
					cfg.limits.MaxRequestHeaderBytes, cfg.limits.MaxRequestBodyBytes = headerBytes, bodyBytes
				})
				c := e.client()
				go func() {
					c.Write([]byte(row.first + " HTTP/1.1\r\nHost: relay.example.org\r\n" + crlf(row.fields) + "\r\n" + row.body))
				}()
				response, got := c.answer()
				if midway := strings.HasPrefix(row.name, "chunks"); response.StatusCode != row.status || asked.Load() != row.reaches && !midway {
					t.Errorf("%s, %q; the relay was asked: %v; want %d, %v", response.Status, got, asked.Load(), row.status, row.reaches)
				}
				if row.status != 200 && !response.Close {
					t.Error("the connection goes on")
				}
				c.Close()
				time.Sleep(time.Second) // the last answer is given time to arrive
				e.wantEnd(ClientClosed)
			})
		})
	}
}

// What does not begin as a request of HTTP/1 does not reach the relay.
func TestHTTPVersions(t *testing.T) {
	for first, status := range map[string]int{
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                           505,
		"GET / HTTP/2.0\r\nHost: a\r\n\r\n":                          505,
		"GET / HTTP/3.0\r\nHost: a\r\n\r\n":                          505,
		"GET / HTTP/0.9\r\nHost: a\r\n\r\n":                          505,
		"GET /\r\n\r\n":                                              400,
		"\x16\x03\x01\x00\x05hello\r\n\r\n":                          400,
		"GET / HTTP/1.1\r\n\r\n":                                     400,
		"GET / HTTP/1.0\r\n\r\n":                                     200,
		"GET / HTTP/1.0\r\nHost: a\r\n\r\n":                          200,
		"GET http://other.example.org/x HTTP/1.1\r\nHost: a\r\n\r\n": 200,
		"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n":                      200,
	} {
		t.Run(first, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				asked := ""
				e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) { asked = r.Host + " " + r.RequestURI },
					nil, func(relay *http.Server) { relay.DisableGeneralOptionsHandler = true })
				c := e.client()
				mustWrite(t, c, []byte(first))
				response, body := c.answer()
				if response.StatusCode != status || (asked != "") != (status == 200) {
					t.Errorf("%s, %q; the relay was asked %q; want %d", response.Status, body, asked, status)
				}
				if strings.HasPrefix(first, "GET http:") && asked != "other.example.org /x" || strings.HasPrefix(first, "OPTIONS") && asked != "a *" {
					t.Errorf("the relay was asked %q", asked)
				}
			})
		})
	}
}

// Thousands of tiny fields are too many before they are too long.
func TestHTTPHeaderFields(t *testing.T) {
	for n, status := range map[int]int{maxHeaderFields: 200, maxHeaderFields + 1: 431, 10_000: 431} {
		inBubble(t, func(t *testing.T) {
			e := newHTTPEdge(t, telling, func(cfg *edgeConfig) { cfg.limits.MaxRequestHeaderBytes = 1 << 20 })
			c := e.client()
			if response, _ := c.ask("GET /", strings.Split(strings.Repeat("A: b,", n-1)+"A: b", ",")...); response.StatusCode != status {
				t.Errorf("%d fields: %s, want %d", n, response.Status, status)
			}
		})
	}
}

// A body that the relay has not asked for is not sent before it is wanted, and
// one that is too large is refused before it is.
func TestHTTPExpectContinue(t *testing.T) {
	for _, row := range []struct {
		name   string
		length int
		relay  http.HandlerFunc
		status []int
	}{
		{"wanted", 4, telling, []int{100, 200}},
		{"wanted more than once", 4, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusContinue)
			w.WriteHeader(http.StatusContinue)
			telling(w, r)
		}, []int{100, 200}},
		{"too large", 2 << 20, telling, []int{413}},
		{"refused by the relay", 4, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401) }, []int{401}},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newHTTPEdge(t, row.relay, nil)
				c := e.client()
				c.send("POST /", "Expect: 100-continue", fmt.Sprint("Content-Length: ", row.length))
				for _, want := range row.status {
					response, err := http.ReadResponse(c.lines, nil)
					if err != nil || response.StatusCode != want {
						t.Fatalf("%v, %v; want %d", response, err, want)
					}
					if want == 100 {
						mustWrite(t, c, []byte("body"))
					}
				}
			})
		})
	}
}

// The client's bytes go through the byte bucket, those of requests and those
// behind an upgrade: it is one bucket.
func TestHTTPByteBucket(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, func(cfg *edgeConfig) {
			cfg.limits.RateLimitBPS, cfg.limits.RateLimitBurstBytes = 1024, 65536
		})
		c := e.client()
		began := time.Now()
		const size = 65536 + 100*1024
		c.send("POST /", fmt.Sprint("Content-Length: ", size))
		mustWrite(t, c, make([]byte, size))
		if response, _ := c.answer(); response.StatusCode != 200 {
			t.Fatalf("a body: %s", response.Status)
		}
		// What is read at once is passed on at once, so the last buffer goes uncounted.
		if took := time.Since(began); took < 60*time.Second || took > 102*time.Second {
			t.Errorf("a body of %d bytes took %v", size, took)
		}
		c.ask("GET /", webSocket...)
		wantRead(t, c.lines, []byte("hello"))
		began = time.Now()
		for range 10 {
			mustWrite(t, c, make([]byte, 1024))
			wantRead(t, c.lines, make([]byte, 1024))
		}
		if took := time.Since(began); took < 9*time.Second {
			t.Errorf("ten more KiB took %v", took)
		}
		if n := e.server.stats.rejected[RateLimit].Load(); n == 0 {
			t.Error("no pause was counted")
		}
	})
}

// A client that takes nothing of an answer ends as in tcp mode.
func TestHTTPWriterStall(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(8<<20)) // a stream's flush would wait for a mutex, which a bubble does not see through
			w.Write(make([]byte, 8<<20))
		}, nil)
		c := e.client()
		c.send("GET /")
		synctest.Wait()
		time.Sleep(29 * time.Second)
		e.wantOpen()
		time.Sleep(2 * time.Second)
		e.wantEnd(WriterStall)
	})
}

// A reset by the client ends what it asked for at the relay.
func TestHTTPReset(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		gone := make(chan time.Duration, 1)
		e := newHTTPEdge(t, func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			<-r.Context().Done()
			gone <- time.Since(began)
		}, nil)
		c := e.client()
		c.send("GET /")
		time.Sleep(time.Second)
		c.Conn.(*memconn.Conn).Reset()
		if after := <-gone; after != time.Second {
			t.Errorf("the relay learned of it after %v", after)
		}
		e.wantEnd(Reset)
	})
}
