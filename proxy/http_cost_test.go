package proxy

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"

	"relayedge/proxy/upstream"
)

// costEdge is an edge over loopback in front of a relay that answers each request
// with the same bytes, and allocates nothing for it.
func costEdge(b *testing.B, protocol string) (address string) {
	b.Helper()
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for {
			conn, err := relay.Accept()
			if err != nil {
				return
			}
			go answerAll(conn)
		}
	}()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	limits := testLimits()
	uncapped(&limits)
	limits.RateLimitBPS, limits.RateLimitBurstBytes = 1<<30, 1<<30
	limits.SocketBufferBytes = 131072
	told := map[string]string{"tcp": "none", "http": "x-real-ip"}[protocol]
	server, err := New(Config{
		Listeners: []Listener{{ListenerConfig{Name: "public", Protocol: protocol, TLS: "none", Upstream: "relay"}, front}},
		Limits:    limits, Engine: "auto", Log: slog.New(slog.DiscardHandler),
		Upstreams: map[string]upstream.Config{"relay": {Addresses: []string{relay.Addr().String()}, ClientAddress: told, ConnectTimeoutSecs: 5}},
	})
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(served)
		server.Serve(ctx)
	}()
	b.Cleanup(func() {
		stop()
		relay.Close()
		<-served
	})
	return front.Addr().String()
}

const costAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 64\r\n\r\n"

var costBody = strings.Repeat("x", 64)

func answerAll(conn net.Conn) {
	defer conn.Close()
	answer := []byte(costAnswer + costBody)
	buf := make([]byte, 16<<10)
	n := 0
	for {
		m, err := conn.Read(buf[n:])
		if err != nil {
			return
		}
		n += m
		if bytes.HasSuffix(buf[:n], []byte("\r\n\r\n")) {
			n = 0
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	}
}

const costRequest = "GET /api/messages?since=0 HTTP/1.1\r\nHost: relay.example.org\r\nUser-Agent: test\r\nAccept: */*\r\nAuthorization: Bearer 0123456789\r\n\r\n"

// BenchmarkRequest is what a request costs in protocol http, beside the same bytes
// in protocol tcp; client and relay are in it, and allocate nothing.
func BenchmarkRequest(b *testing.B) {
	for _, protocol := range []string{"tcp", "http"} {
		b.Run(protocol, func(b *testing.B) {
			conn, err := net.Dial("tcp", costEdge(b, protocol))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			request, answer := []byte(costRequest), make([]byte, 4096)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := conn.Write(request); err != nil {
					b.Fatal(err)
				}
				for n := 0; ; {
					m, err := conn.Read(answer[n:])
					if err != nil {
						b.Fatal(err)
					}
					if n += m; bytes.HasSuffix(answer[:n], []byte(costBody)) {
						break
					}
				}
			}
		})
	}
}

// BenchmarkConnection is what a connection with one request costs.
func BenchmarkConnection(b *testing.B) {
	for _, protocol := range []string{"tcp", "http"} {
		b.Run(protocol, func(b *testing.B) {
			address := costEdge(b, protocol)
			b.ReportAllocs()
			for b.Loop() {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				costAsk(b, conn)
				conn.Close()
			}
		})
	}
}

func costAsk(b *testing.B, conn net.Conn) {
	if _, err := io.WriteString(conn, costRequest); err != nil {
		b.Fatal(err)
	}
	var answer [4096]byte
	for n := 0; ; {
		m, err := conn.Read(answer[n:])
		if err != nil {
			b.Fatal(err)
		}
		if n += m; bytes.HasSuffix(answer[:n], []byte(costBody)) {
			return
		}
	}
}

// BenchmarkKept reports the memory of a connection that is kept idle behind a
// request, in the edge and in the two ends together.
func BenchmarkKept(b *testing.B) {
	const connections = 500
	for _, protocol := range []string{"tcp", "http"} {
		b.Run(protocol, func(b *testing.B) {
			address := costEdge(b, protocol)
			before := memoryInUse()
			var held []net.Conn
			for range connections {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				costAsk(b, conn)
				held = append(held, conn)
			}
			taken := memoryInUse() - before
			for b.Loop() { // nothing is timed
			}
			b.ReportMetric(float64(taken)/connections/1024, "KiB/connection")
			for _, conn := range held {
				conn.Close()
			}
		})
	}
}

func memoryInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
