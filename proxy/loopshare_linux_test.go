package proxy

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"relayedge/proxy/loop"
)

// Pairs that are moved from loop to loop while bytes pass lose none, and end as
// they would have.
func TestPairsMoveAmidTraffic(t *testing.T) {
	for _, w := range []way{plainWay, secureWay, ways[7]} {
		t.Run(w.name, func(t *testing.T) {
			t.Run(engineMark+"loop", func(t *testing.T) { testPairsMove(t, w) })
		})
	}
}

func testPairsMove(t *testing.T, w way) {
	const pairs, moves = 12, 300
	e := newKernelEdge(t, w, nil)
	engine := e.server.engine.(*loopEngine)
	var clients []party
	stop := make(chan struct{})
	var echoing, sending sync.WaitGroup
	for i := range pairs {
		client, relay := e.pair()
		clients = append(clients, client)
		echoing.Go(func() {
			io.Copy(relay.Conn, relay.Conn)
			relay.Close()
		})
		sending.Go(func() { sendUntil(t, client, uint64(i), stop) })
	}
	engine.mu.Lock()
	if _, err := engine.open(); err != nil {
		t.Fatal(err)
	}
	engine.share.active = 2
	loops := slices.Clone(engine.loops)
	engine.mu.Unlock()
	moved := 0 // guarded by done
	for i := range moves {
		from, to, done := loops[i%2], loops[1-i%2], make(chan struct{})
		from.Post(func() {
			moved += handOver(from, to, 1+i%3)
			close(done)
		})
		<-done
	}
	if moved < moves {
		t.Errorf("%d moves of %d pairs in all", moved, pairs)
	}
	close(stop)
	sending.Wait()
	for _, c := range clients {
		c.Close()
	}
	echoing.Wait()
	e.wantEnds(pairs, ClientClosed)
}

// sendUntil sends bytes of its own to who echoes them, and checks what comes back.
func sendUntil(t *testing.T, conn net.Conn, seed uint64, stop <-chan struct{}) {
	random := rand.New(rand.NewPCG(seed, 0))
	for {
		select {
		case <-stop:
			return
		default:
		}
		sent := make([]byte, 1+random.IntN(48<<10))
		for i := range sent {
			sent[i] = byte(random.Uint32())
		}
		var writing sync.WaitGroup
		writing.Go(func() {
			if _, err := conn.Write(sent); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		got := make([]byte, len(sent))
		_, err := io.ReadFull(conn, got)
		writing.Wait()
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("other bytes came back: %v", err)
			return
		}
	}
}

// pairsOf returns how many pairs a loop carries.
func pairsOf(l *loop.Loop) int {
	n := make(chan int)
	l.Post(func() { n <- len(chosen(l.Handlers(), 1)) })
	return <-n
}

// handedOver has a loop give all its pairs to another, which may have given them
// back by the time that it returns how many those were.
func handedOver(from, to *loop.Loop) int {
	n := make(chan int)
	from.Post(func() { n <- handOver(from, to, 1) })
	return <-n
}

// occupy has a loop work without a pause until the end that it returns.
func occupy(l *loop.Loop) (end func()) {
	var over atomic.Bool
	var work func()
	work = func() {
		for until := time.Now().Add(10 * time.Millisecond); time.Now().Before(until); {
		}
		if !over.Load() {
			l.Post(work)
		}
	}
	l.Post(work)
	return func() { over.Store(true) }
}

// A loop that is busy has one more opened, once there are descriptors for it, and
// gives half of its pairs to it; when all is calm, that one gives them back.
func TestLoopsShareTheLoad(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	t.Run(engineMark+"loop", func(t *testing.T) {
		e := newKernelEdge(t, plainWay, nil)
		engine := e.server.engine.(*loopEngine)
		var clients, relays []party
		for range 4 {
			client, relay := e.pair()
			clients, relays = append(clients, client), append(relays, relay)
		}
		state := func() (loops []*loop.Loop, share loopShare) {
			engine.mu.Lock()
			defer engine.mu.Unlock()
			return engine.loops, engine.share
		}
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		none := limit
		none.Cur = 0
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
			t.Fatal(err)
		}
		defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)

		loops, _ := state()
		end := occupy(loops[0])
		defer end()
		waitFor(t, "help was sought", func() bool { _, share := state(); return !share.since.IsZero() })
		if loops, share := state(); len(loops) != 1 || share.active != 1 {
			t.Errorf("%d of %d loops are active that cannot be opened", share.active, len(loops))
		}
		unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
		waitFor(t, "another loop has half of the pairs", func() bool {
			loops, _ = state()
			return len(loops) == 2 && pairsOf(loops[1]) >= len(clients)/2
		})
		waitFor(t, "newcomers are given to it", func() bool { return engine.lightest(loops[0]) == loops[1] })
		end()

		later := time.Now().Add(time.Hour)
		waitFor(t, "one loop is active", func() bool {
			later = later.Add(calmTime)
			engine.look(0, later)
			_, share := state()
			return share.active == 1
		})
		waitFor(t, "the first loop has all pairs", func() bool { return pairsOf(loops[0]) == len(clients) })
		if got := engine.lightest(loops[0]); got != loops[0] {
			t.Error("a newcomer is given to the loop that rests")
		}

		// What could not go when the loop was to rest goes when it next looks.
		if n := handedOver(loops[0], loops[1]); n != len(clients) {
			t.Errorf("%d of %d pairs go to the loop that rests", n, len(clients))
		}
		engine.look(1, later) // it may have looked by itself by then
		waitFor(t, "the first loop has them again", func() bool { return pairsOf(loops[0]) == len(clients) })
		for i := range clients {
			mustWrite(t, clients[i], []byte("x"))
			wantRead(t, relays[i], []byte("x"))
		}
	})
}

// A pair takes its limits along.
func TestMovedPairsExpire(t *testing.T) {
	const idle = time.Second
	t.Run(engineMark+"loop", func(t *testing.T) {
		e := newKernelEdge(t, plainWay, func(c *kernelConfig) { c.times = func(q *times) { q.idle = idle } })
		engine := e.server.engine.(*loopEngine)
		client, relay := e.pair()
		began := time.Now()
		mustWrite(t, client, []byte("x"))
		wantRead(t, relay, []byte("x"))
		engine.mu.Lock()
		from := engine.loops[0]
		to, err := engine.open()
		engine.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if n := handedOver(from, to); n != 1 {
			t.Fatalf("%d pairs go to the other loop, want 1", n)
		}
		e.wantEnd(IdleTimeout)
		if took := time.Since(began); took < idle {
			t.Errorf("it ended after %v", took)
		}
	})
}
