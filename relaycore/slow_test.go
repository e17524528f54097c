package relaycore

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// Many who take nothing of what is sent to them cost one who reads nothing, and
// no more memory than the budget; they are gone by the end of the writer's stall.
func TestSlowSubscribers(t *testing.T) {
	subscribers, size := 200, 16<<10
	if raceEnabled {
		subscribers, size = 30, 32<<10
	}
	// Room for what half of them can hold.
	limit := max(16<<20, subscribers*size*15)
	bubble(t, func(c *Config) {
		big(c)
		c.Limits.MaxConnectionsPerIP, c.Limits.OutboundBudgetBytes = 0, limit
	}, func(t *testing.T, w *world) {
		publisher, other, reader := w.member(201), w.member(202), w.member(203)
		good := w.pairUp(other, reader)
		var slow []*peer
		var messages [][]byte // one for each, over and over
		for i := range subscribers {
			p := w.member(byte(1 + i))
			circuit := w.pairUp(p, publisher) // nobody may ask so many in a day
			messages = append(messages, frameOf(0x82, wire.Send{Circuit: circuit, Payload: make([]byte, size)}.Append(nil)))
			slow = append(slow, p)
		}
		for _, p := range slow {
			p.stopReading()
		}
		start := time.Now()
		end := start.Add(writerStall + 10*time.Second)
		sent := 0
		for time.Now().Before(end) {
			for _, m := range messages {
				publisher.write(m)
				synctest.Wait() // a heap of answers would make the publisher the heaviest
			}
			for range 10 {
				at := time.Now()
				other.send(wire.Send{Circuit: good, ID: messageID(sent), Payload: []byte("on time")})
				if got := want[wire.Message](reader); got.ID != messageID(sent) || !time.Now().Equal(at) {
					t.Fatalf("message %d of %d came after %v", got.ID, sent, time.Since(at))
				}
				want[wire.MessageAck](other)
				sent++
				time.Sleep(100 * time.Millisecond)
			}
			publisher.quietErrors() // its answers
			if _, counts := w.s.outboundBudget.sums(); counts > int64(limit) {
				t.Fatalf("%d bytes are in a budget of %d", counts, limit)
			}
			reader.send(wire.Keepalive{})
		}
		synctest.Wait()
		stalled, stuck, shed := w.rejected(ReasonWriterStall), w.rejected(ReasonSlowConsumer), w.rejected(ReasonOutboundShed)
		if stalled+stuck+shed != subscribers || shed == 0 || stalled == 0 {
			t.Errorf("%d stalled, %d stuck, %d shed, of %d", stalled, stuck, shed, subscribers)
		}
		if n := w.s.count.open.Load(); n != 3 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// Who reads slowly but does read is cut by no timer: its sender is slowed, and
// every message comes, in order.
func TestSlowReaders(t *testing.T) {
	const messages = 1000
	for _, tc := range []struct {
		name  string
		every time.Duration // of the sender's messages; 0: as fast as it can
		read  func(n int) (messages int, pause time.Duration)
	}{
		// 100 messages a second are sent, 20 a second are taken.
		{"a fifth of the rate", 10 * time.Millisecond, func(int) (int, time.Duration) { return 1, 50 * time.Millisecond }},
		{"a fifth of the rate, and the sender does not wait", 0, func(int) (int, time.Duration) { return 1, 50 * time.Millisecond }},
		{"in bursts every 5 seconds", 25 * time.Millisecond, func(int) (int, time.Duration) { return 200, 5 * time.Second }},
		{"in bursts just within the wait for room", 0, func(int) (int, time.Duration) { return 200, queueWait - time.Millisecond }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, big, func(t *testing.T, w *world) {
				a, b := w.member(1), w.member(2)
				circuit := w.pairUp(a, b)
				synctest.Wait()
				b.detach()
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					for i := range messages {
						a.nc.Write(wireFrame(wire.Send{Circuit: circuit, ID: messageID(i), Payload: make([]byte, 1226)}))
						time.Sleep(tc.every)
					}
				}()
				for i := 0; i < messages; {
					n, pause := tc.read(i)
					for ; n > 0 && i < messages; n-- {
						r, err := readFrame(b.nc)
						for err == nil && r.op == websocket.Ping {
							b.nc.Write(masked(0x8a, r.payload))
							r, err = readFrame(b.nc)
						}
						f, _ := wire.DecodeServer(r.payload)
						if m, ok := f.(wire.Message); err != nil || !ok || m.ID != messageID(i) {
							t.Fatalf("message %d: %T, %v", i, f, err)
						}
						i++
					}
					b.nc.Write(wireFrame(wire.Keepalive{}))
					time.Sleep(pause)
				}
				<-sent
				for range messages {
					want[wire.MessageAck](a)
				}
				w.wantOnly("", 0)
				b.nc.Close()
			})
		})
	}
}

