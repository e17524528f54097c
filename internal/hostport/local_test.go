package hostport

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func mustParse(t *testing.T, s string) Bind {
	t.Helper()
	b, err := ParseBind(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseBindsWithoutAddress(t *testing.T) {
	longest := "/" + strings.Repeat("x", maxUnixPath-1)
	for _, tt := range []struct{ bind, path, name, says string }{
		{"unix:/run/edge.sock", "/run/edge.sock", "", ""},
		{"unix:edge.sock", "edge.sock", "", ""},
		{"unix:" + longest, longest, "", ""},
		{"unix:" + longest + "x", "", "", "allowed are"},
		{"unix:", "", "", "no path"},
		{"unix:@edge", "", "", "abstract"},
		{"unix:/run/\x00", "", "", "NUL"},
		{"fd:public", "", "public", ""},
		{"fd:edge.socket", "", "edge.socket", ""},
		{"fd:", "", "", "FileDescriptorName="},
		{"fd:a:b", "", "", "FileDescriptorName="},
		{"fd:a b", "", "", "FileDescriptorName="},
		{"fd:" + strings.Repeat("n", 256), "", "", "FileDescriptorName="},
	} {
		b, err := ParseBind(tt.bind)
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q: %v; want %q", tt.bind, err, tt.says)
			}
			continue
		}
		if err != nil || b.Path != tt.path || b.Name != tt.name || b.TCP() || b.Host.IsValid() || b.Loopback() != (tt.path != "") {
			t.Errorf("%q: %+v, %v", tt.bind, b, err)
		}
	}
}

func TestOverlapsWithoutAddress(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"unix:/run/a", "unix:/run/a", true},
		{"unix:/run/a", "unix:/run/x/../a", true},
		{"unix:/run/a", "unix:/run/b", false},
		{"fd:a", "fd:a", true},
		{"fd:a", "fd:b", false},
		{"fd:a", "unix:a", false},
		{"unix:/run/a", "127.0.0.1:7", false},
		{"fd:a", "127.0.0.1:0", false},
	} {
		if a, b := mustParse(t, tt.a), mustParse(t, tt.b); a.Overlaps(b) != tt.want || b.Overlaps(a) != tt.want {
			t.Errorf("%s and %s: %v, want %v", tt.a, tt.b, a.Overlaps(b), tt.want)
		}
	}
}

// The owner and the group may connect, whatever the umask; the file goes with the listener.
func TestUnixSocketAndItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.sock")
	ln, err := mustParse(t, "unix:"+path).Listen()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if got := Text(ln.Addr()); got != "unix:"+path {
		t.Errorf("the address reads %q", got)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the close: %v", err)
	}
	if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a second close: %v", err)
	}
}

// What has come into the place of our file is not ours to take away.
func TestCloseLeavesWhatIsNotItsOwn(t *testing.T) {
	for _, kind := range []string{"file", "socket"} {
		t.Run(kind, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "edge.sock")
			ln, err := mustParse(t, "unix:"+path).Listen()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path, path+".old"); err != nil { // which keeps its inode in use
				t.Fatal(err)
			}
			if kind == "file" {
				err = os.WriteFile(path, nil, 0o600)
			} else {
				var other net.Listener
				other, err = net.Listen("unix", path)
				if err == nil {
					defer other.Close()
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			ln.Close()
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("it is gone: %v", err)
			}
		})
	}
}

// A socket that nobody listens on is taken over; one in use, and whatever is no socket, stays.
func TestWhatStandsInTheWay(t *testing.T) {
	folder := t.TempDir()
	listen := func(name, network string, keep bool) string {
		path := filepath.Join(folder, name)
		if network == "unixgram" {
			c, err := net.ListenUnixgram(network, &net.UnixAddr{Name: path, Net: network})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return path
		}
		ln, err := net.Listen(network, path)
		if err != nil {
			t.Fatal(err)
		}
		if keep {
			t.Cleanup(func() { ln.Close() })
		} else {
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			ln.Close()
		}
		return path
	}
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(folder, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, path, says string }{
		{"stale", listen("stale", "unix", false), ""},
		{"in use", listen("used", "unix", true), "another process listens there"},
		{"datagrams", listen("datagrams", "unixgram", true), "another process listens there"},
		{"a file", file, "no socket stands there"},
		{"a symlink", link, "no socket stands there"},
		{"a folder", folder, "no socket stands there"},
		{"no folder", filepath.Join(folder, "none", "x"), "its folder must exist"},
		{"a file for a folder", filepath.Join(file, "x"), "its folder must exist"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ln, err := mustParse(t, "unix:"+tt.path).Listen()
			if tt.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				ln.Close()
				return
			}
			if err == nil {
				ln.Close()
				t.Fatal("it listens")
			}
			if _, ok := errors.AsType[*ListenError](err); !ok || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), tt.path) {
				t.Errorf("%v; want %q", err, tt.says)
			}
			if tt.name == "in use" {
				if c, err := net.Dial("unix", tt.path); err != nil {
					t.Errorf("its owner is cut off: %v", err)
				} else {
					c.Close()
				}
			}
		})
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "precious" {
		t.Errorf("the file: %q, %v", got, err)
	}
}

// Closing at the first listener leaves nothing for the second to trip over.
func TestUnixSocketAgain(t *testing.T) {
	b := mustParse(t, "unix:"+filepath.Join(t.TempDir(), "edge.sock"))
	for range 3 {
		ln, err := b.Listen()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Listen(); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second one beside it: %v", err)
		}
		ln.Close()
	}
}
