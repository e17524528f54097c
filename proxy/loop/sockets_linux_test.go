package loop

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"relayedge/internal/testconn"
)

// patience is how long a test waits for what has to come, on whatever machine.
const patience = 2 * time.Minute

// running returns a loop that runs until the test ends, which by then has to have
// closed every descriptor.
func running(t testing.TB) *Loop {
	t.Helper()
	leavesNone(t)
	l, err := Open(together)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(l.Run)
	t.Cleanup(func() {
		l.Stop()
		done.Wait()
	})
	return l
}

// leavesNone has a test fail that leaves descriptors open.
func leavesNone(t testing.TB) {
	t.Helper()
	open := func() []string {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
				names = append(names, e.Name()+" "+to)
			}
		}
		return names
	}
	ln := listen(t, "tcp", "127.0.0.1:0") // has the runtime open what it keeps
	ln.Close()
	before := len(open())
	t.Cleanup(func() {
		if after := open(); len(after) > before {
			t.Errorf("%d descriptors before the test, %d after it: %q", before, len(after), after)
		}
	})
}

func listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("no listener of %s %s: %v", network, address, err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// unixPath is a path that is short enough for a socket.
func unixPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "loop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// connected returns a connection of the loop's and its peer of the net package's.
func connected(t testing.TB, l *Loop, network string) (c *Conn, peer testconn.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = unixPath(t)
	}
	ln := listen(t, network, address)
	defer ln.Close()
	c, err := l.Dial(context.Background(), network, ln.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return c, accepted.(testconn.Conn)
}

// both returns two connections of the loop's that are each other's peers.
func both(t testing.TB, l *Loop, network string) (a, b *Conn) {
	t.Helper()
	a, peer := connected(t, l, network)
	b, err := l.Adopt(peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return a, b
}

// inLoop runs f in the loop's goroutine and waits for it.
func inLoop(t testing.TB, l *Loop, f func()) {
	t.Helper()
	done := make(chan struct{})
	l.Post(func() {
		f()
		close(done)
	})
	within(t, done, "the loop runs what was posted")
}

// within waits for something that has to happen.
func within[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

// together has the tests make the calls of a turn as many together as there are.
const together = 1
