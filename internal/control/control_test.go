package control

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// serve answers at a socket until the test's end, or until stop.
func serve(t *testing.T, answers Answers) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "c.sock")
	ln, err := Listen(Config{socket})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, ln, answers, quiet) }()
	var once atomic.Bool
	stop = func() {
		cancel()
		if once.Swap(true) {
			return
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return socket, stop
}

func TestValidate(t *testing.T) {
	for _, row := range []struct{ socket, says string }{
		{"", ""},
		{"/run/relayedge/control.sock", ""},
		{"/run/" + strings.Repeat("x", 200), "socket: "},
		{"@relayedge", "abstract"},
	} {
		err := Config{row.socket}.Validate()
		if row.says == "" && err != nil || row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)) {
			t.Errorf("%q: %v", row.socket, err)
		}
	}
}

// The user of the process alone may connect, and sees the file go at the end.
func TestSocketAndItsFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "made")
	socket := filepath.Join(folder, "c.sock")
	ln, err := Listen(Config{socket})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{socket: fs.ModeSocket | 0o600, folder: fs.ModeDir | 0o700} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
	}
	if _, err := Listen(Config{socket}); err == nil || !strings.Contains(err.Error(), "another process listens there") {
		t.Errorf("a live socket is taken: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Serve(ctx, ln, nil, quiet); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := Listen(Config{filepath.Join(folder, "no", "such", "c.sock")}); err == nil || !strings.Contains(err.Error(), "RuntimeDirectory=") {
		t.Errorf("two folders that are missing: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(folder, "no")); err == nil {
		t.Error("more than one folder was made")
	}
}

// A file of a process that was killed is no obstacle.
func TestStaleSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "c.sock")
	old, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	old.Close()
	ln, err := Listen(Config{socket})
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
}

func TestAsk(t *testing.T) {
	type outcome struct{ N int }
	socket, stop := serve(t, Answers{
		"POST /do":    func(context.Context) (any, error) { return outcome{7}, nil },
		"POST /fail":  func(context.Context) (any, error) { return nil, errors.New("two\nlines") },
		"POST /panic": func(context.Context) (any, error) { panic("x") },
	})
	var got outcome
	if err := Ask(t.Context(), socket, "POST", "/do", &got); err != nil || got.N != 7 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, row := range []struct{ method, path, says string }{
		{"POST", "/fail", "two\nlines"},
		{"POST", "/panic", "a fault of the program"},
		{"GET", "/do", "405"},
		{"POST", "/other", "404"},
	} {
		err := Ask(t.Context(), socket, row.method, row.path, &got)
		if refused, ok := errors.AsType[*Refused](err); !ok || !strings.Contains(refused.Text, row.says) {
			t.Errorf("%s %s: %v", row.method, row.path, err)
		}
	}
	if err := Ask(t.Context(), socket, "POST", "/do", &got); err != nil {
		t.Errorf("after a panic: %v", err)
	}
	stop()
	err := Ask(t.Context(), socket, "POST", "/do", &got)
	if _, ok := errors.AsType[*Unreachable](err); !ok || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), socket) {
		t.Errorf("nobody there: %v", err)
	}
}

// What is no control socket is told apart from one that refuses.
func TestAskElsewhere(t *testing.T) {
	for _, row := range []struct{ name, answer, says string }{
		{"breaks off", "", "broke off before"},
		{"breaks off in its answer", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "broke off in its answer"},
		{"another service", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "something else"},
		{"another service that refuses", "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "403"},
	} {
		t.Run(row.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "c.sock")
			ln, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			go func() {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				conn.Read(make([]byte, 4096))
				io.WriteString(conn, row.answer)
				conn.Close()
			}()
			err = Ask(t.Context(), socket, "POST", "/do", new(int))
			if err == nil || !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), socket) {
				t.Errorf("%v", err)
			}
		})
	}
	socket := filepath.Join(t.TempDir(), "c.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	if err := Ask(t.Context(), socket, "POST", "/do", nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens any more: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if err := Ask(ctx, socket, "POST", "/do", nil); err == nil {
		t.Error("no time, and no error")
	}
}
