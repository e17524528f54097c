package loop

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
		first = l.Now()
	})
	dialNet(t, ln)
	if d := within(t, times, "a newcomer is refused after a pause").Sub(first); d < 50*time.Millisecond {
		t.Errorf("a pause of 50 ms lasted %v", d)
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
			calls = append(calls, l.Now())
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
			if d := calls[i].Sub(calls[i-1]); d < wait {
				t.Errorf("tried again after %v", d)
			}
		}
	})
	if c.PeerAddrPort() != unmapped(peer.LocalAddr()) {
		t.Errorf("the peer is %v", c.PeerAddrPort())
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
