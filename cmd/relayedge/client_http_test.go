package main_test

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	bigendian "encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// realIPRelay starts a relay that takes its client from X-Real-IP, and tells it to
// the client: in the answer to a plain request, or as a WebSocket message, behind
// which it echoes.
func realIPRelay(t testing.TB) (address string) {
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told := fmt.Sprintf("X-Real-IP %q, others %d, %s", r.Header["X-Real-Ip"], claimed(r.Header), r.Header.Get("X-Forwarded-Proto"))
		if r.Header.Get("Upgrade") == "" {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, "%s, %d bytes, %v\n", told, n, err)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		accept := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			base64.StdEncoding.EncodeToString(accept[:]))
		writeFrame(buffered, 0x81, []byte(told))
		for buffered.Flush() == nil {
			head, payload, err := readFrame(buffered)
			if err != nil {
				return
			}
			if head&0x0f == 9 { // a ping is answered by a pong
				head++
			}
			writeFrame(buffered, head, payload)
			if head&0x0f == 8 { // close
				buffered.Flush()
				return
			}
		}
	}))
	t.Cleanup(relay.Close)
	return relay.Listener.Addr().String()
}

// readFrame reads a frame of a client that can be trusted (RFC 6455, section 5.2).
func readFrame(r io.Reader) (head byte, payload []byte, err error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return 0, nil, err
	}
	head = b[0]
	length := uint64(b[1] & 0x7f)
	if more := map[uint64]int{126: 2, 127: 8}[length]; more > 0 {
		b = [8]byte{}
		if _, err := io.ReadFull(r, b[8-more:]); err != nil {
			return 0, nil, err
		}
		length = bigendian.BigEndian.Uint64(b[:])
	}
	payload = make([]byte, 4+length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	mask, payload := payload[:4], payload[4:]
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return head, payload, nil
}

// writeFrame writes one of a server's.
func writeFrame(w io.Writer, head byte, payload []byte) {
	switch n := len(payload); {
	case n < 126:
		w.Write([]byte{head, byte(n)})
	case n < 1<<16:
		w.Write(bigendian.BigEndian.AppendUint16([]byte{head, 126}, uint16(n)))
	default:
		w.Write(bigendian.BigEndian.AppendUint64([]byte{head, 127}, uint64(n)))
	}
	w.Write(payload)
}

const lie = "203.0.113.66"

// claimed counts the fields in which a client's lie has come.
func claimed(header http.Header) (n int) {
	for _, values := range header {
		if strings.Contains(strings.Join(values, " "), lie) {
			n++
		}
	}
	return n
}

// lies are fields by which a client says that it is another.
var lies = []string{
	"X-Real-IP", "x-real-ip", "X_Real_IP", "X-Real_IP", "X.Real.IP", "X-Forwarded-For", "X_Forwarded_For", "Forwarded", "Via",
	"True-Client-IP", "CF-Connecting-IP", "X-Client-IP", "X-Cluster-Client-IP", "X-Forwarded-Host",
}

// inFrontOfRealIP runs an edge by the page's own policy.
func inFrontOfRealIP(t testing.TB) *edge {
	return runEdge(t, recipe(t, "WebSocket relays that read X-Real-IP", "yaml",
		"name: https", "name: public", "[::]:443", "127.0.0.1:0", "127.0.0.1:7777", realIPRelay(t)))
}

// clientAddress is an address of this machine's from which clients connect.
func clientAddress() string {
	if runtime.GOOS == "linux" { // the whole of 127.0.0.0/8 is its own
		return "127.0.0.77"
	}
	return "127.0.0.1"
}

