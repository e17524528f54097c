package main_test

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// probing is a run of relayedge probe, what it ends with and what it says.
type probing struct {
	code int
	says string
	args []string
}

// wantProbes has all of them run at once: most wait for their time to pass, which
// is long enough for a relay on a slow machine to answer.
func wantProbes(t *testing.T, all ...probing) {
	t.Helper()
	var running sync.WaitGroup
	program := binary(t, "relayedge")
	for _, p := range all {
		running.Go(func() {
			cmd := exec.CommandContext(t.Context(), program, append([]string{"probe", "--timeout-secs", "5"}, p.args...)...)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != p.code || !strings.Contains(string(out), p.says) {
				t.Errorf("probe %q: %v, want exit code %d and %q:\n%s", p.args, err, p.code, p.says, out)
			}
		})
	}
	running.Wait()
}

func TestProbeHAProxy(t *testing.T) {
	t.Parallel()
	peer(t, "haproxy")
	with, without := loopback4(t), loopback4(t)
	haproxy(t, haproxyReceiver(with)+fmt.Sprintf("frontend plain\n  mode http\n  bind %s\n  http-request return status 200\n", without), with, without)
	wantProbes(t,
		probing{0, "client_address: proxy-v2", []string{with}},
		probing{0, "client_address: proxy-v2", []string{"--client-address", "proxy-v1", with}},
		probing{1, "client_address: none", []string{without}},
		probing{0, "", []string{"--client-address", "none", "--send", `GET / HTTP/1.1\r\nHost: a\r\n\r\n`, without}},
	)
}

func TestProbeNginx(t *testing.T) {
	t.Parallel()
	peer(t, "nginx")
	with, without := loopback4(t), loopback4(t)
	blocks := nginxReceiver(with)
	blocks = strings.Replace(blocks, "  server {", fmt.Sprintf("  server { listen %s; return 200; }\n  server {", without), 1)
	nginx(t, blocks, with, without)
	wantProbes(t,
		probing{0, "client_address: proxy-v2", []string{with}},
		probing{1, "client_address: none", []string{without}},
	)
}

// The faults of the command line, and a relay that is not there.
func TestProbeFaults(t *testing.T) {
	t.Parallel()
	wantProbes(t,
		probing{1, "cannot be reached", []string{loopback4(t)}},
		probing{1, "cannot be reached", []string{"unix:" + t.TempDir() + "/none"}},
		probing{1, "host:port", []string{"127.0.0.1"}},
		probing{1, "--send", []string{"--send", `\q`, "127.0.0.1:1"}},
		probing{1, "4097 bytes", []string{"--send", strings.Repeat("x", 4097), "127.0.0.1:1"}},
		probing{1, "proxy-v2, proxy-v1, none", []string{"--client-address", "x", "127.0.0.1:1"}},
	)
}
