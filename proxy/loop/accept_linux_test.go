package loop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
