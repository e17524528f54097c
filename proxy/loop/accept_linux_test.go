package loop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// accepts has the loop take a listener's newcomers until the test ends.
func accepts(t testing.TB, l *Loop, ln net.Listener, takes Accepts) (stop func()) {
	t.Helper()
	stop, err := l.Accept(ln, takes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return stop
}

func dialNet(t testing.TB, ln net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial(ln.Addr().Network(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func noFailure(t testing.TB) func(error) time.Duration {
	return func(err error) time.Duration {
		t.Errorf("Failed: %v", err)
		return -1
	}
}

func TestAcceptedAddresses(t *testing.T) {
	for _, c := range []struct{ name, network, listen, dial string }{
		{"bound to an address", "tcp", "127.0.0.1:0", "127.0.0.1"},
		{"IPv6", "tcp", "[::1]:0", "::1"},
		{"every address of IPv4", "tcp4", "0.0.0.0:0", "127.0.0.2"},
		{"every address, IPv6", "tcp", "[::]:0", "::1"},
		{"every address, IPv4 mapped", "tcp", "[::]:0", "127.0.0.3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := running(t)
			ln := listen(t, c.network, c.listen)
			newcomers := make(chan *Conn, 1)
			accepts(t, l, ln, Accepts{Take: func(c *Conn) bool { newcomers <- c; return true }, Failed: noFailure(t)})
			peer, err := net.Dial("tcp", net.JoinHostPort(c.dial, fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)))
			if err != nil {
				t.Skipf("no way there: %v", err)
			}
			defer peer.Close()
			got := within(t, newcomers, "a newcomer is taken")
			defer got.Close()
			if got.PeerAddrPort() != unmapped(peer.LocalAddr()) || got.LocalAddrPort() != unmapped(peer.RemoteAddr()) {
				t.Errorf("%s at %s, not %s at %s", got.PeerAddrPort(), got.LocalAddrPort(), peer.LocalAddr(), peer.RemoteAddr())
			}
			if got.Loop() != l {
				t.Error("it is another loop's")
			}
		})
	}
	t.Run("unix", func(t *testing.T) {
		l := running(t)
		ln := listen(t, "unix", unixPath(t))
		newcomers := make(chan *Conn, 1)
		accepts(t, l, ln, Accepts{Take: func(c *Conn) bool { newcomers <- c; return true }, Failed: noFailure(t)})
		dialNet(t, ln)
		got := within(t, newcomers, "a newcomer is taken")
		defer got.Close()
		if got.PeerAddrPort().IsValid() || got.LocalAddrPort().IsValid() || got.RemoteAddr().Network() != "unix" {
			t.Errorf("%v at %v", got.RemoteAddr(), got.LocalAddr())
		}
	})
}

func unmapped(a net.Addr) netip.AddrPort {
	at := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// What came while the loop was busy is taken in batches, all of it, and others
// have their turn in between.
func TestAcceptGoesOnBeyondABatch(t *testing.T) {
	const many = 2*acceptBatch + 7
	l := running(t)
	ln := listen(t, "tcp", "127.0.0.1:0")
	for range many {
		dialNet(t, ln)
	}
	var taken []*Conn
	all := make(chan struct{})
	turns := 0
	between := make(map[int]bool) // how many were taken when the other handler had its turn
	var other reactor
	other.ready = func(Stream, Event) {
		between[len(taken)] = true
		if turns++; len(taken) < many {
			l.Again(&other)
		}
	}
	inLoop(t, l, func() { l.Again(&other) })
	accepts(t, l, ln, Accepts{
		Take: func(c *Conn) bool {
			if taken = append(taken, c); len(taken) == many {
				close(all)
			}
			return true
		},
		Failed: noFailure(t),
	})
	within(t, all, "all newcomers are taken")
	inLoop(t, l, func() {
		if !between[acceptBatch] || !between[2*acceptBatch] {
			t.Errorf("the others had no turn between batches, but at %v", between)
		}
		seen := make(map[*Conn]bool)
		for _, c := range taken {
			if seen[c] {
				t.Error("two newcomers are the same connection")
			}
			seen[c] = true
			c.Close()
		}
	})
}

// A listener that brings nobody but the refused is left alone for a moment, and
// then its newcomers are there; with one that was taken there is no pause.
func TestRefusalPause(t *testing.T) {
	for _, c := range []struct {
		name   string
		take   []bool // of each newcomer of one batch
		paused bool
	}{
		{"refused", []bool{false, false}, true},
		{"taken", []bool{true, true}, false},
		{"both", []bool{false, true, false}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := running(t)
			ln := listen(t, "tcp", "127.0.0.1:0")
			for range c.take {
				dialNet(t, ln)
			}
			came := 0
			var a *acceptor
			newcomers := make(chan struct{}, 8)
			takes := Accepts{Failed: noFailure(t), Take: func(conn *Conn) bool {
				defer func() { newcomers <- struct{}{} }()
				conn.Close()
				came++
				return came > len(c.take) || c.take[came-1]
			}}
			accepts(t, l, ln, takes)
			for range c.take {
				within(t, newcomers, "a newcomer is decided about")
			}
			inLoop(t, l, func() {
				a = l.epoll().acceptors[0]
				// The loop may be past the pause already; what was set says that there was one.
				if paused := a.timer.at != 0; paused != c.paused {
					t.Errorf("paused: %v", paused)
				}
			})
			dialNet(t, ln)
			within(t, newcomers, "newcomers are taken after the pause")
		})
	}
}

// A pause lasts its time.
func TestPauseLasts(t *testing.T) {
	l := running(t)
	ln := listen(t, "tcp", "127.0.0.1:0")
	times := make(chan time.Time, 8)
	accepts(t, l, ln, Accepts{Failed: noFailure(t), Take: func(c *Conn) bool {
		c.Close()
		times <- time.Now()
		return false
	}})
	dialNet(t, ln)
	first := within(t, times, "a newcomer is refused")
	dialNet(t, ln)
	if d := within(t, times, "another is refused").Sub(first); d < refusalPause-100*time.Microsecond {
		// Less than the pause only if the second was there for the first one's batch.
		t.Logf("the second came %v after the first", d)
	}
	inLoop(t, l, func() {
		a := l.epoll().acceptors[0]
		a.pause(50 * time.Millisecond)
		first = time.Now()
	})
	dialNet(t, ln)
	if d := within(t, times, "a newcomer is refused after a pause").Sub(first); d < 49*time.Millisecond {
		t.Errorf("a pause of 50 ms lasted %v", d)
	}
}

// The memory of a refused connection is the next newcomer's, whatever was done
// with the first: none of it is seen.
func TestRefusedConnLeavesNothingBehind(t *testing.T) {
	l := running(t)
	ln := listen(t, "tcp", "127.0.0.1:0")
	newcomers := make(chan *Conn, 1)
	var refused *Conn
	accepts(t, l, ln, Accepts{Failed: noFailure(t), Take: func(c *Conn) bool {
		if refused == nil {
			refused = c
			c.SetDeadline(time.Now().Add(time.Hour))
			c.Write([]byte("no"))
			c.Close()
			return false
		}
		newcomers <- c
		return true
	}})
	first := dialNet(t, ln)
	if got, err := io.ReadAll(first); string(got) != "no" || err != nil {
		t.Errorf("the refused one reads %q, %v", got, err)
	}
	second := dialNet(t, ln)
	c := within(t, newcomers, "a newcomer is taken")
	defer c.Close()
	if c != refused {
		t.Error("a refusal costs a connection's memory")
	}
	if c.PeerAddrPort() != unmapped(second.LocalAddr()) {
		t.Errorf("the peer is %v", c.PeerAddrPort())
	}
	go second.Write([]byte("x"))
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("Read: %d, %v", n, err)
	}
}

// Failed says how long to wait, and whether to go on; it is told what the net
// package's Accept tells.
func TestAcceptOfAClosedListener(t *testing.T) {
	for _, c := range []struct {
		name  string
		stops func(stop func(), ln net.Listener)
	}{
		{"closed first", func(stop func(), ln net.Listener) { ln.Close(); stop() }},
		{"stopped first", func(stop func(), ln net.Listener) { stop(); ln.Close() }},
		{"twice", func(stop func(), ln net.Listener) { stop(); stop(); ln.Close() }},
		{"both at once", func(stop func(), ln net.Listener) {
			var wg sync.WaitGroup
			wg.Go(stop)
			wg.Go(func() { ln.Close() })
			wg.Go(stop)
			wg.Wait()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := running(t)
			for range 20 {
				ln := listen(t, "tcp", "127.0.0.1:0")
				var over atomic.Bool
				stop := accepts(t, l, ln, Accepts{
					Take: func(c *Conn) bool {
						if c.Close(); over.Load() {
							t.Error("Take is called after stop")
						}
						return false
					},
					Failed: func(err error) time.Duration {
						if !errors.Is(err, net.ErrClosed) {
							t.Errorf("Failed: %v", err)
						}
						return -1
					},
				})
				var dial sync.WaitGroup
				dial.Go(func() {
					if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
						c.Close()
					}
				})
				c.stops(stop, ln)
				over.Store(true)
				dial.Wait()
			}
		})
	}
}

