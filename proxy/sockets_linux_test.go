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
	limits := testLimits()
	limits.SocketBufferBytes, limits.WriterStallSecs = 32<<10, 600
	up := upstream.New("relay", upstream.Config{Addresses: []string{relay.Addr().String()}, ConnectTimeoutSecs: 5}, slog.New(slog.DiscardHandler), nil)
	if _, err := New(Config{
		Listeners: []Listener{{ListenerConfig: ListenerConfig{Name: "public", TLS: "none", Upstream: "relay"}, Socket: front}},
		Limits:    limits, Upstreams: map[string]*upstream.Upstream{"relay": up}, Engine: "auto", Log: slog.New(slog.DiscardHandler),
	}); err != nil {
		t.Fatal(err)
	}
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
	link, err := up.Dial(t.Context())
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
				{syscall.SOL_SOCKET, syscall.SO_SNDBUF, 64 << 10},
				{syscall.SOL_SOCKET, syscall.SO_RCVBUF, 64 << 10},
				{syscall.IPPROTO_TCP, tcpUserTimeout, 600_000},
			} {
				if got, err := syscall.GetsockoptInt(int(fd), row.level, row.option); err != nil || got != row.want {
					t.Errorf("%s: option %d is %d, %v; want %d", name, row.option, got, err, row.want)
				}
			}
		})
	}
}
