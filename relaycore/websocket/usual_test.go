package websocket

import (
	"strings"
	"testing"
)

// checkUsual holds the short way to the long one: what it takes, Judge would take
// by itself, with the same answer.
func checkUsual(t testing.TB, head []byte) (taken bool) {
	t.Helper()
	if ambiguous(head) {
		return false
	}
	a, ok := relay.usual(head)
	if !ok {
		return false
	}
	if want := relay.judge(head, when); !a.Upgraded || !want.Upgraded || string(a.Response) != string(want.Response) {
		t.Errorf("%q:\nthe short way answers %q,\nthe long one %q", head, a.Response, want.Response)
	}
	return true
}

// The requests of clients that are met go the short way.
func TestUsual(t *testing.T) {
	const protocol = "Sec-WebSocket-Protocol: relaycore.v1\r\n"
	for name, head := range map[string]string{
		"RFC 6455": request,
		"Chromium": "GET /relay HTTP/1.1\r\nHost: localhost:8443\r\nConnection: Upgrade\r\nPragma: no-cache\r\nCache-Control: no-cache\r\n" +
			"User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nUpgrade: websocket\r\nOrigin: https://localhost:8443\r\nSec-WebSocket-Version: 13\r\n" +
			"Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-US,en;q=0.9\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
			"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n" + protocol + "\r\n",
		"Go": "GET /relay HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Go-http-client/1.1\r\nConnection: Upgrade\r\n" +
			"Sec-Websocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + protocol + "Sec-Websocket-Version: 13\r\nUpgrade: websocket\r\n\r\n",
		"two lines of subprotocols": strings.Replace(request, "\r\n\r\n", "\r\nSec-WebSocket-Protocol: a,b\r\nsec-websocket-protocol: c , relaycore.v1\r\n\r\n", 1),
	} {
		if !checkUsual(t, []byte(head)) {
			t.Errorf("the request of %s goes the long way", name)
		}
	}
	head := []byte(request)
	if n := testing.AllocsPerRun(100, func() { relay.usual(head) }); n > 2 {
		t.Errorf("the short way allocates %v times", n)
	}
}

// Whatever is not plainly right is left to http.ReadRequest.
func TestUnusual(t *testing.T) {
	for _, line := range []string{
		"Host: other", "Host:", "Upgrade: websocket", "Upgrade:", "Connection: Upgrade", "Connection:", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Version:",
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Key:", "Content-Length: 0", "Content-Length: 3", "Transfer-Encoding: chunked", "Trailer: X",
		"Sec-WebSocket-Protocol:", "Sec-WebSocket-Protocol: relaycore.v2", "no colon", "X : y", ": y", "\u00e4: y",
	} {
		for _, head := range []string{
			strings.Replace(request, "\r\n\r\n", "\r\n"+line+"\r\n\r\n", 1),
			strings.Replace(request, "\r\n", "\r\n"+line+"\r\n", 1),
		} {
			if checkUsual(t, []byte(head)) {
				t.Errorf("%q goes the short way", head)
			}
		}
	}
	// In place of a part of the request.
	for _, row := range [][2]string{
		{"GET ", "POST "}, {"GET ", "get "}, {"/relay ", "/relay?x "}, {"/relay ", "/relay/ "}, {"/relay ", "/relay  "}, {"HTTP/1.1", "HTTP/1.0"},
		{"Host: relay.example.org", "Host:"}, {": websocket", ": h2c"}, {": Upgrade", ": keep-alive"}, {"Version: 13", "Version: 14"}, {"jZQ==", "jZR=="}, {"jZQ==", "jZQ"}, {"jZQ==", "jZWU="},
		{"Host: relay.example.org\r\n", ""}, {"Upgrade: websocket\r\n", ""}, {"Connection: Upgrade\r\n", ""}, {"Sec-WebSocket-Version: 13\r\n", ""}, {"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""},
	} {
		head := strings.Replace(request, row[0], row[1], 1)
		if head == request {
			t.Fatalf("%q is not in the request", row[0])
		}
		if checkUsual(t, []byte(head)) {
			t.Errorf("%q goes the short way", head)
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	head := []byte(request)
	for _, way := range []struct {
		name  string
		judge func() Answer
	}{
		{"short", func() Answer { a, _ := relay.usual(head); return a }},
		{"long", func() Answer { return relay.judge(head, when) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				way.judge()
			}
		})
	}
}
