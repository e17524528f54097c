package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/hostport"
	"relayedge/internal/memconn"
	"relayedge/internal/proxyheader"
	"relayedge/internal/testport"
)

// taking reads a header of the versions before it serves, and hangs up without one.
func taking(versions proxyheader.Versions, serve func(io.ReadWriter)) func(net.Conn) {
	return func(c net.Conn) {
		_, rest, err := proxyheader.Read(c, versions)
		if err == nil {
			serve(prefixed{io.MultiReader(strings.NewReader(string(rest)), c), c})
		}
	}
}

type prefixed struct {
	io.Reader
	io.Writer
}

func plain(serve func(io.ReadWriter)) func(net.Conn) { return func(c net.Conn) { serve(c) } }

// optional serves with a header and without.
func optional(serve func(io.ReadWriter)) func(net.Conn) {
	return func(c net.Conn) {
		b := bufio.NewReader(c)
		if first, err := b.Peek(12); err == nil && string(first) == "\r\n\r\n\x00\r\nQUIT\n" {
			head := make([]byte, 16)
			io.ReadFull(b, head)
			io.CopyN(io.Discard, b, int64(head[15]))
		}
		serve(prefixed{b, c})
	}
}

// web answers one HTTP request.
func web(rw io.ReadWriter) {
	answer := "HTTP/1.1 400 Bad Request\r\n\r\n"
	if _, err := http.ReadRequest(bufio.NewReader(rw)); err == nil {
		answer = "HTTP/1.1 200 OK\r\n\r\nhello"
	}
	io.WriteString(rw, answer)
}

// mail greets, and answers line by line as SMTP does.
func mail(rw io.ReadWriter) {
	io.WriteString(rw, "220 mail.example.org ESMTP\r\n")
	for in := bufio.NewScanner(rw); in.Scan(); {
		switch strings.TrimSpace(in.Text()) {
		case "QUIT":
			io.WriteString(rw, "221 bye\r\n")
			return
		case "NOOP":
			io.WriteString(rw, "250 ok\r\n")
		default:
			io.WriteString(rw, "500 what?\r\n")
		}
	}
}

// deaf greets and takes no notice of what it is sent.
func deaf(rw io.ReadWriter) {
	io.WriteString(rw, "hello\r\n")
	io.Copy(io.Discard, rw)
}

func silent(rw io.ReadWriter) { io.Copy(io.Discard, rw) }
func echo(rw io.ReadWriter)   { io.Copy(rw, rw) }
func slam(io.ReadWriter)      {}

// listen serves each connection until the test's end.
func listen(t *testing.T, network, address string, serve func(net.Conn)) hostport.Target {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	accept(t, ln, serve)
	return hostport.Target{Network: network, Address: ln.Addr().String()}
}

// inMemory is listen in a bubble, where no relay is too slow for the probe.
func inMemory(t *testing.T, serve func(net.Conn)) connect {
	t.Helper()
	ln := memconn.Listen(netip.MustParseAddrPort("192.0.2.2:7777"))
	accept(t, ln, serve)
	return func(ctx context.Context) (net.Conn, error) {
		return ln.Dial(ctx, netip.MustParseAddrPort("192.0.2.1:1"))
	}
}

func accept(t *testing.T, ln net.Listener, serve func(net.Conn)) {
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
}

const wait = 2 * time.Second

func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func TestVerdicts(t *testing.T) {
	const both = proxyheader.V1 | proxyheader.V2
	tests := []struct {
		name         string
		serve        func(net.Conn)
		send         string
		v2, v1, bare Verdict
	}{
		{"HTTP, both versions", taking(both, web), "", Takes, Takes, ""},
		{"HTTP, version 2", taking(proxyheader.V2, web), "", Takes, Refuses, ""},
		{"HTTP, version 1", taking(proxyheader.V1, web), "", Refuses, Takes, ""},
		{"HTTP, version 1, asked", taking(proxyheader.V1, web), HTTPRequest, Refuses, Takes, Refuses},
		{"HTTP, none", plain(web), "", Refuses, Refuses, ""},
		{"HTTP, none, asked", plain(web), HTTPRequest, Refuses, Refuses, Takes},
		{"HTTP, optional", optional(web), HTTPRequest, Takes, Refuses, Takes},
		{"SMTP, version 2", taking(proxyheader.V2, mail), "", Takes, Refuses, Unclear},
		{"SMTP, version 2, asked", taking(proxyheader.V2, mail), "NOOP\r\n", Takes, Refuses, Refuses},
		{"SMTP, none", plain(mail), "", Refuses, Refuses, Takes},
		{"SMTP, none, asked", plain(mail), "NOOP\r\n", Refuses, Refuses, Takes},
		{"speaks first and does not listen, version 2", taking(proxyheader.V2, deaf), "", Takes, Refuses, Unclear},
		{"speaks first and does not listen", plain(deaf), "", Unclear, Unclear, Takes},
		{"silent, version 2", taking(proxyheader.V2, silent), "", Takes, Refuses, Unclear},
		{"silent", plain(silent), "", Unclear, Unclear, Unclear},
		{"echo, none", plain(echo), "", Refuses, Refuses, Takes},
		{"echo, version 2", taking(proxyheader.V2, echo), "ping", Takes, Refuses, Refuses},
		{"closes at once", plain(slam), "", Refuses, Refuses, Refuses},
	}
	for _, tt := range tests {
		inBubble(t, tt.name, func(t *testing.T) {
			r, err := run(t.Context(), inMemory(t, tt.serve), []byte(tt.send), wait)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			r.Print(&text)
			if r.V2Verdict() != tt.v2 || r.V1Verdict() != tt.v1 || tt.bare != "" && r.BareVerdict() != tt.bare {
				t.Errorf("v2 %s, v1 %s, bare %s; want %s, %s, %s\n%s", r.V2Verdict(), r.V1Verdict(), r.BareVerdict(), tt.v2, tt.v1, tt.bare, text.String())
			}
			if ok := r.Judge("proxy-v2").OK; ok != (tt.v2 == Takes) {
				t.Errorf("OK for proxy-v2 is %v", ok)
			}
			if ok := r.Judge("proxy-v1").OK; ok != (tt.v1 == Takes) {
				t.Errorf("OK for proxy-v1 is %v", ok)
			}
		})
	}
}

