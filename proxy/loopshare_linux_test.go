package proxy

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
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
	engine.active = 2
	loops := [2]*member{engine.loops[0], engine.loops[1]}
	engine.mu.Unlock()
	moved := 0 // guarded by done
	for i := range moves {
		from, to, done := loops[i%2], loops[1-i%2], make(chan struct{})
		from.Post(func() {
			moved += handOver(from.Loop, to.Loop, 1+i%3)
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
