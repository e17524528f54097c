package proxy

import (
	"log/slog"
	"net"
	"syscall"
	"testing"

	"relayedge/internal/sockopt"
	"relayedge/proxy/upstream"
)

// The limits reach the sockets on both sides: what a listener accepts and what
// an upstream dials.
func TestSocketOptionsFollowTheLimits(t *testing.T) {
	listen := func() net.Listener {
		ln, err := sockopt.Options{}.ListenConfig().Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln
	}
	front, relay := listen(), listen()
	with := func(bufferBytes, stallSecs int) Config {
		limits := testLimits()
		limits.SocketBufferBytes, limits.WriterStallSecs = bufferBytes, stallSecs
		return Config{
			Listeners: []Listener{{ListenerConfig: ListenerConfig{Name: "public", TLS: "none", Upstream: "relay"}, Socket: front}},
			Limits:    limits,
			Upstreams: map[string]upstream.Config{"relay": {Addresses: []string{relay.Addr().String()}, ConnectTimeoutSecs: 5}},
			Engine:    "auto", Log: slog.New(slog.DiscardHandler),
		}
	}
	edge, err := New(with(32<<10, 600))
	if err != nil {
		t.Fatal(err)
	}
	wantSocketOptions(t, front, edge, 64<<10, 600_000)
	reload, err := edge.Prepare(with(48<<10, 300))
	if err != nil {
		t.Fatal(err)
	}
	reload.Apply()
	wantSocketOptions(t, front, edge, 96<<10, 300_000)
}

// wantSocketOptions looks at a connection that front accepts and at one that the
// edge dials. The kernel counts its bookkeeping to the buffers.
func wantSocketOptions(t *testing.T, front net.Listener, edge *Server, buffer, userTimeout int) {
	t.Helper()
	client, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := front.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	link, err := edge.upstreams["relay"].Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer link.Release()
	defer link.Conn.Close()
	const tcpUserTimeout = 18
	for name, conn := range map[string]net.Conn{"accepted": accepted, "dialled": link.Conn} {
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			for _, row := range []struct{ level, option, want int }{
				{syscall.SOL_SOCKET, syscall.SO_SNDBUF, buffer},
				{syscall.SOL_SOCKET, syscall.SO_RCVBUF, buffer},
				{syscall.IPPROTO_TCP, tcpUserTimeout, userTimeout},
			} {
				if got, err := syscall.GetsockoptInt(int(fd), row.level, row.option); err != nil || got != row.want {
					t.Errorf("%s: option %d is %d, %v; want %d", name, row.option, got, err, row.want)
				}
			}
		})
	}
}
