package proxy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/proxyheader"
)

// The conformance suite of the engines over sockets of the kernel. What depends on
// time to the nanosecond is held in bubbles; what these tests hold is that each
// phase of a connection does over real sockets what docs/behaviour.md says.

// The relay gets its header before the client has sent a byte, and may speak
// first; then bytes go both ways.
func TestRelaySpeaksFirst(t *testing.T) {
	onWays(t, nil, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		client, relay, h := e.introduced()
		e.wantHeader(h, client)
		mustWrite(t, relay, []byte("220 ready"))
		wantRead(t, client, []byte("220 ready"))
		for range 10 {
			mustWrite(t, client, []byte("NOOP"))
			wantRead(t, relay, []byte("NOOP"))
			mustWrite(t, relay, []byte("250 ok"))
			wantRead(t, client, []byte("250 ok"))
		}
		e.wantOpen()
	})
}

// wantHeader checks what the relay was told of the client.
func (e *kernelEdge) wantHeader(h proxyheader.Header, client party) {
	e.t.Helper()
	if e.way.out == "none" {
		return
	}
	source, target := addrPort(client.raw.LocalAddr()), addrPort(client.raw.RemoteAddr())
	if e.way.in != "" {
		source, target = namedClient, namedTarget
	}
	if h.Source != source || h.Destination != target {
		e.t.Errorf("the relay was told %v to %v, want %v to %v", h.Source, h.Destination, source, target)
	}
	if e.way.out != "proxy-v2" {
		return
	}
	if h.Local == source.IsValid() {
		e.t.Errorf("LOCAL is %v for a client at %v", h.Local, source)
	}
	for typ, want := range map[byte]bool{
		proxyheader.TypeUniqueID:  true,
		proxyheader.TypeAuthority: e.way.tls != "none",
		proxyheader.TypeSSL:       e.way.ended(),
		proxyheader.TypeALPN:      e.way.ended(),
	} {
		if _, got := h.Lookup(typ); got != want {
			e.t.Errorf("TLV %#x is there: %v, want %v", typ, got, want)
		}
	}
}

// The end of the client's stream reaches the relay, whose answer is delivered whole.
func TestClientEndsFirst(t *testing.T) {
	answer := make([]byte, 512<<10)
	rand.NewChaCha8([32]byte{1}).Read(answer)
	onWays(t, nil, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		client, relay := e.pair()
		mustWrite(t, client, []byte("request"))
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		wantRead(t, relay, []byte("request"))
		relay.wantStreamEnd(t)
		together(
			func() { relay.Write(answer); relay.CloseWrite() },
			func() {
				if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, answer) {
					t.Errorf("%d of %d bytes of the answer came, %v", len(got), len(answer), err)
				}
			},
		)
		e.wantEnd(ClientClosed)
	})
}

// The end of the relay's stream reaches the client, as close_notify where there
// is TLS, and what the client still sends is delivered.
func TestRelayEndsFirst(t *testing.T) {
	onWays(t, nil, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		client, relay := e.pair()
		mustWrite(t, relay, []byte("greeting"))
		if err := relay.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		wantRead(t, client, []byte("greeting"))
		client.wantStreamEnd(t)
		if w.ended() { // crypto/tls does not tell a FIN between records from a close_notify
			client.raw.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if n, err := client.raw.Read(make([]byte, 1)); !isTimeout(err) {
				t.Errorf("the client's socket reads %d bytes, %v; want close_notify alone", n, err)
			}
			client.raw.SetReadDeadline(time.Now().Add(patience))
		}
		for range 5 {
			mustWrite(t, client, []byte("more"))
			wantRead(t, relay, []byte("more"))
		}
		e.wantOpen()
		client.CloseWrite()
		relay.wantStreamEnd(t)
		e.wantEnd(UpstreamClosed)
	})
}

// A client that goes without waiting for an answer ends its stream, and the pair
// when the relay goes too.
func TestClientCloses(t *testing.T) {
	onWays(t, nil, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		client, relay := e.pair()
		mustWrite(t, client, []byte("QUIT"))
		client.Close()
		if w.tls == "passthrough" {
			client.raw.Close()
		}
		wantRead(t, relay, []byte("QUIT"))
		relay.wantStreamEnd(t)
		relay.Close()
		e.wantEnd(ClientClosed)
	})
}

