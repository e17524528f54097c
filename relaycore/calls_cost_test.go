package relaycore

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

// heap is what is in use of the heap, garbage left out.
func heap() int64 { return int64(inUse().HeapAlloc) }

func inUse() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// What is charged for a connection that calls the API, and for a body, is at least
// what they take, and not many times as much.
func TestCallerCost(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory counts too")
	}
	cfg := DefaultConfig()
	cfg.Limits.MaxConnectionsPerIP = 0
	cfg.MessageLimits.Global.Minute = 0
	s, err := NewServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	const n, part = 200, 60_000
	conns := make([]net.Conn, n)
	before := inUse()
	took := func(what string, charged int64) {
		t.Helper()
		after := inUse()
		each := (int64(after.HeapAlloc-before.HeapAlloc) + int64(after.StackInuse) - int64(before.StackInuse)) / n
		t.Logf("%s takes %d bytes and is charged %d", what, each, charged/n)
		if each > charged/n || each < charged/n/5 {
			t.Errorf("%s takes %d bytes and is charged %d", what, each, charged/n)
		}
	}
	for i := range conns {
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		conns[i] = nc
		io.WriteString(nc, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		b := make([]byte, 1024)
		if n, err := nc.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), fmt.Sprintf("HTTP/1.1 %d", http.StatusOK)) {
			t.Fatalf("%q, %v", b[:n], err)
		}
	}
	held, _ := s.bufferBudget.sums()
	took("a connection", held)
	for _, nc := range conns {
		io.WriteString(nc, "POST /messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 90000\r\n\r\n"+`{"body":"`+strings.Repeat("x", part-9))
	}
	for by := time.Now().Add(15 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if held, _ = s.bufferBudget.sums(); held == n*(callerCost+bodyCost*part) {
			break
		}
		if time.Now().After(by) {
			t.Fatalf("%d bytes are charged of %d", held, n*(callerCost+bodyCost*part))
		}
	}
	took("a connection with most of a body", held)
	runtime.KeepAlive(conns)
}
