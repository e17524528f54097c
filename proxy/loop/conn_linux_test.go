package loop

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"relayedge/internal/socket"
	"relayedge/internal/testconn"
)

// conformance is the suite of all connections, and what those of the kernel do.
var conformance = append(slices.Clone(testconn.Cases),
	testconn.Case{Name: "readiness without a buffer", Run: conformSyscallConn},
	testconn.Case{Name: "readiness keeps deadlines", Run: conformSyscallDeadlines},
	testconn.Case{Name: "reads that hold no buffer, writes with patience", Run: conformSocket},
)

// A Conn in the hands of goroutines does what a connection of the net package
// does, which the same suite holds to be so.
func TestConnIsANetConn(t *testing.T) {
	for _, c := range conformance {
		t.Run(c.Name, func(t *testing.T) {
			for _, network := range []string{"tcp", "unix"} {
				t.Run(network, func(t *testing.T) {
					a, b := both(t, running(t), network)
					c.Run(t, a, b)
				})
			}
			t.Run("net", func(t *testing.T) {
				leavesNone(t)
				ln := listen(t, "tcp", "127.0.0.1:0")
				a, err := net.Dial("tcp", ln.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { a.Close() })
				b, err := ln.Accept()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { b.Close() })
				c.Run(t, a.(testconn.Conn), b.(testconn.Conn))
			})
		})
	}
}

func conformSyscallConn(t *testing.T, a, b testconn.Conn) {
	raw, err := a.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	p := make([]byte, 8)
	var n int
	go func() {
		time.Sleep(10 * time.Millisecond) // most times the read waits by then
		b.Write([]byte("hello"))
	}()
	err = raw.Read(func(fd uintptr) bool {
		calls++
		n, err = syscall.Read(int(fd), p)
		return err != syscall.EAGAIN
	})
	if err != nil || string(p[:max(n, 0)]) != "hello" {
		t.Errorf("Read: %q, %v after %d calls", p[:max(n, 0)], err, calls)
	}
	filled := false
	err = raw.Write(func(fd uintptr) bool {
		for {
			_, err := syscall.Write(int(fd), make([]byte, 1<<20))
			switch {
			case err == syscall.EAGAIN && filled: // woken for nothing
				return false
			case err == syscall.EAGAIN:
				filled = true
				go io.Copy(io.Discard, b)
				return false
			case err != nil:
				t.Error(err)
				return true
			case filled:
				return true
			}
		}
	})
	if err != nil || !filled {
		t.Errorf("Write: %v, filled %v", err, filled)
	}
	if err := raw.Control(func(fd uintptr) {
		if _, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TYPE); err != nil {
			t.Errorf("Control's descriptor: %v", err)
		}
	}); err != nil {
		t.Errorf("Control: %v", err)
	}
	a.Close()
	if err := raw.Control(func(uintptr) { t.Error("Control has a descriptor that is closed") }); err == nil {
		t.Error("Control after Close succeeded")
	}
}

func conformSyscallDeadlines(t *testing.T, a, b testconn.Conn) {
	raw, err := a.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	ways := []struct {
		name string
		set  func(time.Time) error
		run  func(func(uintptr) bool) error
	}{
		{"Read", a.SetReadDeadline, raw.Read},
		{"Write", a.SetWriteDeadline, raw.Write},
	}
	for _, w := range ways {
		w.set(time.Now().Add(10 * time.Millisecond))
		if err := w.run(func(uintptr) bool { return false }); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s until the deadline: %v", w.name, err)
		}
		if err := w.run(func(uintptr) bool {
			t.Errorf("%s is called after its deadline", w.name)
			return true
		}); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s after the deadline: %v", w.name, err)
		}
		w.set(time.Time{})
		if err := w.run(func(uintptr) bool { return true }); err != nil {
			t.Errorf("%s without a deadline: %v", w.name, err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- raw.Read(func(uintptr) bool { return false }) }()
	a.Close()
	if err := within(t, done, "Read ends with Close"); err == nil {
		t.Error("a Read that waited ends well with Close")
	}
}

