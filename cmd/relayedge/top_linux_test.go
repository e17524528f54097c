package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// pty is a terminal of which the test is the screen and the keyboard.
type pty struct {
	screen *os.File // the test's side
	line   *os.File // the program's
	shown  transcript
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

func openPTY(t *testing.T, wide, high uint16) *pty {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("this machine gives no terminals: %v", err)
	}
	p := &pty{screen: screen}
	var number, unlock int32
	if err := ioctl(screen, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)); err != nil {
		t.Fatal(err)
	}
	if err := ioctl(screen, syscall.TIOCGPTN, unsafe.Pointer(&number)); err != nil {
		t.Fatal(err)
	}
	if p.line, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	p.resize(t, wide, high)
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := screen.Read(b)
			p.shown.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		p.line.Close() // whoever has started on it has ended, so the read does too
		<-read
		screen.Close()
	})
	return p
}

func (p *pty) resize(t *testing.T, wide, high uint16) {
	t.Helper()
	size := [4]uint16{high, wide}
	if err := ioctl(p.screen, syscall.TIOCSWINSZ, unsafe.Pointer(&size)); err != nil {
		t.Fatal(err)
	}
}

func (p *pty) modes(t *testing.T) (m syscall.Termios) {
	t.Helper()
	if err := ioctl(p.line, syscall.TCGETS, unsafe.Pointer(&m)); err != nil {
		t.Fatal(err)
	}
	return m
}

// run starts a program that has the terminal.
func (p *pty) run(t *testing.T, name string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(binary(t, name), args...)
	cmd.Env = append(os.Environ(), "TERM=xterm")
	cmd.Stdin = p.line
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	proc := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.line, p.line
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(proc.exited)
		proc.err = cmd.Wait()
	}()
	t.Cleanup(proc.stop)
	return proc
}

// frame is what stands on the screen after the last drawing, by lines.
func (p *pty) frame() []string {
	text := p.shown.String()
	if i := strings.LastIndex(text, "\x1b[J"); i >= 0 {
		text = text[:i] // the last one that is whole
	}
	_, text, _ = cutLast(text, "\x1b[H")
	// The line may have put a return of its own before each end of a line.
	return strings.Split(strings.NewReplacer("\x1b[K", "", "\r", "").Replace(text), "\n")
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// top draws within its terminal, follows its size, says when nobody answers, ends by
// a key, by Ctrl-C or by a signal, and leaves the terminal as it was.
func TestTop(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "c.sock")
	e := runEdge(t, relayBehind+"control: {socket: "+socket+"}\n")
	for _, row := range []struct {
		ends string
		end  func(*testing.T, *pty, *process)
	}{
		{"q", func(t *testing.T, p *pty, _ *process) { p.screen.WriteString("xq") }},
		{"Ctrl-C", func(t *testing.T, p *pty, _ *process) { p.screen.WriteString("\x03") }},
		{"SIGTERM", func(t *testing.T, _ *pty, top *process) { top.terminate(t) }},
		{"hangup", func(t *testing.T, _ *pty, top *process) { top.cmd.Process.Signal(syscall.SIGHUP) }},
	} {
		t.Run(row.ends, func(t *testing.T) {
			p := openPTY(t, 100, 40)
			before := p.modes(t)
			top := p.run(t, "relayedge", "top", "--socket", socket)
			want := func(wide, high int, text string) {
				t.Helper()
				if err := eventually(func() error {
					frame := p.frame()
					if len(frame) != high || !strings.Contains(strings.Join(frame, "\n"), text) {
						return fmt.Errorf("%d lines, want %d with %s:\n%s", len(frame), high, text, strings.Join(frame, "\n"))
					}
					for _, l := range frame {
						if len([]rune(l)) > wide {
							return fmt.Errorf("wider than %d: %s", wide, l)
						}
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			want(100, 40, "connections 0, ")
			if p.modes(t).Lflag&(syscall.ECHO|syscall.ICANON) != 0 {
				t.Error("what is typed is shown, or held back to the end of a line")
			}
			if row.ends == "q" {
				conn, err := dial(t.Context(), "", e.listeners["public"], "localhost")
				if err != nil {
					t.Fatal(err)
				}
				want(100, 40, "connections 1, ")
				conn.Close()
				want(100, 40, "connections 0, ")
			}
			p.resize(t, 30, 10)
			want(30, 10, "q quits")
			row.end(t, p, top)
			code, err := top.ended()
			if err != nil || code != 0 {
				t.Errorf("it ends with %d, %v", code, err)
			}
			if err := eventually(func() error {
				if text := p.shown.String(); !strings.HasSuffix(text, "\x1b[?7h\x1b[?25h\x1b[?1049l") {
					return fmt.Errorf("the screen is left as %q", text[max(0, len(text)-100):])
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			if got := p.modes(t); got != before {
				t.Errorf("the terminal is left with %+v, it had %+v", got, before)
			}
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		p := openPTY(t, 200, 30)
		top := p.run(t, "relayedge", "top", "--socket", socket)
		if err := eventually(func() error {
			if frame := p.frame(); !strings.Contains(frame[0], "relayedge") {
				return fmt.Errorf("%q", frame)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		e.terminate(t)
		if _, err := e.ended(); err != nil {
			t.Error(err)
		}
		if err := eventually(func() error {
			if frame := p.frame(); !strings.HasPrefix(frame[len(frame)-1], "no answer, these figures are of before: ") || !strings.Contains(frame[0], "relayedge") {
				return fmt.Errorf("%q", frame)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		p.screen.WriteString("q")
		if code, err := top.ended(); err != nil || code != 0 {
			t.Errorf("it ends with %d, %v", code, err)
		}
		// From the start on that is an error, without a screen.
		p = openPTY(t, 100, 40)
		if code, err := p.run(t, "relayedge", "top", "--socket", socket).ended(); err != nil || code != 1 {
			t.Errorf("it ends with %d, %v", code, err)
		}
		if err := eventually(func() error {
			if text := p.shown.String(); !strings.Contains(text, "nothing answers at") || strings.Contains(text, "\x1b") {
				return fmt.Errorf("%q", text)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// Where nobody looks, top prints what status does, once.
func TestTopPiped(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "c.sock")
	runEdge(t, relayBehind+"control: {socket: "+socket+"}\n")
	heads := regexp.MustCompile(`(?m)^[A-Z]{4,}[A-Z ]*`)
	var said [][]string
	for _, command := range []string{"status", "top"} {
		out, err := exec.Command(binary(t, "relayedge"), command, "--socket", socket).CombinedOutput()
		if err != nil || strings.Contains(string(out), "\x1b") {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		said = append(said, heads.FindAllString(string(out), -1))
	}
	if len(said[0]) < 5 || !slices.Equal(said[0], said[1]) {
		t.Errorf("status has %q, top %q", said[0], said[1])
	}
}
