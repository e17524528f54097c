package relaycore

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/wire"
)

// knock has p ask for somebody with a knock that says text.
func (p *peer) knock(target wire.Identity, text string) {
	p.w.t.Helper()
	content := make([]byte, wire.AskSize)
	copy(content, text)
	p.send(wire.Ask{RequestID: 1, Mode: wire.Named, Key: target, Content: content})
	synctest.Wait()
}

// knocks returns the texts of the knocks that have come.
func (p *peer) knocks() (texts []string) {
	p.w.t.Helper()
	synctest.Wait()
	for {
		select {
		case r, ok := <-p.frames:
			if !ok {
				p.w.t.Fatal("the relay closed the connection")
			}
			if f, _ := wire.DecodeServer(r.payload); f != nil && f.Type() == wire.TypeKnock {
				texts = append(texts, string(bytes.TrimRight(f.(wire.Knock).Content, "\x00")))
			}
			continue
		default:
		}
		return texts
	}
}

func wantTexts(t *testing.T, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the knocks %q came, want %q", got, want)
	}
}

// A knock waits for a target that is away, the newest of a pair in place of the
// older, and outlives its asker's connection. It is brought once.
func TestKnockWaits(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, c := w.member(1), w.member(3)
		target := identity(newKey(2))
		a.knock(target, "first")
		c.knock(target, "of another")
		a.knock(target, "second")
		a.nc.Close()
		synctest.Wait()
		a = w.member(1)
		a.knock(target, "third")
		if st := w.s.dir.stats(); st.knocks != 2 || st.askers != 2 {
			t.Fatalf("%+v", st)
		}
		b := w.member(2)
		wantTexts(t, b.knocks(), "third", "of another")
		a.knock(target, "fourth") // for what is pending
		wantTexts(t, b.knocks())
		b.nc.Close()
		b = w.member(2)
		wantTexts(t, b.knocks())
		w.wantOnly("", 0)
	})
}

// A knock is no longer brought when a circuit has made it pointless.
func TestKnockEndsWithItsCircuit(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		c := w.member(3)
		circuit := w.pairUp(c, b)
		n := w.crowded(c, b, circuit)
		a.knock(identity(b.key), "a circuit will do")
		if st := w.s.dir.stats(); st.knocks != 1 {
			t.Fatalf("%+v", st)
		}
		b.ask(1, identity(a.key))
		want[wire.CircuitOpen](a)
		if st := w.s.dir.stats(); st.knocks != 0 {
			t.Fatalf("%+v", st)
		}
		b.resume()
		for range n {
			want[wire.Message](b)
		}
		want[wire.CircuitOpen](b)
		b.quiet()
	})
}