// Pings take memory that does not grow with their number, also while much else
// waits to be written, cost the byte bucket as messages do, and end where they
// are all that comes.
func TestPingsAreBounded(t *testing.T) {
	longest := ping(strings.Repeat("p", 125))
	for _, reads := range []bool{true, false} {
		t.Run(fmt.Sprintf("and nothing else, pongs read: %v", reads), func(t *testing.T) {
			bubble(t, big, func(t *testing.T, w *world) {
				p := w.member(1)
				if !reads {
					p.stopReading()
				}
				n := 0
				for ; n < 1000000; n++ {
					if _, err := p.nc.Write(longest); err != nil {
						break
					}
					synctest.Wait()
				}
				p.resume()
				// Who reads nothing is not told why.
				if code, _, _ := p.end(); reads && code != websocket.CodePolicy || n > 2000 || w.s.count.malformed.Load() != 1 {
					t.Fatalf("closed with %d after %d pings", code, n)
				}
			})
		})
	}
	t.Run("while a message is being written", func(t *testing.T) {
		bubble(t, big, func(t *testing.T, w *world) {
			a, b := w.member(1), w.member(2)
			circuit := w.pairUp(a, b)
			b.stopReading()
			a.send(wire.Send{Circuit: circuit, Payload: make([]byte, 4*memconn.BufferSize)})
			want[wire.MessageAck](a)
			synctest.Wait() // the message is being written
			flood := func(n int) int64 {
				for range n {
					b.write(longest)
					b.send(wire.Keepalive{})
				}
				synctest.Wait()
				held, _ := w.s.outboundBudget.sums()
				return held
			}
			few := flood(20)
			if many := flood(3000); many != few {
				t.Errorf("%d bytes are held after few pings, %d after many", few, many)
			}
			b.write(ping("the latest"))
			synctest.Wait()
			b.resume()
			want[wire.Message](b)
			for r := b.next(); string(r.payload) != "the latest"; r = b.next() {
				if r.op != websocket.Pong {
					t.Fatalf("opcode %x", r.op)
				}
			}
		})
	})
	t.Run("cost", func(t *testing.T) {
		const rate = 64 << 10
		bubble(t, func(c *Config) { c.Limits.RateLimitBPS, c.Limits.MaxMessageBytes = rate, rate }, func(t *testing.T, w *world) {
			p := w.member(1)
			time.Sleep(10 * time.Second) // the bucket is full
			start := time.Now()
			const pings = 1000
			for range pings {
				p.write(longest)
			}
			p.send(wire.Hello{Version: wire.Version})
			for r := p.next(); r.op != websocket.Binary; r = p.next() {
			}
			cost := pings * (125 + messageOverhead)
			due := time.Duration(float64(cost-rate) / rate * float64(time.Second))
			if got := time.Since(start); got < due || got > due+time.Millisecond || w.rejected(ReasonRateLimit) == 0 {
				t.Errorf("all were read after %v, want %v", got, due)
			}
		})
	})
}

