package relaycore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"relayedge/internal/memconn"
	"relayedge/internal/spread"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a client may not send ends its session with a code that says so.
func TestFaults(t *testing.T) {
	send := func(b ...byte) []byte { return masked(0x82, b) }
	for _, tc := range []struct {
		name   string
		bytes  []byte
		code   websocket.Code
		reason Reason // empty: counted as malformed
	}{
		{"media, which is reserved", send(0x05), websocket.CodePolicy, ReasonUnknownFrame},
		{"no such frame", send(0x77, 1, 2), websocket.CodePolicy, ReasonUnknownFrame},
		{"a frame of the relay", wireFrame(wire.MessageAck{}), websocket.CodePolicy, ReasonUnknownFrame},
		{"empty", send(), websocket.CodeInvalidData, ""},
		{"HELLO cut", send(0x01, 0), websocket.CodeInvalidData, ""},
		{"SEND cut", masked(0x82, wire.Send{}.Append(nil)[:42]), websocket.CodeInvalidData, ""},
		{"ASK too long", masked(0x82, append(wire.Ask{Mode: wire.Named, Content: make([]byte, wire.AskSize)}.Append(nil), 0)), websocket.CodeInvalidData, ""},
		{"text", masked(0x81, []byte("hello")), websocket.CodeUnsupported, ""},
		{"not masked", []byte{0x82, 0x01, 0x08}, websocket.CodeProtocolError, ""},
		{"one byte over the limit", []byte{0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 1}, websocket.CodeTooBig, ReasonOversizedFrame},
		{"fragments over the limit", append(masked(0x02, make([]byte, 60<<10)), masked(0x80, make([]byte, 6<<10))...), websocket.CodeTooBig, ReasonOversizedFrame},
		{"length of 2^63", []byte{0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, websocket.CodeProtocolError, ""},
		{"length of 2^63-1", []byte{0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, websocket.CodeTooBig, ReasonOversizedFrame},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *Config) { c.Limits.MaxMessageBytes = 64 << 10 }, func(t *testing.T, w *world) {
				honest, p := w.member(1), w.member(2)
				p.write(tc.bytes)
				if code, _, _ := p.end(); code != tc.code {
					t.Fatalf("closed with %d", code)
				}
				malformed := w.s.count.malformed.Load()
				if tc.reason != "" {
					w.wantOnly(tc.reason, 1)
					if malformed != 0 {
						t.Fatal("counted as malformed too")
					}
				} else {
					w.wantOnly("", 0)
					if malformed != 1 {
						t.Fatal("not counted")
					}
				}
				honest.hello()
			})
		})
	}
	t.Run("exactly the limit", func(t *testing.T) {
		bubble(t, func(c *Config) { c.Limits.MaxMessageBytes = 64 << 10 }, func(t *testing.T, w *world) {
			p := w.member(1)
			p.send(wire.Send{Payload: make([]byte, 64<<10-wire.SendHead)})
			want[wire.Error](p)
		})
	})
}

func wireFrame(f wire.Frame) []byte { return masked(0x82, f.Append(nil)) }

// spec/003: raising max_message_bytes does not let users send larger messages.
func TestLargerThanClientsTake(t *testing.T) {
	bubble(t, func(c *Config) {
		c.Limits.MaxMessageBytes, c.Limits.OfflineQueueMaxBytesPerRecipient = 64<<20, 64<<20
		big(c)
	}, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		if got := a.hello().MaxMessageBytes; got != wire.MaxSend {
			t.Fatalf("%d bytes are promised", got)
		}
		circuit := w.pairUp(a, b)
		a.send(wire.Send{Circuit: circuit, Payload: make([]byte, wire.MaxSend-wire.SendHead)})
		want[wire.MessageAck](a)
		want[wire.Message](b)
		a.send(wire.Send{Circuit: circuit, Payload: make([]byte, wire.MaxSend-wire.SendHead+1)})
		if got := want[wire.Error](a); got.Fault != wire.FaultTooLarge {
			t.Fatalf("%+v", got)
		}
		b.quiet()
	})
}

// A close frame is answered with its own code, and the connection ends.
func TestClientCloses(t *testing.T) {
	for _, tc := range []struct {
		name string
		body []byte
		code websocket.Code
	}{
		{"no code", nil, websocket.CodeNormal},
		{"normal", []byte{0x03, 0xe8}, websocket.CodeNormal},
		{"going away", []byte("\x03\xe9bye"), websocket.CodeGoingAway},
		{"one byte", []byte{3}, websocket.CodeProtocolError},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				p := w.member(1)
				p.write(masked(0x88, tc.body))
				if code, _, _ := p.end(); code != tc.code {
					t.Fatalf("closed with %d", code)
				}
				w.wantOnly("", 0)
			})
		})
	}
}

