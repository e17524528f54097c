package main_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// serviceManager hears what processes say, and knows which of them does, as systemd. It
// always listens: the kernel keeps few messages, and who speaks does not wait for long.
type serviceManager struct {
	t      *testing.T
	socket string
	more   chan struct{} // holds a token when something was said since

	mu    sync.Mutex
	heard []word // guarded by mu
}

// word is what a process says.
type word struct {
	pid  int
	says string
}

func hearUpgrades(t *testing.T) *serviceManager {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "n")
	ln, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	raw, err := ln.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1)
	}); err != nil || set != nil {
		t.Fatal(err, set)
	}
	m := &serviceManager{t: t, socket: socket, more: make(chan struct{}, 1)}
	go m.listen(ln)
	return m
}

// listen keeps all that is said until the socket is closed.
func (m *serviceManager) listen(ln *net.UnixConn) {
	for b, oob := make([]byte, 4096), make([]byte, syscall.CmsgSpace(syscall.SizeofUcred)); ; {
		n, oobn, _, _, err := ln.ReadMsgUnix(b, oob)
		if err != nil {
			return
		}
		w := word{says: string(b[:n])}
		if messages, err := syscall.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) == 1 {
			if cred, err := syscall.ParseUnixCredentials(&messages[0]); err == nil {
				w.pid = int(cred.Pid)
			}
		}
		m.mu.Lock()
		m.heard = append(m.heard, w)
		m.mu.Unlock()
		select {
		case m.more <- struct{}{}:
		default:
		}
	}
}

func (m *serviceManager) next() (pid int, says string) {
	m.t.Helper()
	for end := time.After(patience); ; {
		m.mu.Lock()
		if len(m.heard) > 0 {
			w := m.heard[0]
			m.heard = m.heard[1:]
			m.mu.Unlock()
			return w.pid, w.says
		}
		m.mu.Unlock()
		select {
		case <-m.more:
		case <-end:
			m.t.Fatal("nothing more is said")
		}
	}
}

// hears waits until the process pid says something, past pings and lines of status
// of the process main, which may be the same.
func (m *serviceManager) hears(main, pid int, want string) {
	m.t.Helper()
	for {
		who, says := m.next()
		if who == pid && says == want {
			return
		}
		if who != main || says != "WATCHDOG=1" && !strings.HasPrefix(says, "STATUS=") {
			m.t.Fatalf("%d says %q, before %d says %q", who, says, pid, want)
		}
	}
}

// alone waits for pings of the process pid, and hears no other one but for a last word
// that was on its way.
func (m *serviceManager) alone(pid int) {
	m.t.Helper()
	var others []string
	for pings := 0; pings < 6; {
		who, says := m.next()
		switch {
		case who == pid && says == "WATCHDOG=1":
			pings++
		case who != pid:
			others = append(others, fmt.Sprintf("%d: %q", who, says))
		}
	}
	if len(others) > 1 {
		m.t.Errorf("beside %d others speak: %v", pid, others)
	}
}

// until returns what is said before this very moment has passed, by whom.
func (m *serviceManager) until(moment string) map[int][]string {
	m.t.Helper()
	conn, err := net.Dial("unixgram", m.socket)
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(moment)); err != nil {
		m.t.Fatal(err)
	}
	said := make(map[int][]string)
	for {
		who, says := m.next()
		if says == moment {
			return said
		}
		said[who] = append(said[who], says)
	}
}

func tookOver(pid int) string {
	return fmt.Sprintf("MAINPID=%d\nREADY=1\nSTATUS=serving, in place of the process before", pid)
}

// The service manager knows which process is the main one at each moment, so that
// the end of another one is not that of the service, and only that one speaks.
func TestUpgradeTellsTheServiceManager(t *testing.T) {
	t.Parallel()
	m := hearUpgrades(t)
	policy := echoBehind(t) + capped
	s := runSucceeded(t, policy, "NOTIFY_SOCKET="+m.socket, "WATCHDOG_USEC=300000")
	first := s.pids[0]
	m.hears(first, first, "READY=1\nSTATUS=serving")
	m.alone(first)
	old := s.enters("127.0.0.2", "public", "")

	second := s.upgrade().PID
	m.hears(first, second, tookOver(second))
	m.until("the upgrade is over")
	m.alone(second)

	// The new one dies, and the old one is the main process again.
	s.kill(second)
	m.hears(second, first, fmt.Sprintf("MAINPID=%d\nREADY=1\nSTATUS=serving again, in place of the process that had taken over", first))
	m.until("that is over")
	m.alone(first)

	// One that cannot start says nothing.
	s.write("nonsense: 1\n")
	if _, err := s.tryUpgrade(); err == nil {
		t.Fatal("an upgrade to nonsense")
	}
	m.until("that has failed")
	m.alone(first)
	s.write(policy)
	third := s.upgrade().PID
	m.hears(first, third, tookOver(third))
	m.until("that upgrade is over")
	m.alone(third)

	// The main process stays to the end of the other one, which a manager would cut short.
	if err := syscall.Kill(third, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.hears(third, third, "STOPPING=1\nSTATUS=draining")
	s.await(`ends on purpose`)
	for range 200 {
		if err := carries(old); err != nil {
			t.Fatal(err)
		}
	}
	if !running(third) {
		t.Error("the main process ends before what an older one has open")
	}
	old.Close()
	s.awaitEnd(first)
	s.awaitEnd(third)
	for pid, says := range m.until("all have ended") {
		for _, word := range says {
			if pid != third || word != "WATCHDOG=1" {
				t.Errorf("at the end %d says %q", pid, word)
			}
		}
	}
}

// Where the old process has nothing open it ends with the upgrade, and the manager
// knows the new one by then.
func TestUpgradeTellsTheServiceManagerFirst(t *testing.T) {
	t.Parallel()
	m := hearUpgrades(t)
	s := runSucceeded(t, echoBehind(t)+capped, "NOTIFY_SOCKET="+m.socket)
	first := s.pids[0]
	m.hears(first, first, "READY=1\nSTATUS=serving")
	second := s.upgrade().PID
	s.awaitEnd(first)
	said := m.until("the first has ended")
	if told := said[second]; len(told) == 0 || told[0] != tookOver(second) {
		t.Errorf("the new process says %q", told)
	}
	for _, word := range said[first] {
		if !strings.HasPrefix(word, "STATUS=serving:") {
			t.Errorf("the old process says %q", word)
		}
	}
}