// A listener that is closed during a pause is told of when that is over.
func TestClosedInAPause(t *testing.T) {
	l := running(t)
	ln := listen(t, "tcp", "127.0.0.1:0")
	failed := make(chan error, 1)
	accepts(t, l, ln, Accepts{
		Take:   func(c *Conn) bool { c.Close(); return false },
		Failed: func(err error) time.Duration { failed <- err; return -1 },
	})
	inLoop(t, l, func() {
		l.epoll().acceptors[0].pause(time.Millisecond)
		ln.Close()
	})
	err := within(t, failed, "a closed listener is told of")
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "accept" || op.Net != "tcp" || !errors.Is(err, net.ErrClosed) {
		t.Errorf("Failed: %v", err)
	}
}

// Without descriptors the loop pauses for as long as it is told, and then takes
// those who waited. It is a process of its own that has none left.
func TestAcceptWithoutDescriptors(t *testing.T) {
	if os.Getenv("LOOP_TEST_NO_DESCRIPTORS") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAcceptWithoutDescriptors$")
		cmd.Env = append(os.Environ(), "LOOP_TEST_NO_DESCRIPTORS=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	l := running(t)
	ln := listen(t, "tcp", "127.0.0.1:0")
	newcomers := make(chan *Conn, 1)
	var calls []time.Time
	failed := make(chan struct{}, 100)
	const wait = 30 * time.Millisecond
	peer := dialNet(t, ln)
	var hoard []int
	for {
		fd, err := unix.Dup(2)
		if err == unix.EMFILE {
			break
		}
		hoard = append(hoard, fd)
		if len(hoard) == 32 { // those below are in use, and there is a limit to how many this takes
			var limit unix.Rlimit
			unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
			limit.Cur = uint64(fd) + 8
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
				t.Skipf("the limit stays as it is: %v", err)
			}
		}
	}
	accepts(t, l, ln, Accepts{
		Take: func(c *Conn) bool { newcomers <- c; return true },
		Failed: func(err error) time.Duration {
			if !errors.Is(err, syscall.EMFILE) {
				t.Errorf("Failed: %v", err)
			}
			calls = append(calls, time.Now())
			failed <- struct{}{}
			return wait
		},
	})
	for range 3 {
		within(t, failed, "the lack of descriptors is told")
	}
	for _, fd := range hoard {
		unix.Close(fd)
	}
	c := within(t, newcomers, "who waited is taken")
	defer c.Close()
	inLoop(t, l, func() {
		for i := 1; i < len(calls); i++ {
			if d := calls[i].Sub(calls[i-1]); d < wait-time.Millisecond {
				t.Errorf("tried again after %v", d)
			}
		}
	})
	if c.PeerAddrPort() != unmapped(peer.LocalAddr()) {
		t.Errorf("the peer is %v", c.PeerAddrPort())
	}
}

