package proxy

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/socket"
	"relayedge/proxy/loop"
)

// both runs a test over plain TCP and over TLS.
func both(t *testing.T, limits func(*Limits), run func(t *testing.T, e *testEdge, client halfCloser, relay halfCloser)) {
	for _, mode := range []string{"none", "terminate"} {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					c.listener.TLS = mode
					if limits != nil {
						limits(&c.limits)
					}
				})
				if mode == "none" {
					client, relay := e.pair()
					defer client.Close()
					defer relay.Close()
					run(t, e, client, relay)
					return
				}
				client, raw, relay := e.tlsPair(nil)
				defer raw.Close()
				defer relay.Close()
				run(t, e, client, relay)
			})
		})
	}
}

func TestForwardBothWays(t *testing.T) {
	both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		up, down := make([]byte, 300<<10), make([]byte, 500<<10)
		rand.Read(up)
		rand.Read(down)
		var all sync.WaitGroup
		send := func(w halfCloser, p []byte) {
			all.Go(func() {
				for part := range chunks(p, 10_007) {
					mustWrite(t, w, part)
				}
				w.CloseWrite()
			})
		}
		receive := func(r io.Reader, want []byte) {
			all.Go(func() {
				got, err := io.ReadAll(r)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("received %d bytes of %d, %v", len(got), len(want), err)
				}
			})
		}
		send(client, up)
		send(relay, down)
		receive(relay, up)
		receive(client, down)
		all.Wait()
		synctest.Wait()
		if n := e.ended(ClientClosed) + e.ended(UpstreamClosed); n != 1 {
			t.Errorf("%d clean ends, want 1", n)
		}
		if in, out := e.server.stats.bytesIn.Load(), e.server.stats.bytesOut.Load(); in < uint64(len(up)) || out < uint64(len(down)) {
			t.Errorf("%d bytes in, %d out were counted", in, out)
		}
	})
}

func chunks(p []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(p) > 0 {
			k := min(n, len(p))
			if !yield(p[:k]) {
				return
			}
			p = p[k:]
		}
	}
}

// A request, the end of the client's stream, and an answer that comes later.
func TestHalfCloseByClient(t *testing.T) {
	both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		mustWrite(t, client, []byte("request"))
		client.CloseWrite()
		wantRead(t, relay, []byte("request"))
		wantEOF(t, relay)
		time.Sleep(2 * time.Second)
		answer := make([]byte, 1<<20)
		rand.Read(answer)
		go func() {
			relay.Write(answer)
			relay.CloseWrite()
		}()
		got, err := io.ReadAll(client)
		if err != nil || !bytes.Equal(got, answer) {
			t.Fatalf("%d of %d bytes of the answer, %v", len(got), len(answer), err)
		}
		e.wantEnd(ClientClosed)
	})
}

// A FIN with no close_notify before it, at the end of a record, counts as the
// end of the stream: the answer is still delivered.
func TestHalfCloseWithoutCloseNotify(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.listener.TLS = "terminate" })
		client, raw, relay := e.tlsPair(nil)
		mustWrite(t, client, []byte("request"))
		raw.CloseWrite()
		wantRead(t, relay, []byte("request"))
		wantEOF(t, relay)
		mustWrite(t, relay, []byte("answer"))
		relay.Close()
		wantRead(t, client, []byte("answer"))
		wantEOF(t, client)
		e.wantEnd(ClientClosed)
	})
}

// A FIN inside a record cuts the stream: the pair ends.
func TestTruncatedRecord(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.listener.TLS = "terminate" })
		_, raw, relay := e.tlsPair(nil)
		mustWrite(t, raw, []byte{23, 3, 3, 1, 0, 42})
		raw.CloseWrite()
		wantEOF(t, relay)
		e.wantEnd(ClientClosed)
		raw.Close()
		relay.Close()
	})
}

// The relay ends its stream first, while the client goes on.
func TestHalfCloseByRelay(t *testing.T) {
	both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		mustWrite(t, relay, []byte("greeting"))
		relay.CloseWrite()
		wantRead(t, client, []byte("greeting"))
		wantEOF(t, client)
		for range 10 {
			time.Sleep(20 * time.Second)
			mustWrite(t, client, []byte("more"))
			wantRead(t, relay, []byte("more"))
		}
		client.CloseWrite()
		wantEOF(t, relay)
		e.wantEnd(UpstreamClosed)
	})
}

func TestHalfCloseTimeout(t *testing.T) {
	const life = 60 * time.Second
	for _, first := range []string{"client", "relay"} {
		t.Run(first, func(t *testing.T) {
			both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
				closes, stays := client, relay
				if first == "relay" {
					closes, stays = relay, client
				}
				time.Sleep(10 * time.Second)
				closes.CloseWrite()
				synctest.Wait()
				time.Sleep(life - time.Nanosecond)
				mustWrite(t, stays, []byte("progress"))
				wantRead(t, closes, []byte("progress"))
				synctest.Wait()
				time.Sleep(life - time.Nanosecond)
				e.wantOpen()
				time.Sleep(timerGrain)
				e.wantEnd(HalfCloseTimeout)
			})
		})
	}
}