// A session that ends gives its slot back at once, before its client has closed.
func TestSlotIsFreeAtOnce(t *testing.T) {
	bubble(t, func(c *Config) {
		c.Limits.MaxConnections, c.Limits.MaxConnectionsPerIP, c.Limits.MaxConnectionsPerIPv648 = 1, 1, 1
	}, func(t *testing.T, w *world) {
		p := w.dial("192.0.2.1:1").upgrade()
		io.Copy(io.Discard, w.dial("192.0.2.1:2").nc)
		w.wantOnly(ReasonMaxConnections, 1)
		p.write(masked(0x82, []byte{0x05}))
		p.next() // the close frame
		w.dial("192.0.2.1:3").upgrade().hello()
		if n := w.s.lingers.taken.Load(); n != 1 {
			t.Fatalf("%d sessions linger", n)
		}
		time.Sleep(lastWords)
		synctest.Wait()
		if n := w.s.lingers.taken.Load(); n != 0 {
			t.Fatalf("%d sessions linger", n)
		}
	})
}

// faulty is a connection whose methods panic once they are told to.
type faulty struct {
	net.Conn
	read, write, ending atomic.Bool
	writeBy             time.Time // the latest write deadline
}

func (f *faulty) Read(b []byte) (int, error) {
	if f.read.Load() {
		panic("reading is broken")
	}
	return f.Conn.Read(b)
}

func (f *faulty) Write(b []byte) (int, error) {
	if f.write.Load() && b[0] == 0x82 {
		panic("writing is broken")
	}
	return f.Conn.Write(b)
}

func (f *faulty) SetDeadline(t time.Time) error {
	f.writeBy = t
	return f.Conn.SetDeadline(t)
}

func (f *faulty) SetWriteDeadline(t time.Time) error {
	if f.ending.Load() && time.Until(t) == lastWords {
		panic("the end is broken")
	}
	f.writeBy = t
	return f.Conn.SetWriteDeadline(t)
}

// through lets a client in on a faulty connection.
func (w *world) through(f *faulty) *peer {
	near, far := memconn.Pipe(netip.MustParseAddrPort("203.0.113.77:1"), netip.MustParseAddrPort("127.0.0.1:7777"))
	f.Conn = far
	lease, _ := w.s.gate.Admit(netip.MustParseAddr("203.0.113.77"), time.Now())
	w.s.count.open.Add(1)
	w.s.running.Go(func() { w.s.connection(f, lease, time.Now()) })
	return w.adopt(near)
}

// The upgrade's deadlines end with it.
func TestUpgradeLeavesNoDeadline(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		var f faulty
		w.through(&f).upgrade()
		synctest.Wait()
		if !f.writeBy.IsZero() {
			t.Fatalf("writing ends at %v", f.writeBy)
		}
	})
}

// The last words to a client that reads nothing take no longer than they may.
func TestLastWordsAreBounded(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		w.stuffed(a, b, 1226)
		newer := w.member(2)
		synctest.Wait()
		if n := w.s.count.open.Load(); n != 3 {
			t.Fatalf("%d connections are open", n)
		}
		time.Sleep(lastWords)
		synctest.Wait()
		if n := w.s.count.open.Load(); n != 2 {
			t.Fatalf("%d connections are open", n)
		}
		newer.quiet()
	})
}

// spec/003: a fault in one connection closes only that connection (task_panic).
func TestPanicIsContained(t *testing.T) {
	for _, tc := range []struct {
		name   string
		act    func(w *world, f *faulty, p *peer)
		widows bool
	}{
		{"before the session", func(w *world, f *faulty, p *peer) {
			synctest.Wait()
			f.read.Store(true)
			p.write([]byte("G"))
			io.Copy(io.Discard, p.nc)
		}, false},
		{"reader", func(w *world, f *faulty, p *peer) {
			f.read.Store(true)
			p.send(wire.Keepalive{})
			p.end()
		}, true},
		{"writer", func(w *world, f *faulty, p *peer) {
			f.write.Store(true)
			p.send(wire.Hello{Version: wire.Version})
			p.end()
		}, true},
		{"ending", func(w *world, f *faulty, p *peer) {
			f.ending.Store(true)
			p.write(masked(0x88, nil))
			p.end()
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				honest := w.member(1)
				var f faulty
				p := w.through(&f)
				var circuit uint64
				if tc.widows {
					p.upgrade().hello()
					p.publish(2)
					circuit = w.pairUp(p, honest)
				}
				tc.act(w, &f, p)
				w.wantOnly(ReasonTaskPanic, 1)
				if tc.widows {
					if got := want[wire.CircuitClosed](honest); got.Circuit != circuit {
						t.Fatalf("%+v", got)
					}
				}
				honest.hello()
				if log := w.log.String(); !strings.Contains(log, "is broken") || strings.Contains(log, "203.0.113.77") {
					t.Fatalf("log: %s", log)
				}
			})
		})
	}
}

