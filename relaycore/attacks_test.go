package relaycore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// bystanders are two honest clients, of two sources, whose requests must go on
// succeeding whatever others do.
type bystanders struct {
	w    *world
	a, b *peer
	n    int
}

func (w *world) bystanders() *bystanders {
	return &bystanders{w: w, a: w.as("198.51.100.7:1", 10_000), b: w.as("198.51.100.8:1", 10_001)}
}

// meet has them meet under a key each, exchange a message, and part.
func (h *bystanders) meet(mode wire.Mode, keyA, keyB [32]byte) {
	w := h.w
	w.t.Helper()
	start := time.Now()
	h.n++
	if got := h.a.request(mode, uint64(h.n), keyA); got != (answer{}) {
		w.t.Fatalf("the first request of meeting %d: %+v", h.n, got)
	}
	got := h.b.request(mode, uint64(h.n), keyB)
	if other := h.a.answered(uint64(h.n)); got.circuit == 0 || other.circuit != got.circuit {
		w.t.Fatalf("the second request of meeting %d: %+v, and %+v for the first", h.n, got, other)
	}
	h.a.send(wire.Send{Circuit: got.circuit, ID: messageID(h.n), Payload: []byte("hi")})
	if m := want[wire.Message](h.b); m.ID != messageID(h.n) {
		w.t.Fatalf("message %x came in place of %d", m.ID[:8], h.n)
	}
	want[wire.MessageAck](h.a)
	h.a.send(wire.Close{Circuit: got.circuit})
	h.b.send(wire.Close{Circuit: got.circuit})
	synctest.Wait()
	if took := time.Since(start); took != 0 {
		w.t.Fatalf("meeting %d took %v", h.n, took)
	}
}

func (h *bystanders) meetNamed() {
	h.w.t.Helper()
	h.meet(wire.Named, identity(h.b.key), identity(h.a.key))
}

func (h *bystanders) meetBlinded() {
	h.w.t.Helper()
	key := tokenOf(1_000_000 + h.n)
	h.meet(wire.Blinded, key, key)
}

// One source fills the table of requests, by either kind.
func TestOneSourceFillsPending(t *testing.T) {
	for _, mode := range []wire.Mode{wire.Named, wire.Blinded} {
		eachFront(t, func(c *Config) { fronted(c); pendingAtMost(&c.Limits, 300) }, func(t *testing.T, w *world) {
			h := w.bystanders()
			each := 32
			if mode == wire.Blinded {
				each = 64
			}
			full := false
			for i := range 20 {
				p := w.as("203.0.113.1:1", i)
				for n := range each {
					switch got := p.request(mode, 1, tokenOf(100*i+n)); got.limit {
					case 0:
					case wire.LimitPendingTargets, wire.LimitPendingReserve, wire.LimitPendingPerSource, wire.LimitPendingBlindPerSource:
						full = true
					default:
						t.Fatalf("%+v", got)
					}
				}
				h.meetNamed()
				h.meetBlinded()
			}
			if !full {
				t.Fatalf("the table was never full: %+v", w.s.dir.stats())
			}
			w.wantNothingBut(ReasonPendingTargets, ReasonPendingEvicted, ReasonKnockEvicted)
		})
	}
}

// The same by so many sources that each holds little: all hold less than their
// caps, and the table is full all the same.
func TestManySourcesFillPending(t *testing.T) {
	eachFront(t, func(c *Config) { fronted(c); pendingAtMost(&c.Limits, 300) }, func(t *testing.T, w *world) {
		h := w.bystanders()
		for i := range 40 {
			p := w.as(fmt.Sprintf("203.0.113.%d:1", i), i)
			for n := range 16 {
				p.request(wire.Named, 1, tokenOf(100*i+n))
				p.request(wire.Blinded, 2, tokenOf(100*i+n))
			}
			h.meetNamed()
			h.meetBlinded()
		}
		if st := w.s.dir.stats(); st.pending < 295 {
			t.Fatalf("%+v", st)
		}
	})
}

