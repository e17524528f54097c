package testredis

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"relayedge/internal/testlog"
	"relayedge/internal/testport"
)

// patience is how long a server may take to do what it is asked for.
const patience = time.Minute

// Server is one redis-server. Its methods are for one goroutine at a time, but
// Ask, which is safe beside them.
type Server struct {
	Addr   string // "127.0.0.1:port"
	Socket string // its unix socket, where Ask asks, whatever is made of the port

	t      testing.TB
	name   string
	args   []string
	out    testlog.Log
	cmd    *exec.Cmd     // nil while it is stopped
	exited chan struct{} // closed at the end of cmd
}

// Start runs a redis-server until the test's end. The arguments are added to its
// command line ("--requirepass", "secret", with which Ask is no longer answered).
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t, "redis-server")
	s.args = append(s.args, "--port", s.port())
	return s.run(args)
}

// StartTLS runs a redis-server that speaks TLS at its port, with that certificate.
func StartTLS(t testing.TB, certificateFile, keyFile string, args ...string) *Server {
	t.Helper()
	s := newServer(t, "redis-server")
	s.args = append(s.args, "--port", "0", "--tls-port", s.port(), "--tls-cert-file", certificateFile,
		"--tls-key-file", keyFile, "--tls-ca-cert-file", certificateFile, "--tls-auth-clients", "no")
	return s.run(args)
}

// Find returns the path of a program of Redis; without it, the test is skipped,
// or fails where RELAYEDGE_REQUIRE_PEERS=1.
func Find(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if os.Getenv("RELAYEDGE_REQUIRE_PEERS") == "1" {
			t.Fatalf("%s is missing, and RELAYEDGE_REQUIRE_PEERS=1 asks for it", program)
		}
		t.Skipf("%s is missing", program)
	}
	return path
}

func newServer(t testing.TB, program string) *Server {
	t.Helper()
	path := Find(t, program)
	// The path of a socket is short, and that of a test's folder need not be.
	folder, err := os.MkdirTemp("", "redis-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	s := &Server{
		Addr:   fmt.Sprintf("127.0.0.1:%d", testport.Free(t)),
		t:      t,
		name:   program,
		Socket: filepath.Join(folder, "redis.sock"),
	}
	s.args = []string{path, "--bind", "127.0.0.1", "--unixsocket", s.Socket, "--dir", folder,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning",
		"--repl-diskless-sync-delay", "0"}
	return s
}

func (s *Server) port() string {
	_, port, _ := net.SplitHostPort(s.Addr)
	return port
}

func (s *Server) run(args []string) *Server {
	s.t.Helper()
	s.args = append(s.args, args...)
	s.t.Cleanup(func() {
		s.Stop()
		if s.t.Failed() {
			s.t.Logf("%s at %s wrote:\n%s", s.name, s.Addr, s.out.String())
		}
	})
	s.Start()
	return s
}

// Start starts it again after Stop, empty, at the same address. It returns when
// the server answers.
func (s *Server) Start() {
	s.t.Helper()
	cmd := exec.Command(s.args[0], s.args[1:]...)
	cmd.Stdout, cmd.Stderr = &s.out, &s.out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	s.cmd, s.exited = cmd, exited
	s.Await("it answers", func() bool {
		select {
		case <-exited:
			s.t.Fatalf("%s ended:\n%s", s.name, s.out.String())
		default:
		}
		pong, err := s.ask("PING")
		return pong == "PONG" || err != nil && strings.HasPrefix(err.Error(), "NOAUTH")
	})
}

// Stop ends it at once. What it held is gone, and its port is closed.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
	os.Remove(s.Socket)
}

// Pid returns the process's id.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Await waits until the condition holds, and fails the test if that takes a minute.
func (s *Server) Await(what string, condition func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s at %s: a minute long it is not so that %s\n%s", s.name, s.Addr, what, s.out.String())
		}
		time.Sleep(10 * time.Millisecond) // another process is what changes
	}
}

// Ask sends one command, over the server's unix socket, and returns the answer: a
// string, an int64, nil, or a []any of these. Any fault fails the test, but for a
// connection that is cut, after which it asks once more: a sentinel ends all
// connections of the server that it promotes.
func (s *Server) Ask(command ...string) any {
	s.t.Helper()
	answer, err := s.ask(command...)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		answer, err = s.ask(command...)
	}
	if err != nil {
		s.t.Fatalf("%s at %s: %s: %v", s.name, s.Addr, strings.Join(command, " "), err)
	}
	return answer
}

func (s *Server) ask(command ...string) (any, error) {
	c, err := s.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.ask(command...)
}

// Keys returns every key that the server holds in its first database.
func (s *Server) Keys() (keys []string) {
	s.t.Helper()
	for _, key := range s.Ask("KEYS", "*").([]any) {
		keys = append(keys, key.(string))
	}
	return keys
}

// Monitor returns what collects every command that the server runs from now on,
// one a line, until it is called.
func (s *Server) Monitor() (stop func() string) {
	s.t.Helper()
	c, err := s.dial()
	if err == nil {
		_, err = c.ask("MONITOR")
	}
	if err != nil {
		s.t.Fatal(err)
	}
	c.SetDeadline(time.Time{})
	var seen strings.Builder
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			line, err := c.in.ReadString('\n')
			if err != nil {
				return
			}
			seen.WriteString(line)
			if strings.Contains(line, monitorsEnd) {
				return
			}
		}
	}()
	return func() string {
		s.t.Helper()
		defer c.Close()
		s.Ask("ECHO", monitorsEnd) // all before it has been written then
		select {
		case <-done:
		case <-time.After(patience):
			s.t.Fatal("the monitor does not see its end")
		}
		return seen.String()
	}
}

const monitorsEnd = "the-monitor-s-end"

var errProtocol = errors.New("the answer is none of Redis")
