package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"relayedge/cmd/internal/service"
)

const upgrade = "GET /relay HTTP/1.1\r\nHost: relay.example.org\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: relaycore.v1\r\n\r\n"

// openSession opens a WebSocket; nil: the relay lets nobody in.
func openSession(t *testing.T, addr string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	io.WriteString(nc, upgrade)
	nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	r, err := http.ReadResponse(bufio.NewReaderSize(nc, 512), nil)
	if err != nil {
		nc.Close()
		return nil
	}
	if r.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", r.StatusCode)
	}
	return nc
}

// alive reports whether the relay answers a ping.
func alive(nc net.Conn) bool {
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := nc.Write([]byte{0x89, 0x81, 0, 0, 0, 0, 'x'}); err != nil {
		return false
	}
	for r := bufio.NewReader(nc); ; {
		head := make([]byte, 2)
		if _, err := io.ReadFull(r, head); err != nil {
			return false
		}
		if _, err := io.CopyN(io.Discard, r, int64(head[1])); err != nil {
			return false
		}
		if head[0] == 0x8a {
			return true
		}
	}
}

// Sessions, goroutines and memory stay through 300 reloads; a lowered cap binds
// newcomers; a broken file changes nothing; SIGHUP does what the command does.
func TestReload(t *testing.T) {
	policy := func(limits string) string {
		return "relay:\n  bind: \"127.0.0.1:0\"\n  metrics: {enabled: false}\n  control: {socket: c.sock}\n" +
			"  limits: {identification_timeout_secs: 300, max_connections_per_ip: 0, max_connections_per_ipv6_48: 0, " + limits + "}\n"
	}
	file := policyFile(t, policy("max_connections: 100"))
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log lines
	status := make(chan int, 1)
	go func() { status <- service.Execute(ctx, command(), []string{"run", "-c", file}, &log, &log) }()
	addr := log.find(t, `relay: (\S+),`)
	socket := filepath.Join(filepath.Dir(file), "c.sock")
	reload := func() string {
		t.Helper()
		code, out, errs := runLine(t, "reload", "-c", file)
		if code != 0 {
			t.Fatal(errs)
		}
		return out
	}

	var open []net.Conn
	for range 30 {
		open = append(open, openSession(t, addr))
	}
	measure := func() (goroutines int, heap uint64) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	if got := reload(); got != "nothing has changed\n" {
		t.Errorf("%q", got)
	}
	goroutines, heap := measure()
	for i := range 300 {
		write(policy(fmt.Sprintf("max_connections: %d", 101+i)))
		if want, got := fmt.Sprintf("relay.limits.max_connections: %d → %d\n", 100+i, 101+i), reload(); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		g, h := measure()
		if g <= goroutines+3 && int64(h)-int64(heap) < 2<<20 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("%d goroutines and %d bytes became %d and %d", goroutines, heap, g, h)
			break
		}
	}

	// Thirty are in, twenty may be.
	write(policy("max_connections: 20"))
	reload()
	if openSession(t, addr) != nil {
		t.Error("one more comes in over a lowered cap")
	}
	// Nothing of a file with a fault.
	write(policy("max_connections: 200, max_circuits: 1"))
	code, out, errs := runLine(t, "reload", "--socket", socket)
	if code != 1 || out != "" || !strings.Contains(errs, file+":5:") || !strings.Contains(errs, "relay.limits.max_circuits: 1 is out of range") || !strings.HasSuffix(errs, "Everything stays as it was.\n") {
		t.Errorf("status %d, %q, %q", code, out, errs)
	}
	if openSession(t, addr) != nil {
		t.Error("one more comes in by a file with a fault")
	}
	for i, nc := range open {
		if !alive(nc) {
			t.Fatalf("session %d has ended", i)
		}
	}
	// What takes a restart is told, and the rest is in force.
	write(strings.Replace(policy("max_connections: 40"), "127.0.0.1:0", "127.0.0.1:1", 1))
	if got, want := reload(), "relay.limits.max_connections: 20 → 40\nrelay.bind: 127.0.0.1:0 → 127.0.0.1:1: takes a restart; until then the old value is in force\n"; got != want {
		t.Errorf("%q", got)
	}
	if openSession(t, addr) == nil {
		t.Error("none comes in by a raised cap")
	}
	for openSession(t, addr) != nil { // until the cap is reached
	}
	write(policy("max_connections: 1000"))
	syscall.Kill(os.Getpid(), syscall.SIGHUP)
	for end := time.Now().Add(20 * time.Second); openSession(t, addr) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("none comes in after SIGHUP has raised the cap")
		}
	}

	stop()
	if code := <-status; code != 0 {
		t.Fatalf("status %d, %s", code, log.String())
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the control socket is still there")
	}
	if code, _, errs := runLine(t, "reload", "-c", file); code != 1 || !strings.Contains(errs, socket) || !strings.Contains(errs, "is relaycore running") {
		t.Errorf("status %d, %q", code, errs)
	}
}
