package hostport

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// listenTwice gives a listener that the runtime polls, and one that it does not.
func listenTwice(t *testing.T) map[string]*listener {
	t.Helper()
	both := make(map[string]*listener)
	for _, name := range []string{"polled", "unpolled"} {
		bind, err := ParseBind("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln, err := bind.Listen()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		both[name] = ln.(*Socket).Listener.(*listener)
	}
	if err := both["unpolled"].Unpoll(); err != nil {
		t.Fatal(err)
	}
	return both
}

func TestListenerAccepts(t *testing.T) {
	both := listenTwice(t)
	client, err := net.Dial("tcp", both["polled"].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := both["polled"].Accept()
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if _, err := both["unpolled"].Accept(); !errors.Is(err, errUnpolled) {
		t.Errorf("out of the poller: %v", err)
	}
}

// Who has the descriptor accepts by it, before and after, until the close.
func TestListenerDescriptor(t *testing.T) {
	for name, ln := range listenTwice(t) {
		client, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := ln.SyscallConn()
		err = raw.Control(func(fd uintptr) {
			for {
				nfd, _, err := syscall.Accept4(int(fd), syscall.SOCK_CLOEXEC)
				if err == syscall.EAGAIN {
					continue // the kernel is about to queue it
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				} else {
					syscall.Close(nfd)
				}
				return
			}
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		client.Close()
		if err := ln.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, accept := ln.Accept()
		_, file := ln.File()
		for what, err := range map[string]error{"Accept": accept, "Close": ln.Close(), "File": file, "Control": raw.Control(func(uintptr) { t.Error("a closed descriptor is used") })} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: %s after Close: %v", name, what, err)
			}
		}
		if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
			c.Close()
			t.Errorf("%s: the socket listens after Close", name)
		}
	}
}

// A close ends an Accept that waits.
func TestListenerCloseWakes(t *testing.T) {
	ln := listenTwice(t)["polled"]
	accepted := make(chan error)
	go func() {
		_, err := ln.Accept()
		accepted <- err
	}()
	ln.Close()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
}

func TestListenerDeadline(t *testing.T) {
	both := listenTwice(t)
	if err := both["polled"].SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := both["polled"].Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Accept: %v", err)
	}
	if err := both["unpolled"].SetDeadline(time.Unix(1, 0)); !errors.Is(err, errUnpolled) {
		t.Errorf("out of the poller: %v", err)
	}
}

// The file is the same socket: it listens on when the listener is closed.
func TestListenerFile(t *testing.T) {
	for name, ln := range listenTwice(t) {
		f, err := ln.File()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ln.Close()
		again, err := net.FileListener(f)
		f.Close()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			c.Close()
		}
		again.Close()
	}
}