// At shutdown every session gets 1001, spread out, and who does not leave is cut.
func TestDrain(t *testing.T) {
	for _, tc := range []struct {
		sessions, grace int
		spread          time.Duration
	}{
		{100, 30, 99 * spread.Step},
		{100, 0, 0},
		{100, 1, 99 * 500 * time.Millisecond / 100},
		// More than may linger at other times, and none of them closes by itself.
		{2 * maxLingers, 2, (2*maxLingers - 1) * (time.Second / (2 * maxLingers))},
	} {
		bubble(t, func(c *Config) { c.DrainSecs = tc.grace; c.Limits.MaxConnectionsPerIP = 1000; proxied(c) }, func(t *testing.T, w *world) {
			var peers []*peer
			for range tc.sessions {
				peers = append(peers, w.behind(""))
			}
			idle := w.dial(frontEnd)
			idle.write(header(t, ""))
			synctest.Wait()
			start := time.Now()
			var open atomic.Int64
			time.AfterFunc(tc.spread, func() { open.Store(w.s.count.open.Load()) })
			w.stop()
			took := time.Since(start)
			// None of them closes by itself, so all still have their last words.
			if n := open.Load(); tc.grace > 0 && n != int64(tc.sessions) {
				t.Errorf("%d connections were open at the last close", n)
			}
			if most := time.Duration(tc.grace) * time.Second; took > most {
				t.Fatalf("it took %v", took)
			}
			first, last := start.Add(time.Hour), start
			for _, p := range peers {
				code, text, at := p.end()
				if tc.grace > 0 && (code != websocket.CodeGoingAway || text != "drain") {
					t.Fatalf("closed with %d %q", code, text)
				}
				if at.Before(first) {
					first = at
				}
				if at.After(last) {
					last = at
				}
			}
			if got := last.Sub(first); tc.grace > 0 && got != tc.spread {
				t.Fatalf("spread over %v", got)
			}
			if w.s.Ready() == nil {
				t.Fatal("still ready")
			}
			w.wantOnly("", 0)
		})
	}
}

// Sessions that end all at once have their close frame, although few of them may
// linger; the others are closed behind it.
func TestManyEndAtOnce(t *testing.T) {
	bubble(t, func(c *Config) { c.Limits.MaxConnectionsPerIP = 1000; proxied(c) }, func(t *testing.T, w *world) {
		const sessions = maxLingers + 100
		var peers []*peer
		for range sessions {
			peers = append(peers, w.behind(""))
		}
		start := time.Now()
		for _, p := range peers {
			p.write(masked(0x82, []byte{0x77}))
		}
		w.wantOnly(ReasonUnknownFrame, sessions)
		if n := w.s.count.open.Load(); n != maxLingers {
			t.Errorf("%d connections are open", n)
		}
		for _, p := range peers {
			if code, _, at := p.end(); code != websocket.CodePolicy || at != start {
				t.Fatalf("closed with %d after %v", code, at.Sub(start))
			}
		}
		time.Sleep(lastWords)
		synctest.Wait()
		if n := w.s.count.open.Load(); n != 0 {
			t.Errorf("%d connections are still open", n)
		}
	})
}

// Where no more may linger, a client that reads nothing is given up soon.
func TestLastWordWithoutLinger(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		w.stuffed(a, b, 1226)
		for w.s.lingers.take() {
		}
		defer w.s.lingers.taken.Store(0)
		w.member(2) // takes b's place
		time.Sleep(lastWord - time.Nanosecond)
		synctest.Wait()
		if n := w.s.count.open.Load(); n != 3 {
			t.Fatalf("%d connections are open", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := w.s.count.open.Load(); n != 2 {
			t.Fatalf("%d connections are open", n)
		}
	})
}

// A client that reads nothing cannot hold up a drain beyond its grace.
func TestDrainCuts(t *testing.T) {
	bubble(t, func(c *Config) { c.DrainSecs = 3; big(c) }, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		w.stuffed(a, b, 1226)
		start := time.Now()
		w.stop()
		if took := time.Since(start); took > 3*time.Second {
			t.Fatalf("it took %v", took)
		}
	})
}

// Accept errors that pass are lived through; others end Serve with an error.
func TestAcceptErrors(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		for range 3 {
			w.ln.SetAcceptError(syscall.EMFILE)
			w.ln.SetAcceptError(syscall.ECONNABORTED)
		}
		w.dial("192.0.2.1:1").upgrade().hello()
	})
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(DefaultConfig(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ln := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777"))
		broken := errors.New("broken")
		ln.SetAcceptError(broken)
		if err := s.Serve(context.Background(), ln); !errors.Is(err, broken) {
			t.Fatal(err)
		}
	})
}

// spec/003: the start-up line.
func TestLimitsLine(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		synctest.Wait()
		const line = "Limits: max_connections=10000, max_connections_per_ip=64, rate_limit_bps=1048576, max_message_bytes=4194304, connection_timeout_secs=300"
		if !strings.Contains(w.log.String(), line) {
			t.Fatal(w.log.String())
		}
	})
}

// No address of a client is logged, whatever it does.
func TestLogKeepsNoAddress(t *testing.T) {
	bubble(t, proxied, func(t *testing.T, w *world) {
		p := w.behind("203.0.113.77:4711")
		p.write([]byte{0xff, 0xff})
		p.end()
		io.Copy(io.Discard, w.dial("203.0.113.77:4711").nc)
		w.stop()
		if bytes.Contains(w.log.Bytes(), []byte("203.0.113")) {
			t.Fatal(w.log.String())
		}
	})
}
