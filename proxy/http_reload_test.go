package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/proxy/upstream"
)

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
