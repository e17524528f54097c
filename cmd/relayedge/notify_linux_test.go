package main_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What a unit of Type=notify is told, by both programs: the start, that it lives,
// reloads whatever becomes of them, and the end.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	for program, policy := range map[string]string{
		"relayedge": "listeners: [{name: public, bind: \"127.0.0.1:0\"}]\ncertificates: {self_issued: [localhost]}\nmetrics: {enabled: false}\ncontrol: {socket: \"\"}\n",
		"relaycore": "relay: {bind: \"127.0.0.1:0\", metrics: {enabled: false}, control: {socket: \"\"}}\n",
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			file, socket := filepath.Join(folder, "policy.yaml"), filepath.Join(folder, "n")
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(policy)
			manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer manager.Close()
			cmd := exec.Command(binary(t, program), "run", "-c", file)
			cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=300000")
			p := launch(t, cmd, program)
			// hears waits for a message, past those that come when they like.
			hears := func(pattern string) {
				t.Helper()
				manager.SetReadDeadline(time.Now().Add(patience))
				var heard []string
				for {
					b := make([]byte, 4096)
					n, err := manager.Read(b)
					if err != nil {
						t.Fatalf("%v; no message %s, but %q", err, pattern, heard)
					}
					message := string(b[:n])
					if regexp.MustCompile("^(?:" + pattern + ")$").MatchString(message) {
						return
					}
					if message != "WATCHDOG=1" && !strings.HasPrefix(message, "STATUS=") {
						t.Fatalf("%q comes before %s", message, pattern)
					}
					if len(heard) < 100 {
						heard = append(heard, message)
					}
				}
			}
			hears(`READY=1\nSTATUS=serving`)
			hears(`WATCHDOG=1`)
			hears(`STATUS=serving: 0 connections open, 0 refused or ended by a limit.*`)
			for _, row := range []struct{ policy, says string }{
				{policy + "log: {level: debug}\n", "serving, with the policy as it was read again"},
				{"listenres: []\n", "serving; the last reload was refused, the log says why"},
			} {
				write(row.policy)
				if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
				hears(`RELOADING=1\nMONOTONIC_USEC=\d+\nSTATUS=reloading the policy`)
				hears(`READY=1\nSTATUS=` + row.says)
			}
			p.terminate(t)
			hears(`STOPPING=1\nSTATUS=draining`)
			if code, err := p.ended(); code != 0 || err != nil {
				t.Errorf("ended with %d, %v", code, err)
			}
		})
	}
}

// A watchdog that is another process's is not fed.
func TestWatchdogOfAnotherProcess(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, socket := filepath.Join(folder, "policy.yaml"), filepath.Join(folder, "n")
	if err := os.WriteFile(file, []byte("listeners: [{name: public, bind: \"127.0.0.1:0\"}]\ncertificates: {self_issued: [localhost]}\nmetrics: {enabled: false}\ncontrol: {socket: \"\"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	cmd := exec.Command(binary(t, "relayedge"), "run", "-c", file)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=300000", fmt.Sprintf("WATCHDOG_PID=%d", os.Getpid()))
	p := launch(t, cmd, "relayedge")
	manager.SetReadDeadline(time.Now().Add(patience))
	for _, want := range []string{"READY=1\nSTATUS=serving", "STOPPING=1\nSTATUS=draining"} {
		b := make([]byte, 4096)
		n, err := manager.Read(b)
		if err != nil || string(b[:n]) != want {
			t.Fatalf("%q, %v, want %q", b[:n], err, want)
		}
		if strings.HasPrefix(want, "READY") {
			p.terminate(t)
		}
	}
}