// The pongs that wait are as many as fit; beyond that only the latest counts.
func TestPongsThatAreOwed(t *testing.T) {
	var q outbound
	budget := newBudget(1<<20, gone)
	q.account.open(budget, nil, 0)
	for range 16 {
		q.owePong(make([]byte, 125))
	}
	if n := len(q.pong.buf); n != pongBytes {
		t.Errorf("16 of the longest take %d bytes", n)
	}
	held, _ := budget.sums()
	q.owePong([]byte("latest"))
	if got := string(q.pong.buf); got != "\x8a\x06latest" {
		t.Errorf("%q is owed", got)
	}
	if again, _ := budget.sums(); again != held || held < pongBytes {
		t.Errorf("%d bytes are charged, %d after one more", held, again)
	}
	q.drop()
	if held, _ := budget.sums(); held != 0 || q.frames != 0 || q.bytes != 0 {
		t.Errorf("%d bytes are charged for nothing", held)
	}
}

// An upgrade that comes slowly or does not end is given up, and its slot with it.
func TestSlowUpgrades(t *testing.T) {
	lines := strings.SplitAfter(upgradeRequest, "\r\n")
	for _, tc := range []struct {
		name   string
		write  func(nc io.Writer)
		status int
		after  time.Duration
	}{
		{"a line every 5 seconds", func(nc io.Writer) {
			for _, line := range lines {
				io.WriteString(nc, line)
				time.Sleep(5 * time.Second)
			}
		}, http.StatusRequestTimeout, headTime},
		{"a byte every second", func(nc io.Writer) {
			for i := range 30 {
				io.WriteString(nc, upgradeRequest[i:i+1])
				time.Sleep(time.Second)
			}
		}, http.StatusRequestTimeout, headTime},
		{"all but the last byte", func(nc io.Writer) { io.WriteString(nc, upgradeRequest[:len(upgradeRequest)-1]) }, http.StatusRequestTimeout, headTime},
		{"nothing", func(io.Writer) {}, http.StatusRequestTimeout, headTime},
		{"64 KiB of one line", func(nc io.Writer) {
			io.WriteString(nc, "GET /relay HTTP/1.1\r\nX: "+strings.Repeat("a", 64<<10))
		}, http.StatusRequestHeaderFieldsTooLarge, 0},
		{"10,000 lines", func(nc io.Writer) {
			io.WriteString(nc, "GET /relay HTTP/1.1\r\n"+strings.Repeat("a: b\r\n", 10000)+"\r\n")
		}, http.StatusRequestHeaderFieldsTooLarge, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *Config) {
				c.Limits.MaxConnections, c.Limits.MaxConnectionsPerIP, c.Limits.MaxConnectionsPerIPv648 = 1, 1, 1
			}, func(t *testing.T, w *world) {
				p := w.dial("192.0.2.1:1")
				start := time.Now()
				go tc.write(p.nc)
				if r := p.response(); r.StatusCode != tc.status || time.Since(start) != tc.after {
					t.Fatalf("status %d after %v", r.StatusCode, time.Since(start))
				}
				time.Sleep(lastWords)
				synctest.Wait()
				w.dial("192.0.2.1:2").upgrade().hello()
				time.Sleep(5 * time.Minute) // for those that still write
			})
		})
	}
}

// A client that sends too much gets a code of its own, at once and each time,
// and leaves nothing behind.
func TestTooBigIsSaidEachTime(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		honest := w.member(200)
		excess := masked(0x82, make([]byte, 5<<20))[:1000]
		for i := range 50 {
			p := w.member(1)
			start := time.Now()
			p.write(excess)
			if code, text, at := p.end(); code != websocket.CodeTooBig || text != "oversized_frame" || !at.Equal(start) {
				t.Fatalf("time %d: closed with %d %q after %v", i, code, text, at.Sub(start))
			}
			p.nc.Close()
		}
		w.wantOnly(ReasonOversizedFrame, 50)
		if n := w.s.count.open.Load(); n != 1 {
			t.Errorf("%d connections are open", n)
		}
		honest.hello()
	})
}

