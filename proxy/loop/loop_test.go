package loop

import (
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

var (
	addrA = netip.MustParseAddrPort("192.0.2.1:1001")
	addrB = netip.MustParseAddrPort("192.0.2.2:1002")
)

// inBubble runs a test in synthetic time, with a loop for connections in memory.
func inBubble(t *testing.T, run func(t *testing.T, l *Loop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := InMemory()
		var done sync.WaitGroup
		done.Go(l.Run)
		run(t, l)
		l.Stop()
		done.Wait()
	})
}

// handlerFunc is a handler that does not panic.
type handlerFunc func(Stream, Event)

func (f handlerFunc) Ready(c Stream, e Event) { f(c, e) }
func (f handlerFunc) Panicked(cause any)      { panic(cause) }

func TestHandTellsAtLeastOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		a, b := memconn.Pipe(addrA, addrB)
		defer a.Close()
		defer b.Close()
		var got []byte
		told := 0
		if !l.Watches(a) {
			t.Error("the loop cannot watch a connection in memory")
		}
		err := l.Hand(a, handlerFunc(func(c Stream, e Event) {
			told++
			for {
				p := make([]byte, 3)
				n, err := c.TryRead(p)
				if got = append(got, p[:n]...); err != nil {
					return
				}
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if told == 0 {
			t.Error("a handler is not told of a connection that says nothing")
		}
		for range 3 {
			b.Write([]byte("hello"))
			synctest.Wait()
		}
		if string(got) != "hellohellohello" {
			t.Errorf("%q", got)
		}
	})
}

func TestLendEndsTheTelling(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		a, b := memconn.Pipe(addrA, addrB)
		defer a.Close()
		defer b.Close()
		lent := false
		l.Hand(a, handlerFunc(func(c Stream, e Event) {
			if lent {
				t.Error("told of a connection that was lent")
			}
			lent = true
			l.Lend(c)
		}))
		synctest.Wait()
		b.Write([]byte("x"))
		synctest.Wait()
		if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("Read: %d, %v", n, err)
		}
	})
}

func TestWatchesOnlyItsOwn(t *testing.T) {
	l := InMemory()
	var none struct{ Stream }
	if l.Watches(none) {
		t.Error("it watches what cannot say when it is ready")
	}
	if err := l.Hand(none, nil); err == nil {
		t.Error("what cannot be watched is handed")
	}
}

// Timers come at their time, whether they are set in the order of it or not, and
// whether or not the loop sleeps until another.
func TestTimers(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		start := time.Now()
		at := func(d time.Duration) time.Time { return start.Add(d) }
		var expired []time.Duration
		owner := expireFunc(func() { expired = append(expired, time.Since(start)) })
		timers := make([]Timer, 4)
		set := func(i int, d time.Duration) {
			l.Post(func() {
				timers[i].Owner = owner
				l.SetTimer(&timers[i], at(d))
			})
			synctest.Wait()
		}
		set(0, time.Hour)
		set(1, time.Second)         // earlier than what the loop sleeps for
		set(2, time.Minute)         // later than that
		set(1, 2*time.Second)       // and the earliest moves back
		set(3, 90*time.Second)      // to be cleared
		time.Sleep(3 * time.Second) // 1
		l.Post(func() { l.ClearTimer(&timers[3]) })
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		want := []time.Duration{2 * time.Second, time.Minute, time.Hour}
		if len(expired) != len(want) {
			t.Fatalf("expired at %v", expired)
		}
		for i, d := range expired {
			if d < want[i] || d > want[i]+time.Millisecond {
				t.Errorf("at %v, not %v", d, want[i])
			}
		}
	})
}

// Now is the time of the turn, which does not pass within it.
func TestNow(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		time.Sleep(time.Minute)
		l.Post(func() {
			if !l.Now().Equal(time.Now()) {
				t.Errorf("%v", time.Since(l.Now()))
			}
		})
		synctest.Wait()
	})
}

