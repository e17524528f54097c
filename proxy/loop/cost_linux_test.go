package loop

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A refusal allocates nothing; the pause after a batch of them does, however many
// they were.
func TestRefusalAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	l, ln, a := idleAcceptor(t, func(c *Conn) bool { c.Close(); return false })
	to := sockaddr(ln)
	allocations := func(newcomers int) float64 {
		fds := make([]int, newcomers)
		return testing.AllocsPerRun(20, func() {
			for i := range fds {
				fds[i] = rawDial(t, to)
			}
			l.now = time.Now()
			a.accept()
			if !a.paused {
				t.Fatal("nobody came")
			}
			a.resume()
			for _, fd := range fds {
				unix.Close(fd)
			}
		})
	}
	if one, many := allocations(1), allocations(30); many > one {
		t.Errorf("%v allocations for one refusal, %v for 30", one, many)
	}
}

// idleAcceptor returns an acceptor of a loop that does not run: the test calls it.
func idleAcceptor(t testing.TB, take func(*Conn) bool) (*Loop, net.Listener, *acceptor) {
	t.Helper()
	l, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.park.close)
	ln := listen(t, "tcp", "127.0.0.1:0")
	if _, err := l.Accept(ln, Accepts{Take: take, Failed: noFailure(t)}); err != nil {
		t.Fatal(err)
	}
	return l, ln, l.epoll().acceptors[0]
}

func sockaddr(ln net.Listener) unix.Sockaddr {
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
}

// rawDial connects with as little as it takes.
func rawDial(t testing.TB, to unix.Sockaddr) (fd int) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func BenchmarkAcceptRefuse(b *testing.B) {
	l, ln, a := idleAcceptor(b, func(c *Conn) bool { c.SetLinger(0); c.Close(); return false })
	to := sockaddr(ln)
	b.ReportAllocs()
	for b.Loop() {
		fd := rawDial(b, to)
		l.now = time.Now()
		a.accept()
		a.resume()
		unix.Close(fd)
	}
}

func BenchmarkAcceptTake(b *testing.B) {
	_, ln, a := idleAcceptor(b, func(c *Conn) bool { c.SetLinger(0); c.Close(); return true })
	to := sockaddr(ln)
	b.ReportAllocs()
	for b.Loop() {
		fd := rawDial(b, to)
		a.accept()
		unix.Close(fd)
	}
}

// What passes allocates nothing.
func TestDataPathAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	l, peer := turner(t)
	p := make([]byte, 1024)
	p1 := make([]byte, 1024)
	if n := testing.AllocsPerRun(200, func() {
		unix.Write(peer, p)
		oneTurn(l)
		if n, _ := unix.Read(peer, p1); n != len(p) {
			t.Fatalf("%d bytes came back", n)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a turn", n)
	}
	c, other := connected(t, running(t), "tcp")
	defer other.Close()
	if n := testing.AllocsPerRun(200, func() {
		c.TryWrite(p[:1])
		if _, err := c.TryRead(p); err != ErrWouldBlock {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for TryWrite and TryRead", n)
	}
}

// turner returns a loop that does not run, with a connection that echoes, and the
// descriptor of its peer: oneTurn runs it.
func turner(t testing.TB) (l *Loop, peer int) {
	t.Helper()
	l, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{loop: l, fd: fds[0], unix: true}
	if err := l.Hand(c, echo(l)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		unix.Close(fds[1])
		l.park.close()
	})
	oneTurn(l)
	return l, fds[1]
}

func oneTurn(l *Loop) {
	p := l.epoll()
	n := epollWait(p.fd, p.events)
	l.turn(p.resolve(p.events[:n]))
}

// A message there and back through a handler.
func BenchmarkTurn(b *testing.B) {
	l, peer := turner(b)
	p := make([]byte, 1024)
	b.ReportAllocs()
	for b.Loop() {
		unix.Write(peer, p)
		oneTurn(l)
		if n, _ := unix.Read(peer, p); n != len(p) {
			b.Fatalf("%d bytes came back", n)
		}
	}
}

// The same through the running loop, which sleeps in between.
func BenchmarkEcho(b *testing.B) {
	l := running(b)
	c, peer := connected(b, l, "tcp")
	l.Hand(c, echo(l))
	p := make([]byte, 1024)
	b.ReportAllocs()
	for b.Loop() {
		peer.Write(p)
		if _, err := io.ReadFull(peer, p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPost(b *testing.B) {
	l := running(b)
	done := make(chan struct{})
	f := func() { done <- struct{}{} }
	b.ReportAllocs()
	for b.Loop() {
		l.Post(f)
		<-done
	}
}