func conformSocket(t *testing.T, a, b testconn.Conn) {
	own := socket.New(a, socket.NewPool(32<<10))
	if !own.ByReadiness() {
		t.Fatal("reads hold a buffer while they wait")
	}
	own.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := own.ReadReady(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("ReadReady at its deadline: %v", err)
	}
	own.SetReadDeadline(time.Time{})
	go b.Write([]byte("hello"))
	if p, err := own.ReadReady(); string(p) != "hello" || err != nil {
		t.Errorf("ReadReady: %q, %v", p, err)
	}
	own.Release()
	if err := own.WriteAll(make([]byte, 64<<20), 50*time.Millisecond); !errors.Is(err, socket.ErrStalled) {
		t.Errorf("WriteAll to a peer that reads nothing: %v", err)
	}
	go io.Copy(io.Discard, b)
	if err := own.WriteAll(make([]byte, 8<<20), patience); err != nil {
		t.Errorf("WriteAll to a peer that reads on: %v", err)
	}
	own.Close()
}

// SetLinger(0) has the peer see a reset, and less than 0 takes that back.
func TestSetLinger(t *testing.T) {
	l := running(t)
	for seconds, want := range map[int]error{0: syscall.ECONNRESET, -1: io.EOF} {
		c, peer := connected(t, l, "tcp")
		c.SetLinger(0)
		if err := c.SetLinger(seconds); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("SetLinger(%d): the peer reads %v", seconds, err)
		}
		if err := c.SetLinger(seconds); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// Try takes what there is and never waits; its errors are the kernel's own.
func TestTry(t *testing.T) {
	l := running(t)
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			c, peer := connected(t, l, network)
			p := make([]byte, 1<<20)
			if n, err := c.TryRead(p); n != 0 || err != ErrWouldBlock {
				t.Errorf("TryRead of nothing: %d, %v", n, err)
			}
			total := 0
			for {
				n, err := c.TryWrite(p)
				if err == ErrWouldBlock && n == 0 {
					break
				}
				if err != nil || n == 0 {
					t.Fatalf("TryWrite: %d, %v", n, err)
				}
				total += n
			}
			if n, err := io.ReadFull(peer, make([]byte, total)); n != total || err != nil {
				t.Errorf("%d of %d bytes came: %v", n, total, err)
			}
			peer.Write([]byte("end"))
			peer.CloseWrite()
			if got, err := io.ReadAll(c); string(got) != "end" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if n, err := c.TryRead(p); n != 0 || err != io.EOF {
				t.Errorf("TryRead at the end: %d, %v", n, err)
			}
			if n, err := c.TryRead(nil); n != 0 || err != nil {
				t.Errorf("TryRead into nothing: %d, %v", n, err)
			}
			c.Close()
			if _, err := c.TryRead(p); err != net.ErrClosed {
				t.Errorf("TryRead after Close: %v", err)
			}
			if _, err := c.TryWrite(p); err != net.ErrClosed {
				t.Errorf("TryWrite after Close: %v", err)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	l := running(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln := listen(t, "tcp", address)
		c, err := l.Dial(t.Context(), "tcp", ln.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		accepted, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		if c.RemoteAddr().String() != accepted.LocalAddr().String() || c.LocalAddr().String() != accepted.RemoteAddr().String() {
			t.Errorf("%s from %s; the peer is %s and has %s", c.RemoteAddr(), c.LocalAddr(), accepted.LocalAddr(), accepted.RemoteAddr())
		}
		if c.RemoteAddr().Network() != "tcp" || c.PeerAddrPort().String() != ln.Addr().String() {
			t.Errorf("%s, %s", c.RemoteAddr().Network(), c.PeerAddrPort())
		}
		c.Close()
		if c.LocalAddr().String() != accepted.RemoteAddr().String() {
			t.Errorf("the address that was asked for is forgotten at Close: %s", c.LocalAddr())
		}
	}
	c, _ := connected(t, l, "unix")
	for _, a := range []net.Addr{c.LocalAddr(), c.RemoteAddr()} {
		if u, ok := a.(*net.UnixAddr); !ok || u.Network() != "unix" || u.Name != "" {
			t.Errorf("%T %v", a, a)
		}
	}
	if c.PeerAddrPort().IsValid() || c.LocalAddrPort().IsValid() {
		t.Error("a unix socket has an AddrPort")
	}
}

// A deadline's timer does not outlive the connection: many that each came with one
// would fill the memory with them.
func TestCloseForgetsDeadlines(t *testing.T) {
	l := running(t)
	for _, end := range []struct {
		name string
		does func(c *Conn)
	}{
		{"Close", func(c *Conn) { c.Close() }},
		{"Hand", func(c *Conn) { l.Hand(c, &reactor{ready: func(Stream, Event) {}}) }},
	} {
		c, _ := connected(t, l, "tcp")
		c.SetDeadline(time.Now().Add(time.Hour))
		waits := c.waits
		end.does(c)
		for _, d := range []*deadline{waits.readBy, waits.writeBy} {
			if d.timer != nil {
				t.Errorf("%s: a timer is left", end.name)
			}
			d.set(time.Now().Add(-time.Second)) // by who raced with it: it does not hang
		}
	}
}

// A read that has begun is woken by what came before it waited.
func TestNothingIsMissedBeforeTheFirstWait(t *testing.T) {
	l := running(t)
	for range 200 {
		c, peer := connected(t, l, "tcp")
		lent := make(chan struct{})
		var once sync.Once
		err := l.Hand(c, &reactor{ready: func(s Stream, e Event) {
			once.Do(func() {
				l.Lend(s)
				close(lent)
			})
		}})
		if err != nil {
			t.Fatal(err)
		}
		go peer.Write([]byte("x")) // before, after or between Lend and the wait
		within(t, lent, "a connection is lent")
		c.SetReadDeadline(time.Now().Add(patience))
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Fatalf("Read: %d, %v", n, err)
		}
		c.Close()
		peer.Close()
	}
}

// What the poller told between Lend and the first wait is for the wait.
func TestMissedEventIsTold(t *testing.T) {
	l := running(t)
	c, peer := connected(t, l, "tcp")
	hand := make(chan Event, 16)
	if err := l.Hand(c, &reactor{ready: func(_ Stream, e Event) { hand <- e }}); err != nil {
		t.Fatal(err)
	}
	within(t, hand, "the handler is told")
	inLoop(t, l, func() { l.Lend(c) })
	peer.Write([]byte("x"))
	seen := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.missed.Readable
	}
	for over := time.Now().Add(patience); !seen(); {
		if time.Now().After(over) {
			t.Fatal("the event of a lent connection is nowhere")
		}
		time.Sleep(time.Millisecond)
	}
	c.mu.Lock()
	waits, err := c.waiting()
	c.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-waits.readable:
	default:
		t.Error("a missed event does not wake who waits")
	}
}

