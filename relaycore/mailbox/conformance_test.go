package mailbox

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

func want(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

func TestOrderAndAcknowledgement(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		for i, m := range []Message{letter(1, 7, 1, "a"), letter(1, 8, 2, "b"), letter(2, 7, 3, "c"), letter(1, 7, 4, "d"), letter(1, 7, 5, "")} {
			mustPut(t, s, m, start.Add(time.Duration(i)))
		}
		want(t, "inbox", inbox(t, s, 1, start), "7:a", "8:b", "7:d", "7:")
		if n := s.Ack(identity(1), ids(2, 3, 2, 99), start); n != 1 {
			t.Errorf("%d were forgotten, want the one of this recipient", n)
		}
		want(t, "inbox", inbox(t, s, 1, start), "7:a", "7:d", "7:")
		want(t, "the other's", inbox(t, s, 2, start), "7:c")
		if st := s.Stats(start); st.Messages != 4 || st.Recipients != 2 || st.Sources != 1 || st.Put != 5 || st.Acked != 1 || st.Bytes != 3*Charge(1)+Charge(0) {
			t.Errorf("%+v", st)
		}
		s.Ack(identity(1), ids(1, 4, 5), start)
		s.Ack(identity(2), ids(3), start)
		if st := s.Stats(start); st.Messages != 0 || st.Recipients != 0 || st.Sources != 0 || st.Bytes != 0 {
			t.Errorf("nothing waits, and %+v", st)
		}
	})
}

// The caller's buffer is the caller's again.
func TestPayloadIsCopied(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		m := letter(1, 7, 1, "before")
		mustPut(t, s, m, start)
		copy(m.Payload, "behind")
		want(t, "inbox", inbox(t, s, 1, start), "7:before")
	})
}

func TestPortions(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		for i := range 6 {
			mustPut(t, s, sized(letter(1, 7, i, ""), 10), start)
		}
		for _, row := range []struct{ n, size, want int }{
			{1, 1000, 1}, {4, 1000, 4}, {9, 1000, 6}, {9, 30, 3}, {9, 29, 2}, {9, 9, 1}, {9, 0, 1}, {0, 1000, 0},
		} {
			portion, err := s.Read(identity(1), 0, row.n, row.size, start)
			if err != nil || len(portion) != row.want {
				t.Errorf("%d messages and %d bytes: %d, %v, want %d", row.n, row.size, len(portion), err, row.want)
			}
		}
	})
}

// What a sender puts again is held once; others may use the same id.
func TestSameID(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		mustPut(t, s, letter(1, 7, 1, "first"), start)
		mustPut(t, s, letter(1, 7, 1, "again"), start)
		mustPut(t, s, letter(2, 7, 1, "to 2"), start)
		want(t, "inbox", inbox(t, s, 1, start), "7:first")
		// It has the id in hand when another message of that id comes.
		mustPut(t, s, letter(1, 8, 1, "other"), start)
		if n := s.Ack(identity(1), ids(1), start); n != 1 {
			t.Errorf("%d were forgotten, want the one that was read", n)
		}
		want(t, "inbox", inbox(t, s, 1, start), "8:other")
		mustPut(t, s, letter(1, 7, 1, "anew"), start)
		want(t, "inbox", inbox(t, s, 1, start), "8:other", "7:anew")
		if n := s.Ack(identity(1), ids(1), start); n != 2 {
			t.Errorf("%d were forgotten, want both", n)
		}
		want(t, "the other's", inbox(t, s, 2, start), "7:to 2")
		if st := s.Stats(start); st.Put != 4 {
			t.Errorf("%d were put, want 4", st.Put)
		}
	})
}

// What was not read cannot be acknowledged away.
func TestUnreadStays(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		mustPut(t, s, letter(1, 7, 1, "a"), start)
		if n := s.Ack(identity(1), ids(1), start); n != 0 {
			t.Errorf("%d were forgotten unread", n)
		}
		want(t, "inbox", inbox(t, s, 1, start), "7:a")
	})
}

