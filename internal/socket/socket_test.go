package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

const poolSize = 32 << 10

// kernel is a connection over loopback.
func kernel(t testing.TB) (own *Socket, peer *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return New(dialled, NewPool(poolSize)), accepted.(*net.TCPConn)
}

// memory is a connection that does not know readiness.
func memory(t testing.TB) (own *Socket, peer *memconn.Conn) {
	t.Helper()
	a, b := memconn.Pipe(netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2"))
	t.Cleanup(func() { a.Close(); b.Close() })
	return New(a, NewPool(poolSize)), b
}

func TestByReadiness(t *testing.T) {
	if own, _ := kernel(t); own.ByReadiness() != readinessWorks {
		t.Errorf("over TCP: %v", own.ByReadiness())
	}
	if own, _ := memory(t); own.ByReadiness() {
		t.Error("in memory")
	}
}

type duplex interface {
	net.Conn
	CloseWrite() error
}

// What is read comes in a buffer of the pool's size; the end, the deadline and
// a close come without one.
func TestReadReady(t *testing.T) {
	t.Run("kernel", func(t *testing.T) {
		own, peer := kernel(t)
		testReadReady(t, own, peer)
	})
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			own, peer := memory(t)
			testReadReady(t, own, peer)
		})
	})
}

func testReadReady(t *testing.T, own *Socket, peer duplex) {
	nothing := func(when string, want error) {
		t.Helper()
		if p, err := own.ReadReady(); p != nil || !errors.Is(err, want) || own.held != nil {
			t.Errorf("%s: %d bytes, %v; a buffer is held: %v", when, len(p), err, own.held != nil)
		}
		own.Release()
	}
	own.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	nothing("at the deadline", os.ErrDeadlineExceeded)
	own.SetReadDeadline(time.Time{})

	sent := bytes.Repeat([]byte("abcdefg"), 3*poolSize/7)
	go func() {
		peer.Write(sent)
		peer.CloseWrite()
	}()
	var got []byte
	for len(got) < len(sent) {
		p, err := own.ReadReady()
		if err != nil || len(p) == 0 || len(p) > poolSize {
			t.Fatalf("%d bytes, %v", len(p), err)
		}
		got = append(got, p...)
		own.Release()
		if own.held != nil {
			t.Fatal("a buffer is held after its release")
		}
	}
	if !bytes.Equal(got, sent) {
		t.Error("other bytes came")
	}
	nothing("at the end", io.EOF)
	own.Close()
	nothing("after close", net.ErrClosed)
}

// An attempt that finds nothing to read gives its buffer back before the wait.
func TestWaitingReadHoldsNothing(t *testing.T) {
	own, peer := kernel(t)
	if !own.ByReadiness() {
		t.Skip("this system's sockets are not read by readiness")
	}
	attempted := false
	err := own.raw.Control(func(fd uintptr) {
		attempted = true
		if own.tryRead(fd) || own.held != nil {
			t.Errorf("an attempt without bytes holds %v", own.held)
		}
	})
	if err != nil || !attempted {
		t.Fatal(err)
	}
	peer.Write([]byte("hello"))
	if p, err := own.ReadReady(); string(p) != "hello" || own.held == nil {
		t.Errorf("read %q, %v", p, err)
	}
	if own.Release(); own.held != nil {
		t.Error("a buffer is held after its release")
	}
}

func TestCloseWrite(t *testing.T) {
	own, peer := memory(t)
	if err := own.CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
		t.Error(err)
	}
	whole, _ := net.Pipe()
	if err := New(whole, NewPool(1)).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a connection that only ends whole: %v", err)
	}
}

// A message there and back: what passes allocates nothing.
func BenchmarkSocketEcho(b *testing.B) {
	s, peer := kernel(b)
	go io.Copy(peer, peer)
	message := make([]byte, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.WriteAll(message, time.Second); err != nil {
			b.Fatal(err)
		}
		for left := len(message); left > 0; {
			p, err := s.ReadReady()
			if err != nil {
				b.Fatal(err)
			}
			left -= len(p)
			s.Release()
		}
	}
}
