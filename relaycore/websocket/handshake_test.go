package websocket

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gobwas/ws"
)

// status is what a request gets.
func status(t testing.TB, head string) int {
	t.Helper()
	a := relay.Judge([]byte(head), when)
	r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(a.Response)), nil)
	if err != nil {
		t.Fatalf("%v in %q", err, a.Response)
	}
	return r.StatusCode
}

// RFC 6455, section 4.2.1: each line of the request that the handshake needs,
// in every way in which it can be wrong.
func TestHandshakeLines(t *testing.T) {
	const key = "dGhlIHNhbXBsZSBub25jZQ=="
	lines := []struct {
		name, value string
		missing     int
		twice       int
		good        []string
		bad         map[string]int
	}{
		{"Host", "relay.example.org", 400, 400,
			[]string{"relay.example.org:443", "127.0.0.1", "[::1]:443", "x"},
			map[string]int{"": 400}},
		{"Upgrade", "websocket", 404, 400,
			[]string{"WebSocket", "WEBSOCKET", " websocket", "websocket \t"},
			map[string]int{"": 404, "web socket": 404, "websocket2": 404, "h2c": 404, "websocket, h2c": 400, "websocket/13": 404}},
		{"Connection", "Upgrade", 400, 400,
			[]string{"upgrade", "UPGRADE", "keep-alive, Upgrade", "Upgrade,keep-alive", " ,, Upgrade ,", "Upgrade, Upgrade"},
			map[string]int{"": 400, "keep-alive": 400, "close": 400, "Upgraded": 400, "keep-alive Upgrade": 400, "Upgrade;": 400}},
		{"Sec-WebSocket-Version", "13", 400, 400,
			[]string{" 13 "},
			map[string]int{"": 426, "0": 426, "7": 426, "8": 426, "12": 426, "14": 426, "013": 426, "13.0": 426, "+13": 426, "13, 8": 426, "255": 426, "thirteen": 426}},
		{"Sec-WebSocket-Key", key, 400, 400,
			[]string{"AAAAAAAAAAAAAAAAAAAAAA==", "/////////////////////w==", "++++++++++++++++++++/w==", " " + key + "\t"},
			map[string]int{"": 400, "AAAA": 400, "AAAAAAAAAAAAAAAAAAAA": 400, "AAAAAAAAAAAAAAAAAAAAAAA=": 400, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA": 400,
				key[:22]: 400, key + "=": 400, key + ", " + key: 400, "dGhlIHNhbXBsZSBub25jZR==": 400, "dGhlIHNhbXBs\tSBub25jZQ==": 400, "________________________": 400, "\u00e4AAAAAAAAAAAAAAAAAAAA==": 400}},
	}
	build := func(skip string, more ...string) string {
		var b strings.Builder
		b.WriteString("GET /relay HTTP/1.1\r\n")
		for _, l := range lines {
			if l.name != skip {
				b.WriteString(l.name + ": " + l.value + "\r\n")
			}
		}
		for _, line := range more {
			b.WriteString(line + "\r\n")
		}
		return b.String() + "\r\n"
	}
	rows := 0
	expect := func(what string, want int, head string) {
		t.Helper()
		rows++
		if got := status(t, head); got != want {
			t.Errorf("%s: status %d, want %d", what, got, want)
		}
	}
	expect("all lines", 101, build(""))
	for _, l := range lines {
		expect("no "+l.name, l.missing, build(l.name))
		expect("two of "+l.name, l.twice, build("", l.name+": "+l.value))
		expect("two of "+l.name+", one in capitals", l.twice, build("", strings.ToUpper(l.name)+": "+l.value))
		for _, name := range []string{strings.ToLower(l.name), strings.ToUpper(l.name)} {
			expect(name, 101, build(l.name, name+": "+l.value))
			expect(name+" without a space", 101, build(l.name, name+":"+l.value))
			expect(name+" with tabs", 101, build(l.name, name+":\t"+l.value+"\t"))
		}
		for _, good := range l.good {
			expect(fmt.Sprintf("%s: %q", l.name, good), 101, build(l.name, l.name+": "+good))
		}
		for bad, want := range l.bad {
			expect(fmt.Sprintf("%s: %q", l.name, bad), want, build(l.name, l.name+": "+bad))
		}
		// What two parsers could read in two ways is refused outright.
		expect(l.name+" with a space before the colon", 400, build(l.name, l.name+" : "+l.value))
		expect(l.name+" with a tab before the colon", 400, build(l.name, l.name+"\t: "+l.value))
		expect(l.name+" with a space before the name", 400, build(l.name, " "+l.name+": "+l.value))
		expect(l.name+" on a continued line", 400, build(l.name, l.name+":\r\n "+l.value))
		expect(l.name+" on a line continued by a tab", 400, build(l.name, l.name+":\r\n\t"+l.value))
		expect(l.name+" with an empty continued line", 400, build(l.name, l.name+": "+l.value+"\r\n "))
		expect(l.name+" with a bare newline", 400, build(l.name, l.name+": "+l.value+"\nX: y"))
		expect(l.name+" with a bare return", 400, build(l.name, l.name+": "+l.value+"\rX: y"))
		expect(l.name+" with a zero", 400, build(l.name, l.name+": "+l.value+"\x00"))
		expect(l.name+" with a DEL", 400, build(l.name, l.name+": "+l.value+"\x7f"))
		expect(l.name+" without a colon", 400, build(l.name, l.name+" "+l.value))
		expect(l.name+" without a name", 400, build(l.name, ": "+l.value))
	}
	for line, want := range map[string]int{
		"GET /relay HTTP/1.1":                          101,
		"GET /relay?token=x HTTP/1.1":                  101,
		"GET /relay? HTTP/1.1":                         101,
		"GET http://relay.example.org/relay HTTP/1.1":  101, // RFC 9112, section 3.2.2
		"GET https://relay.example.org/relay HTTP/1.1": 101,
		"GET http://relay.example.org/ HTTP/1.1":       404,
		"GET relay HTTP/1.1":                           400,
		"GET * HTTP/1.1":                               404,
		"GET relay.example.org:443 HTTP/1.1":           404,
		"CONNECT relay.example.org:443 HTTP/1.1":       404,
		"GET //relay HTTP/1.1":                         404,
		"GET /relay/ HTTP/1.1":                         404,
		"GET /relay#a HTTP/1.1":                        404,
		"GET /./relay HTTP/1.1":                        404,
		"GET /Relay HTTP/1.1":                          404,
		"GET /%72elay HTTP/1.1":                        404,
		"GET /relay%00 HTTP/1.1":                       404,
		"GET /rel ay HTTP/1.1":                         400,
		"GET  /relay HTTP/1.1":                         400,
		"GET /relay  HTTP/1.1":                         400,
		"get /relay HTTP/1.1":                          400,
		"POST /relay HTTP/1.1":                         400,
		"HEAD /relay HTTP/1.1":                         400,
		"OPTIONS /relay HTTP/1.1":                      400,
		"G\u00c4T /relay HTTP/1.1":                     400,
		"GET /relay HTTP/1.0":                          400,
		"GET /relay HTTP/1.2":                          400,
		"GET /relay HTTP/2.0":                          400,
		"GET /relay HTTP/0.9":                          400,
		"GET /relay HTTP/1.10":                         400,
		"GET /relay http/1.1":                          400,
		"GET /relay":                                   400,
		"GET /relay HTTP/1.1 x":                        400,
		"/relay HTTP/1.1":                              400,
	} {
		expect(line, want, strings.Replace(build(""), "GET /relay HTTP/1.1", line, 1))
	}
	for line, want := range map[string]int{
		"Content-Length: 0":                               101,
		"Content-Length: 1":                               400,
		"Content-Length: -1":                              400,
		"Content-Length: +0":                              400,
		"Content-Length: 0, 1":                            400,
		"Content-Length: 99999999999999999999999":         400,
		"Content-Length: 0\r\nContent-Length: 1":          400,
		"Transfer-Encoding: chunked":                      400,
		"Transfer-Encoding: identity":                     400,
		"Transfer-Encoding: gzip, chunked":                400,
		"Transfer-Encoding: chunked\r\nContent-Length: 0": 400,
		"Expect: 100-continue":                            101,
		"X-\u00c4: y":                                     400,
		"X(Y): z":                                         400,
		"X-Y: \u00e4\xff":                                 101, // obs-text
		// No extension is negotiated, whichever is offered.
		"Sec-WebSocket-Extensions: permessage-deflate":                                                                       101,
		"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits; server_no_context_takeover":                   101,
		"Sec-WebSocket-Extensions: x-webkit-deflate-frame, permessage-bzip2\r\nSec-WebSocket-Extensions: permessage-deflate": 101,
		"Sec-WebSocket-Extensions: ;;=": 101,
	} {
		expect(line, want, build("", line))
	}
	t.Logf("%d rows", rows)
}

