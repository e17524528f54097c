package loop

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An idle connection that is handed over is told of, once or more, and a handler
// is told each time that something comes.
func TestHandOverTheKernel(t *testing.T) {
	l := running(t)
	for _, network := range []string{"tcp", "unix"} {
		c, peer := connected(t, l, network)
		told := make(chan Event, 16)
		got := make(chan byte, 16)
		err := l.Hand(c, handlerFunc(func(s Stream, e Event) {
			told <- e
			p := make([]byte, 16)
			for n, err := s.TryRead(p); err == nil; n, err = s.TryRead(p) {
				for _, b := range p[:n] {
					got <- b
				}
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		if e := within(t, told, "a handler is told of an idle connection"); !e.Writable || e.Readable || e.Ended {
			t.Errorf("%s: an idle one is %+v", network, e)
		}
		for i := range byte(10) {
			peer.Write([]byte{i})
			if b := within(t, got, "what comes is told"); b != i {
				t.Errorf("%d came, not %d", b, i)
			}
		}
		for len(told) > 0 {
			<-told
		}
		peer.CloseWrite()
		e := within(t, told, "the end is told")
		if !e.Ended { // of the last byte, which may have been read before it was told
			e = within(t, told, "the end is told")
		}
		if !e.Ended {
			t.Errorf("%s: at the end it is %+v", network, e)
		}
	}
}

// A connection may be handed over again and again, and is told of each time.
func TestHandAgain(t *testing.T) {
	l := running(t)
	c, peer := connected(t, l, "tcp")
	for range 100 {
		told := make(chan struct{}, 16)
		if err := l.Hand(c, handlerFunc(func(s Stream, e Event) { told <- struct{}{} })); err != nil {
			t.Fatal(err)
		}
		within(t, told, "a handler is told of a connection that the loop has already")
		inLoop(t, l, func() { l.Lend(c) })
		go peer.Write([]byte("x"))
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	c.Close()
	if err := l.Hand(c, handlerFunc(func(Stream, Event) {})); err != net.ErrClosed {
		t.Errorf("Hand of a closed connection: %v", err)
	}
}

// A loop that finds an event of a connection that it no longer has tells nobody.
func TestEventOfWhatAnotherLoopHas(t *testing.T) {
	before, after := running(t), running(t)
	c, _ := connected(t, before, "tcp")
	wrong := handlerFunc(func(Stream, Event) {})
	before.Hand(c, wrong)
	if h := c.taker(before, Event{Readable: true}); h == nil {
		t.Error("its own loop is told nobody")
	}
	told := make(chan struct{}, 16)
	if err := after.Hand(c, handlerFunc(func(Stream, Event) { told <- struct{}{} })); err != nil {
		t.Fatal(err)
	}
	within(t, told, "the other loop tells of it")
	if h := c.taker(before, Event{Readable: true}); h != nil {
		t.Error("the loop that had it before tells the handler of the other's goroutine")
	}
	if c.Loop() != after {
		t.Error("it is still the first loop's")
	}
}

// An event that was found before its connection was closed is nobody's, though
// the place in the table and the descriptor are another's by then.
func TestEventOfAClosedConnection(t *testing.T) {
	l, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	p := l.epoll()
	defer p.close()
	pair := func() (*Conn, int) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return &Conn{loop: l, fd: fds[0], unix: true}, fds[1]
	}
	told := 0
	h := handlerFunc(func(Stream, Event) { told++ })
	old, oldPeer := pair()
	l.Hand(old, h)
	place := old.slot
	n := epollWait(p.fd, p.events)
	stale := append([]unix.EpollEvent(nil), p.events[:n]...)
	old.Close()
	unix.Close(oldPeer)
	young, youngPeer := pair()
	defer young.Close()
	defer unix.Close(youngPeer)
	l.Hand(young, h)
	if young.slot.index != place.index || young.slot.generation == place.generation {
		t.Fatalf("the place %v is given out as %v", place, young.slot)
	}
	if found := p.resolve(stale); len(found) != 0 {
		t.Errorf("%d of %d events of a closed connection reach another", len(found), n)
	}
	// Found before, and closed before its turn.
	n = epollWait(p.fd, p.events)
	found := p.resolve(p.events[:n])
	if len(found) == 0 {
		t.Fatal("no event of a connection that was handed over")
	}
	young.Close()
	l.turn(found)
	if told != 0 {
		t.Error("a handler is told of a connection that is closed")
	}
}

// Urgent data ends a read early: whoever is told reads on.
func TestUrgentDataHidesNothing(t *testing.T) {
	l := running(t)
	c, peer := connected(t, l, "tcp")
	raw, err := peer.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		unix.Write(int(fd), []byte("before"))
		unix.SendmsgN(int(fd), []byte("!"), nil, nil, unix.MSG_OOB)
		unix.Write(int(fd), []byte("after"))
	})
	got := make(chan byte, 64)
	more := false
	var h handlerFunc
	h = func(s Stream, e Event) {
		if s == nil {
			s = c
		}
		more = more || e.Ended
		n, err := s.TryRead(l.In) // as a pair does: one read, and no other without a reason
		if err != nil {
			return
		}
		for _, b := range l.In[:n] {
			got <- b
		}
		if more {
			l.Again(h)
		}
	}
	l.Hand(c, h)
	var text strings.Builder
	for range len("beforeafter") {
		text.WriteString(string(within(t, got, "bytes behind urgent data, after "+text.String())))
	}
	if text.String() != "beforeafter" {
		t.Errorf("%q", text.String())
	}
}

// Posts from everywhere, while the loop falls asleep again and again: each is run
// once, those of one goroutine in their order.
func TestNoPostIsLost(t *testing.T) {
	l := running(t)
	const posters, each = 8, 2000
	var run [posters]int
	var wg sync.WaitGroup
	for i := range posters {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 0))
			for k := range each {
				done := make(chan struct{})
				l.Post(func() {
					if run[i] != k {
						t.Errorf("post %d of %d is run as its %dth", k, i, run[i])
					}
					run[i]++
					if k%7 == 0 {
						l.Post(func() { close(done) }) // from the loop itself
					} else {
						close(done)
					}
				})
				if rng.IntN(4) == 0 { // wait for it, so that the loop goes to sleep
					select {
					case <-done:
					case <-time.After(patience):
						t.Errorf("post %d of %d is not run", k, i)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	inLoop(t, l, func() {
		for i, n := range run {
			if n != each {
				t.Errorf("%d of %d posts of %d were run", n, each, i)
			}
		}
	})
}

// Close from any goroutine at any moment, while connections come and go, and
// their descriptors' numbers are those of others a moment later: each handler
// hears of its own connection only, and reads what its peer wrote.
func TestCloseAtAnyMoment(t *testing.T) {
	l := running(t)
	ln := listen(t, "unix", unixPath(t))
	var wg sync.WaitGroup
	var served atomic.Int64
	for worker := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 7))
			for range 300 {
				c, err := l.Dial(context.Background(), "unix", ln.Addr().String(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				var over atomic.Bool
				told := make(chan struct{}, 1)
				err = l.Hand(c, handlerFunc(func(s Stream, e Event) {
					if s != Stream(c) {
						t.Error("told of another's connection")
					}
					if over.Load() {
						// Close in another goroutine may have come between the event and this.
						if _, err := s.TryRead(make([]byte, 1)); err != net.ErrClosed {
							t.Errorf("a closed connection reads %v", err)
						}
					}
					select {
					case told <- struct{}{}:
					default:
					}
				}))
				if err != nil {
					t.Error(err)
				}
				switch rng.IntN(3) {
				case 0:
					within(t, told, "a handler is told")
				case 1:
					wg.Go(func() { c.Close() }) // beside the other
				}
				c.Close()
				over.Store(true)
				served.Add(1)
			}
		})
	}
	var peers sync.WaitGroup
	peers.Go(func() {
		for {
			peer, err := ln.Accept()
			if err != nil {
				return
			}
			io.WriteString(peer, "x")
			peer.Close()
		}
	})
	wg.Wait()
	ln.Close()
	peers.Wait()
	p := l.epoll()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) != len(p.table) {
		t.Errorf("%d of %d places are free", len(p.free), len(p.table))
	}
	for i, e := range p.table {
		if e.conn != nil {
			t.Errorf("place %d is taken", i)
		}
	}
	if served.Load() != 4*300 {
		t.Errorf("%d served", served.Load())
	}
}