// spec/003: without source accounting a few connections, about 14 at the
// defaults, can fill the blinded share until their requests expire, while named
// requests stay protected by the reserve. With it they block nobody.
func TestFourteenConnectionsFillTheBlindedShare(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fronts  []front
		change  func(*Config)
		client  func(i int) string
		blocked bool
	}{
		{"one source", bothFronts, fronted, func(i int) string { return fmt.Sprintf("203.0.113.1:%d", i+1) }, false},
		{"fourteen sources", []front{headerFront}, fronted, func(i int) string { return fmt.Sprintf("203.0.113.%d:1", i+1) }, false},
		{"without source accounting", bothFronts, func(c *Config) { big(c); c.Limits.MaxConnectionsPerIP = 0 }, func(i int) string { return "127.0.0.1:1" }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			behindEach(t, costly(tc.fronts), tc.change, func(t *testing.T, w *world) {
				h := w.bystanders()
				ask := wireFrame(wire.Ask{Mode: wire.Blinded, Content: make([]byte, wire.AskSize)})
				copy(ask[4:8], []byte{0, 0, 0, 0}) // no mask
				copy(ask[8:], wire.Ask{Mode: wire.Blinded, Content: make([]byte, wire.AskSize)}.Append(nil))
				var attackers []*peer
				for i := range 14 {
					attackers = append(attackers, w.as(tc.client(i), i))
				}
				asked := 0
				round := func(each int) {
					for _, p := range attackers {
						for range each {
							asked++
							binary.BigEndian.PutUint64(ask[8+10:], uint64(asked))
							p.write(ask)
						}
						p.answered(0)
					}
				}
				round(64)
				for i := range 120 {
					time.Sleep(time.Second)
					round(8)
					if i%30 == 0 {
						h.meetNamed()
						h.meetBlinded()
					}
				}
				held := len(w.s.dir.pending.blinded)
				if most := 13500; tc.blocked && held != most || !tc.blocked && held > most {
					t.Fatalf("%d blinded requests are held", held)
				}
				h.meetNamed()
				if !tc.blocked {
					h.meetBlinded()
					w.wantNothingBut(ReasonPendingTargets, ReasonPendingEvicted)
					return
				}
				if got := h.a.request(wire.Blinded, 1, tokenOf(5_000_000)); got.limit != wire.LimitPendingReserve || got.retry != uint32((requestLife-2*time.Minute)/time.Second) {
					t.Fatalf("%+v", got)
				}
				w.stay(requestLife-2*time.Minute, append(attackers, h.a, h.b)...) // as long as it was told to wait
				h.meetBlinded()
				w.wantNothingBut(ReasonPendingTargets)
			})
		})
	}
}

// One source fills the table of circuits.
func TestOneSourceFillsCircuits(t *testing.T) {
	eachFront(t, func(c *Config) { fronted(c); circuitsAtMost(&c.Limits, 40) }, func(t *testing.T, w *world) {
		h := w.bystanders()
		refused := 0
		for i := range 30 {
			a, b := w.as("203.0.113.1:1", 2*i), w.as("203.0.113.1:1", 2*i+1)
			a.request(wire.Blinded, 1, tokenOf(i))
			if got := b.request(wire.Blinded, 2, tokenOf(i)); got.circuit == 0 {
				refused++
			}
			h.meetNamed()
			h.meetBlinded()
		}
		if refused != w.rejected(ReasonCircuitCap) || w.rejected(ReasonCircuitEvicted) == 0 {
			t.Fatalf("%d refused, %d evicted", refused, w.rejected(ReasonCircuitEvicted))
		}
		w.wantNothingBut(ReasonCircuitCap, ReasonCircuitEvicted)
	})
}

// One source floods the store of knocks, and one door of it: the honest knock
// waits there all the same, and a new one still finds its place.
func TestOneSourceFillsKnocks(t *testing.T) {
	eachFront(t, func(c *Config) { fronted(c); c.OfflineQueue.KnockBudgetBytes = 64 * wire.AskSize }, func(t *testing.T, w *world) {
		early := w.as("198.51.100.7:1", 10_000)
		early.knock(idOf(20_000), "early")
		for i := range 20 {
			p := w.as("203.0.113.1:1", i)
			for n := range 32 {
				target := idOf(20_000)
				if n%2 == 1 {
					target = idOf(30_000 + 100*i + n)
				}
				p.knock(target, "flood")
			}
			p.nc.Close()
			late := w.as("198.51.100.8:1", 11_000+i)
			late.knock(idOf(21_000+i), "late")
			late.nc.Close()
			wantTexts(t, w.as("192.0.2.1:1", 21_000+i).knocks(), "late")
		}
		got := w.as("192.0.2.1:1", 20_000).knocks()
		if len(got) == 0 || got[0] != "early" {
			t.Fatalf("%q", got)
		}
		w.wantNothingBut(ReasonKnockEvicted)
	})
}