// A half-closed pair that moves bytes outlives connection_timeout_secs: a
// client that has said it is done cannot send.
func TestHalfClosedDownloadOutlivesIdle(t *testing.T) {
	both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		client.CloseWrite()
		for range 20 {
			time.Sleep(30 * time.Second)
			mustWrite(t, relay, []byte("part"))
			wantRead(t, client, []byte("part"))
		}
		e.wantOpen()
	})
}

func TestIdle(t *testing.T) {
	const life = 300 * time.Second
	both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		time.Sleep(life - time.Nanosecond)
		mustWrite(t, client, []byte("x"))
		wantRead(t, relay, []byte("x"))
		synctest.Wait()
		time.Sleep(life / 2)
		mustWrite(t, relay, []byte("the relay's bytes do not count")) // idle_counts: client
		synctest.Wait()
		time.Sleep(life/2 - time.Nanosecond)
		e.wantOpen()
		time.Sleep(timerGrain)
		e.wantEnd(IdleTimeout)
	})
}

func TestIdleCountsBoth(t *testing.T) {
	const life = 300 * time.Second
	both(t, func(l *Limits) { l.IdleCounts = "both" }, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		for range 3 {
			time.Sleep(life - time.Nanosecond)
			mustWrite(t, relay, []byte("news"))
			wantRead(t, client, []byte("news"))
			synctest.Wait()
		}
		time.Sleep(life - time.Nanosecond)
		e.wantOpen()
		time.Sleep(timerGrain)
		e.wantEnd(IdleTimeout)
	})
}

func TestFirstByte(t *testing.T) {
	limits := func(l *Limits) { l.FirstByteTimeoutSecs = 20 }
	t.Run("silent", func(t *testing.T) {
		both(t, limits, func(t *testing.T, e *testEdge, client, relay halfCloser) {
			mustWrite(t, relay, []byte("the relay spoke first"))
			time.Sleep(20*time.Second - time.Nanosecond)
			e.wantOpen()
			time.Sleep(timerGrain)
			e.wantEnd(FirstByteTimeout)
		})
	})
	t.Run("while the relay is dialled", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, func(c *edgeConfig) { limits(&c.limits) })
			e.relay.SetDialDelay(3 * time.Second)
			client, relay := e.pair()
			time.Sleep(17*time.Second - time.Nanosecond)
			e.wantOpen()
			time.Sleep(timerGrain)
			e.wantEnd(FirstByteTimeout)
			client.Close()
			relay.Close()
		})
	})
	t.Run("spoken", func(t *testing.T) {
		both(t, limits, func(t *testing.T, e *testEdge, client, relay halfCloser) {
			time.Sleep(20*time.Second - time.Nanosecond)
			mustWrite(t, client, []byte("x"))
			wantRead(t, relay, []byte("x"))
			time.Sleep(100 * time.Second)
			e.wantOpen()
		})
	})
}

// A peer for which bytes wait and that takes none is let go; one that takes
// some, however slowly, is not.
func TestWriterStall(t *testing.T) {
	const patience = 30 * time.Second
	for _, slow := range []string{"client", "relay"} {
		t.Run(slow, func(t *testing.T) {
			both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
				writer, reader := relay, io.Reader(client)
				if slow == "relay" {
					writer, reader = client, relay
				}
				go writer.Write(make([]byte, 4<<20)) // until every buffer on the way is full
				synctest.Wait()
				for range 5 {
					time.Sleep(patience - time.Second)
					io.CopyN(io.Discard, reader, 80<<10)
					synctest.Wait()
				}
				time.Sleep(patience - 2*time.Second)
				e.wantOpen()
				time.Sleep(2*time.Second + socket.StallSlice) // memconn is not read by readiness
				e.wantEnd(WriterStall)
			})
		})
	}
}

// While a slow relay takes what came, the client is not read from, and the
// idle clock does not run against it.
func TestSlowRelayIsNotTheClientsIdleness(t *testing.T) {
	both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		done := make(chan error, 1)
		go func() {
			_, err := client.Write(make([]byte, 2<<20))
			done <- err
		}()
		var got int64
		for range 40 { // 40 x 20 s: much more than connection_timeout_secs
			time.Sleep(20 * time.Second)
			n, _ := io.CopyN(io.Discard, relay, (2<<20)/40)
			got += n
		}
		rest, _ := io.CopyN(io.Discard, relay, 2<<20-got)
		if got+rest != 2<<20 || <-done != nil {
			t.Errorf("%d of %d bytes arrived", got+rest, 2<<20)
		}
		e.wantOpen()
	})
}