// A timer that is set for earlier than the loop sleeps is not late, nor is one
// that is set for later than another that was cleared.
func TestTimersOverTheKernel(t *testing.T) {
	l := running(t)
	expired := make(chan time.Time, 1)
	timer := Timer{Owner: expireFunc(func() { expired <- time.Now() })}
	var far Timer
	far.Owner = nobody{}
	for _, d := range []time.Duration{30 * time.Millisecond, 0, 5 * time.Millisecond, -time.Second} {
		var set time.Time
		inLoop(t, l, func() {
			set = time.Now()
			l.SetTimer(&far, set.Add(time.Hour))
		})
		inLoop(t, l, func() { l.SetTimer(&timer, set.Add(time.Minute)) })
		inLoop(t, l, func() { l.SetTimer(&timer, set.Add(d)) })
		if at := within(t, expired, "a timer expires"); at.Before(set.Add(d)) {
			t.Errorf("it came after %v, not %v", at.Sub(set), d)
		}
	}
	inLoop(t, l, func() { l.ClearTimer(&far) })
}

// What is posted to a loop that has ended writes to no descriptor: its number may
// be another's.
func TestPostAfterStopTouchesNothing(t *testing.T) {
	leavesNone(t)
	l, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	waker := l.epoll().waker
	var run sync.WaitGroup
	run.Go(l.Run)
	l.Stop()
	run.Wait()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds { // out of the way of the number that is meant
		if fds[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, waker+1); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		defer unix.Close(fds[i])
	}
	if err := unix.Dup3(fds[0], waker, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(waker)
	l.Post(func() { t.Error("what is posted after Stop is run") })
	l.Stop()
	if n, err := unix.Read(fds[1], make([]byte, 16)); err != unix.EAGAIN {
		t.Errorf("a connection that has the number of what was closed got %d bytes, %v", n, err)
	}
}

// The loop is woken while many connections have something to say, more than one
// batch of events holds.
func TestMoreEventsThanABatch(t *testing.T) {
	l, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	var run sync.WaitGroup
	const many = eventBatch + 50
	var all sync.WaitGroup
	all.Add(many)
	var once [many]sync.Once
	var fds []int
	var conns []*Conn
	for i := range many {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := &Conn{loop: l, fd: pair[0], unix: true}
		fds, conns = append(fds, pair[1]), append(conns, c)
		if err := l.Hand(c, handlerFunc(func(Stream, Event) { once[i].Do(all.Done) })); err != nil {
			t.Fatal(err)
		}
	}
	run.Go(l.Run)
	told := make(chan struct{})
	go func() {
		all.Wait()
		close(told)
	}()
	within(t, told, "each of many connections is told of")
	l.Stop()
	run.Wait()
	for i, c := range conns {
		c.Close()
		unix.Close(fds[i])
	}
}
