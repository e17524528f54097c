package main_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	commands "relayedge/cmd/internal/service"
	"relayedge/internal/control"
)

// succeeded is an edge that others take over from, one process after the other.
type succeeded struct {
	t         testing.TB
	folder    string
	socket    string
	log       string // what all of them write
	first     *exec.Cmd
	exited    chan error // of the first
	pids      []int      // of all, the newest last
	listeners map[string]string
	metrics   string
}

// runSucceeded runs an edge for a test. The policy has neither metrics nor a control
// socket; env comes on top of the test's own.
func runSucceeded(t testing.TB, policy string, env ...string) *succeeded {
	t.Helper()
	folder := t.TempDir()
	s := &succeeded{
		t: t, folder: folder, socket: filepath.Join(folder, "c.sock"), log: filepath.Join(folder, "log"),
		exited: make(chan error, 1), listeners: make(map[string]string),
	}
	s.write(policy)
	out, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// The variable is for this very process, as a service manager sets it.
	s.first = exec.Command("sh", "-c", `WATCHDOG_PID=$$ exec "$@"`, "sh", binary(t, "relayedge"), "run", "-c", s.policy())
	s.first.Env = append(os.Environ(), env...)
	s.first.Stdout, s.first.Stderr = out, out // a file, which those that follow write to as well
	if err := s.first.Start(); err != nil {
		t.Fatal(err)
	}
	s.pids = []int{s.first.Process.Pid}
	go func() { s.exited <- s.first.Wait() }()
	t.Cleanup(func() {
		for _, pid := range slices.Backward(s.pids) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		for _, pid := range s.pids {
			s.awaitEnd(pid)
		}
		if t.Failed() {
			t.Logf("they wrote:\n%s", s.wrote())
		}
	})
	s.await(`(?m)^metrics: http://(\S+)/metrics$`)
	for _, m := range regexp.MustCompile(`(?m)^listener (\S+): .* on (\S+)$`).FindAllStringSubmatch(s.wrote(), -1) {
		s.listeners[m[1]] = m[2]
	}
	s.metrics = s.await(`(?m)^metrics: (http://\S+/metrics)$`)[1]
	return s
}

func (s *succeeded) policy() string { return filepath.Join(s.folder, "policy.yaml") }

