package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// command runs a command line to its end.
func command(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = execute(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

func policyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name, policy string
		status       int
		says         string
	}{
		{"good", "relay: {bind: \"127.0.0.1:0\"}\n", 0, "good"},
		{"a value out of range", "relay:\n  limits:\n    max_circuits: 1\n", 1, ":3:19: relay.limits.max_circuits: "},
		{"a public bind", "relay:\n  bind: \"0.0.0.0:7777\"\n", 1, ":2:9: relay.bind: "},
		{"no relay", "listeners: []\n", 1, "relay: the section is not written"},
		{"in process", "relay: {in_process: true}\n", 1, "relay.in_process"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := policyFile(t, tc.policy)
			status, out, errs := command(t, "check", "-c", file)
			if status != tc.status || !strings.Contains(out+errs, tc.says) || !strings.Contains(out+errs, file) {
				t.Fatalf("status %d, %q, %q", status, out, errs)
			}
		})
	}
	if status, _, errs := command(t, "check"); status != 1 || !strings.Contains(errs, "config") {
		t.Fatalf("status %d, %q", status, errs)
	}
}

func TestVersion(t *testing.T) {
	if status, out, _ := command(t, "version"); status != 0 || !strings.HasPrefix(out, "relaycore ") {
		t.Fatalf("status %d, %q", status, out)
	}
}

func TestTryFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	status, _, errs := command(t, "try", "ws://"+ln.Addr().String()+"/relay")
	if status != 1 || !strings.HasPrefix(errs, "connect failed: ") || !strings.Contains(errs, "Nothing listens there") {
		t.Fatalf("status %d, %q", status, errs)
	}
}

// A relay that does not answer costs no more than --timeout.
func TestTryTimeout(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	start := time.Now()
	status, _, errs := command(t, "try", "--timeout", "100ms", "ws://"+ln.Addr().String()+"/relay")
	if status != 1 || !strings.Contains(errs, "No answer in time") || time.Since(start) > 10*time.Second {
		t.Fatalf("status %d after %v, %q", status, time.Since(start), errs)
	}
}

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// find waits for the expression's group in the log.
func (l *lines) find(t *testing.T, expression string) string {
	t.Helper()
	re := regexp.MustCompile(expression)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if m := re.FindStringSubmatch(l.String()); m != nil {
			return m[1]
		}
	}
	t.Fatalf("no %s in %s", expression, l)
	return ""
}

func TestRun(t *testing.T) {
	file := policyFile(t, "relay:\n  bind: \"127.0.0.1:0\"\n  metrics: {bind_addr: \"127.0.0.1:0\"}\n")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log lines
	status := make(chan int, 1)
	go func() { status <- execute(ctx, []string{"run", "-c", file}, io.Discard, &log) }()
	addr := log.find(t, `relay listening" addr=(\S+)`)
	metrics := log.find(t, `metrics listening" addr=(\S+)`)

	if code, out, errs := command(t, "try", "ws://"+addr+"/relay"); code != 0 || !strings.Contains(out, "all well") {
		t.Fatalf("status %d, %q, %q", code, out, errs)
	}
	if got := scrape(t, metrics); !strings.Contains(got, "relaycore_circuits_total 1\n") ||
		!strings.Contains(got, `relaycore_rejections_total{reason="task_panic"} 0`) || !strings.Contains(got, "process_") {
		t.Fatal(got)
	}
	stop() // as SIGTERM does
	select {
	case code := <-status:
		if code != 0 {
			t.Fatalf("status %d, %s", code, log.String())
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
}

// A metrics endpoint that cannot be bound is logged; the relay goes on.
func TestRunWithoutMetrics(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := policyFile(t, "relay:\n  bind: \"127.0.0.1:0\"\n  metrics: {bind_addr: \""+taken.Addr().String()+"\"}\n")
	ctx, stop := context.WithCancel(t.Context())
	var log lines
	status := make(chan int, 1)
	go func() { status <- execute(ctx, []string{"run", "-c", file}, io.Discard, &log) }()
	addr := log.find(t, `relay listening" addr=(\S+)`)
	log.find(t, `(Metrics endpoint failed on `+regexp.QuoteMeta(taken.Addr().String())+`)`)
	if code, _, errs := command(t, "try", "ws://"+addr+"/relay"); code != 0 {
		t.Fatal(errs)
	}
	stop()
	if code := <-status; code != 0 {
		t.Fatalf("status %d", code)
	}
}

// An address that is taken ends the command with an error.
func TestRunWithoutPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := policyFile(t, "relay: {bind: \""+taken.Addr().String()+"\"}\n")
	if status, _, errs := command(t, "run", "-c", file); status != 1 || !strings.Contains(errs, "address already in use") {
		t.Fatalf("status %d, %q", status, errs)
	}
}

func scrape(t *testing.T, addr string) string {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	io.WriteString(nc, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	b, err := io.ReadAll(nc)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