// 1,000 identities come from one /48, each from a /64 of its own, and stay or go:
// what others have published is still there.
func TestThousandIdentitiesFromOneSite(t *testing.T) {
	for _, tc := range []struct {
		fronts []front
		stay   bool
	}{
		{[]front{headerFront}, true}, // two thousand connections more are too many for the race detector
		{bothFronts, false},
	} {
		behindEach(t, costly(tc.fronts), func(c *Config) {
			fronted(c)
			c.Limits.MaxIdentities = 100
			c.Limits.MaxConnectionsPerIPv648 = 0
		}, func(t *testing.T, w *world) {
			h := w.bystanders()
			away := w.as("198.51.100.9:1", 10_002)
			away.nc.Close()
			for i := range 1000 {
				p := w.as(fmt.Sprintf("[2001:db8:7:%x::1]:1", i), i)
				if !tc.stay {
					p.nc.Close()
				}
				if i%100 == 99 {
					h.meetNamed()
					h.meetBlinded()
				}
			}
			synctest.Wait()
			for _, n := range []int{10_000, 10_001, 10_002} {
				if _, _, ok := w.s.dir.bundle(idOf(n)); !ok {
					t.Errorf("identity %d is forgotten", n)
				}
			}
			if st := w.s.dir.stats(); st.identities != 100 {
				t.Fatalf("%+v", st)
			}
			if n := w.s.count.identitiesEvicted.Load(); n != 903 {
				t.Fatalf("%d were evicted", n)
			}
			newcomer := w.as("192.0.2.50:1", 10_003)
			if b, _, ok := w.s.dir.bundle(identity(newcomer.key)); !ok || string(b) != "bundle" {
				t.Fatal("a newcomer's bundle is not kept")
			}
			w.wantOnly("", 0)
		})
	}
}

// Strangers and steady contacts do what they can to fill one recipient's mailbox:
// an honest contact's messages are held all the same, and other mailboxes take what comes.
func TestOneMailboxIsFilled(t *testing.T) {
	eachFront(t, fronted, func(t *testing.T, w *world) {
		h := w.bystanders()
		honest := w.as("198.51.100.9:1", 10_002)
		other := w.absent(honest, 3, 9001)
		b := w.as(client(400), 2)
		circuit := w.blindPair(honest, b, 9000)
		var steady []*peer
		var steadyCircuits []uint64
		for i := range 8 {
			steady = append(steady, w.as(client(i), 100+i))
			steadyCircuits = append(steadyCircuits, w.blindPair(steady[i], b, 9100+i))
		}
		b.nc.Close()
		synctest.Wait()
		sent := 0
		post := func() {
			t.Helper()
			h.meet(wire.Blinded, tokenOf(50_000+sent), tokenOf(50_000+sent))
			for _, to := range []uint64{circuit, other} {
				if limit := honest.posts(to, sent, 1<<10); limit != 0 {
					t.Fatalf("message %d is refused: %v", sent, limit)
				}
				sent++
			}
		}
		post()
		// Strangers, as the message API brings them: 20 sources, each with 1,000 identities.
		refused, held := map[mailbox.Limit]int{}, 0
		for i := range 20_000 {
			err := w.s.mail.put(mailbox.Message{
				Recipient: idOf(2), Sender: tokenOf(100_000 + i), ID: messageID(1_000_000 + i), Payload: make([]byte, i%3000),
				Source: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i % 20)}), 32),
			}, time.Now())
			if r, ok := errors.AsType[*mailbox.Refusal](err); ok {
				refused[r.Limit]++
			} else {
				held++
			}
			if i%2000 == 0 {
				post()
			}
		}
		if held != 250 || refused[mailbox.LimitStrangers]+refused[mailbox.LimitStrangerSource] != 20_000-held {
			t.Fatalf("%d messages of strangers are held, refused %v", held, refused)
		}
		// One source of them alone gets a sixteenth of another mailbox.
		held = 0
		for i := range 200 {
			if w.s.mail.put(mailbox.Message{Recipient: idOf(3), Sender: tokenOf(200_000 + i), ID: messageID(i), Source: netip.MustParsePrefix("192.0.2.1/32")}, time.Now()) == nil {
				held++
			}
		}
		if held != 62 {
			t.Fatalf("%d messages of one source of strangers are held", held)
		}
		// 8 contacts with steady traffic, who stop for nothing.
		for i, p := range steady {
			limits := map[wire.Limit]int{}
			for n := range 70 {
				limits[p.posts(steadyCircuits[i], 100_000+100*i+n, mailbox.SteadySize)]++
			}
			if limits[0]+limits[wire.LimitMailboxSteady] != 70 || i < 7 && limits[0] != 70 {
				t.Fatalf("contact %d: %v", i, limits)
			}
			post()
		}
		if st := w.mailStats(); st.Refused[mailbox.LimitSteady] != 60 {
			t.Fatalf("%v", st.Refused)
		}
		// The honest ones' come all, in order.
		b = w.as(client(0), 2)
		next := 0
		for w.mailStats().Messages > 62+sent/2 {
			m := want[wire.Message](b)
			b.send(wire.Ack{IDs: []wire.MessageID{m.ID}})
			if m.Sender == idOf(10_002) {
				if m.ID != messageID(next) {
					t.Fatalf("%x came in place of %d", m.ID[:8], next)
				}
				next += 2
			}
		}
		if next != sent {
			t.Fatalf("%d of %d messages came", next/2, sent/2)
		}
	})
}