// A FIN without close_notify is the end of the stream between two records, and
// cuts it inside one.
func TestFINWithoutCloseNotify(t *testing.T) {
	ends := func(w way) bool { return w.ended() }
	t.Run("between records", func(t *testing.T) {
		onWays(t, ends, func(t *testing.T, w way) {
			e := newKernelEdge(t, w, nil)
			client, relay := e.pair()
			mustWrite(t, client, []byte("request"))
			party{Conn: client.raw, raw: client.raw}.CloseWrite()
			wantRead(t, relay, []byte("request"))
			relay.wantStreamEnd(t)
			mustWrite(t, relay, []byte("answer"))
			relay.CloseWrite()
			wantRead(t, client, []byte("answer"))
			client.wantStreamEnd(t)
			e.wantEnd(ClientClosed)
		})
	})
	t.Run("inside a record", func(t *testing.T) {
		onWays(t, ends, func(t *testing.T, w way) {
			e := newKernelEdge(t, w, nil)
			client, relay := e.pair()
			mustWrite(t, client.raw, []byte{23, 3, 3, 1, 0, 42})
			party{Conn: client.raw, raw: client.raw}.CloseWrite()
			relay.wantStreamEnd(t)
			e.wantEnd(ClientClosed)
		})
	})
}

// A reset of either side reaches the other as a reset.
func TestResets(t *testing.T) {
	for _, who := range []string{"client", "relay"} {
		t.Run("by the "+who, func(t *testing.T) {
			onWays(t, way.resets, func(t *testing.T, w way) {
				e := newKernelEdge(t, w, nil)
				from, to := e.pair()
				if who == "relay" {
					from, to = to, from
				}
				mustWrite(t, from, []byte("x"))
				wantRead(t, to, []byte("x"))
				from.reset()
				if n, err := to.raw.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the other side read %d bytes, %v; want a reset", n, err)
				}
				e.wantEnd(Reset)
			})
		})
	}
}

// Much goes both ways at once, and each byte of it arrives in its place.
func TestMuchBothWays(t *testing.T) {
	const size = 8 << 20
	onWays(t, nil, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		client, relay := e.pair()
		send := func(s party, seed byte) func() {
			return func() {
				source, p := rand.NewChaCha8([32]byte{seed}), make([]byte, 100_003)
				for left := size; left > 0; {
					n := min(left, len(p))
					source.Read(p[:n])
					if _, err := s.Write(p[:n]); err != nil {
						t.Errorf("%d bytes before the end: %v", left, err)
						return
					}
					left -= n
				}
				if err := s.CloseWrite(); err != nil {
					t.Error(err)
				}
			}
		}
		receive := func(s party, seed byte) func() {
			return func() {
				got, want := sha256.New(), sha256.New()
				n, err := io.Copy(got, s)
				io.CopyN(want, rand.NewChaCha8([32]byte{seed}), size)
				if n != size || err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
					t.Errorf("%d of %d bytes came, or others: %v", n, size, err)
				}
			}
		}
		together(send(client, 1), send(relay, 2), receive(client, 2), receive(relay, 1))
		waitFor(t, "the pair has ended", func() bool { return len(e.ends()) > 0 })
		if got := e.ends(); got[ClientClosed]+got[UpstreamClosed] != 1 || len(got) != 1 {
			t.Errorf("ended: %v, want one clean end", got)
		}
		if in, out := e.server.stats.bytesIn.Load(), e.server.stats.bytesOut.Load(); in < size || out < size {
			t.Errorf("%d bytes in, %d out were counted", in, out)
		}
	})
}

// A client that sends faster than its byte bucket fills is read slower; nothing
// of it is lost, and nobody is closed for it.
func TestThrottle(t *testing.T) {
	const size, rate, burst = 1 << 20, 1 << 20, 64 << 10
	onWays(t, among(plainWay, secureWay, ways[3], ways[10]), func(t *testing.T, w way) {
		e := newKernelEdge(t, w, func(c *kernelConfig) {
			c.times = func(q *times) { q.bytes = admission.Rate{N: rate, Per: time.Second, Burst: burst} }
		})
		client, relay := e.pair()
		began := time.Now()
		go client.Write(make([]byte, size))
		if _, err := io.CopyN(io.Discard, relay, size); err != nil {
			t.Fatal(err)
		}
		// The bucket's burst is free, and so is the last read before a pause.
		if took, least := time.Since(began), time.Second*(size-burst-128<<10)/rate; took < least {
			t.Errorf("%d bytes took %v, want %v at least", size, took, least)
		}
		if e.server.stats.rejected[RateLimit].Load() == 0 {
			t.Error("no pause was counted")
		}
		mustWrite(t, relay, []byte("answer"))
		wantRead(t, client, []byte("answer"))
		e.wantOpen()
	})
}

