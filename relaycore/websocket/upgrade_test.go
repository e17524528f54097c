package websocket

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

var relay = Endpoint{Path: "/relay", Subprotocol: "relaycore.v1"}

const request = "GET /relay HTTP/1.1\r\nHost: relay.example.org\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

var when = time.Date(2026, 11, 30, 12, 0, 0, 0, time.FixedZone("", 3600))

func TestJudge(t *testing.T) {
	edit := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(request) }
	with := func(lines string) string { return edit("\r\n\r\n", "\r\n"+lines+"\r\n\r\n") }
	for _, tc := range []struct {
		name, head  string
		status      int
		subprotocol string
	}{
		{"as RFC 6455 has it", request, 101, ""},
		{"the subprotocol", with("Sec-WebSocket-Protocol: relaycore.v1"), 101, "relaycore.v1"},
		{"among others", with("Sec-WebSocket-Protocol: chat , relaycore.v1,x"), 101, "relaycore.v1"},
		{"on two lines", with("Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: relaycore.v1"), 101, "relaycore.v1"},
		{"others alone", with("Sec-WebSocket-Protocol: relaycore.v2"), 400, ""},
		{"in another case", with("Sec-WebSocket-Protocol: RelayCore.v1"), 400, ""},
		{"an empty offer", with("Sec-WebSocket-Protocol:"), 400, ""},
		{"compression is not negotiated", with("Sec-WebSocket-Extensions: permessage-deflate"), 101, ""},
		{"any case", edit("Upgrade: websocket", "upgrade: WebSocket", "Connection: Upgrade", "CONNECTION: keep-alive, UPGRADE"), 101, ""},
		{"a query", edit("/relay ", "/relay?x=1 "), 101, ""},
		{"an origin", with("Origin: https://example.org"), 101, ""},

		{"another path", edit("/relay", "/"), 404, ""},
		{"no upgrade", edit("Upgrade: websocket\r\n", ""), 404, ""},
		{"an upgrade to something else", edit("websocket", "h2c"), 404, ""},
		{"two upgrades", with("Upgrade: websocket"), 400, ""},
		{"a list of upgrades", edit("Upgrade: websocket", "Upgrade: h2c, websocket"), 400, ""},
		{"no connection", edit("Connection: Upgrade\r\n", ""), 400, ""},
		{"connection without upgrade", edit("Connection: Upgrade", "Connection: keep-alive"), 400, ""},
		{"two connections", with("Connection: Upgrade"), 400, ""},
		{"no host", edit("Host: relay.example.org\r\n", ""), 400, ""},
		{"two hosts", with("Host: relay.example.org"), 400, ""},
		{"two hosts in two cases", with("hOsT: other.example.org"), 400, ""},
		{"no version", edit("Sec-WebSocket-Version: 13\r\n", ""), 400, ""},
		{"two versions", with("Sec-WebSocket-Version: 13"), 400, ""},
		{"version 12", edit("Version: 13", "Version: 12"), 426, ""},
		{"version 013", edit("Version: 13", "Version: 013"), 426, ""},
		{"no key", edit("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""), 400, ""},
		{"two keys", with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400, ""},
		{"key of 15 bytes", edit("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25j"), 400, ""},
		{"key of 17 bytes", edit("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZWU="), 400, ""},
		{"key without padding", edit("jZQ==", "jZQ"), 400, ""},
		{"key with stray bits", edit("jZQ==", "jZR=="), 400, ""},
		{"key that is no base64", edit("dGhlIHNh", "????????"), 400, ""},
		{"POST", edit("GET", "POST"), 400, ""},
		{"HTTP/1.0", edit("HTTP/1.1", "HTTP/1.0"), 400, ""},
		{"HTTP/2.0", edit("HTTP/1.1", "HTTP/2.0"), 400, ""},
		{"a body", with("Content-Length: 3"), 400, ""},
		{"a chunked body", with("Transfer-Encoding: chunked"), 400, ""},
		{"both", with("Transfer-Encoding: chunked\r\nContent-Length: 3"), 400, ""},
		{"bare newline", edit("Host: relay.example.org\r\n", "Host: relay.example.org\n"), 400, ""},
		{"space before a colon", with("X-Y : z"), 400, ""},
		{"no HTTP at all", "\x16\x03\x01\r\n\r\n", 400, ""},
		{"empty", "\r\n\r\n", 400, ""},
	} {
		a := relay.Judge([]byte(tc.head), when)
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(a.Response)), nil)
		if err != nil {
			t.Errorf("%s: %v in %q", tc.name, err, a.Response)
			continue
		}
		if r.StatusCode != tc.status || a.Upgraded != (tc.status == 101) || a.Decoy != (tc.status == 404) {
			t.Errorf("%s: status %d, %+v", tc.name, r.StatusCode, a)
		}
		if r.Header.Get("Sec-WebSocket-Protocol") != tc.subprotocol || r.Header.Get("Sec-WebSocket-Extensions") != "" {
			t.Errorf("%s: %v", tc.name, r.Header)
		}
		if tc.status == 101 {
			// RFC 6455, section 1.3.
			if r.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
				t.Errorf("%s: %v", tc.name, r.Header)
			}
			continue
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || int64(len(body)) != r.ContentLength || !r.Close ||
			r.Header.Get("Date") != "Mon, 30 Nov 2026 11:00:00 GMT" {
			t.Errorf("%s: body %q, %v", tc.name, body, err)
		}
		if tc.status == 426 && r.Header.Get("Sec-WebSocket-Version") != "13" {
			t.Errorf("%s: %v", tc.name, r.Header)
		}
	}
}