// A pattern of a hostile kernel would be short writes; a peer that reads slowly
// makes them.
func TestWriteGoesOnAfterPartialOnes(t *testing.T) {
	l := running(t)
	c, peer := connected(t, l, "unix")
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	done := make(chan error, 1)
	go func() {
		n, err := c.Write(sent)
		if err == nil && n != len(sent) {
			err = io.ErrShortWrite
		}
		c.CloseWrite()
		done <- err
	}()
	var got []byte
	p := make([]byte, 1337)
	for {
		n, err := peer.Read(p)
		got = append(got, p[:n]...)
		if err != nil {
			break
		}
	}
	if err := within(t, done, "Write ends"); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
	}
}

// After Stop a connection ends as others do: nothing is told of it any longer,
// but a deadline and Close work, and nothing touches descriptors of others.
func TestConnOutlivesItsLoop(t *testing.T) {
	leavesNone(t)
	l, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	var run sync.WaitGroup
	run.Go(l.Run)
	watched, _ := both(t, l, "tcp")
	fresh, peer := both(t, l, "tcp")
	watched.SetReadDeadline(time.Now().Add(time.Hour))
	l.Stop()
	run.Wait()
	if _, err := fresh.Read(make([]byte, 1)); !errors.Is(err, errEnded) {
		t.Errorf("a wait that begins: %v", err)
	}
	watched.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := watched.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a wait until the deadline: %v", err)
	}
	if err := l.Hand(fresh, &reactor{}); !errors.Is(err, errEnded) {
		t.Errorf("Hand: %v", err)
	}
	other, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	run.Go(other.Run)
	told := make(chan struct{}, 16)
	if err := other.Hand(watched, &reactor{ready: func(Stream, Event) { told <- struct{}{} }}); err != nil {
		t.Errorf("Hand to another loop: %v", err)
	}
	within(t, told, "another loop takes the connection over")
	other.Stop()
	run.Wait()
	for _, c := range []*Conn{watched, fresh, peer} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Dial(context.Background(), "tcp", "127.0.0.1:1", nil); err == nil {
		t.Error("a dial to a port that nobody has succeeds")
	}
}
