// Package testconn holds connections to what one of the net package does: those in
// memory, those of an event loop, and the kernel's own, which says that the suite is
// right. What only some promise is tested beside them.
package testconn

import (
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Conn is what the suite needs of a connection; *net.TCPConn has it.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Case is one thing that two connected ends do. Run may be run in a bubble; it
// leaves them open or closed, and nobody waiting in them once both are closed.
type Case struct {
	Name string
	Run  func(t *testing.T, a, b Conn)
}

// Cases are the suite: for a reader and a writer at a time.
var Cases = []Case{
	{"bytes arrive in order both ways at once", bothWays},
	{"a past deadline fails and its removal heals", pastDeadline},
	{"a deadline that comes ends the wait", futureDeadline},
	{"a deadline that moves while somebody waits", movedDeadline},
	{"a deadline that is removed while somebody waits", removedDeadline},
	{"close ends a read and a write that wait", closeWakes},
	{"half-close keeps the other direction", halfClose},
	{"a write after the peer's close fails in the end", peerClosed},
	{"nothing to read or write is no wait", empty},
	{"calls may race with close", racing},
}

// patience is how long what has to come may take, on whatever machine.
const patience = 2 * time.Minute

// within waits for something that has to happen.
func within[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

func bothWays(t *testing.T, a, b Conn) {
	const size = 2 << 20
	var wg sync.WaitGroup
	for seed, ends := range [][2]Conn{{a, b}, {b, a}} {
		from, to := ends[0], ends[1]
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(rng.Uint32())
		}
		wg.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 1+rng.IntN(96<<10))
				if m, err := from.Write(rest[:n]); err != nil || m != n {
					t.Errorf("Write: %d of %d, %v", m, n, err)
					return
				}
				rest = rest[n:]
			}
			if err := from.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := io.ReadAll(to)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
				t.Errorf("%d of %d bytes arrived, or others: %v", len(got), size, err)
			}
		})
	}
	wg.Wait()
}

func pastDeadline(t *testing.T, a, b Conn) {
	if _, err := b.Write([]byte("waits")); err != nil {
		t.Fatal(err)
	}
	a.SetDeadline(time.Unix(1, 0))
	for range 2 {
		if n, err := a.Read(make([]byte, 8)); n != 0 || !isTimeout(err) {
			t.Fatalf("Read: %d, %v", n, err)
		}
		if n, err := a.Write([]byte("x")); n != 0 || !isTimeout(err) {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	a.SetDeadline(time.Time{})
	p := make([]byte, 5)
	if _, err := io.ReadFull(a, p); string(p) != "waits" || err != nil {
		t.Fatalf("Read: %q, %v", p, err)
	}
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatalf("Write: %v", err)
	}
}

// isTimeout reports whether an error is one as callers of net tell it.
func isTimeout(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Timeout() && errors.Is(err, os.ErrDeadlineExceeded)
}

func futureDeadline(t *testing.T, a, b Conn) {
	const wait = 10 * time.Millisecond
	start := time.Now()
	a.SetReadDeadline(start.Add(wait))
	if _, err := a.Read(make([]byte, 1)); !isTimeout(err) {
		t.Fatalf("Read: %v", err)
	}
	if d := time.Since(start); d < wait {
		t.Fatalf("Read came back after %v", d)
	}
	big := make([]byte, 64<<20) // more than any kernel buffers
	for wait := wait; ; wait *= 2 {
		a.SetWriteDeadline(time.Now().Add(wait))
		n, err := a.Write(big)
		if !isTimeout(err) {
			t.Fatalf("Write: %d, %v", n, err)
		}
		if n > 0 {
			return
		}
		if wait > time.Minute { // on a busy machine a short one is over before the call
			t.Fatal("a write that met its deadline took nothing")
		}
	}
}

// waitingRead starts a read, and returns its error once it has one. Whether the read
// waits already when it returns is not known, and has to make no difference.
func waitingRead(c net.Conn) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		done <- err
	}()
	return done
}