// A handler that always has more to do does not keep others, posts and timers
// from their turn.
func TestAgainIsFair(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		const turns = 1000
		var order []byte
		var bulk, other handlerFunc
		count := 0
		bulk = func(c Stream, e Event) {
			if c != nil || e != (Event{}) {
				t.Errorf("Again tells of %v, %v", c, e)
			}
			order = append(order, 'b')
			if count++; count < turns {
				l.Again(bulk)
			}
		}
		others := 0
		other = func(Stream, Event) {
			order = append(order, 'o')
			if others++; others < turns {
				l.Again(other)
			}
		}
		posted, due := 0, 0
		var timer Timer
		timer.Owner = expireFunc(func() { due = count })
		l.Post(func() {
			l.SetTimer(&timer, l.Now())
			l.Again(bulk)
			l.Again(other)
			l.Post(func() { posted = count })
		})
		synctest.Wait()
		if count != turns || others != turns {
			t.Fatalf("%d and %d turns of %d", count, others, turns)
		}
		for i := 0; i+1 < len(order); i += 2 {
			if order[i] == order[i+1] {
				t.Fatalf("one had two turns in a row: %q", order[:i+2])
			}
		}
		if posted > 2 || due > 2 {
			t.Errorf("a post had its turn after %d of the bulk's, a timer after %d", posted, due)
		}
	})
}

// Who asks for Again within a turn has it in the next.
func TestAgainWithinAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		depth := 0
		var h handlerFunc
		h = func(Stream, Event) {
			if depth++; depth == 1 {
				for range 2 { // as often as it was asked
					l.Again(h)
				}
			}
		}
		l.Post(func() { l.Again(h) })
		synctest.Wait()
		if depth != 3 {
			t.Errorf("told %d times", depth)
		}
	})
}

func TestPostKeepsOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		var got []int
		l.Post(func() { // so that all of them are there at once
			for i := range 100 {
				l.Post(func() {
					got = append(got, i)
					if i == 0 {
						l.Post(func() { got = append(got, 100) }) // behind what is there
					}
				})
			}
		})
		synctest.Wait()
		if len(got) != 101 {
			t.Fatalf("%v", got)
		}
		for i, k := range got {
			if i != k {
				t.Fatalf("%v", got)
			}
		}
	})
}

// A handler's panic is told to it, and concerns nobody else.
func TestPanicIsContained(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		a, b := memconn.Pipe(addrA, addrB)
		defer a.Close()
		defer b.Close()
		told, others := []any{}, 0
		bad := &reactor{ready: func(c Stream, e Event) { panic("no") }, panicked: func(cause any) { told = append(told, cause) }}
		l.Hand(a, bad)
		l.Hand(b, handlerFunc(func(Stream, Event) { others++ }))
		l.Post(func() {
			l.Again(bad)
			l.Again(handlerFunc(func(Stream, Event) { others++ }))
		})
		synctest.Wait()
		if len(told) < 2 || told[0] != "no" || others < 2 {
			t.Errorf("told %v, and others %d times", told, others)
		}
	})
}

// reactor is a handler made of functions.
type reactor struct {
	ready    func(Stream, Event)
	panicked func(any)
}

func (r *reactor) Ready(c Stream, e Event) { r.ready(c, e) }
func (r *reactor) Panicked(cause any)      { r.panicked(cause) }

// Stop runs what was posted before, and nothing that comes after.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := InMemory()
		before := false
		l.Post(func() { before = true })
		var run sync.WaitGroup
		run.Go(l.Run)
		a, b := memconn.Pipe(addrA, addrB)
		l.Hand(a, handlerFunc(func(Stream, Event) {}))
		var stops sync.WaitGroup
		for range 3 {
			stops.Go(l.Stop)
		}
		stops.Wait()
		run.Wait()
		if !before {
			t.Error("what was posted before Stop is not run")
		}
		l.Post(func() { t.Error("what is posted after Stop is run") })
		if len(l.posted) > 0 {
			t.Error("what is posted after Stop is kept")
		}
		l.Stop()
		b.Write([]byte("x")) // the connection is as it was
		if n, err := a.TryRead(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		a.Close()
		b.Close()
	})
}

// echo answers with what it reads.
func echo(l *Loop) Handler {
	return handlerFunc(func(c Stream, e Event) {
		if !e.Readable && !e.Ended {
			return
		}
		for {
			n, err := c.TryRead(l.In)
			if err == io.EOF {
				c.Close()
			}
			if err != nil {
				return
			}
			c.TryWrite(l.In[:n])
			if n < len(l.In) && !e.Ended {
				return
			}
		}
	})
}

func TestEchoInMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Loop) {
		a, b := memconn.Pipe(addrA, addrB)
		l.Hand(a, echo(l))
		for range 100 {
			b.Write([]byte("ping"))
			p := make([]byte, 4)
			if _, err := io.ReadFull(b, p); string(p) != "ping" || err != nil {
				t.Fatalf("%q, %v", p, err)
			}
		}
		b.CloseWrite()
		if _, err := io.ReadAll(b); err != nil {
			t.Error(err)
		}
		b.Close()
	})
}
