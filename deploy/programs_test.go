package deploy_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"relayedge/internal/testlog"
)

// patience is generous, for a machine that is slow and busy: only what fails waits so long.
const patience = 2 * time.Minute

// peer returns the path of a program that is not ours. A test that needs one is
// skipped where it is not installed, and fails instead with RELAYEDGE_REQUIRE_PEERS=1.
func peer(t *testing.T, name string) string {
	t.Helper()
	for _, folder := range []string{"", "/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(folder + name); err == nil {
			return path
		}
	}
	missing(t, name)
	panic("unreachable")
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("RELAYEDGE_REQUIRE_PEERS") == "1" {
		t.Fatalf("%s is missing, and RELAYEDGE_REQUIRE_PEERS=1 asks for it", what)
	}
	t.Skipf("%s is missing", what)
}

var programs struct {
	sync.Once
	folder string
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if programs.folder != "" {
		os.RemoveAll(programs.folder)
	}
	os.Exit(code)
}

// program is the path of one of ours, built at the first call.
func program(t *testing.T, name string) string {
	t.Helper()
	programs.Do(func() {
		if programs.folder, programs.err = os.MkdirTemp("", "relayedge-deploy-"); programs.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", programs.folder+"/", "relayedge/cmd/relayedge", "relayedge/cmd/relaycore")
		if out, err := build.CombinedOutput(); err != nil {
			programs.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if programs.err != nil {
		t.Fatal(programs.err)
	}
	return filepath.Join(programs.folder, name)
}

var metricsLine = regexp.MustCompile(`(?m)^metrics: (\S+)$`)

// exposition runs one of our programs with a policy and returns what its metrics
// endpoint says.
func exposition(t *testing.T, name, policy string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	var out testlog.Log
	cmd := exec.Command(program(t, name), "run", "-c", file)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	defer func() {
		cmd.Process.Signal(syscall.SIGKILL)
		<-ended
	}()
	for deadline := time.Now().Add(patience); ; {
		if m := metricsLine.FindStringSubmatch(out.String()); m != nil {
			response, err := http.Get(m[1])
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("%s: %v\n%s", response.Status, err, body)
			}
			return string(body)
		}
		select {
		case <-ended:
			t.Fatalf("%s has ended:\n%s", name, out.String())
		case <-time.After(5 * time.Millisecond): // another process is what changes
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not say where its metrics are:\n%s", name, out.String())
		}
	}
}

// series are the samples that the programs export: names, and the values of each
// one's labels.
type series map[string]map[string]bool // "name" or "name label=value"

var sample = regexp.MustCompile(`(?m)^([a-z_][a-z0-9_]*)(?:\{(.*)\})? \S+$`)
var label = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)

func (s series) add(exposition string) {
	for _, m := range sample.FindAllStringSubmatch(exposition, -1) {
		if s[m[1]] == nil {
			s[m[1]] = make(map[string]bool)
		}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			s[m[1]][l[1]+"="+l[2]] = true
			s[m[1]][l[1]] = true
		}
	}
}

// exported are those of both programs, with all that a policy can switch on. The CA
// and the store are not there, which the programs outlive.
func exported(t *testing.T) series {
	t.Helper()
	folder := t.TempDir()
	secret := filepath.Join(folder, "secret")
	if err := os.WriteFile(secret, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	shared := fmt.Sprintf("redis: {url: \"redis://127.0.0.1:1/0\", secret_file: %q}\n", secret)
	s := make(series)
	s.add(exposition(t, "relayedge", shared+fmt.Sprintf(`
listeners: [{name: public, bind: "127.0.0.1:0"}]
certificates: {self_issued: [localhost], acme: {domains: [a.example.org], agree_to_terms: true, directory_url: "https://127.0.0.1:1/directory", storage: %q, challenges: [tls-alpn-01]}}
metrics: {bind_addr: "127.0.0.1:0"}
control: {socket: ""}
`, filepath.Join(folder, "acme"))))
	s.add(exposition(t, "relaycore", shared+`
relay: {bind: "127.0.0.1:0", metrics: {bind_addr: "127.0.0.1:0"}, control: {socket: ""}}
`))
	return s
}