// spec/003: ttl_secs, Message deleted.
func TestExpiry(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		l := plenty()
		l.TTL = time.Hour
		s, _ := open(l)
		if due := s.Expire(start); !due.IsZero() {
			t.Errorf("nothing waits, and something is due at %v", due)
		}
		mustPut(t, s, letter(1, 7, 1, "a"), start)
		mustPut(t, s, letter(2, 7, 2, "b"), start.Add(time.Minute))
		mustPut(t, s, letter(1, 7, 3, "c"), start.Add(2*time.Minute))
		if due := s.Expire(start.Add(time.Hour - 1)); !due.Equal(start.Add(time.Hour)) {
			t.Errorf("due at %v", due)
		}
		want(t, "before", inbox(t, s, 1, start.Add(time.Hour-1)), "7:a", "7:c")
		want(t, "at the time", inbox(t, s, 1, start.Add(time.Hour)), "7:c")
		if due := s.Expire(start.Add(time.Hour)); !due.Equal(start.Add(time.Hour + time.Minute)) {
			t.Errorf("due at %v", due)
		}
		// Calls may come in another order than their times.
		want(t, "late caller", inbox(t, s, 1, start), "7:c")
		l.TTL = 2 * time.Hour
		s.SetLimits(l)
		want(t, "longer ttl", inbox(t, s, 2, start.Add(time.Hour+2*time.Minute)), "7:b")
		if due := s.Expire(start.Add(3 * time.Hour)); !due.IsZero() {
			t.Errorf("due at %v", due)
		}
		if st := s.Stats(start); st.Messages != 0 || st.Bytes != 0 || st.Expired != 3 || st.Recipients != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A backlog comes in windows, each due when the one before is acknowledged.
func TestReaderWindow(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, b := open(plenty())
		b.caps.window, b.caps.windowBytes = 3, 10
		for i := range 5 {
			mustPut(t, s, letter(1, 7, i, fmt.Sprint(i)), start)
		}
		mustPut(t, s, letter(1, 7, 5, "ninebytes"), start)
		mustPut(t, s, letter(1, 7, 6, "more than the window"), start)
		r := s.Reader(identity(1))
		defer r.Close()
		want(t, "first", next(t, r, start), "7:0", "7:1", "7:2")
		want(t, "window full", next(t, r, start))
		if st := s.Stats(start); st.InFlight != 3 || st.Messages != 7 {
			t.Errorf("%+v", st)
		}
		s.Ack(identity(1), ids(0, 2), start)
		want(t, "second", next(t, r, start), "7:3", "7:4")
		s.Ack(identity(1), ids(1, 3), start)
		want(t, "two that fit in bytes", next(t, r, start), "7:ninebyte")
		s.Ack(identity(1), ids(4), start)
		want(t, "bytes are out", next(t, r, start))
		s.Ack(identity(1), ids(5), start)
		want(t, "one of any length", next(t, r, start), "7:more tha")
		mustPut(t, s, letter(1, 7, 7, "x"), start)
		want(t, "and nothing beside it", next(t, r, start))
		s.Ack(identity(1), ids(6), start)
		want(t, "what came meanwhile", next(t, r, start), "7:x")
		s.Ack(identity(1), ids(7), start)
		want(t, "end", next(t, r, start))
		if st := s.Stats(start); st.InFlight != 0 || st.Messages != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// What is handed out at a time takes little memory, however much may be in flight.
func TestReaderPortions(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, b := open(plenty())
		if b.caps.portionBytes != 32<<10 {
			t.Errorf("%+v", b.caps)
		}
		b.caps.portionBytes = 10
		for i, payload := range []string{"six by", "four", "x", "more than a portion", "y"} {
			mustPut(t, s, letter(1, 7, i, payload), start)
		}
		r := s.Reader(identity(1))
		defer r.Close()
		want(t, "first", next(t, r, start), "7:six by", "7:four")
		want(t, "second", next(t, r, start), "7:x")
		want(t, "one of any length", next(t, r, start), "7:more tha")
		want(t, "last", next(t, r, start), "7:y")
		want(t, "end", next(t, r, start))
	})
}

// Duplicates are possible, loss is not.
func TestRedelivery(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		mustPut(t, s, letter(1, 7, 1, "a"), start)
		mustPut(t, s, letter(1, 7, 2, "b"), start)
		r := s.Reader(identity(1))
		want(t, "first connection", next(t, r, start), "7:a", "7:b")
		s.Ack(identity(1), ids(1), start)
		r.Close()
		r.Close()
		want(t, "ended", next(t, r, start))
		if st := s.Stats(start); st.InFlight != 0 {
			t.Errorf("%+v", st)
		}
		second := s.Reader(identity(1))
		want(t, "second connection", next(t, second, start), "7:b")
		// The newest connection has it, and the end of an older one takes nothing from it.
		third := s.Reader(identity(1))
		want(t, "replaced", next(t, second, start))
		want(t, "third connection", next(t, third, start), "7:b")
		second.Close()
		mustPut(t, s, letter(1, 7, 3, "c"), start)
		want(t, "third goes on", next(t, third, start), "7:c")
		third.Close()
		if st := s.Stats(start); st.InFlight != 0 || st.Messages != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// What expires in flight is in flight no more.
func TestExpiryInFlight(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, b := open(plenty())
		b.caps.window = 1
		mustPut(t, s, letter(1, 7, 1, "a"), start)
		mustPut(t, s, letter(1, 7, 2, "b"), start.Add(time.Second))
		r := s.Reader(identity(1))
		defer r.Close()
		want(t, "first", next(t, r, start.Add(time.Second)), "7:a")
		want(t, "later", next(t, r, start.Add(72*time.Hour)), "7:b")
		if st := s.Stats(start); st.InFlight != 1 || st.Expired != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// spec/003, fixed limits: messages tracked for delivery. Readers share them.
func TestTracked(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, b := open(plenty())
		if b.caps.tracked != 100_000 || b.caps.window >= 256 || b.caps.windowBytes >= 16<<20 {
			t.Errorf("%+v: a window must leave room in a connection's queue", b.caps)
		}
		b.caps.tracked = 6
		for i := range 30 {
			mustPut(t, s, letter(i%3, 7, i, fmt.Sprint(i)), start)
		}
		var all []*Reader
		for i := range 3 {
			all = append(all, s.Reader(identity(i)))
		}
		want(t, "the first", next(t, all[0], start), "7:0", "7:3", "7:6", "7:9")
		want(t, "the second", next(t, all[1], start), "7:1", "7:4")
		want(t, "the third", next(t, all[2], start))
		if st := s.Stats(start); st.InFlight != 6 {
			t.Errorf("%+v", st)
		}
		all[0].Close()
		want(t, "the third, later", next(t, all[2], start), "7:2", "7:5", "7:8")
		all[1].Close()
		all[2].Close()
		if st := s.Stats(start); st.InFlight != 0 || st.Messages != 30 {
			t.Errorf("%+v", st)
		}
	})
}

