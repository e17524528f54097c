package main_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"
)

// HAProxy and nginx as what an operator has behind the edge: they take the
// client's address from our header and tell it to the service behind them.

func TestHAProxyBehindUs(t *testing.T) {
	t.Parallel()
	peer(t, "haproxy")
	address := loopback4(t)
	haproxy(t, recipe(t, "HAProxy", "haproxy.cfg", "127.0.0.1:7777", address, "127.0.0.1:8000", tellingRealIP(t)), address)
	testHTTPRelay(t, "HAProxy", address, new(transcript))
}

func TestNginxBehindUs(t *testing.T) {
	t.Parallel()
	peer(t, "nginx")
	address := loopback4(t)
	server := recipe(t, "nginx", "nginx.conf", "127.0.0.1:7777", address, "127.0.0.1:8000", tellingRealIP(t))
	paths := strings.Replace(httpPaths, "access_log off", "access_log /dev/stdout", 1)
	p := nginx(t, "http {"+paths+server+"}\n", address)
	t.Run("without a header", func(t *testing.T) {
		if answer, _ := io.ReadAll(direct(t, address, []byte("GET / HTTP/1.0\r\n\r\n"))); len(answer) > 0 {
			t.Errorf("it answers %q", answer)
		}
		if _, err := p.await(&p.stderr, regexp.MustCompile(`broken header: "GET / [^"]*" while reading PROXY protocol`)); err != nil {
			t.Error(err)
		}
	})
	testHTTPRelay(t, "nginx", address, &p.stdout)
}

// tellingRealIP starts a service that answers what the relay in front of it has
// told about the client, and returns its address.
func tellingRealIP(t testing.TB) string {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, net.JoinHostPort(r.Header.Get("X-Real-IP"), r.Header.Get("X-Real-Port")))
	}))
	t.Cleanup(service.Close)
	return service.Listener.Addr().String()
}

func testHTTPRelay(t *testing.T, section, address string, log *transcript) {
	t.Run("a health check", func(t *testing.T) {
		probe(t, address)
		probeAndReset(t, address)
	})
	t.Run("our largest header", func(t *testing.T) {
		wantRealIP(t, newDialogue(direct(t, address, largest(t, named))), named)
	})
	e := inFront(t, section, address)
	t.Run("the page's commands", func(t *testing.T) {
		e.showsOnConsole(t, section, "secure", log, "127.0.0.1:7777", address)
	})
	ask := func(t *testing.T, d *dialogue) {
		wantRealIP(t, d, netip.MustParseAddrPort(d.LocalAddr().String()))
	}
	all := everyWay(t, e, "http/1.1")
	all.each(t, "at once", ask)
	all.stayQuiet(t)
	all.each(t, "after an idle time", ask)
}

// wantRealIP makes one request on a connection that is kept.
func wantRealIP(t testing.TB, d *dialogue, client netip.AddrPort) {
	t.Helper()
	if _, err := io.WriteString(d, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(d.lines, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<12))
	if want := client.String(); err != nil || response.StatusCode != 200 || string(body) != want {
		t.Errorf("status %s, %q (%v), want the client %s", response.Status, body, err, want)
	}
}
