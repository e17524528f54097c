package proxy

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// tcpPair is a connection over loopback.
func tcpPair(t *testing.T) (own socket, peer *net.TCPConn) {
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
	return newSocket(dialled), accepted.(*net.TCPConn)
}

func TestSocketIsRaw(t *testing.T) {
	own, _ := tcpPair(t)
	if _, plain := own.(*plainSocket); plain {
		t.Skip("this system has no raw sockets")
	}
}

// What is read comes in a buffer; the end, the deadline and a close come without one.
func TestReadReady(t *testing.T) {
	own, peer := tcpPair(t)
	got := make(chan []byte)
	go func() {
		b, n, err := own.readReady()
		if err != nil {
			t.Error(err)
			close(got)
			return
		}
		got <- bytes.Clone(b[:n])
		putBuffer(b)
	}()
	peer.Write([]byte("hello"))
	if p := <-got; string(p) != "hello" {
		t.Errorf("read %q", p)
	}

	own.SetReadDeadline(time.Now().Add(time.Millisecond))
	if b, n, err := own.readReady(); b != nil || n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("at the deadline: %v, %d, %v", b, n, err)
	}
	own.SetReadDeadline(time.Time{})
	peer.CloseWrite()
	if b, n, err := own.readReady(); b != nil || n != 0 || err != io.EOF {
		t.Errorf("at the end: %v, %d, %v", b, n, err)
	}
	own.Close()
	if b, n, err := own.readReady(); b != nil || n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("after close: %v, %d, %v", b, n, err)
	}
}

// A slow peer gets every byte, however long it takes in all; patience is only
// for the time without any.
func TestWriteAllToSlowPeer(t *testing.T) {
	own, peer := tcpPair(t)
	peer.SetReadBuffer(32 << 10)
	const patience = 2 * time.Second
	sent := make([]byte, 8<<20)
	rand.Read(sent)
	done := make(chan error, 1)
	go func() { done <- own.writeAll(sent, patience) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("received: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("writeAll: %v", err)
	}
	// No deadline is left behind.
	go func() { done <- own.writeAll(sent, patience) }()
	if _, err := io.ReadFull(peer, got); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the second writeAll: %v", err)
	}
}

func TestWriteAllStalls(t *testing.T) {
	const patience = 50 * time.Millisecond
	own, _ := tcpPair(t)
	began := time.Now()
	if err := own.writeAll(make([]byte, 64<<20), patience); err != errStalled || time.Since(began) < patience {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// hurry cuts a write that waits, at whatever moment it comes; what the peer
// takes at once can be written afterwards.
func TestHurry(t *testing.T) {
	for range 50 {
		own, peer := tcpPair(t)
		done := make(chan error, 1)
		go func() { done <- own.writeAll(make([]byte, 64<<20), time.Hour) }()
		runtime.Gosched()
		own.hurry()
		if err := <-done; err != errStalled {
			t.Fatalf("the write that waited: %v", err)
		}
		if err := own.writeAll(make([]byte, 64<<20), time.Hour); err != errStalled {
			t.Fatalf("a large write afterwards: %v", err)
		}
		go io.Copy(io.Discard, peer)
		for own.writeAll([]byte("goodbye"), time.Hour) != nil {
			runtime.Gosched() // until the peer has made room
		}
		peer.Close()
		own.Close()
	}
}

func TestWriteAllToClosedPeer(t *testing.T) {
	own, peer := tcpPair(t)
	peer.SetLinger(0)
	peer.Close()
	var err error
	for range 1000 {
		if err = own.writeAll(make([]byte, 1<<20), time.Second); err != nil {
			break
		}
	}
	if streamEnd(err) != Reset {
		t.Errorf("writeAll: %v", err)
	}
}

// While nothing comes, readReady holds no buffer; what passes allocates nothing.
func BenchmarkSocketEcho(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err == nil {
			io.Copy(c, c)
		}
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	s := newSocket(c)
	message := make([]byte, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.writeAll(message, time.Second); err != nil {
			b.Fatal(err)
		}
		for left := len(message); left > 0; {
			buf, n, err := s.readReady()
			if err != nil {
				b.Fatal(err)
			}
			left -= n
			putBuffer(buf)
		}
	}
}
