package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"relayedge/internal/testport"
)

func TestDial(t *testing.T) {
	for _, c := range []struct{ network, address string }{
		{"tcp", "127.0.0.1:0"},
		{"tcp", "[::1]:0"},
		{"unix", ""},
	} {
		t.Run(c.network+" "+c.address, func(t *testing.T) {
			l := running(t)
			if c.network == "unix" {
				c.address = unixPath(t)
			}
			ln := listen(t, c.network, c.address)
			prepared := 0
			conn, err := l.Dial(t.Context(), c.network, ln.Addr().String(), func(fd int) error {
				prepared++
				return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
			})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			peer, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				io.WriteString(peer, "hello")
				peer.Close()
			}()
			if got, err := io.ReadAll(conn); string(got) != "hello" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			rawConn{conn}.Control(func(fd uintptr) {
				if on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 1 || err != nil {
					t.Errorf("what was prepared: %d, %v", on, err)
				}
				flags, _ := unix.FcntlInt(fd, unix.F_GETFD, 0)
				if status, _ := unix.FcntlInt(fd, unix.F_GETFL, 0); flags&unix.FD_CLOEXEC == 0 || status&unix.O_NONBLOCK == 0 {
					t.Error("the descriptor is inherited, or blocks")
				}
			})
			if prepared != 1 {
				t.Errorf("prepared %d times", prepared)
			}
		})
	}
}

// A v4-mapped address is dialled as what it stands for.
func TestDialMapped(t *testing.T) {
	l := running(t)
	ln := listen(t, "tcp4", "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	c, err := l.Dial(t.Context(), "tcp", "[::ffff:127.0.0.1]:"+port, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.PeerAddrPort().String() != ln.Addr().String() {
		t.Errorf("the peer is %v", c.PeerAddrPort())
	}
}

func TestDialFails(t *testing.T) {
	l := running(t)
	nobody := fmt.Sprintf("127.0.0.1:%d", testport.Free(t))
	over, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancelLate := context.WithTimeout(context.Background(), -1)
	defer cancelLate()
	errPrepare := errors.New("cannot be prepared")
	for _, c := range []struct {
		name             string
		ctx              context.Context
		network, address string
		prepare          func(int) error
		want             error
		says             string
	}{
		{"refused", t.Context(), "tcp", nobody, nil, syscall.ECONNREFUSED, "connect: "},
		{"no unix socket", t.Context(), "unix", "/nonexistent/socket", nil, syscall.ENOENT, "connect: "},
		{"too long a path", t.Context(), "unix", strings.Repeat("x", 200), nil, syscall.EINVAL, ""},
		{"a name", t.Context(), "tcp", "localhost:80", nil, nil, "no literal address"},
		{"no port", t.Context(), "tcp", "127.0.0.1", nil, nil, "no literal address"},
		{"a broadcast address", t.Context(), "tcp", "255.255.255.255:9", nil, syscall.ENETUNREACH, "connect: "},
		{"cancelled", over, "tcp", nobody, nil, context.Canceled, ""},
		{"late", late, "tcp", nobody, nil, context.DeadlineExceeded, ""},
		{"prepare", t.Context(), "tcp", nobody, func(int) error { return errPrepare }, errPrepare, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := l.Dial(c.ctx, c.network, c.address, c.prepare)
			if conn != nil || err == nil {
				t.Fatalf("%v, %v", conn, err)
			}
			if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" || op.Net != c.network {
				t.Errorf("%T %v", err, err)
			}
			if c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// silent returns an address at which a connect is not answered: a listener whose
// queue is full.
func silent(t testing.TB) (address string, listener int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	address = localOf(fd).String()
	for range 16 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		cancel()
		if err != nil {
			return address, fd
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Skip("this kernel answers beyond the queue of a listener")
	return "", -1
}

// A peer that does not answer is waited for as long as the context allows.
func TestDialOfASilentAddress(t *testing.T) {
	l := running(t)
	address, _ := silent(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := l.Dial(ctx, "tcp", address, nil)
	var timeout net.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%v", err)
	}
	if d := time.Since(began); d < 20*time.Millisecond {
		t.Errorf("given up after %v", d)
	}
	ctx, cancel = context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := l.Dial(ctx, "tcp", address, nil)
		failed <- err
	}()
	time.Sleep(time.Millisecond)
	cancel()
	if err := within(t, failed, "a dial ends with its context"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A socket that TCP has connected to itself is no connection to anybody: the
// kernel may choose the port that is dialled for this end.
func TestDialReachesNotItself(t *testing.T) {
	l := running(t)
	free := listen(t, "tcp", "127.0.0.1:0")
	free.Close()
	at := free.Addr().(*net.TCPAddr).AddrPort()
	c, err := l.Dial(t.Context(), "tcp", at.String(), func(fd int) error {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
	})
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connected to itself: %v, %v", c, err)
	}
}

// A dial that succeeds at the moment at which its context ends gives a connection
// that can be written, or none.
func TestDialRacesWithItsContext(t *testing.T) {
	l := running(t)
	address, listener := silent(t)
	ctx := &lateContext{Context: t.Context(), awaited: make(chan struct{})}
	type result struct {
		conn *Conn
		err  error
	}
	dialled := make(chan result, 1)
	go func() {
		c, err := l.Dial(ctx, "tcp", address, nil)
		dialled <- result{c, err}
	}()
	within(t, ctx.awaited, "the dial waits")
	for { // makes room in the queue, and the kernel asks again in a second
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err == nil {
			unix.Close(fd)
		}
		select {
		case r := <-dialled:
			if r.conn == nil {
				return
			}
			defer r.conn.Close()
			for range 50 { // who ends it has begun by then
				if by := r.conn.deadlineOf(writeWay); by != nil && by.isOver() {
					t.Fatal("writes of the connection are over before they begin")
				}
				time.Sleep(time.Millisecond)
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// lateContext ends just after somebody was told, for the second time, that it has
// not.
type lateContext struct {
	context.Context
	asked   atomic.Int64
	end     func()
	awaited chan struct{} // closed once somebody waits for its end
}

// Done is another channel than that of the context within, which has AfterFunc
// asked for.
func (c *lateContext) Done() <-chan struct{} { return make(chan struct{}) }

func (c *lateContext) Err() error {
	switch c.asked.Add(1) {
	case 1:
		return nil
	case 2:
		c.end()
		return nil
	}
	return context.Canceled
}

func (c *lateContext) AfterFunc(f func()) (stop func() bool) {
	c.end = f
	close(c.awaited)
	return func() bool { return true }
}

func TestAdopt(t *testing.T) {
	l := running(t)
	for _, network := range []string{"tcp", "unix"} {
		a, b := both(t, l, network)
		go func() {
			b.Write([]byte("hello"))
			b.Close()
		}()
		if got, err := io.ReadAll(a); string(got) != "hello" || err != nil {
			t.Errorf("%s: %q, %v", network, got, err)
		}
		if b.PeerAddrPort() != a.LocalAddrPort() || b.RemoteAddr().Network() != network {
			t.Errorf("%s: the peer is %v", network, b.RemoteAddr())
		}
	}
	x, y := net.Pipe()
	defer y.Close()
	if _, err := l.Adopt(x); err == nil {
		t.Error("a connection without a descriptor is adopted")
	}
	if _, err := x.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("what is not adopted is not closed: %v", err)
	}
	ln := listen(t, "tcp", "127.0.0.1:0")
	closed := dialNet(t, ln)
	closed.Close()
	if _, err := l.Adopt(closed); err == nil {
		t.Error("a closed connection is adopted")
	}
}
