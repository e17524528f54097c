package sockopt

import (
	"cmp"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// option reads an integer option of a connection.
func option(t *testing.T, c net.Conn, level, name int) int {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var value int
	var failed error
	if err := raw.Control(func(fd uintptr) { value, failed = syscall.GetsockoptInt(int(fd), level, name) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return value
}

func wantOptions(t *testing.T, which string, c net.Conn, userTimeoutMillis, buffer int) {
	t.Helper()
	for _, row := range []struct {
		name               string
		level, option, own int
	}{
		{"SO_KEEPALIVE", syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 45},
		{"TCP_KEEPINTVL", syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 15},
		{"TCP_KEEPCNT", syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
		{"TCP_USER_TIMEOUT", syscall.IPPROTO_TCP, tcpUserTimeout, userTimeoutMillis},
		{"TCP_NODELAY", syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
		{"SO_RCVBUF", syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2 * buffer},
		{"SO_SNDBUF", syscall.SOL_SOCKET, syscall.SO_SNDBUF, 2 * buffer},
	} {
		if got := option(t, c, row.level, row.option); got != row.own {
			t.Errorf("%s: %s is %d, want %d", which, row.name, got, row.own)
		}
	}
}

// connect makes a pair of connections through a listener.
func connect(t *testing.T, dialler *net.Dialer, ln net.Listener) (dialled, accepted net.Conn) {
	t.Helper()
	dialled, err := dialler.DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close() })
	accepted, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return dialled, accepted
}

// What is set on the listening socket is there on the accepted ones.
func TestOptionsArriveOnConnections(t *testing.T) {
	const buffer = 64 << 10 // below what any system caps
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		t.Run(address, func(t *testing.T) {
			small := Options{BufferBytes: buffer}
			ln, err := small.ListenConfig().Listen(t.Context(), "tcp", address)
			if err != nil {
				t.Skip("this machine has no IPv6")
			}
			defer ln.Close()
			dialled, accepted := connect(t, small.Dialer(), ln)
			wantOptions(t, "dialled", dialled, 90_000, buffer)
			wantOptions(t, "accepted", accepted, 90_000, buffer)

			patient := Options{BufferBytes: buffer / 2, Patience: 10 * time.Minute}
			if err := patient.Apply(ln); err != nil {
				t.Fatal(err)
			}
			dialled, later := connect(t, patient.Dialer(), ln)
			wantOptions(t, "dialled patiently", dialled, 600_000, buffer/2)
			wantOptions(t, "accepted after Apply", later, 600_000, buffer/2)
			wantOptions(t, "accepted before Apply", accepted, 90_000, buffer)
		})
	}
}

// The defaults are those of the package, as far as the system lets them.
func TestDefaultOptions(t *testing.T) {
	ln, err := Options{}.ListenConfig().Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled, accepted := connect(t, Options{}.Dialer(), ln)
	for _, c := range []net.Conn{dialled, accepted} {
		if got := option(t, c, syscall.SOL_SOCKET, syscall.SO_SNDBUF); got > 2*BufferBytes || got < BufferBytes/2 {
			t.Errorf("SO_SNDBUF is %d", got)
		}
	}
}

// A socket of multipath TCP, as net.Listen makes them where the kernel has it, and
// systemd hands over on request, takes what it knows and is no fault.
func TestApplyToMultipath(t *testing.T) {
	var multipath net.ListenConfig
	multipath.SetMultipathTCP(true)
	ln, err := multipath.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := (Options{BufferBytes: 64 << 10}).Apply(ln); err != nil {
		t.Fatal(err)
	}
	_, accepted := connect(t, Options{}.Dialer(), ln)
	if got := option(t, accepted, syscall.SOL_SOCKET, syscall.SO_RCVBUF); got != 2*64<<10 {
		t.Errorf("SO_RCVBUF is %d", got)
	}
}

// A unix socket has none of this, and is no fault.
func TestApplyLeavesOthersAlone(t *testing.T) {
	ln, err := Options{}.ListenConfig().Listen(t.Context(), "unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := (Options{}).Apply(ln); err != nil {
		t.Error(err)
	}
}

// A bound source leaves the port to connect: many sockets share one port.
func TestBindSource(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = BindSource(int(fd), netip.MustParseAddr("127.0.0.9")) })
		return cmp.Or(err, failed)
	}}
	c, err := d.DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if from := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr(); from != netip.MustParseAddr("127.0.0.9") {
		t.Errorf("connected from %s", from)
	}
	if got := option(t, c, syscall.IPPROTO_IP, ipBindAddressNoPort); got != 1 {
		t.Errorf("IP_BIND_ADDRESS_NO_PORT is %d", got)
	}
}

// A socket to this machine has bounded buffers and no delay, and no probes.
func TestSetNear(t *testing.T) {
	const buffer = 64 << 10
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialler := &net.Dialer{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		raw.Control(func(fd uintptr) { err = Options{BufferBytes: buffer}.SetNear(int(fd)) })
		return err
	}}
	dialled, _ := connect(t, dialler, ln)
	for name, row := range map[string]struct{ level, option, want int }{
		"SO_KEEPALIVE": {syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 0},
		"TCP_NODELAY":  {syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
		"SO_RCVBUF":    {syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2 * buffer},
		"SO_SNDBUF":    {syscall.SOL_SOCKET, syscall.SO_SNDBUF, 2 * buffer},
	} {
		if got := option(t, dialled, row.level, row.option); got != row.want {
			t.Errorf("%s is %d, want %d", name, got, row.want)
		}
	}
}