// What a client may send at once and how long the rest takes is what is
// configured, or the default; it is held back and never cut.
func TestBulkSender(t *testing.T) {
	for _, rate := range []int{0, 1000, 1023} {
		c := DefaultConfig()
		c.Limits.RateLimitBPS = rate
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "limits.rate_limit_bps") {
			t.Errorf("rate %d: %v", rate, err)
		}
	}
	const events, size = 500, 300
	cost := events * (size + messageOverhead)
	for _, rate := range []int{1024, 5000, DefaultConfig().Limits.RateLimitBPS} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			bubble(t, func(c *Config) { c.Limits.RateLimitBPS, c.Limits.MaxMessageBytes = rate, 64<<10 }, func(t *testing.T, w *world) {
				a, b := w.member(1), w.member(2)
				circuit := w.pairUp(a, b)
				a.pongs.Store(false) // they cost too
				// The bucket is full; the sender's first pings are not missed yet.
				burst := max(rate, 64<<10)
				for range 2 {
					time.Sleep(20 * time.Second)
					synctest.Wait()
				}
				for len(a.frames) > 0 {
					if r := <-a.frames; r.op == websocket.Ping {
						a.write(masked(0x8a, r.payload))
					}
				}
				a.pongs.Store(true)
				time.Sleep(secs(max(1, 10000/rate)))
				start := time.Now()
				go func() {
					for i := range events {
						a.nc.Write(wireFrame(wire.Send{Circuit: circuit, ID: messageID(i), Payload: make([]byte, size-wire.SendHead)}))
					}
				}()
				for i := range events {
					if got := want[wire.MessageAck](a); got.ID != messageID(i) {
						t.Fatalf("%x acknowledged as number %d", got.ID[:8], i)
					}
				}
				due := time.Duration(max(0, cost-size-messageOverhead-burst)) * time.Second / time.Duration(rate)
				// What else it sends, pongs above all, costs little.
				if got := time.Since(start); got < due || got > due+due/10 {
					t.Errorf("%d events took %v, want %v", events, got, due)
				}
				for i := range events {
					if got := want[wire.Message](b); got.ID != messageID(i) {
						t.Fatalf("%x came as number %d", got.ID[:8], i)
					}
				}
			})
		})
	}
}

// Behind one source each user has a byte bucket of its own: one that sends
// without end takes nothing from the others.
func TestUsersOfOneSourceSendAlike(t *testing.T) {
	const users = 50
	bubble(t, func(c *Config) {
		fronted(c)
		c.Limits.RateLimitBPS, c.Limits.MaxMessageBytes, c.Limits.MaxConnectionsPerIP = 64<<10, 64<<10, users
	}, func(t *testing.T, w *world) {
		var peers []*peer
		for i := range users {
			peers = append(peers, w.as("203.0.113.1:1", 1+i))
		}
		greedy := peers[0]
		go func() {
			for {
				if _, err := greedy.nc.Write(wireFrame(wire.Send{Payload: make([]byte, 60<<10)})); err != nil {
					return
				}
			}
		}()
		for range 10 {
			for i, p := range peers[1:] {
				start := time.Now()
				p.send(wire.Send{ID: messageID(i), Payload: make([]byte, 1000)})
				if got := want[wire.Error](p); got.MessageID != messageID(i) || !time.Now().Equal(start) {
					t.Fatalf("user %d waited %v", i, time.Since(start))
				}
			}
			time.Sleep(time.Second)
		}
		if w.rejected(ReasonRateLimit) == 0 {
			t.Error("nobody was held back")
		}
		greedy.nc.Close()
	})
}
