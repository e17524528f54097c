package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var relayAt = regexp.MustCompile(`(?m)^relay: (\S+),`)

// runRelay runs relaycore with a relay section until the test's end, and returns
// its address.
func runRelay(t testing.TB, relay string) (p *process, address string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("relay:\n  bind: \"127.0.0.1:0\"\n  metrics: {enabled: false}\n"+relay), 0o600); err != nil {
		t.Fatal(err)
	}
	p = launch(t, exec.Command(binary(t, "relaycore"), "run", "-c", file), "relaycore")
	m, err := p.await(&p.stdout, relayAt)
	if err != nil {
		t.Fatal(err)
	}
	return p, m[1]
}

// Autobahn's client plays what its library can send of RFC 6455's cases, right
// and wrong, against the real relay.
func TestAutobahnAgainstTheRelay(t *testing.T) {
	t.Parallel()
	if err := exec.Command(systemPython, "-c", "import autobahn.asyncio.websocket, nacl.signing").Run(); err != nil {
		missing(t, "python3-autobahn for "+systemPython)
	}
	_, address := runRelay(t, "  limits: {rate_limit_bps: 1000000000}\n")
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	// -B: no compiled copy beside the script.
	client := exec.CommandContext(ctx, systemPython, "-B", filepath.Join("testdata", "rfc6455.py"), "ws://"+address+"/relay")
	var said strings.Builder
	client.Stderr = &said // Autobahn tells what it thinks of each connection
	out, err := client.Output()
	if err != nil || !regexp.MustCompile(`^\d{3} cases, 0 failed\n$`).Match(out) {
		t.Fatalf("%v\n%s%s", err, out, said.String())
	}
	t.Logf("%s", out)
}