func TestHeadHasNoBody(t *testing.T) {
	a := relay.Judge([]byte("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"), when)
	if !a.Decoy || !bytes.HasSuffix(a.Response, []byte("\r\n\r\n")) {
		t.Fatalf("%q", a.Response)
	}
}

// spec/003: request headers are capped at 8 KiB.
func TestHeadLength(t *testing.T) {
	pad := func(n int) string { return strings.Repeat("a", n-4) + "\r\n\r\n" }
	for _, tc := range []struct {
		name, in string
		want     int
		err      error
	}{
		{"empty", "", 0, nil},
		{"unfinished", "GET / HTTP/1.1\r\nHost: x\r\n", 0, nil},
		{"whole", "GET / HTTP/1.1\r\n\r\n", 18, nil},
		{"whole with more", "GET / HTTP/1.1\r\n\r\n\r\n\r\n", 18, nil},
		{"bare newlines end it too, for Judge to refuse", "GET / HTTP/1.1\n\nabc", 16, nil},
		{"8192 bytes", pad(8192), 8192, nil},
		{"8192 bytes with more", pad(8192) + "more", 8192, nil},
		{"8193 bytes", pad(8193), 0, ErrHead},
		{"8194 bytes", pad(8194), 0, ErrHead},
		{"8192 bytes without an end", strings.Repeat("a", 8192), 0, ErrHead},
		{"TLS", "\x16", 0, ErrNotHTTP},
		{"a PROXY header", "\r\n\r\n\x00\r\nQUIT\n", 0, ErrNotHTTP},
		{"a digit", "1", 0, ErrNotHTTP},
		{"below A", "@", 0, ErrNotHTTP},
		{"above z", "{", 0, ErrNotHTTP},
		{"8191 bytes without an end", strings.Repeat("a", 8191), 0, nil},
	} {
		if n, err := HeadLength([]byte(tc.in), 0); n != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: %d, %v", tc.name, n, err)
		}
		// However it is cut, the end is found where it is.
		got, scanned := 0, 0
		for i := 1; i <= len(tc.in) && got == 0; i++ {
			n, err := HeadLength([]byte(tc.in[:i]), scanned)
			if err != nil {
				break
			}
			got, scanned = n, i
		}
		if got != tc.want {
			t.Errorf("%s, byte by byte: %d", tc.name, got)
		}
	}
}
