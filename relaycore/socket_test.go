package relaycore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"relayedge/relaycore/wire"
)

// loopback is a connected pair of real sockets.
func loopback(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// A real socket is read by readiness: no buffer is held while it waits, and the
// deadline, the end and a reset all end the wait.
func TestReadByReadiness(t *testing.T) {
	if !readinessWorks {
		t.Skip("this system's sockets are not read by readiness")
	}
	near, far := loopback(t)
	var s socket
	s.init(far)
	if s.raw == nil {
		t.Fatal("a TCP socket is read plainly")
	}
	far.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, n, err := s.read(); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || s.buf != nil {
		t.Fatalf("%d, %v, buffer held: %v", n, err, s.buf != nil)
	}
	far.SetReadDeadline(time.Time{})
	sent := bytes.Repeat([]byte("abcdefgh"), 10000)
	go func() {
		near.Write(sent)
		near.CloseWrite()
	}()
	var got []byte
	for {
		b, n, err := s.read()
		got = append(got, b[:n]...)
		s.release()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, sent) || s.buf != nil {
		t.Fatalf("%d of %d bytes came", len(got), len(sent))
	}
}

// recorded is a TCP connection that remembers its write deadline.
type recorded struct {
	*net.TCPConn
	writeBy time.Time
}

func (r *recorded) SetWriteDeadline(t time.Time) error {
	r.writeBy = t
	return r.TCPConn.SetWriteDeadline(t)
}

// A real socket is written as far as it takes, then waits; closeAt ends a write that waits already.
func TestWriteByReadiness(t *testing.T) {
	if !readinessWorks {
		t.Skip("this system's sockets are not written by readiness")
	}
	near, far := loopback(t)
	var s socket
	record := &recorded{TCPConn: far}
	s.init(record)
	w := writerPool.Get().(*writer)
	sent := bytes.Repeat([]byte("abcdefgh"), 2<<20)
	written := make(chan error, 1)
	go func() { written <- w.writeAll(&s, sent) }()
	time.Sleep(50 * time.Millisecond) // it waits by now
	got, err := io.ReadAll(io.LimitReader(near, int64(len(sent))))
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d of %d bytes came, %v", len(got), len(sent), err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if !record.writeBy.IsZero() {
		t.Fatal("the deadline of that wait is still there")
	}
	if err := w.writeAll(&s, []byte("more")); err != nil {
		t.Fatal(err)
	}
	go func() { written <- w.writeAll(&s, sent) }()
	time.Sleep(50 * time.Millisecond)
	start := time.Now()
	s.closeAt(time.Now().Add(50 * time.Millisecond))
	if err := <-written; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Fatalf("it waited for %v", took)
	}
	far.Close()
	if err := w.writeAll(&s, sent); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

// relayOn serves on loopback for a benchmark or a test with real sockets.
func relayOn(t testing.TB, change func(*Config)) *world {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DrainSecs = 0
	cfg.Limits.RateLimitBPS = 1 << 40
	cfg.Limits.MaxConnectionsPerIP = 0
	if change != nil {
		change(&cfg)
	}
	s, err := NewServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	t.Cleanup(func() { cancel(); <-served })
	w := &world{t: t, s: s}
	w.connect = func() net.Conn {
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return nc
	}
	return w
}

// joined is a member over a real socket.
func (w *world) joined(seed byte) *peer {
	p := w.adopt(w.connect()).upgrade()
	p.hello()
	p.publish(seed)
	return p
}

// What an idle session costs, both ends' sockets and the test's reader left out:
// the relay's heap and stacks.
func TestIdleSessionIsSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("opens sockets")
	}
	w := relayOn(t, nil)
	const sessions = 500
	measure := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	var conns []net.Conn
	open := func(n int) {
		for range n {
			nc := w.connect()
			conns = append(conns, nc)
			nc.Write([]byte(upgradeRequest))
			var b [4096]byte
			if _, err := nc.Read(b[:]); err != nil {
				t.Fatal(err)
			}
		}
	}
	open(20)
	before := measure()
	open(sessions)
	// Their upgrade's goroutines end a moment after the answer.
	time.Sleep(100 * time.Millisecond)
	each := (measure() - before) / sessions
	t.Logf("%d bytes a session, the client's own connection included", each)
	if each > 12<<10 {
		t.Errorf("%d bytes a session", each)
	}
}

// BenchmarkForward is one SEND through the relay on real sockets: to the
// recipient, and the MESSAGE_ACK back.
func BenchmarkForward(b *testing.B) {
	w := relayOn(b, nil)
	from, to := w.joined(1), w.joined(2)
	circuit := w.pairUp(from, to)
	frame := masked(0x82, wire.Send{Circuit: circuit, Payload: make([]byte, 1226)}.Append(nil))
	// From here on the bytes are read without the peers' help.
	from.detach()
	to.detach()
	ack := make([]byte, 2+33)
	message := make([]byte, 4+1269)
	b.ReportAllocs()
	b.SetBytes(1226)
	for b.Loop() {
		if _, err := from.nc.Write(frame); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(to.nc, message); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(from.nc, ack); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkForwardBatch is BenchmarkForward with 32 messages on their way at once.
func BenchmarkForwardBatch(b *testing.B) {
	const batch = 32
	w := relayOn(b, nil)
	from, to := w.joined(1), w.joined(2)
	circuit := w.pairUp(from, to)
	frames := bytes.Repeat(masked(0x82, wire.Send{Circuit: circuit, Payload: make([]byte, 1226)}.Append(nil)), batch)
	from.detach()
	to.detach()
	acks := make([]byte, batch*(2+33))
	messages := make([]byte, batch*(4+1269))
	b.ReportAllocs()
	b.SetBytes(batch * 1226)
	for b.Loop() {
		if _, err := from.nc.Write(frames); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(to.nc, messages); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(from.nc, acks); err != nil {
			b.Fatal(err)
		}
	}
}
