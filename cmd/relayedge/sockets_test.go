package main_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// handOver runs the edge with listening sockets of these names, as systemd does.
func handOver(t *testing.T, policy string, names ...string) (edge *process, addrs []string) {
	t.Helper()
	var files []*os.File
	for range names {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f, err := ln.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, ln.Addr().String())
		ln.Close()
		files = append(files, f)
	}
	// LISTEN_PID is the process's own, which only a shell that becomes it can tell.
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", filepath.Join(binFolder(t), "relayedge"), "run", "-c", policy)
	cmd.Env = append(os.Environ(), fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	cmd.ExtraFiles = files
	edge = launch(t, cmd, "relayedge")
	for _, f := range files {
		f.Close()
	}
	return edge, addrs
}

func returns(network, addr string, secure bool) error {
	var conn net.Conn
	var err error
	if secure {
		var raw net.Conn
		if raw, err = net.Dial(network, addr); err == nil {
			conn = tls.Client(raw, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
		}
	} else {
		conn, err = net.Dial(network, addr)
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		return fmt.Errorf("read %q, %v", got, err)
	}
	return nil
}

// Three listeners in one process: TLS on a socket that was handed over, plain
// TCP, and a unix socket, whose file comes and goes with the edge.
func TestThreeKindsOfListeners(t *testing.T) {
	service, err := serve("127.0.0.1:0", echo)
	if err != nil {
		t.Fatal(err)
	}
	defer service.close()
	folder := t.TempDir()
	policy := filepath.Join(folder, "p.yaml")
	src := `certificates: {self_issued: [localhost]}
upstreams: {relay: {addresses: ["` + service.Addr().String() + `"], client_address: none}}
metrics: {enabled: false}
control: {socket: ""}
listeners:
  - {name: public, bind: "fd:public"}
  - {name: plain, bind: "127.0.0.1:0", tls: none}
  - {name: local, bind: "unix:edge.sock", tls: none}
`
	if err := os.WriteFile(policy, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	edge, addrs := handOver(t, policy, "public", "spare")
	m, err := edge.await(&edge.stdout, regexp.MustCompile(`(?s)listener public: TLS on (\S+)\nlistener plain: TCP without TLS on (\S+)\nlistener local: TCP without TLS on unix:(\S+)\n`))
	if err != nil {
		t.Fatal(err)
	}
	if m[1] != addrs[0] || m[3] != filepath.Join(folder, "edge.sock") {
		t.Errorf("listens on %s and %s", m[1], m[3])
	}
	for _, err := range []error{returns("tcp", m[1], true), returns("tcp", m[2], false), returns("unix", m[3], false)} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := edge.await(&edge.stderr, regexp.MustCompile(`level=WARN .*name=spare`)); err != nil {
		t.Error(err)
	}
	edge.terminate(t)
	if code, err := edge.ended(); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	if _, err := os.Lstat(m[3]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket file: %v", err)
	}
}

// A socket that was not handed over, or twice, ends the start before anything is served.
func TestHandedOverWrongly(t *testing.T) {
	folder := t.TempDir()
	policy := filepath.Join(folder, "p.yaml")
	src := "certificates: {self_issued: [localhost]}\nmetrics: {enabled: false}\ncontrol: {socket: \"\"}\nlisteners: [{name: local, bind: \"unix:edge.sock\"}, {name: public, bind: \"fd:public\"}]\n"
	if err := os.WriteFile(policy, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	for says, names := range map[string][]string{
		"listener public: cannot listen on fd:public: no socket of this name was handed over; there are edge.socket, other": {"edge.socket", "other"},
		"2 sockets of this name were handed over": {"public", "public"},
	} {
		edge, _ := handOver(t, policy, names...)
		if code, err := edge.ended(); code != 1 || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
		if got := edge.stderr.String(); !strings.Contains(got, says) {
			t.Errorf("it says %q, want %q", got, says)
		}
		if _, err := os.Lstat(filepath.Join(folder, "edge.sock")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the other listener's socket file is left: %v", err)
		}
	}
}
