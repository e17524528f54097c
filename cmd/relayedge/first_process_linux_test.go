package main_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// contain runs what follows as a container's first process: with the number 1, as a
// user without a capability, on a root that cannot be written but for one folder. Its
// program is seen at a path of its own, since that user may not look everywhere.
const contain = `
mount --make-rprivate / && mount --bind "$1" "$0/program" && mount --bind "$0/state" "$0/state" && mount -o remount,bind,ro / || exit 70
shift
exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs -- "$0/program" "$@"
`

// As a container's first process, on a root that cannot be written and as a user who
// may nothing, both programs serve, keep their state where they are told, and end as
// they should by a SIGTERM: the kernel holds from the number 1 whatever signal is not
// asked for.
func TestFirstProcess(t *testing.T) {
	unshare := peer(t, "unshare")
	peer(t, "setpriv")
	if err := exec.Command(unshare, "-m", "-p", "--fork", "true").Run(); err != nil {
		t.Skipf("no mount and process namespaces can be made: %v", err)
	}
	const relay = `relay: {bind: "127.0.0.1:0", drain_secs: 1, offline_queue: {file: state/mailbox, key_file: key}, control: {socket: state/relay.sock}`
	for _, row := range []struct{ program, policy, serves string }{
		{"relayedge", "listeners: [{name: public, bind: \"127.0.0.1:0\"}]\ncertificates: {self_issued: [localhost]}\nlimits: {drain_secs: 1}\n" +
			"metrics: {bind_addr: \"127.0.0.1:0\"}\ncontrol: {socket: state/control.sock}\n" + relay + ", in_process: true}\n", `(?m)^listener public: .* on (\S+)$`},
		{"relaycore", relay + ", metrics: {bind_addr: \"127.0.0.1:0\"}}\n", `(?m)^relay: (\S+),`},
	} {
		t.Run(row.program, func(t *testing.T) {
			t.Parallel()
			folder := containment(t, row.policy)
			p := launch(t, exec.Command(unshare, "-m", "-p", "--fork", "--kill-child", "sh", "-c", contain, folder,
				binary(t, row.program), "run", "-c", filepath.Join(folder, "policy.yaml")), row.program)
			m, err := p.await(&p.stdout, regexp.MustCompile(row.serves))
			if err != nil {
				t.Fatal(err)
			}
			first := firstChild(t, p.cmd.Process.Pid)
			for _, want := range []string{"NSpid:\t" + strconv.Itoa(first) + "\t1\n", "Uid:\t65534\t65534\t", "CapEff:\t0000000000000000\n"} {
				status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", first))
				if err != nil || !strings.Contains(string(status), want) {
					t.Fatalf("it is not what this test is about, %q is missing (%v):\n%s", want, err, status)
				}
			}

			conn, err := dial(t.Context(), "", m[1], "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if row.program == "relayedge" {
				conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
			}
			// A session that would stay: the drain ends it.
			io.WriteString(conn, relayUpgrade)
			if r, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || r.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("the upgrade: %v, %v", r, err)
			}
			if info, err := os.Stat(filepath.Join(folder, "state", "mailbox")); err != nil || info.Size() == 0 {
				t.Errorf("the mailbox is not where it was told to be: %v", err)
			}
			if row.program == "relayedge" {
				// All that a container runs ends with this process, so it keeps its place.
				if err := syscall.Kill(first, syscall.SIGUSR2); err != nil {
					t.Fatal(err)
				}
				if _, err := p.await(&p.stderr, regexp.MustCompile(`this one serves on.* restart the container in place of an upgrade`)); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			if err := syscall.Kill(first, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if code, err := p.ended(); code != 0 || err != nil {
				t.Errorf("ended with %d, %v", code, err)
			}
			t.Logf("ended in %v", time.Since(began))
			if strings.Contains(p.stderr.String(), "read-only file system") || strings.Contains(p.stderr.String(), "permission denied") {
				t.Errorf("it has tried what it may not:\n%s", p.stderr.String())
			}
		})
	}
}

// containment makes the folder of such a process: a policy and a key to read, a place
// for its program, and state, where it may write.
func containment(t *testing.T, policy string) string {
	t.Helper()
	folder := t.TempDir()
	// Another user has to reach it, and a test's folders are its own user's alone.
	if err := os.Chmod(filepath.Dir(folder), 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(folder, "state")
	key := filepath.Join(folder, "key")
	for _, err := range []error{
		os.WriteFile(filepath.Join(folder, "policy.yaml"), []byte(policy), 0o644),
		os.WriteFile(filepath.Join(folder, "program"), nil, 0o755),
		os.WriteFile(key, []byte(strings.Repeat("0f", 32)+"\n"), 0o600),
		os.Mkdir(state, 0o700), os.Chown(state, 65534, 65534), os.Chown(key, 65534, 65534),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// firstChild is the one child of a process.
func firstChild(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatalf("the children of %d are %q", pid, text)
	}
	return child
}
