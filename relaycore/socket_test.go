package relaycore

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"relayedge/relaycore/wire"
)

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
	// Their upgrade's goroutines end a moment after the answer, and no moment is
	// promised: what counts is what is left.
	const most = 12 << 10
	each := (measure() - before) / sessions
	for end := time.Now().Add(10 * time.Second); each > most && time.Now().Before(end); runtime.Gosched() {
		each = (measure() - before) / sessions
	}
	t.Logf("%d bytes a session, the client's own connection included", each)
	if each > most {
		t.Errorf("%d bytes a session", each)
	}
}

// A recipient that takes nothing for a while gets everything in order, whoever
// has written it: the sender's reader, as far as the socket took it, or a writer.
func TestOrderOverSockets(t *testing.T) {
	if testing.Short() {
		t.Skip("opens sockets")
	}
	w := relayOn(t, nil)
	from, to := w.joined(1), w.joined(2)
	circuit := w.pairUp(from, to)
	from.detach()
	to.detach()
	payload := make([]byte, 63<<10)
	const messages = 200
	ack := make([]byte, 2+33)
	for i := range messages {
		if _, err := from.nc.Write(masked(0x82, wire.Send{Circuit: circuit, ID: messageID(i), Payload: payload}.Append(nil))); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(from.nc, ack); err != nil {
			t.Fatal(err)
		}
		if id := messageID(i); !bytes.Equal(ack[3:], id[:]) {
			t.Fatalf("message %d was acknowledged as %x", i, ack[3:])
		}
	}
	message := make([]byte, 4+wire.SendHead+len(payload))
	for i := range messages {
		if _, err := io.ReadFull(to.nc, message); err != nil {
			t.Fatal(err)
		}
		if m, err := wire.DecodeServer(message[4:]); err != nil || m.(wire.Message).ID != messageID(i) {
			t.Fatalf("message %d is %.60x, %v", i, message, err)
		}
	}
}

// A message on its way allocates nothing.
func TestForwardAllocatesNothing(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("opens sockets, and the race detector allocates")
	}
	w := relayOn(t, nil)
	from, to := w.joined(1), w.joined(2)
	frame := masked(0x82, wire.Send{Circuit: w.pairUp(from, to), Payload: make([]byte, 1226)}.Append(nil))
	from.detach()
	to.detach()
	ack := make([]byte, 2+33)
	message := make([]byte, 4+1269)
	// A pool that a garbage collection has emptied may allocate now and then:
	// AllocsPerRun rounds down.
	if n := testing.AllocsPerRun(500, func() {
		from.nc.Write(frame)
		io.ReadFull(to.nc, message)
		io.ReadFull(from.nc, ack)
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
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