// A target whose queue has no room to spare gets the knock beside what is queued.
func TestKnockWaitsForRoom(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *world) {
		a, b, c := w.member(1), w.member(2), w.member(3)
		_, n := w.stuffed(c, b, 1226)
		a.knock(identity(b.key), "later")
		b.resume()
		messages, knocks := 0, 0
		for range n + 1 {
			switch f := want[wire.Frame](b).(type) {
			case wire.Message:
				messages++
			case wire.Knock:
				if knocks++; f.Asker != identity(a.key) {
					t.Fatalf("%x knocks", f.Asker)
				}
			}
		}
		if messages != n || knocks != 1 {
			t.Fatalf("%d messages, %d knocks", messages, knocks)
		}
		if st := w.s.dir.stats(); st.knocks != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// spec/003: requests expire after at most 72 hours.
func TestKnockLife(t *testing.T) {
	for _, ttl := range []int{3600, 259200} {
		for _, late := range []bool{false, true} {
			bubble(t, func(c *Config) { c.OfflineQueue.TTLSecs = ttl }, func(t *testing.T, w *world) {
				a := w.member(1)
				a.knock(identity(newKey(2)), "hello")
				a.nc.Close()
				wait := secs(ttl)
				if !late {
					wait -= time.Nanosecond
				}
				time.Sleep(wait)
				synctest.Wait()
				if st := w.s.dir.stats(); (st.knocks == 0) != late { // by itself: nobody came by
					t.Fatalf("after %v: %+v", wait, st)
				}
				got := w.member(2).knocks()
				if late {
					wantTexts(t, got)
				} else {
					wantTexts(t, got, "hello")
				}
			})
		}
	}
}

// A backlog of knocks costs its reader nothing, however slowly it reads.
func TestBacklogOfKnocks(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		for i := range knocksPerTarget {
			p := w.as(fmt.Sprintf("198.51.100.%d:1", i+1), i)
			p.knock(idOf(1000), fmt.Sprint(i))
			p.nc.Close()
		}
		b := w.behind("192.0.2.1:1")
		b.key = keyOf(1000)
		b.stopReading()
		b.send(wire.NewPublish(b.key, nil, b.nonce, [32]byte{}))
		synctest.Wait()
		a := w.as("192.0.2.2:1", 1001)
		circuit := func() uint64 {
			b.ask(1, identity(a.key))
			want[wire.Knock](a)
			a.ask(2, identity(b.key))
			return want[wire.CircuitOpen](a).Circuit
		}()
		for i := range 100 {
			a.send(wire.Send{Circuit: circuit, ID: messageID(i), Payload: make([]byte, 1226)})
			want[wire.MessageAck](a)
		}
		b.resume()
		want[wire.Published](b)
		knocks, messages := 0, 0
		for knocks < knocksPerTarget || messages < 100 {
			switch f := want[wire.Frame](b).(type) {
			case wire.Knock:
				if text := fmt.Sprint(knocks); !bytes.HasPrefix(f.Content, append([]byte(text), 0)) {
					t.Fatalf("knock %d says %.5q", knocks, f.Content)
				}
				knocks++
			case wire.CircuitOpen:
			case wire.Message:
				if messages == 0 && knocks == knocksPerTarget {
					t.Fatal("the messages waited for the knocks")
				}
				messages++
			}
		}
		w.wantOnly("", 0)
	})
}

// spec/003: 100 new ones per asker per 24 hours. The request itself waits all
// the same, and what is not new costs nothing.
func TestKnockQuota(t *testing.T) {
	bubble(t, func(c *Config) { fronted(c); c.Limits.MaxPendingPerConnection = 200 }, func(t *testing.T, w *world) {
		a := w.as("192.0.2.1:1", 0)
		begun := time.Now()
		for i := range knocksPerAsker {
			if i == 1 {
				w.stay(time.Minute, a)
			}
			a.knock(idOf(1+i), "hello")
			a.knock(idOf(1+i), "again")
		}
		w.wantOnly("", 0)
		a.knock(idOf(101), "too much")
		w.wantOnly(ReasonKnockQuota, 1)
		if st := w.s.dir.stats(); st.pending != 101 || st.knocks != 100 {
			t.Fatalf("%+v", st)
		}
		// The quota is the identity's, not the connection's or the address's.
		a.nc.Close()
		a = w.as("192.0.2.9:1", 0)
		there := w.as("192.0.2.2:1", 102)
		a.knock(idOf(102), "too much")
		w.wantOnly(ReasonKnockQuota, 2)
		wantTexts(t, there.knocks())
		a.nc.Close()
		there.nc.Close()

		// In any 24 hours: the first place is free after them, the second a minute later.
		time.Sleep(time.Until(begun.Add(askerWindow - time.Nanosecond)))
		a = w.as("192.0.2.9:1", 0)
		a.knock(idOf(103), "too early")
		w.wantOnly(ReasonKnockQuota, 3)
		time.Sleep(time.Nanosecond)
		a.knock(idOf(104), "in time")
		w.wantOnly(ReasonKnockQuota, 3)
		a.knock(idOf(105), "too early")
		w.wantOnly(ReasonKnockQuota, 4)
	})
}

// spec/003: at most 200 per recipient; who brings the most to one door gives way.
func TestKnocksPerTarget(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		honest := w.as("192.0.2.1:1", 0)
		honest.knock(idOf(1000), "honest")
		for i := range knocksPerTarget - 1 {
			p := w.as("203.0.113.1:1", 1+i)
			p.knock(idOf(1000), fmt.Sprint(i))
			p.nc.Close()
		}
		w.wantOnly("", 0)
		p := w.as("203.0.113.1:1", 500)
		p.knock(idOf(1000), "one more")
		w.wantOnly(ReasonKnockEvicted, 1)
		b := w.behind("192.0.2.2:1")
		b.publishAs(keyOf(1000), nil)
		got := b.knocks()
		if len(got) != knocksPerTarget || got[0] != "honest" || got[1] != "1" || got[knocksPerTarget-1] != "one more" {
			t.Fatalf("%q", got)
		}
	})
}

