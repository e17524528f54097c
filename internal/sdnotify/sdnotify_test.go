package sdnotify

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// manager listens as systemd does, and returns what comes next.
func manager(t *testing.T) (m *Manager, next func() string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "n")
	ln, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	t.Setenv(socketVar, socket)
	return FromEnvironment(), func() string {
		t.Helper()
		b := make([]byte, 4096)
		ln.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := ln.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

// The words are those of sd_notify(3).
func TestMessages(t *testing.T) {
	m, next := manager(t)
	for _, row := range []struct {
		name string
		send func() error
		want string
	}{
		{"ready", func() error { return m.Ready("serving") }, `READY=1\nSTATUS=serving`},
		{"reloading", m.Reloading, `RELOADING=1\nMONOTONIC_USEC=[1-9]\d{3,}\nSTATUS=reloading the policy`},
		{"stopping", func() error {
			ending := FromEnvironment()
			if err := ending.Stopping("draining"); err != nil {
				return err
			}
			return ending.Status("serving") // says nothing: the row that follows is the next message
		}, `STOPPING=1\nSTATUS=draining`},
		{"status", func() error { return m.Status("full") }, `STATUS=full`},
		{"status of several lines", func() error { return m.Status("a\nMAINPID=1\r\x7f\xff") }, `STATUS=a MAINPID=1  \?`},
		{"status that is long", func() error { return m.Status(strings.Repeat("x", maxStatus-1) + "ö") }, `STATUS=x{255}…`},
		{"status as long as may be", func() error { return m.Status(strings.Repeat("x", maxStatus)) }, `STATUS=x{256}`},
		{"alive", m.Alive, `WATCHDOG=1`},
		{"take over", func() error { return m.TakeOver("serving") }, fmt.Sprintf(`MAINPID=%d\nREADY=1\nSTATUS=serving`, os.Getpid())},
		{"take over while it ends", func() error {
			ending := FromEnvironment()
			ending.Retire()
			if err := ending.Stopping("draining"); err != nil {
				return err
			}
			return ending.TakeOver("serving")
		}, fmt.Sprintf(`MAINPID=%d\nSTOPPING=1`, os.Getpid())},
	} {
		if err := row.send(); err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		if got := next(); !regexp.MustCompile("^" + row.want + "$").MatchString(got) {
			t.Errorf("%s: %q, want %s", row.name, got, row.want)
		}
	}
}

// Who is replaced says nothing of its own end, which is not the service's, until it
// is the main one again.
func TestReplaced(t *testing.T) {
	t.Setenv(watchdogVar, "1000000")
	m, next := manager(t)
	m.Retire()
	for name, say := range map[string]func() error{
		"ready":     func() error { return m.Ready("serving") },
		"reloading": m.Reloading,
		"status":    func() error { return m.Status("full") },
		"alive":     m.Alive,
	} {
		if err := say(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if m.Present() || m.Watchdog() != 0 {
		t.Errorf("present %v, watchdog %v", m.Present(), m.Watchdog())
	}
	if err := m.TakeOver("serving again"); err != nil {
		t.Error(err)
	}
	if got, want := next(), fmt.Sprintf("MAINPID=%d\nREADY=1\nSTATUS=serving again", os.Getpid()); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !m.Present() || m.Watchdog() != time.Second {
		t.Errorf("again the main one: present %v, watchdog %v", m.Present(), m.Watchdog())
	}
	m.Retire()
	if err := m.Stopping("draining"); err != nil {
		t.Error(err)
	}
	if err := FromEnvironment().Status("another process"); err != nil {
		t.Error(err)
	}
	if got := next(); got != "STATUS=another process" {
		t.Errorf("of one that is replaced comes %q", got)
	}
	(*Manager)(nil).Retire() // none is none
	if err := (*Manager)(nil).TakeOver(""); err != nil {
		t.Error(err)
	}
}

func TestWithoutAManager(t *testing.T) {
	t.Setenv(socketVar, "")
	t.Setenv(watchdogVar, "1000000")
	m := FromEnvironment()
	for _, send := range []func() error{func() error { return m.Ready("") }, m.Reloading, m.Alive, func() error { return m.TakeOver("") }} {
		if err := send(); err != nil {
			t.Error(err)
		}
	}
	if m.Present() || m.Watchdog() != 0 || (*Manager)(nil).Present() {
		t.Errorf("present %v, watchdog %v", m.Present(), m.Watchdog())
	}
}

func TestAManagerThatHasGone(t *testing.T) {
	t.Setenv(socketVar, filepath.Join(t.TempDir(), "gone"))
	if err := FromEnvironment().Ready(""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// One that reads nothing holds up nobody for long.
func TestAManagerThatDoesNotRead(t *testing.T) {
	m, _ := manager(t)
	for range 100_000 {
		if err := m.Alive(); errors.Is(err, os.ErrDeadlineExceeded) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Skip("this system queues without an end")
}

func TestWatchdog(t *testing.T) {
	m, _ := manager(t)
	if m.Watchdog() != 0 {
		t.Errorf("not asked for: %v", m.Watchdog())
	}
	for _, row := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"30000000", strconv.Itoa(os.Getpid()), 30 * time.Second},
		{"30000000", "", 30 * time.Second},
		{"30000000", "1", 0},
		{"30000000", "x", 0},
		{"0", "", 0},
		{"-1", "", 0},
		{"x", "", 0},
	} {
		t.Setenv(watchdogVar, row.usec)
		t.Setenv(watchdogPIDVar, row.pid)
		if got := FromEnvironment().Watchdog(); got != row.want {
			t.Errorf("%s for process %s: %v, want %v", row.usec, row.pid, got, row.want)
		}
	}
}

func TestEnviron(t *testing.T) {
	in := []string{"A=1", "NOTIFY_SOCKET=/n", "WATCHDOG_PID=7", "WATCHDOG_USEC=9"}
	if got, want := Environ(in), []string{"A=1", "NOTIFY_SOCKET=/n", "WATCHDOG_USEC=9"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if in[2] != "WATCHDOG_PID=7" {
		t.Error("the list that it was given has changed")
	}
}