func TestWords(t *testing.T) {
	const both = proxyheader.V1 | proxyheader.V2
	for _, tt := range []struct {
		name  string
		serve func(net.Conn)
		send  string
		says  []string
	}{
		{"both", taking(both, web), "", []string{"client_address: proxy-v2"}},
		{"v1", taking(proxyheader.V1, web), HTTPRequest, []string{"client_address: proxy-v1"}},
		{"none", plain(web), "", []string{"client_address: none"}},
		{"silent", plain(silent), "", []string{"--send"}},
		{"silent to what is sent", plain(silent), "NOOP", []string{"something that it answers"}},
		{"optional", optional(web), HTTPRequest, []string{"client_address: proxy-v2", "without a header too"}},
		{"no LOCAL", func(c net.Conn) {
			if h, _, err := proxyheader.Read(c, proxyheader.V2); err == nil && !h.Local {
				deaf(c)
			}
		}, "", []string{"client_address: proxy-v2", "health_check_secs: 0"}},
	} {
		inBubble(t, tt.name, func(t *testing.T) {
			r, err := run(t.Context(), inMemory(t, tt.serve), []byte(tt.send), wait)
			if err != nil {
				t.Fatal(err)
			}
			got := r.Judge("proxy-v2").Findings
			if len(got) != len(tt.says) {
				t.Errorf("found %q, want %q", got, tt.says)
			}
			for _, says := range tt.says {
				if !strings.Contains(strings.Join(got, "\n"), says) {
					t.Errorf("found %q, want %q", got, says)
				}
			}
		})
	}
}

// Over real sockets: a relay that takes version 2 alone, and stays.
func TestRealSockets(t *testing.T) {
	t.Parallel()
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			testRealSocket(t, listen(t, network, address, taking(proxyheader.V2, mail)))
		})
	}
}

func testRealSocket(t *testing.T, target hostport.Target) {
	t.Helper()
	r, err := Run(t.Context(), target, nil, 5*time.Second)
	if err != nil || r.V2Verdict() != Takes || r.V1Verdict() != Refuses {
		t.Error(r, err)
	}
}

func TestClosedPort(t *testing.T) {
	nobody := fmt.Sprintf("127.0.0.1:%d", testport.Free(t))
	if _, err := Run(t.Context(), hostport.Target{Network: "tcp", Address: nobody}, nil, wait); err == nil {
		t.Error("no error")
	}
}

// An answer without end is not read without end, and a probe that is called off
// ends.
func TestBounds(t *testing.T) {
	target := listen(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		for {
			if _, err := c.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	})
	r, err := Run(t.Context(), target, nil, time.Minute)
	if err != nil || len(r.Bare.Answer) != maxAnswer {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	Run(ctx, listen(t, "tcp", "127.0.0.1:0", plain(silent)), nil, time.Minute)
	if time.Since(began) > 30*time.Second {
		t.Error("it went on after it was called off")
	}
}

// What a relay says reaches the terminal quoted, and short.
func TestAnswersAreQuoted(t *testing.T) {
	o := Outcome{Answer: []byte("\x1b[2Jhello" + strings.Repeat("x", 100) + "\r\nmore"), Ended: "closed"}
	if got := o.String(); strings.ContainsRune(got, 0x1b) || len(got) > 100 || !strings.HasSuffix(got, `"…, closes`) {
		t.Error(got)
	}
}