// Large messages up to the cap in bytes, then very many small ones, whose weight
// is that of a row; then many mailboxes, each just under its cap.
func TestMailboxesAreFilledByBytes(t *testing.T) {
	const total, each, largest = 4 << 20, 1 << 20, 64 << 10
	eachFront(t, func(c *Config) {
		fronted(c)
		l := &c.Limits
		l.MaxMessageBytes, l.OfflineQueueMaxBytesPerRecipient, l.OfflineQueueMaxTotalBytes = largest, each, total
	}, func(t *testing.T, w *world) {
		p := w.as(client(0), 1)
		circuit := w.absent(p, 2, 7)
		var held []int
		refused := 0
		post := func(n, size int) {
			switch limit := p.posts(circuit, n, size); limit {
			case 0:
				held = append(held, n)
			case wire.LimitMailboxBytes:
				refused++
			default:
				t.Fatalf("message %d is refused: %v", n, limit)
			}
		}
		for n := range 100 {
			post(n, largest-wire.SendHead)
		}
		for n := range 2000 {
			post(1000+n, 1)
		}
		if large := each / int(mailbox.Charge(largest-wire.SendHead)); len(held) < large+10 || len(held) > large+each/10/mailbox.Overhead {
			t.Fatalf("%d messages are held", len(held))
		}
		if st := w.mailStats(); st.Bytes > each || st.Bytes < each-mailbox.Charge(1) || refused != 2100-len(held) {
			t.Fatalf("%d bytes are held, %d messages refused", st.Bytes, refused)
		}
		w.wantOnly(ReasonQueueOverflow, refused)
		// Others fill their mailboxes to just under the cap, from a source each.
		for i := range 8 {
			q := w.as(client(1+i), 100+i)
			to := w.absent(q, 200+i, 100+i)
			for n := range 15 {
				switch limit := q.posts(to, n, largest-wire.SendHead); limit {
				case 0:
				case wire.LimitMailboxTotal, wire.LimitMailboxSource:
					refused++
				default:
					t.Fatalf("refused for %v", limit)
				}
			}
		}
		if st := w.mailStats(); st.Bytes > total || st.Bytes < total*9/10 {
			t.Fatalf("%d bytes are held of %d", st.Bytes, total)
		}
		w.wantOnly(ReasonQueueOverflow, refused)
		// Somebody who holds nothing yet still finds a place, and what was accepted comes in order.
		q := w.as(client(50), 50)
		if limit := q.posts(w.absent(q, 51, 51), 1, 1000); limit != 0 {
			t.Fatalf("refused for %v", limit)
		}
		b := w.as(client(60), 2)
		for _, n := range held {
			if got := want[wire.Message](b); got.ID != messageID(n) {
				t.Fatalf("%x came in place of %d", got.ID[:8], n)
			}
			b.acks(n, n+1)
		}
		b.quiet()
	})
}
