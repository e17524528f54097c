package loop

import (
	"bytes"
	"context"
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

	"relayedge/internal/socket"
)

var conformance = []struct {
	name string
	run  func(t *testing.T, a, b duplex)
}{
	{"bytes arrive in order both ways at once", conformCopy},
	{"a past deadline fails and its removal heals", conformPastDeadline},
	{"a deadline that comes ends the wait", conformFutureDeadline},
	{"a deadline that moves while somebody waits", conformMovedDeadline},
	{"a deadline that is removed while somebody waits", conformRemovedDeadline},
	{"close ends a read and a write that wait", conformCloseWakes},
	{"half-close keeps the other direction", conformHalfClose},
	{"a write after the peer's close fails in the end", conformPeerClosed},
	{"nothing to read or write is no wait", conformEmpty},
	{"calls may race with close", conformRacing},
	{"readiness without a buffer", conformSyscallConn},
	{"readiness keeps deadlines", conformSyscallDeadlines},
	{"reads that hold no buffer, writes with patience", conformSocket},
}

// A Conn in the hands of goroutines does what a connection of the net package
// does, which the same table holds to be so.
func TestConnIsANetConn(t *testing.T) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) {
			for _, network := range []string{"tcp", "unix"} {
				t.Run(network, func(t *testing.T) {
					a, b := both(t, running(t), network)
					c.run(t, a, b)
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
				c.run(t, a.(duplex), b.(duplex))
			})
		})
	}
}

func conformCopy(t *testing.T, a, b duplex) {
	const size = 2 << 20
	var wg sync.WaitGroup
	for seed, ends := range [][2]duplex{{a, b}, {b, a}} {
		from, to := ends[0], ends[1]
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(rng.Uint32())
		}
		wg.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 1+rng.IntN(3*BufferBytes/2))
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

func conformPastDeadline(t *testing.T, a, b duplex) {
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

func conformFutureDeadline(t *testing.T, a, b duplex) {
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

// waiting starts a read, and returns its error once it has one. Whether the read
// waits already when it returns is not known, and has to make no difference.
func waitingRead(c net.Conn) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		done <- err
	}()
	return done
}

func conformMovedDeadline(t *testing.T, a, b duplex) {
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

func conformRemovedDeadline(t *testing.T, a, b duplex) {
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

func conformCloseWakes(t *testing.T, a, b duplex) {
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
	raw, err := a.(syscall.Conn).SyscallConn()
	if err == nil {
		err = raw.Control(func(uintptr) { t.Error("Control has a descriptor that is closed") })
	}
	if err == nil {
		t.Error("Control after Close succeeded")
	}
	if _, err := io.Copy(io.Discard, b); err != nil {
		t.Errorf("the peer: %v", err)
	}
}

func conformHalfClose(t *testing.T, a, b duplex) {
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

func conformPeerClosed(t *testing.T, a, b duplex) {
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

func conformEmpty(t *testing.T, a, b duplex) {
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

// conformRacing is for the race detector, and against a wait without end.
func conformRacing(t *testing.T, a, b duplex) {
	var wg sync.WaitGroup
	for _, c := range []duplex{a, b} {
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

func conformSyscallConn(t *testing.T, a, b duplex) {
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
}

func conformSyscallDeadlines(t *testing.T, a, b duplex) {
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

func conformSocket(t *testing.T, a, b duplex) {
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
	if _, err := watched.Read(make([]byte, 1)); !isTimeout(err) {
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