// spec/003: knock_budget_bytes, the oldest request of the heaviest source is
// evicted; and one source has at most 1/16 of it.
func TestKnockBudget(t *testing.T) {
	const places = 32
	for _, tc := range []struct {
		name   string
		change func(*Config)
		share  int // of one source
	}{
		{"sources are known", fronted, places / sourceShare},
		{"sources are not known", func(c *Config) { big(c); c.Limits.MaxConnectionsPerIP = 0 }, places},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *Config) { tc.change(c); c.OfflineQueue.KnockBudgetBytes = places*wire.AskSize + 5119 }, func(t *testing.T, w *world) {
				bring := func(client string, n int) {
					t.Helper()
					p := w.as(client, n)
					p.knock(idOf(1000+n), fmt.Sprint(n))
					p.nc.Close()
					synctest.Wait()
				}
				for i := range tc.share {
					bring("203.0.113.1:1", i)
				}
				w.wantOnly("", 0)
				bring("203.0.113.1:1", tc.share)
				w.wantOnly(ReasonKnockEvicted, 1)
				if st := w.s.dir.stats(); st.knocks != tc.share {
					t.Fatalf("%+v", st)
				}
				if tc.share == places {
					wantTexts(t, w.as("192.0.2.1:1", 1000).knocks())
					wantTexts(t, w.as("192.0.2.1:1", 1001).knocks(), "1")
					return
				}
				// Other sources fill the rest, one with two and the others with one each.
				n := 100
				for i := range places - tc.share {
					bring(fmt.Sprintf("198.51.100.%d:1", i+1), n+i)
				}
				w.wantOnly(ReasonKnockEvicted, 1)
				bring("192.0.2.77:1", 200) // the attacker's two are the most
				w.wantOnly(ReasonKnockEvicted, 2)
				wantTexts(t, w.as("192.0.2.1:1", 1000+1).knocks())
				wantTexts(t, w.as("192.0.2.1:1", 1000+2).knocks(), "2")
				wantTexts(t, w.as("192.0.2.1:1", 1000+n).knocks(), fmt.Sprint(n))
			})
		})
	}
}

// The table of askers holds so many, of one source a sixteenth; who is refused a
// place has its request wait without a knock.
func TestAskers(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, known := range []bool{true, false} {
		table := newAskers(known, now)
		table.most = 32
		allow := func(from, n int) bool { return table.allow(idOf(1000*from+n), source(from), now) }
		own := 0
		for allow(1, own) {
			own++
		}
		if known && own != 2 || !known && own != 32 {
			t.Fatalf("sources known %v: one source has %d places of 32", known, own)
		}
		if !known {
			continue
		}
		for from := 2; from <= 16; from++ {
			if !allow(from, 0) || !allow(from, 1) || allow(from, 2) {
				t.Fatalf("source %d has not its two places", from)
			}
		}
		if !allow(17, 0) || allow(1, 0) != true { // the oldest of the heaviest made room, and begins anew
			t.Fatal("a lighter source finds no place")
		}
		if len(table.byIdentity) != 32 {
			t.Fatalf("%d askers", len(table.byIdentity))
		}
		table.expire(now.Add(askerWindow - 1))
		if len(table.byIdentity) != 32 {
			t.Fatalf("%d askers before the window is over", len(table.byIdentity))
		}
		table.expire(now.Add(askerWindow))
		if len(table.byIdentity) != 0 || table.shares.Held() != 0 || !table.due().IsZero() {
			t.Fatalf("%d askers after it", len(table.byIdentity))
		}
	}
	// spec/003: it holds 100,000.
	if table := newAskers(true, now); table.most != 100_000 {
		t.Fatalf("the table holds %d", table.most)
	}
}