// What is taken is what gobwas/ws takes too, with the same answer; where it
// takes more, this package is the stricter one.
func checkUpgrade(t testing.TB, head []byte) {
	checkUsual(t, head)
	t.Helper()
	a := relay.Judge(bytes.Clone(head), when)
	r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(a.Response)), nil)
	if err != nil {
		t.Fatalf("%q, %v", a.Response, err)
	}
	if a.Upgraded != (r.StatusCode == 101) || a.Decoy != (r.StatusCode == 404) {
		t.Fatalf("%+v with status %d", a, r.StatusCode)
	}
	if !a.Upgraded {
		if !r.Close {
			t.Fatalf("the connection stays open behind %q", a.Response)
		}
		return
	}
	if r.Header.Get("Sec-WebSocket-Extensions") != "" {
		t.Fatal("an extension was negotiated")
	}
	stream := struct {
		io.Reader
		io.Writer
	}{bytes.NewReader(head), new(bytes.Buffer)}
	oracle := ws.Upgrader{Protocol: func(b []byte) bool { return string(b) == relay.Subprotocol }}
	if _, err := oracle.Upgrade(stream); err != nil {
		t.Fatalf("the oracle refuses %q: %v", head, err)
	}
	want, err := http.ReadResponse(bufio.NewReader(stream.Writer.(*bytes.Buffer)), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Sec-WebSocket-Accept", "Sec-WebSocket-Protocol"} {
		if got := r.Header.Get(name); got != want.Header.Get(name) {
			t.Fatalf("%s: %q, the oracle has %q", name, got, want.Header.Get(name))
		}
	}
}

