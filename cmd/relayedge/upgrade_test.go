package main_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
// socket.
func runSucceeded(t testing.TB, policy string) *succeeded {
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
	s.first = exec.Command(binary(t, "relayedge"), "run", "-c", s.policy())
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

func (s *succeeded) tryUpgrade() (done commands.Upgraded, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	err = control.Ask(ctx, s.socket, "POST", commands.UpgradePath, &done)
	if err == nil {
		s.pids = append(s.pids, done.PID)
	}
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
limits: {max_connections: 100, max_connections_per_ip: 4, connection_rate_per_ip: 0, drain_secs: 3600}
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