// Whoever is silent for too long ends for the rule that says so, and not before.
func TestSilentPairs(t *testing.T) {
	hello := func(from, to party) error {
		if _, err := from.Write([]byte("hello")); err != nil {
			return err
		}
		_, err := io.ReadFull(to, make([]byte, 5))
		return err
	}
	for _, row := range []struct {
		name  string
		times func(q *times, life time.Duration)
		quiet func(client, relay party) error // what comes before the silence
		want  Reason
	}{
		{"idle", func(q *times, life time.Duration) { q.idle = life }, hello, IdleTimeout},
		{"idle, of both", func(q *times, life time.Duration) { q.idle, q.idleCountsBoth = life, true }, func(client, relay party) error {
			return cmp.Or(hello(client, relay), hello(relay, client))
		}, IdleTimeout},
		{"first byte", func(q *times, life time.Duration) { q.firstByte = life }, func(client, relay party) error { return hello(relay, client) }, FirstByteTimeout},
		{"half-closed by the client", func(q *times, life time.Duration) { q.halfClose = life }, func(client, relay party) error {
			err := hello(client, relay)
			client.CloseWrite()
			return cmp.Or(err, relay.streamEnd())
		}, HalfCloseTimeout},
		{"half-closed by the relay", func(q *times, life time.Duration) { q.halfClose = life }, func(client, relay party) error {
			relay.CloseWrite()
			return client.streamEnd()
		}, HalfCloseTimeout},
	} {
		t.Run(row.name, func(t *testing.T) {
			onWays(t, among(ways[0], ways[1], ways[2], ways[5], ways[10], ways[11]), func(t *testing.T, w way) {
				// A busy machine may need longer for what comes before the silence: then the
				// silence is to be longer too.
				for life := 300 * time.Millisecond; ; life *= 4 {
					e := newKernelEdge(t, w, func(c *kernelConfig) { c.times = func(q *times) { row.times(q, life) } })
					dialled := time.Now()
					client, relay := e.pair()
					began := time.Now()
					if row.want == FirstByteTimeout {
						began = dialled
					}
					if err := row.quiet(client, relay); err != nil {
						if took := time.Since(dialled); took < life/2 || life > 10*time.Second {
							t.Fatalf("after %v, with a life of %v: %v", took, life, err)
						}
						continue
					}
					e.wantEnd(row.want)
					if took := time.Since(began); took < life {
						t.Errorf("it ended after %v, want %v at least", took, life)
					}
					return
				}
			})
		})
	}
}

// A peer that takes nothing while bytes wait for it ends as that, and the other
// side is told by a reset.
func TestStalledWriters(t *testing.T) {
	for _, who := range []string{"client", "relay"} {
		t.Run("the "+who+" does not read", func(t *testing.T) {
			onWays(t, among(ways[0], ways[1], ways[2], ways[3], ways[10]), func(t *testing.T, w way) {
				e := newKernelEdge(t, w, func(c *kernelConfig) {
					c.times = func(q *times) { q.writerStall = 500 * time.Millisecond }
				})
				stalls, writes := e.pair()
				if who == "relay" {
					stalls, writes = writes, stalls
				}
				began := time.Now()
				var err error
				for p := make([]byte, 1<<20); err == nil; {
					_, err = writes.Write(p)
				}
				if w.resets() && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
					t.Errorf("the writer's end: %v", err)
				}
				e.wantEnd(WriterStall)
				if took := time.Since(began); took < 500*time.Millisecond {
					t.Errorf("it ended after %v", took)
				}
				stalls.raw.Close()
			})
		})
	}
}

// A slow reader is no stalled one, however long it takes in all.
func TestSlowReadersLive(t *testing.T) {
	const stall, size = 2 * time.Second, 4 << 20
	onWays(t, among(plainWay, secureWay), func(t *testing.T, w way) {
		e := newKernelEdge(t, w, func(c *kernelConfig) {
			c.times = func(q *times) { q.writerStall = stall }
		})
		slow, writes := e.pair()
		if w == plainWay { // the relay is the slow one
			slow, writes = writes, slow
		}
		done := make(chan error, 1)
		go func() {
			_, err := writes.Write(make([]byte, size))
			done <- err
		}()
		for began := time.Now(); time.Since(began) < 2*stall; time.Sleep(stall / 20) {
			if _, err := io.CopyN(io.Discard, slow, size/64); err != nil {
				t.Fatal(err)
			}
		}
		go io.Copy(io.Discard, slow)
		if err := <-done; err != nil {
			t.Error(err)
		}
		e.wantOpen()
	})
}