func FuzzUpgrade(f *testing.F) {
	f.Add([]byte(request))
	for _, line := range []string{
		"Sec-WebSocket-Protocol: relaycore.v1", "Sec-WebSocket-Protocol: a, relaycore.v1 ,b", "Sec-WebSocket-Protocol:",
		"Sec-WebSocket-Extensions: permessage-deflate", "Host: other.example.org", "Content-Length: 0", "X : y", " folded: x", "X: \x00",
	} {
		f.Add([]byte(strings.Replace(request, "\r\n\r\n", "\r\n"+line+"\r\n\r\n", 1)))
	}
	f.Add([]byte("\x16\x03\x01\x02\x00"))
	f.Add([]byte("GET http://relay.example.org/relay" + request[len("GET /relay"):]))
	f.Add([]byte(request + "\x82\x80\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := HeadLength(b, 0)
		// However the bytes come, the head ends at the same place.
		scanned, got := 0, 0
		var gotErr error
		for i := 1; i <= len(b) && got == 0 && gotErr == nil; i++ {
			got, gotErr = HeadLength(b[:i], scanned)
			scanned = i
		}
		if len(b) > 0 && (got != n || gotErr != err) {
			t.Fatalf("the head ends at %d (%v), byte by byte at %d (%v)", n, err, got, gotErr)
		}
		if err != nil || n == 0 {
			return
		}
		if n > MaxHead {
			t.Fatalf("a head of %d bytes", n)
		}
		checkUpgrade(t, b[:n])
	})
}
