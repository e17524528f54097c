package telemetry

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	loopback := Config{BindAddr: "127.0.0.5:9090"}
	v6 := Config{BindAddr: "[::1]:9090"}
	public := Config{BindAddr: "192.0.2.7:9090", AllowPublic: true}
	everywhere := Config{BindAddr: ":9090", AllowPublic: true}
	for _, row := range []struct {
		cfg  Config
		host string
		want bool
	}{
		{loopback, "127.0.0.5:9090", true},
		{loopback, "127.0.0.1", true},
		{loopback, "localhost:1234", true},
		{loopback, "LOCALHOST.:9090", true},
		{loopback, "[::1]:9090", true},
		{loopback, "[::1]", true},
		{loopback, "[::ffff:127.0.0.1]:9090", true},
		{v6, "[::1]:9090", true},
		{v6, "[0:0:0:0:0:0:0:1]:9090", true},

		{loopback, "", false},
		{loopback, ":9090", false},
		{loopback, "evil.example:9090", false},
		{loopback, "localhost.evil.example", false},
		{loopback, "evil.localhost", false},
		{loopback, "127.0.0.1.evil.example", false},
		{loopback, "192.0.2.7:9090", false},
		{loopback, "0.0.0.0:9090", false},
		{loopback, "[::]:9090", false},
		{loopback, "localhost:evil", false},
		{loopback, "2130706433", false},
		{loopback, own, strings.EqualFold(own, "localhost")},
		{Config{BindAddr: "0.0.0.0:9090"}, "0.0.0.0", false},

		{public, "192.0.2.7:9090", true},
		{public, "198.51.100.1:9090", true}, // as it is seen from beyond a translated address
		{public, "[2001:db8::1]:9090", true},
		{public, "localhost", true},
		{public, own + ":9090", true},
		{public, strings.ToUpper(own), true},
		{public, "evil.example", false},
		{public, own + ".evil.example", false},
		{public, "", false},
		{everywhere, "203.0.113.9", true},
		{everywhere, "evil.example", false},
	} {
		if got := row.cfg.Names().hold(row.host); got != row.want {
			t.Errorf("bound to %s, public %v: %q is %v", row.cfg.BindAddr, row.cfg.AllowPublic, row.host, got)
		}
	}
}

// A page keeps the rules of the endpoint: who asks for what, under which name, by
// which method, and never on the connection that is kept.
func TestPages(t *testing.T) {
	o := Options{
		Names: Config{BindAddr: "127.0.0.1:9090"}.Names(),
		Pages: map[string]http.Handler{
			"/":       http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "the page") }),
			"/status": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("no figures") }),
		},
	}
	const elsewhere = "Only /, /status, /metrics, /healthz and /readyz are here.\n"
	for _, row := range []struct {
		method, path, host string
		status             int
		body               string
	}{
		{"GET", "/", "127.0.0.1:9090", 200, "the page"},
		{"HEAD", "/", "localhost", 200, ""},
		{"GET", "/?x=1", "localhost", 200, "the page"},
		{"GET", "/", "evil.example", 421, "This page answers to localhost and to the address that it is bound to, and not to the name in this request; docs/status.md says more."},
		{"GET", "/status", "evil.example", 421, "This page answers to localhost and to the address that it is bound to, and not to the name in this request; docs/status.md says more."},
		{"GET", "/status", "localhost", 500, "internal error\n"},
		{"POST", "/", "localhost", 405, "Only GET and HEAD are answered here.\n"},
		{"DELETE", "/status", "localhost", 405, "Only GET and HEAD are answered here.\n"},
		{"GET", "//", "localhost", 404, elsewhere},
		{"GET", "/status/", "localhost", 404, elsewhere},
		// Who collects metrics reaches them by any name.
		{"GET", "/metrics", "evil.example", 200, ""},
		{"GET", "/healthz", "evil.example", 200, "ok"},
	} {
		t.Run(row.method+" "+row.path+" of "+row.host, func(t *testing.T) {
			inBubble(t, o, func(t *testing.T, e *endpoint) {
				c := e.dial()
				fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\n\r\n", row.method, row.path, row.host)
				if status, body := e.answer(c, row.method); status != row.status || body != row.body {
					t.Errorf("%d %q, want %d %q", status, body, row.status, row.body)
				}
			})
		})
	}
	t.Run("header", func(t *testing.T) {
		s, err := NewServer(o)
		if err != nil {
			t.Fatal(err)
		}
		s.names = Config{AllowPublic: true, BindAddr: "127.0.0.1:1"}.Names()
		s.names.own = "example.com" // which httptest asks for
		h := get(s, "/").Result().Header
		for key, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := h.Get(key); got != want {
				t.Errorf("%s: %q, want %q", key, got, want)
			}
		}
	})
	t.Run("the kept connection", func(t *testing.T) {
		o := o
		o.Ready = holds
		inBubble(t, o, func(t *testing.T, e *endpoint) {
			busy := e.hold(7)
			defer func() { e.answer(busy[6], "GET") }()
			for path, want := range map[string]int{"/": 503, "/metrics": 200} {
				c := e.dial()
				fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
				if status, _ := e.answer(c, "GET"); status != want {
					t.Errorf("%s: %d, want %d", path, status, want)
				}
			}
		})
	})
}