func TestCurlIsToldInAHeader(t *testing.T) {
	t.Parallel()
	program := peer(t, "curl")
	e := inFrontOfRealIP(t)
	lying := []string{"-H", "Connection: keep-alive, X-Real-IP, X-Forwarded-Proto"}
	for _, name := range lies {
		lying = append(lying, "-H", name+": "+lie)
	}
	told := fmt.Sprintf("X-Real-IP [%q], others 0, https", clientAddress())
	url := "https://" + e.listeners["public"] + "/"
	for _, row := range []struct {
		name string
		args []string
		want string
	}{
		{"a request", []string{url}, told + ", 0 bytes, <nil>"},
		{"one that lies", append([]string{url}, lying...), told + ", 0 bytes, <nil>"},
		{"two on one connection", append([]string{url, url}, lying...), told + ", 0 bytes, <nil>\n" + told + ", 0 bytes, <nil>"},
		{"a body", append([]string{url, "--data-binary", "@-"}, lying...), told + ", 2000000 bytes, <nil>"},
		{"a body that is asked for", []string{url, "-H", "Expect: 100-continue", "--data-binary", "@-"}, told + ", 2000000 bytes, <nil>"},
		{"a body in chunks", []string{url, "-H", "Transfer-Encoding: chunked", "--data-binary", "@-"}, told + ", 2000000 bytes, <nil>"},
		{"HTTP/1.0", []string{"--http1.0", "--no-alpn", url}, told + ", 0 bytes, <nil>"},
		{"HTTP/2 is not offered", []string{"--http2", "-w", "%{http_version}", url}, "\n1.1"},
		{"a body that is too large", []string{url, "-H", "Expect:", "-w", "%{http_code}", "-H", "Content-Length: 16777217", "--data-binary", "x"}, "413"},
		{"a header that is too large", []string{url, "-w", "%{http_code}", "-H", "A: " + strings.Repeat("x", 33000)}, "431"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, append([]string{"-sS", "-k", "--noproxy", "*", "--interface", clientAddress()}, row.args...)...)
			cmd.Stdin = strings.NewReader(strings.Repeat("x", 2_000_000))
			if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), row.want) {
				t.Errorf("curl (%v) wrote\n%s\nwant\n%s", err, out, row.want)
			}
		})
	}
	e.shows(t, `relayedge_connections{listener="public"} 0`, `relayedge_rejections_total{reason="request_rate"} 0`)
}

const upgradeInPython = `
import asyncio, inspect, ssl, sys, websockets

async def main(url, local, lie, *names):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # The argument's name has changed between versions.
    key = "additional_headers" if "additional_headers" in inspect.signature(websockets.connect.__init__).parameters else "extra_headers"
    headers = [(name, lie) for name in names]
    async with websockets.connect(url, ssl=context, local_addr=(local, 0), open_timeout=60, close_timeout=60, max_size=None, **{key: headers}) as ws:
        print(await asyncio.wait_for(ws.recv(), 60))
        for size in (1, 126, 70000, 1000000):
            await ws.send(bytes(size))
            echo = await asyncio.wait_for(ws.recv(), 60)
            print(len(echo))
        await asyncio.wait_for(await ws.ping(), 60)
        print("pong")
    print("closed", ws.close_code)

asyncio.run(main(*sys.argv[1:]))
`

func TestPythonIsToldInAHeader(t *testing.T) {
	t.Parallel()
	if err := exec.Command(systemPython, "-c", "import websockets").Run(); err != nil {
		missing(t, "python3-websockets for "+systemPython)
	}
	e := inFrontOfRealIP(t)
	for name, fields := range map[string][]string{"an upgrade": nil, "one that lies": lies} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			args := append([]string{"-c", upgradeInPython, "wss://" + e.listeners["public"] + "/", clientAddress(), lie}, fields...)
			out, err := exec.CommandContext(ctx, systemPython, args...).CombinedOutput()
			want := fmt.Sprintf("X-Real-IP [%q], others 0, https\n1\n126\n70000\n1000000\npong\nclosed 1000\n", clientAddress())
			if err != nil || string(out) != want {
				t.Errorf("python (%v) wrote\n%s\nwant\n%s", err, out, want)
			}
		})
	}
	e.shows(t, `relayedge_connections{listener="public"} 0`, `relayedge_rejections_total{reason="upstream_unavailable"} 0`)
}

// The relay core of this very process, reached through requests that are parsed:
// its proof of identity is bound to the client's TLS session all the same.
func TestRelayBehindRequests(t *testing.T) {
	t.Parallel()
	e := runEdge(t, `
listeners: [{name: public, bind: "127.0.0.1:0", protocol: http}]
relay: {in_process: true, bind: "127.0.0.1:0"}
request_limits: {limit: 3, window_secs: 86400}
`)
	try := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, binary(t, "relaycore"), "try", "--insecure", "wss://"+e.listeners["public"]+"/relay").CombinedOutput()
		return string(out), err
	}
	if out, err := try(); err != nil {
		t.Errorf("relaycore try: %v\n%s", err, out)
	}
	// Two sessions were two requests; of the next two one is over the limit.
	if out, err := try(); err == nil || !strings.Contains(out, "429") {
		t.Errorf("over the limit: %v\n%s", err, out)
	}
	e.shows(t, `relayedge_rejections_total{reason="request_rate"} 1`)
}
