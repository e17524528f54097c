package main_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// probed runs relayedge probe and returns what it wrote, and its exit code.
func probed(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t, "relayedge"), append([]string{"probe", "--timeout-secs", "1"}, args...)...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func wantProbe(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	out, got := probed(t, args...)
	if got != code || !strings.Contains(out, says) {
		t.Errorf("probe %q ended with %d, want %d and %q:\n%s", args, got, code, says, out)
	}
}

func TestProbeHAProxy(t *testing.T) {
	t.Parallel()
	peer(t, "haproxy")
	with, without := loopback4(t), loopback4(t)
	haproxy(t, haproxyReceiver(with)+fmt.Sprintf("frontend plain\n  mode http\n  bind %s\n  http-request return status 200\n", without), with, without)
	wantProbe(t, 0, "client_address: proxy-v2", with)
	wantProbe(t, 0, "client_address: proxy-v2", "--client-address", "proxy-v1", with)
	wantProbe(t, 1, "client_address: none", without)
	wantProbe(t, 0, "", "--client-address", "none", "--send", `GET / HTTP/1.1\r\nHost: a\r\n\r\n`, without)
}

func TestProbeNginx(t *testing.T) {
	t.Parallel()
	peer(t, "nginx")
	with, without := loopback4(t), loopback4(t)
	blocks := nginxReceiver(with)
	blocks = strings.Replace(blocks, "  server {", fmt.Sprintf("  server { listen %s; return 200; }\n  server {", without), 1)
	nginx(t, blocks, with, without)
	wantProbe(t, 0, "client_address: proxy-v2", with)
	wantProbe(t, 1, "client_address: none", without)
}

// The faults of the command line, and a relay that is not there.
func TestProbeFaults(t *testing.T) {
	t.Parallel()
	wantProbe(t, 1, "cannot be reached", loopback4(t))
	wantProbe(t, 1, "cannot be reached", "unix:"+t.TempDir()+"/none")
	wantProbe(t, 1, "host:port", "127.0.0.1")
	wantProbe(t, 1, "--send", "--send", `\q`, "127.0.0.1:1")
	wantProbe(t, 1, "4097 bytes", "--send", strings.Repeat("x", 4097), "127.0.0.1:1")
	wantProbe(t, 1, "proxy-v2, proxy-v1, none", "--client-address", "x", "127.0.0.1:1")
}