// A message that is forwarded past the mailbox must not overtake one that waits.
func TestWaits(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, b := open(plenty())
		b.caps.window = 1
		waits := func(want7, want8 bool) {
			t.Helper()
			if s.Waits(identity(1), identity(7), start) != want7 || s.Waits(identity(1), identity(8), start) != want8 {
				t.Errorf("want %t of 7, %t of 8", want7, want8)
			}
		}
		waits(false, false)
		mustPut(t, s, letter(1, 7, 1, "a"), start)
		mustPut(t, s, letter(1, 8, 2, "b"), start)
		mustPut(t, s, letter(2, 7, 3, "c"), start)
		waits(true, true)
		r := s.Reader(identity(1))
		want(t, "first", next(t, r, start), "7:a")
		waits(false, true)
		mustPut(t, s, letter(1, 7, 4, "d"), start)
		waits(true, true)
		r.Close()
		waits(true, true)
		b.caps.window = 3
		r = s.Reader(identity(1))
		want(t, "all", next(t, r, start), "7:a", "8:b", "7:d")
		waits(false, false)
		s.Ack(identity(1), ids(1, 2), start)
		waits(false, false)
		r.Close()
		waits(true, false)
		s.Expire(start.Add(72 * time.Hour))
		waits(false, false)
		if n := len(b.unread.rows); n != 0 {
			t.Errorf("%d counts are left", n)
		}
	})
}

func TestClosed(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		mustPut(t, s, letter(1, 7, 1, "a"), start)
		r := s.Reader(identity(1))
		for range 2 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Put(letter(1, 7, 2, "b"), start); !errors.Is(err, ErrClosed) {
			t.Errorf("Put: %v", err)
		}
		want(t, "inbox", inbox(t, s, 1, start))
		want(t, "reader", next(t, r, start))
		r.Close()
		if n := s.Ack(identity(1), ids(1), start); n != 0 {
			t.Errorf("%d were forgotten", n)
		}
		if !s.Expire(start).IsZero() || s.Waits(identity(1), identity(7), start) {
			t.Error("something waits")
		}
	})
}

// Senders, readers and those who acknowledge at once: each sender's messages
// come in order, and all of them come.
func TestConcurrentUse(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		const senders, recipients, messages = 8, 3, 60
		var all sync.WaitGroup
		for from := range senders {
			all.Go(func() {
				for i := range messages {
					m := letter(i%recipients, from, from*messages+i, fmt.Sprintf("%07d", i))
					if err := s.Put(m, start); err != nil {
						t.Error(err)
					}
					s.Stats(start)
				}
			})
		}
		for to := range recipients {
			all.Go(func() {
				var got int
				latest := map[string]string{}
				var r *Reader
				for got < senders*messages/recipients {
					if r == nil || got%16 == 0 {
						r = s.Reader(identity(to))
					}
					portion, err := r.Next(start)
					if err != nil {
						t.Error(err)
						return
					}
					for _, h := range portion {
						from := h.Sender.String()
						if string(h.Payload) <= latest[from] {
							t.Errorf("%s after %s", h.Payload, latest[from])
						}
						latest[from] = string(h.Payload)
						got += s.Ack(identity(to), ids(int(h.ID[15])|int(h.ID[14])<<8), start)
					}
				}
				r.Close()
			})
		}
		all.Wait()
		if st := s.Stats(start); st.Messages != 0 || st.InFlight != 0 || st.Bytes != 0 || st.Put != senders*messages || st.Acked != st.Put {
			t.Errorf("%+v", st)
		}
	})
}