func (s *succeeded) write(policy string) {
	s.t.Helper()
	policy += fmt.Sprintf("\nmetrics: {bind_addr: \"127.0.0.1:0\"}\ncontrol: {socket: %q}\n", s.socket)
	if err := os.WriteFile(s.policy(), []byte(policy), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *succeeded) wrote() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// await waits until what was written matches.
func (s *succeeded) await(pattern string) (match []string) {
	s.t.Helper()
	if err := eventually(func() error {
		if match = regexp.MustCompile(pattern).FindStringSubmatch(s.wrote()); match == nil {
			if !slices.ContainsFunc(s.pids, running) {
				s.t.Fatalf("all have ended, and nobody wrote %s", pattern)
			}
			return fmt.Errorf("nobody wrote %s", pattern)
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return match
}

// upgrade has a new process take over.
func (s *succeeded) upgrade() commands.Upgraded {
	s.t.Helper()
	done, err := s.tryUpgrade()
	if err != nil {
		s.t.Fatal(err)
	}
	return done
}

// tryUpgrade is upgrade, which may fail.
func (s *succeeded) tryUpgrade() (commands.Upgraded, error) {
	done, err := s.askUpgrade()
	if err == nil {
		s.pids = append(s.pids, done.PID)
	}
	return done, err
}

// askUpgrade asks for an upgrade, beside whatever else the test does.
func (s *succeeded) askUpgrade() (done commands.Upgraded, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	err = control.Ask(ctx, s.socket, "POST", commands.UpgradePath, &done)
	return done, err
}

func (s *succeeded) newest() int { return s.pids[len(s.pids)-1] }

// kill ends a process without a word.
func (s *succeeded) kill(pid int) {
	s.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	s.pids = slices.DeleteFunc(s.pids, func(other int) bool { return other == pid })
	s.awaitEnd(pid)
}

// awaitEnd waits until a process runs no longer. Nobody may have asked yet how it ended.
func (s *succeeded) awaitEnd(pid int) {
	s.t.Helper()
	if err := eventually(func() error {
		if running(pid) {
			return fmt.Errorf("the process %d still runs", pid)
		}
		return nil
	}); err != nil {
		s.t.Error(err)
	}
}

func running(pid int) bool {
	if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, rest, _ := strings.Cut(string(state), ") ")
		return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
	}
	return syscall.Kill(pid, 0) == nil
}

// enters connects from an address and is let in.
func (s *succeeded) enters(from, listener, says string) net.Conn {
	s.t.Helper()
	conn, err := enter(context.Background(), from, s.listeners[listener], says)
	if err != nil {
		s.t.Fatalf("from %s: %v", from, err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

func (s *succeeded) refused(from, listener, says string) {
	s.t.Helper()
	conn, err := enter(context.Background(), from, s.listeners[listener], says)
	if !errors.Is(err, errRefused) {
		s.t.Fatalf("from %s: %v, and should be refused", from, err)
	}
	if err == nil {
		conn.Close()
	}
}

// soonEnters is enters for a place that is about to become free.
func (s *succeeded) soonEnters(from, listener string) (conn net.Conn) {
	s.t.Helper()
	if err := eventually(func() (err error) {
		conn, err = enter(context.Background(), from, s.listeners[listener], "")
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// carries reports whether a connection still carries bytes.
func carries(conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(patience))
	var b [1]byte
	if _, err := conn.Write([]byte("y")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b[:])
	return err
}

const capped = `
listeners:
  - {name: public, bind: "127.0.0.1:0", tls: none}
  - {name: behind, bind: "127.0.0.1:0", tls: none, trust_proxy_from: [127.0.0.0/8]}
  - {name: local, bind: "unix:edge.sock", tls: none}
limits: {max_connections: 100, max_connections_per_ip: 4, connection_rate_per_ip: 0, proxy_header_timeout_secs: 60, drain_secs: 3600}
`

// What was open stays open and goes on counting, in the process that serves by then.
func TestUpgradeKeepsConnectionsAndCounts(t *testing.T) {
	t.Parallel()
	s := runSucceeded(t, echoBehind(t)+capped)
	old := []net.Conn{s.enters("127.0.0.2", "public", ""), s.enters("127.0.0.2", "public", ""), s.enters("127.0.0.2", "public", "")}
	done := s.upgrade()
	if done.Old != s.first.Process.Pid || done.Open != 3 {
		t.Errorf("%+v", done)
	}
	for _, conn := range old {
		if err := carries(conn); err != nil {
			t.Errorf("an open connection: %v", err)
		}
	}
	s.enters("127.0.0.2", "public", "")
	s.refused("127.0.0.2", "public", "")
	s.enters("127.0.0.3", "public", "")
	if err := returns("unix", filepath.Join(s.folder, "edge.sock"), false); err != nil {
		t.Errorf("the unix socket: %v", err)
	}
	if _, _, err := get(s.metrics); err != nil {
		t.Errorf("the metrics: %v", err)
	}
	old[0].Close()
	s.soonEnters("127.0.0.2", "public")
	s.refused("127.0.0.2", "public", "")

	// One more takes over while the first still has connections.
	s.upgrade()
	s.refused("127.0.0.2", "public", "")
	old[1].Close()
	s.soonEnters("127.0.0.2", "public")
	s.refused("127.0.0.2", "public", "")
	old[2].Close()
	s.awaitEnd(s.pids[0])
	if err := <-s.exited; err != nil {
		t.Errorf("the first process ends with %v", err)
	}
	s.soonEnters("127.0.0.2", "public")
	if err := returns("unix", filepath.Join(s.folder, "edge.sock"), false); err != nil {
		t.Errorf("the unix socket, after the first process has ended: %v", err)
	}
}

// A new process that cannot start changes nothing, and whoever asked is told why.
func TestUpgradeThatFails(t *testing.T) {
	t.Parallel()
	upstream := echoBehind(t)
	s := runSucceeded(t, upstream+capped)
	old := s.enters("127.0.0.2", "public", "")
	for _, row := range []struct{ policy, says string }{
		{upstream + capped + "nonsense: 1\n", "nonsense"},
		{strings.Replace(upstream+capped, "127.0.0.1:0\", tls: none}", "192.0.2.1:1\", tls: none}", 1), "this machine has no such address"},
		{upstream + "listeners: [{name: public, bind: \"127.0.0.1:0\", tls: terminate}]\ncertificates: {files: [{certificate: no.pem, key: no.key}]}\n", "no.pem"},
	} {
		s.write(row.policy)
		out, err := exec.Command(binary(t, "relayedge"), "upgrade", "--socket", s.socket).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), row.says) || !strings.Contains(string(out), "serves on") {
			t.Errorf("upgrade says %q, %v; want status 1 and %q", out, err, row.says)
		}
		if err := carries(old); err != nil {
			t.Fatal(err)
		}
		s.enters("127.0.0.3", "public", "").Close()
	}
	s.write(upstream + capped)
	out, err := exec.Command(binary(t, "relayedge"), "upgrade", "--socket", s.socket).CombinedOutput()
	m := regexp.MustCompile(`^process (\d+) serves; `).FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("upgrade says %q, %v", out, err)
	}
	var pid int
	fmt.Sscan(string(m[1]), &pid)
	s.pids = append(s.pids, pid)
	if err := carries(old); err != nil {
		t.Error(err)
	}
}

// The signal does the same as the command.
func TestUpgradeBySignal(t *testing.T) {
	t.Parallel()
	s := runSucceeded(t, echoBehind(t)+capped)
	old := s.enters("127.0.0.2", "public", "")
	if err := s.first.Process.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	m := s.await(`another process has taken over" pid=(\d+) open`)
	var pid int
	fmt.Sscan(m[1], &pid)
	s.pids = append(s.pids, pid)
	if err := carries(old); err != nil {
		t.Error(err)
	}
	s.enters("127.0.0.2", "public", "")
	// The end of the newest is that of the service: the older one does not take over again.
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.await(`ends on purpose`)
	if err := eventually(func() error {
		conn, err := net.Dial("tcp", s.listeners["public"])
		if err == nil {
			conn.Close()
			return errors.New("somebody still listens")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// Whichever process is killed, an edge serves, and counts exactly what is open.
func TestUpgradeAndKill(t *testing.T) {
	t.Parallel()
	s := runSucceeded(t, echoBehind(t)+capped)
	first := []net.Conn{s.enters("127.0.0.2", "public", ""), s.enters("127.0.0.2", "public", "")}
	s.upgrade()
	second := []net.Conn{s.enters("127.0.0.2", "public", ""), s.enters("127.0.0.2", "public", "")}
	s.refused("127.0.0.2", "public", "")

	// The newest dies: the one before it serves again, and knows what it has itself.
	s.kill(s.newest())
	for range 2 {
		s.soonEnters("127.0.0.2", "public")
	}
	s.refused("127.0.0.2", "public", "")
	for _, conn := range first {
		if err := carries(conn); err != nil {
			t.Error(err)
		}
	}
	if err := carries(second[0]); err == nil {
		t.Error("a connection of a process that is dead lives")
	}

	// It can hand over once more. Then the older one dies, and what it had is free.
	s.upgrade()
	s.refused("127.0.0.2", "public", "")
	s.upgrade()
	s.refused("127.0.0.2", "public", "")
	third := s.enters("127.0.0.3", "public", "")
	s.kill(s.pids[0])
	for range 4 {
		s.soonEnters("127.0.0.2", "public")
	}
	s.refused("127.0.0.2", "public", "")
	if err := carries(third); err != nil {
		t.Error(err)
	}
}

// Several processes may still serve what they have open; not any number of them.
func TestUpgradesUnderWay(t *testing.T) {
	t.Parallel()
	s := runSucceeded(t, echoBehind(t)+capped)
	var open []net.Conn
	for i := range 5 {
		open = append(open, s.enters("127.0.0.2", "behind", fmt.Sprintf("PROXY TCP4 192.0.2.%d 192.0.2.100 1 1\r\n", 1+i)))
		if i < 4 {
			s.upgrade()
		}
	}
	if _, err := s.tryUpgrade(); err == nil || !strings.Contains(err.Error(), "4 older processes") {
		t.Errorf("a sixth process: %v", err)
	}
	for _, conn := range open {
		if err := carries(conn); err != nil {
			t.Error(err)
		}
	}
	open[1].Close()
	s.awaitEnd(s.pids[1])
	if err := eventually(func() error { _, err := s.tryUpgrade(); return err }); err != nil {
		t.Error(err)
	}
}

// A connection whose client a header names after the upgrade is decided as one that
// comes then, and counts as one.
func TestUpgradeWithLateHeaders(t *testing.T) {
	t.Parallel()
	s := runSucceeded(t, echoBehind(t)+capped)
	var unnamed []net.Conn
	for range 4 {
		conn, err := dial(t.Context(), "127.0.0.2", s.listeners["behind"], "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		unnamed = append(unnamed, conn)
	}
	s.shows(`relayedge_connections{listener="behind"} 4`)
	s.upgrade()
	const header = "PROXY TCP4 192.0.2.7 192.0.2.1 1 1\r\n"
	for range 2 {
		s.enters("127.0.0.2", "behind", header)
	}
	named := func(conn net.Conn) error {
		if _, err := io.WriteString(conn, header); err != nil {
			return err
		}
		return carries(conn)
	}
	for _, conn := range unnamed[:2] {
		if err := named(conn); err != nil {
			t.Fatal(err)
		}
	}
	if err := named(unnamed[2]); err == nil {
		t.Error("a fifth connection of a host is let in by the older process")
	}
	s.refused("127.0.0.2", "behind", header)
	unnamed[0].Close()
	if err := eventually(func() error {
		conn, err := enter(context.Background(), "127.0.0.2", s.listeners["behind"], header)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := named(unnamed[3]); err == nil {
		t.Error("a fifth connection of a host is let in by the older process")
	}
}

// shows waits until the metrics hold a line.
func (s *succeeded) shows(line string) {
	s.t.Helper()
	e := &edge{metrics: s.metrics}
	e.shows(s.t, line)
}

// A limit of requests holds across an upgrade, on connections to either process.
func TestUpgradeKeepsRequestWindows(t *testing.T) {
	t.Parallel()
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	t.Cleanup(relay.Close)
	s := runSucceeded(t, `
upstreams: {relay: {addresses: ["`+relay.Listener.Addr().String()+`"], client_address: none}}
listeners: [{name: web, bind: "127.0.0.1:0", protocol: http, tls: none}]
request_limits: {limit: 10, window_secs: 3600}
limits: {drain_secs: 3600}
`)
	connect := func() net.Conn {
		conn, err := dial(t.Context(), "127.0.0.2", s.listeners["web"], "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ask := func(conn net.Conn, credential string, want int) {
		t.Helper()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n"+credential+"\r\n")
		if status, _, err := answer(conn); err != nil || status != want {
			t.Fatalf("%d, %v; want %d", status, err, want)
		}
	}
	const mine = "X-Api-Key: mine\r\n"
	old, idle := connect(), connect()
	for range 4 {
		ask(old, "", 200)
		ask(old, mine, 200)
	}
	ask(idle, "", 200) // 5 of 10
	s.upgrade()
	fresh := connect()
	for range 4 {
		ask(fresh, "", 200)
	}
	ask(old, "", 200) // the tenth, asked for by the older process
	ask(fresh, "", 429)
	ask(idle, "", 429)
	for range 6 {
		ask(fresh, mine, 200)
	}
	ask(fresh, mine, 429)
	s.awaitEnd(s.pids[0]) // for no request follows on its connections
}