func movedDeadline(t *testing.T, a, b Conn) {
	a.SetReadDeadline(time.Now().Add(time.Hour))
	done := waitingRead(a)
	a.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if err := within(t, done, "a read ends whose deadline has moved"); !isTimeout(err) {
		t.Errorf("earlier: %v", err)
	}
	a.SetReadDeadline(time.Time{})
	done = waitingRead(a)
	a.SetReadDeadline(time.Unix(1, 0))
	if err := within(t, done, "a read ends whose deadline is set"); !isTimeout(err) {
		t.Errorf("at once: %v", err)
	}
	a.SetReadDeadline(time.Now().Add(time.Hour))
	b.Write([]byte("x"))
	if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("later: %d, %v", n, err)
	}
}

func removedDeadline(t *testing.T, a, b Conn) {
	soon := time.Now().Add(50 * time.Millisecond)
	a.SetReadDeadline(soon)
	done := waitingRead(a)
	if time.Now().Before(soon) {
		a.SetReadDeadline(time.Time{})
	}
	if removed := time.Now().Before(soon); !removed {
		t.Skip("this machine is too slow to remove a deadline before it comes")
	}
	time.Sleep(time.Until(soon.Add(20 * time.Millisecond)))
	b.Write([]byte("x"))
	if err := within(t, done, "a read ends"); err != nil {
		t.Errorf("Read: %v", err)
	}
}

func closeWakes(t *testing.T, a, b Conn) {
	read := waitingRead(a)
	written := make(chan error, 1)
	go func() {
		_, err := a.Write(make([]byte, 64<<20))
		written <- err
	}()
	io.CopyN(io.Discard, b, 1<<20) // the write is under way
	a.Close()
	for name, done := range map[string]<-chan error{"Read": read, "Write": written} {
		if err := within(t, done, name+" ends"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write: %v", err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read: %v", err)
	}
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Close: %v", err)
	}
	if err := a.CloseWrite(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("CloseWrite: %v", err)
	}
	for _, set := range []func(time.Time) error{a.SetDeadline, a.SetReadDeadline, a.SetWriteDeadline} {
		for _, at := range []time.Time{{}, time.Unix(1, 0), time.Now().Add(time.Hour)} {
			if err := set(at); !errors.Is(err, net.ErrClosed) {
				t.Errorf("SetDeadline(%v): %v", at, err)
			}
		}
	}
	if _, err := io.Copy(io.Discard, b); err != nil {
		t.Errorf("the peer: %v", err)
	}
}

func halfClose(t *testing.T, a, b Conn) {
	a.Write([]byte("request"))
	for range 2 {
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := io.ReadAll(b); string(got) != "request" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("Write after CloseWrite: %v", err)
	}
	b.Write([]byte("reply"))
	b.Close()
	if got, err := io.ReadAll(a); string(got) != "reply" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
}

func peerClosed(t *testing.T, a, b Conn) {
	b.Close()
	over := time.Now().Add(patience)
	for {
		_, err := a.Write([]byte("x"))
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return
		}
		if err != nil || time.Now().After(over) {
			t.Fatalf("Write: %v", err)
		}
		time.Sleep(time.Millisecond) // a kernel's RST is under way
	}
}

func empty(t *testing.T, a, b Conn) {
	if n, err := a.Read(nil); n != 0 || err != nil {
		t.Errorf("Read: %d, %v", n, err)
	}
	if n, err := a.Write(nil); n != 0 || err != nil {
		t.Errorf("Write: %d, %v", n, err)
	}
	b.Write([]byte("x"))
	if n, err := a.Read(make([]byte, 9)); n != 1 || err != nil {
		t.Errorf("Read: %d, %v", n, err)
	}
}

// racing is for the race detector, and against a wait without end.
func racing(t *testing.T, a, b Conn) {
	var wg sync.WaitGroup
	for _, c := range []Conn{a, b} {
		wg.Go(func() { io.Copy(io.Discard, c) })
		wg.Go(func() { c.Write(make([]byte, 8<<20)) })
		wg.Go(func() {
			for range 100 {
				c.SetDeadline(time.Now().Add(time.Hour))
				c.SetReadDeadline(time.Time{})
				c.SetWriteDeadline(time.Now().Add(time.Hour))
				_, _ = c.LocalAddr(), c.RemoteAddr()
			}
			c.Close()
		})
	}
	wg.Wait()
}
