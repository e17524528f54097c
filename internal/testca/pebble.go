package testca

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"relayedge/internal/testlog"
	"relayedge/internal/testport"
)

// pebbleVersion is what `go install` is asked for.
const pebbleVersion = "github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.3"

// patience is how long the CA may take to start.
const patience = 2 * time.Minute

var installed struct {
	sync.Once
	folder string
	err    error
}

// install builds pebble at the first call, from its own module.
func install() (string, error) {
	installed.Do(func() {
		if installed.folder, installed.err = os.MkdirTemp("", "pebble-"); installed.err != nil {
			return
		}
		cmd := exec.Command("go", "install", pebbleVersion)
		cmd.Dir = installed.folder // outside of any module
		cmd.Env = append(os.Environ(), "GOBIN="+installed.folder, "GOFLAGS=", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			installed.err = fmt.Errorf("go install %s: %w: %s", pebbleVersion, err, lastLine(out))
		}
	})
	return filepath.Join(installed.folder, "pebble"), installed.err
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// Remove removes what was built. A package that uses this one calls it at the
// end of its TestMain.
func Remove() {
	if installed.folder != "" {
		os.RemoveAll(installed.folder)
	}
}

// Options are what a CA is started with.
type Options struct {
	HTTPPort, TLSPort int           // of 127.0.0.1, where it validates http-01 and tls-alpn-01
	Flaky             bool          // it refuses nonces at random, keeps validations and sleeps before them
	Validity          time.Duration // of its certificates; 0: 90 days
	EABKeyID, EABKey  string        // if set, it asks for this external account binding
	OCSP              string        // URL of a responder, which its certificates name
}

// start runs pebble until the test's end, and returns its addresses: that of the
// CA, and that of what it tells tests.
func start(t testing.TB, o Options, certificate, key, dns string) (address, management string) {
	t.Helper()
	program, err := install()
	if err != nil {
		if os.Getenv("RELAYEDGE_REQUIRE_PEERS") == "1" {
			t.Fatalf("pebble is missing, and RELAYEDGE_REQUIRE_PEERS=1 asks for it: %v", err)
		}
		t.Skipf("pebble is missing: %v", err)
	}
	if o.Validity == 0 {
		o.Validity = 90 * 24 * time.Hour
	}
	type m = map[string]any
	address, management = freeAddress(t), freeAddress(t)
	pebble := m{
		"listenAddress": address, "managementListenAddress": management,
		"certificate": certificate, "privateKey": key,
		"httpPort": o.HTTPPort, "tlsPort": o.TLSPort,
		"keyAlgorithm":    "ecdsa",
		"domainBlocklist": []string{"blocked.example"},
		"retryAfter":      m{"authz": 1, "order": 1},
		"profiles":        m{"default": m{"description": "the only one", "validityPeriod": int(o.Validity / time.Second)}},
	}
	if o.Flaky {
		pebble["retryAfter"] = m{"authz": 1, "order": 1}
	}
	if o.OCSP != "" {
		pebble["ocspResponderURL"] = o.OCSP
		pebble["keyAlgorithm"] = "rsa" // it tells no other key
	}
	if o.EABKeyID != "" {
		pebble["externalAccountBindingRequired"] = true
		pebble["externalAccountMACKeys"] = m{o.EABKeyID: o.EABKey}
	}
	config, err := json.Marshal(m{"pebble": pebble})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pebble.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-config", file, "-dnsserver", dns)
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0", "PEBBLE_AUTHZREUSE=0")
	if o.Flaky {
		cmd.Env = append(os.Environ(), "PEBBLE_VA_SLEEPTIME=2", "PEBBLE_WFE_NONCEREJECT=25", "PEBBLE_AUTHZREUSE=50")
	}
	var out testlog.Log
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("pebble wrote:\n%s", out.String())
		}
	})
	deadline := time.Now().Add(patience)
	for left := []string{address, management}; len(left) > 0; {
		conn, err := net.DialTimeout("tcp", left[0], time.Second)
		if err == nil {
			conn.Close()
			left = left[1:]
			continue
		}
		select {
		case err := <-exited:
			exited <- err
			t.Fatalf("pebble ended (%v):\n%s", err, out.String())
		case <-time.After(10 * time.Millisecond): // another process is what changes
		}
		if time.Now().After(deadline) {
			t.Fatalf("pebble does not listen: %v\n%s", err, out.String())
		}
	}
	return address, management
}

func freeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testport.Free(t))
}
