// Package sdnotify tells the service manager that started the process, systemd,
// how the process is doing: ready, reloading, stopping, which process is the main
// one, a line of status, and that it is alive. It owns the socket and the words
// of sd_notify(3); what is true at which moment belongs to whoever calls.
//
// Without a manager every call does nothing. With one that does not answer, a
// call gives up after a second: the service never waits for its manager.
package sdnotify

import (
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coreos/go-systemd/v22/daemon"
)

// The variables by which a manager says where and how often it wants to be told.
const (
	socketVar      = "NOTIFY_SOCKET"
	watchdogVar    = "WATCHDOG_USEC"
	watchdogPIDVar = "WATCHDOG_PID"
)

const (
	sendTime  = time.Second
	maxStatus = 256 // bytes
)

// Manager is the service manager of this process, or none; a nil one is none. The
// methods may be called from any goroutine. Their errors are for the log: the
// service goes on.
type Manager struct {
	socket   string // empty: there is none
	watchdog time.Duration
	replaced atomic.Bool // another process speaks for the service
	stopping atomic.Bool
}

// FromEnvironment returns the manager that started the process; never nil. The
// variables stay as they are: see Environ.
func FromEnvironment() *Manager {
	m := &Manager{socket: os.Getenv(socketVar)}
	// A value that is none of the manager's making asks for no pings.
	m.watchdog, _ = daemon.SdWatchdogEnabled(false)
	return m
}

// Present reports whether there is a manager to be told, by this process.
func (m *Manager) Present() bool { return m != nil && m.socket != "" && !m.replaced.Load() }

// Watchdog is the time within which the manager wants a ping of Alive each, or 0
// where it wants none.
func (m *Manager) Watchdog() time.Duration {
	if !m.Present() {
		return 0
	}
	return m.watchdog
}

// Ready says that the service serves: its start, or a reload, is over.
func (m *Manager) Ready(status string) error { return m.send(daemon.SdNotifyReady, line(status)) }

// Reloading says that a reload has begun. Ready must follow, whatever comes of it.
func (m *Manager) Reloading() error {
	return m.send(daemon.SdNotifyReloading, strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"), line("reloading the policy"))
}

// Stopping says that the service has begun to end. Its status stays to the end.
func (m *Manager) Stopping(status string) error {
	if m != nil {
		m.stopping.Store(true)
	}
	return m.send(daemon.SdNotifyStopping, line(status))
}

// Status replaces the line that describes the service.
func (m *Manager) Status(status string) error {
	if m != nil && m.stopping.Load() {
		return nil
	}
	return m.send(line(status))
}

// Alive is one ping of the watchdog.
func (m *Manager) Alive() error { return m.send(daemon.SdNotifyWatchdog) }

// TakeOver says in one message that this process is the main one from here on, in
// place of one that it follows or that has followed it, and that it serves; of one
// that ends by then, that it ends. It speaks for the service again, if it was retired.
// Until the manager has it the end of the other process is the end of the service, so
// the other one ends after this has returned. The unit needs NotifyAccess=all: this
// process is not the main one yet.
func (m *Manager) TakeOver(status string) error {
	if m == nil {
		return nil
	}
	m.replaced.Store(false)
	if m.stopping.Load() {
		return m.send(mainPID(os.Getpid()), daemon.SdNotifyStopping)
	}
	return m.send(mainPID(os.Getpid()), daemon.SdNotifyReady, line(status))
}

// Retire ends what this process says, until its own TakeOver: while another process
// is the main one, its Stopping would be taken for the end of the service.
func (m *Manager) Retire() {
	if m != nil {
		m.replaced.Store(true)
	}
}

func mainPID(pid int) string { return "MAINPID=" + strconv.Itoa(pid) }

// Environ returns the environment for a process that is to take this one's place:
// env without the variable that keeps the watchdog to this very process. The others
// go along, so that the new process can tell the same manager.
func Environ(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, watchdogPIDVar+"=") })
}

// line is a status as the protocol has it: one line of valid UTF-8, and no
// longer than an operator reads.
func line(status string) string {
	status = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(status, "?"))
	if len(status) > maxStatus {
		end := maxStatus
		for !utf8.RuneStart(status[end]) {
			end--
		}
		status = status[:end] + "…"
	}
	return "STATUS=" + status
}

// send sends assignments as one message.
func (m *Manager) send(assignments ...string) error {
	if !m.Present() {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(strings.Join(assignments, "\n")))
	return err
}