// Beyond the burst a client is read at rate_limit_bps; it is never closed for it.
func TestByteBucket(t *testing.T) {
	const rate, burst, size = 64 << 10, 128 << 10, 1 << 20
	limits := func(l *Limits) { l.RateLimitBPS, l.RateLimitBurstBytes = rate, burst }
	both(t, limits, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		began := time.Now()
		go func() {
			client.Write(make([]byte, size))
			client.CloseWrite()
		}()
		n, err := io.Copy(io.Discard, relay)
		if n != size || err != nil {
			t.Fatalf("%d of %d bytes, %v", n, size, err)
		}
		took := time.Since(began)
		// What is beyond the burst takes its time; the last read is delivered before it is paid for.
		least := time.Duration(size-burst-loop.BufferBytes) * time.Second / rate
		most := time.Duration(size-burst+size/50) * time.Second / rate // TLS adds 22 bytes a record
		if took < least || took > most {
			t.Errorf("took %v, want %v to %v", took, least, most)
		}
		if e.server.stats.rejected[RateLimit].Load() == 0 {
			t.Error("no read pause was counted")
		}
		if e.ended(RateLimit) != 0 {
			t.Error("a connection was ended for its rate")
		}
	})
}

// rate_limit_bps above rate_limit_burst_bytes is the burst.
func TestByteBucketBurstIsTheLarger(t *testing.T) {
	l := testLimits()
	l.RateLimitBPS, l.RateLimitBurstBytes = 8<<20, 65536
	if got := l.times().bytes.Burst; got != 8<<20 {
		t.Errorf("burst %d, want %d", got, 8<<20)
	}
}

// A client in the middle of a pause is let go at once when the edge stops.
func TestStopInterruptsPause(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			c.limits.RateLimitBPS, c.limits.RateLimitBurstBytes, c.limits.DrainSecs = 1024, 65536, 0
		})
		client, relay := e.pair()
		defer client.Close()
		defer relay.Close()
		go client.Write(make([]byte, 256<<10))
		io.CopyN(io.Discard, relay, 96<<10)
		synctest.Wait()
		began := time.Now()
		e.stop()
		e.served <- <-e.served
		if took := time.Since(began); took != 0 {
			t.Errorf("the end took %v", took)
		}
		e.wantEnd(Drain)
	})
}

// A reset of either side reaches the other as one, and ends the pair.
func TestReset(t *testing.T) {
	for _, who := range []string{"client", "relay"} {
		t.Run(who, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, nil)
				client, relay := e.pair()
				resets, other := client, relay
				if who == "relay" {
					resets, other = relay, client
				}
				resets.Reset()
				if _, err := other.Read(make([]byte, 1)); err == nil {
					t.Error("the other side reads on")
				}
				e.wantEnd(Reset)
				other.Close()
			})
		})
	}
}

// A relay that closes altogether after its last word ends the pair by itself,
// not by the client's fault.
func TestRelayClosesAltogether(t *testing.T) {
	both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		mustWrite(t, relay, []byte("bye"))
		relay.Close()
		wantRead(t, client, []byte("bye"))
		wantEOF(t, client)
		client.Write([]byte("one more"))
		client.Write([]byte("one more"))
		e.wantEnd(UpstreamClosed)
	})
}

// Quiet users keep their connection on the defaults.
func TestDefaultsDoNotCutLongLivedUsers(t *testing.T) {
	t.Run("answers to pings every 30 s for ten minutes", func(t *testing.T) {
		both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
			for range 20 {
				time.Sleep(30 * time.Second)
				mustWrite(t, relay, []byte("ping"))
				wantRead(t, client, []byte("ping"))
				mustWrite(t, client, []byte("pong"))
				wantRead(t, relay, []byte("pong"))
			}
			e.wantOpen()
		})
	})
	t.Run("an upload at 20 KiB/s for five minutes", func(t *testing.T) {
		both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
			part := make([]byte, 20<<10)
			for range 300 {
				time.Sleep(time.Second)
				mustWrite(t, client, part)
				wantRead(t, relay, part)
			}
			e.wantOpen()
		})
	})
	t.Run("a byte every 50 s is progress, one after 300 s is late", func(t *testing.T) {
		both(t, nil, func(t *testing.T, e *testEdge, client, relay halfCloser) {
			for range 20 {
				time.Sleep(50 * time.Second)
				mustWrite(t, client, []byte("x"))
				wantRead(t, relay, []byte("x"))
			}
			e.wantOpen()
			time.Sleep(300 * time.Second)
			e.wantEnd(IdleTimeout)
		})
	})
}

// A TLS client whose records come in pieces is served as any other.
func TestRecordsInPieces(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.listener.TLS = "terminate" })
		raw := e.dial(aliceAddr)
		client := tls.Client(dribble{raw}, clientTLS("relay.example.org"))
		if err := client.Handshake(); err != nil {
			t.Fatal(err)
		}
		relay, _, _ := e.accept()
		message := bytes.Repeat([]byte("0123456789"), 200)
		mustWrite(t, client, message)
		wantRead(t, relay, message)
		client.Close()
		relay.Close()
	})
}

// halfCloser is a connection whose directions end apart.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// dribble writes one byte at a time.
type dribble struct{ halfCloser }

func (d dribble) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := d.halfCloser.Write(p[i : i+1]); err != nil {
			return i, err
		}
		time.Sleep(time.Millisecond)
	}
	return len(p), nil
}
