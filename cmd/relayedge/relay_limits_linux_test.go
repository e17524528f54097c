package main_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const relayUpgrade = "GET /relay HTTP/1.1\r\nHost: relay.example.org\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

// upgraded connects and upgrades. Who is refused gets io.EOF or a reset.
func upgraded(address string) (net.Conn, *bufio.Reader, error) {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, nil, err
	}
	conn.SetDeadline(time.Now().Add(patience))
	in := bufio.NewReader(conn)
	if _, err = io.WriteString(conn, relayUpgrade); err == nil {
		var r *http.Response
		if r, err = http.ReadResponse(in, nil); err == nil && r.StatusCode != http.StatusSwitchingProtocols {
			err = fmt.Errorf("status %d", r.StatusCode)
		}
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, in, nil
}

// A client that sends too much and comes back at once for the same gets a code
// that tells it not to, each time, and is bounded by the rate of its connections.
func TestOversizedInALoop(t *testing.T) {
	t.Parallel()
	const burst, attempts = 5, 40
	e := runEdge(t, fmt.Sprintf(`
listeners: [{name: public, bind: "127.0.0.1:0", tls: none}]
relay: {in_process: true, bind: "127.0.0.1:0", require_channel_binding: false}
limits: {connection_rate_per_ip: 1, connection_burst_per_ip: %d}
`, burst))
	began := time.Now()
	in := 0
	for range attempts {
		conn, r, err := upgraded(e.listeners["public"])
		if err != nil {
			continue
		}
		in++
		// Before PUBLISH a message has 16,547 bytes at most.
		conn.Write([]byte{0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		answer, err := io.ReadAll(r)
		if err != nil || !strings.HasPrefix(string(answer), "\x88\x11\x03\xf1oversized_frame") {
			t.Errorf("the relay said %q, %v", answer, err)
		}
		conn.Close()
	}
	if most := burst + 1 + int(time.Since(began).Seconds()); in < burst || in > most {
		t.Errorf("%d of %d got in, want %d to %d", in, attempts, burst, most)
	}
	e.shows(t, fmt.Sprintf(`relayedge_rejections_total{reason="connection_rate"} %d`, attempts-in),
		fmt.Sprintf(`relaycore_rejections_total{reason="oversized_frame"} %d`, in))
}

// With descriptors for fewer connections than its policy allows the relay says
// so, takes as many as fit, answers on its metrics, and recovers.
func TestRelayWithFewDescriptors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	const policy = "relay:\n  bind: \"127.0.0.1:0\"\n  metrics: {bind_addr: \"127.0.0.1:0\"}\n  limits: {max_connections: 1000, max_connections_per_ip: 0}\n"
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, exec.Command("sh", "-c", `ulimit -n 256 && exec "$0" "$@"`, binary(t, "relaycore"), "run", "-c", file), "relaycore")
	m, err := p.await(&p.stdout, relayAt)
	if err != nil {
		t.Fatal(err)
	}
	address := m[1]
	m, err = p.await(&p.stdout, regexp.MustCompile(`(?m)^metrics: (\S+)$`))
	if err != nil {
		t.Fatal(err)
	}
	metrics := m[1]
	if _, err := p.await(&p.stderr, regexp.MustCompile(`level=WARN .*LimitNOFILE=.* descriptors=256 `)); err != nil {
		t.Error(err)
	}
	told := lines(&p.stderr)
	var held []net.Conn
	refused := 0
	for range 400 {
		conn, _, err := upgraded(address)
		if err != nil {
			refused++
			continue
		}
		defer conn.Close()
		held = append(held, conn)
	}
	if len(held) < 100 || len(held) > 256 {
		t.Errorf("%d are in", len(held))
	}
	status, body, err := get(metrics)
	if err != nil || status != http.StatusOK || !strings.Contains(body, fmt.Sprintf("relaycore_rejections_total{reason=\"max_connections\"} %d\n", refused)) {
		t.Errorf("the metrics answer %d, %v, with %d refused", status, err, refused)
	}
	for _, conn := range held[:len(held)*3/4] {
		conn.Close()
	}
	if err := eventually(func() error {
		out, err := exec.Command(binary(t, "relaycore"), "try", "ws://"+address+"/relay").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if more := lines(&p.stderr) - told; more > 20 {
		t.Errorf("%d lines of log", more)
	}
	p.terminate(t)
	for _, conn := range held {
		conn.Close()
	}
	if code, err := p.ended(); code != 0 || err != nil {
		t.Errorf("it ends with %d, %v", code, err)
	}
}
