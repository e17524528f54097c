package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"relayedge/cmd/internal/service"
	"relayedge/internal/testlog"
	"relayedge/internal/testport"
)

// asProgram in the environment makes the test binary the program itself.
const asProgram = "RELAYCORE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what should come in milliseconds.
const patience = time.Minute

// runLine runs a command line to its end.
func runLine(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = service.Execute(t.Context(), command(), args, &out, &errs)
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
		{"good", "relay: {bind: \"127.0.0.1:0\"}\n", 0, ": ok"},
		{"a value out of range", "relay:\n  limits:\n    max_circuits: 1\n", 1, ":3:19: relay.limits.max_circuits: "},
		{"a public bind", "relay:\n  bind: \"0.0.0.0:7777\"\n", 1, ":2:9: relay.bind: "},
		{"public metrics", "relay:\n  metrics: {bind_addr: \"0.0.0.0:9091\"}\n", 1, ":2:24: relay.metrics.bind_addr: "},
		{"no metric's name", "relay: {metrics: {namespace: 9bad}}\n", 1, ":1:30: relay.metrics.namespace: "},
		{"no relay", "listeners: []\n", 1, "relay: the section is not written"},
		{"in process", "relay: {in_process: true}\n", 1, "relay.in_process"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := policyFile(t, tc.policy)
			status, out, errs := runLine(t, "check", "-c", file)
			if status != tc.status || !strings.Contains(out+errs, tc.says) || !strings.Contains(out+errs, file) {
				t.Fatalf("status %d, %q, %q", status, out, errs)
			}
		})
	}
	if status, _, errs := runLine(t, "check"); status != 1 || !strings.Contains(errs, "relaycore check -c FILE") {
		t.Fatalf("status %d, %q", status, errs)
	}
}

func TestVersion(t *testing.T) {
	if status, out, _ := runLine(t, "version"); status != 0 || !strings.HasPrefix(out, "relaycore ") {
		t.Fatalf("status %d, %q", status, out)
	}
}

func TestTryFails(t *testing.T) {
	status, _, errs := runLine(t, "try", "--timeout", "1m", fmt.Sprintf("ws://127.0.0.1:%d/relay", testport.Free(t)))
	if status != 1 || !strings.HasPrefix(errs, "connect failed: ") || !strings.Contains(errs, "Nothing listens there") {
		t.Fatalf("status %d, %q", status, errs)
	}
}

// What is no relay's URL, and what answers with something else, is said.
func TestTrySaysWhatToDo(t *testing.T) {
	answers := func(response string) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				nc, err := ln.Accept()
				if err != nil {
					return
				}
				nc.Read(make([]byte, 4096))
				io.WriteString(nc, response)
				nc.Close()
			}
		}()
		return "ws://" + ln.Addr().String() + "/relay"
	}
	for _, tc := range []struct {
		name string
		args []string
		says []string
	}{
		{"no URL", nil, []string{"relaycore try takes one argument", "wss://relay.example.org/relay"}},
		{"an address", []string{"127.0.0.1:8443"}, []string{"is not the URL of a relay", "wss://relay.example.org/relay"}},
		{"a page's URL", []string{"https://127.0.0.1:8443/relay"}, []string{"is not the URL of a relay"}},
		{"no host", []string{"wss://:8443/relay"}, []string{"is not the URL of a relay"}},
		{"no port", []string{"wss://127.0.0.1:99999/relay"}, []string{"is not the URL of a relay"}},
		{"a TLS port", []string{answers("HTTP/1.1 400 Bad Request\r\nContent-Length: 23\r\n\r\nThis port speaks TLS.\r\n")},
			[]string{"status 400", `"This port speaks TLS."`, "try wss:// in place of ws://"}},
		{"another service", []string{answers("HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\n\x1b[2Jno")},
			[]string{"status 403", `"\x1b[2Jno"`, "proxy_protocol"}},
		{"no such path", []string{answers("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")}, []string{"status 404", "/relay"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, _, errs := runLine(t, append([]string{"try", "--timeout", "1m"}, tc.args...)...)
			for _, want := range tc.says {
				if status != 1 || !strings.Contains(errs, want) {
					t.Errorf("status %d, %q; want %q", status, errs, want)
				}
			}
		})
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
	status, _, errs := runLine(t, "try", "--timeout", "100ms", "ws://"+ln.Addr().String()+"/relay")
	if status != 1 || !strings.Contains(errs, "No answer in time") || time.Since(start) > 10*time.Second {
		t.Fatalf("status %d after %v, %q", status, time.Since(start), errs)
	}
}

// lines is a log that can be read while it is written.
type lines struct{ testlog.Log }

// find waits for the expression's group in the log.
func (l *lines) find(t *testing.T, expression string) string {
	t.Helper()
	re := regexp.MustCompile(expression)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if m := re.FindStringSubmatch(l.String()); m != nil {
			return m[1]
		}
	}
	t.Fatalf("no %s in %s", expression, l)
	return ""
}

func TestRun(t *testing.T) {
	file := policyFile(t, "relay:\n  control: {socket: \"\"}\n  bind: \"127.0.0.1:0\"\n  metrics: {bind_addr: \"127.0.0.1:0\"}\n")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log lines
	status := make(chan int, 1)
	go func() { status <- service.Execute(ctx, command(), []string{"run", "-c", file}, &log, &log) }()
	addr := log.find(t, `relay: (\S+),`)
	metrics := log.find(t, `metrics: http://(\S+)/metrics`)

	if code, out, errs := runLine(t, "try", "--timeout", "1m", "ws://"+addr+"/relay"); code != 0 || !strings.Contains(out, "all well") {
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
	case <-time.After(patience):
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
	file := policyFile(t, "relay:\n  control: {socket: \"\"}\n  bind: \"127.0.0.1:0\"\n  metrics: {bind_addr: \""+taken.Addr().String()+"\"}\n")
	ctx, stop := context.WithCancel(t.Context())
	var log lines
	status := make(chan int, 1)
	go func() { status <- service.Execute(ctx, command(), []string{"run", "-c", file}, &log, &log) }()
	addr := log.find(t, `relay: (\S+),`)
	log.find(t, `(Metrics endpoint failed on `+regexp.QuoteMeta(taken.Addr().String())+`)`)
	if code, _, errs := runLine(t, "try", "--timeout", "1m", "ws://"+addr+"/relay"); code != 0 {
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
	file := policyFile(t, "relay: {control: {socket: \"\"}, bind: \""+taken.Addr().String()+"\"}\n")
	if status, _, errs := runLine(t, "run", "-c", file); status != 1 || !strings.Contains(errs, "address already in use") {
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