// Two loops wait for the same newcomers: each comes to one of them.
func TestTwoLoopsAccept(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	const many = 100
	newcomers := make(chan *Conn, many)
	for range 2 {
		accepts(t, running(t), ln, Accepts{Take: func(c *Conn) bool { newcomers <- c; return true }, Failed: noFailure(t)})
	}
	for range many {
		dialNet(t, ln)
	}
	for range many {
		within(t, newcomers, "each newcomer is taken").Close()
	}
}

func TestAcceptNeedsASocket(t *testing.T) {
	l := running(t)
	inMemory := struct{ net.Listener }{listen(t, "tcp", "127.0.0.1:0")}
	if _, err := l.Accept(inMemory, Accepts{}); err == nil {
		t.Error("a listener without a descriptor is accepted from")
	}
	closed := listen(t, "tcp", "127.0.0.1:0")
	closed.Close()
	if _, err := l.Accept(closed, Accepts{}); err == nil {
		t.Error("a closed listener is accepted from")
	}
}

// After the loop's end stop returns, and who comes is left to others.
func TestStopAfterTheLoopsEnd(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	l := running(t)
	stop := accepts(t, l, ln, Accepts{Take: func(c *Conn) bool { c.Close(); return false }, Failed: noFailure(t)})
	l.Stop()
	done := make(chan struct{})
	go func() {
		stop()
		close(done)
	}()
	within(t, done, "stop returns")
	dialNet(t, ln)
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

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

// pausable is a listener whose owner pauses it.
type pausable struct {
	*net.TCPListener
	told func(paused bool)
}

func (p *pausable) OnPause(f func(paused bool)) { p.told = f }

// While a listener is paused nobody is taken; who connects waits for the end of
// the pause. When the pause is told, those before have been decided about.
func TestAcceptObeysPauses(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ln := &pausable{TCPListener: tcp}
	defer ln.Close()
	l, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	go l.Run()
	defer l.Stop()
	var taken atomic.Int64
	came := make(chan struct{}, 8)
	stop, err := l.Accept(ln, Accepts{
		Take:   func(c *Conn) bool { c.Close(); taken.Add(1); came <- struct{}{}; return false },
		Failed: func(error) time.Duration { return -1 },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	connect := func() {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	connect()
	<-came
	ln.told(true)
	for range 3 {
		connect()
	}
	for range 50 { // turns in which they would be taken
		turn := make(chan struct{})
		l.Post(func() { close(turn) })
		<-turn
	}
	if n := taken.Load(); n != 1 {
		t.Errorf("%d are taken in the pause", n-1)
	}
	ln.told(false)
	for range 3 {
		<-came
	}
}
