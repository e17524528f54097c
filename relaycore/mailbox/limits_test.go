package mailbox

import (
	"net/netip"
	"testing"
	"time"
)

// Each limit at its value, and one beyond it.
func TestLimits(t *testing.T) {
	const small = Overhead + 8 // the charge of a payload of up to 8 bytes
	if Charge(8) != small {
		t.Fatalf("8 bytes are charged %d", Charge(8))
	}
	fill := func(t *testing.T, s Store, n int, message func(i int) Message) {
		t.Helper()
		for i := range n {
			mustPut(t, s, message(i), start)
		}
	}
	contact := func(i int) Message { return sized(letter(1, 7, i, ""), 8) }
	// Strangers, each from a source of its own.
	crowd := func(i int) Message { return stranger(sized(letter(1, 100+i, i, ""), 8)) }
	// Identities of one source.
	oneSource := func(i int) Message {
		m := crowd(i)
		m.Source = source(9)
		return m
	}
	withLimits := func(change func(*Limits)) Limits {
		l := plenty()
		change(&l)
		return l
	}
	for _, row := range []struct {
		name   string
		limits Limits
		run    func(t *testing.T, s Store)
	}{
		// spec/003, fixed limits: Offline messages per recipient, 1000.
		{"1000 messages", plenty(), func(t *testing.T, s Store) {
			fill(t, s, 1000, contact)
			mustRefuse(t, s, contact(1000), start, LimitRecipientMessages)
			mustPut(t, s, letter(2, 7, 1, "another's mailbox"), start)
			inbox(t, s, 1, start)
			s.Ack(identity(1), ids(0), start)
			mustPut(t, s, contact(1000), start)
			mustRefuse(t, s, contact(1001), start, LimitRecipientMessages)
		}},
		// spec/003, fixed limits: Steady-size (1,226-byte) offline messages per recipient, 500.
		{"500 steady", plenty(), func(t *testing.T, s Store) {
			steady := func(i int) Message { return sized(contact(i), 1226) }
			fill(t, s, 500, steady)
			mustRefuse(t, s, steady(500), start, LimitSteady)
			mustPut(t, s, sized(contact(501), 1225), start)
			mustPut(t, s, sized(contact(502), 1227), start)
			inbox(t, s, 1, start)
			s.Ack(identity(1), ids(3), start)
			mustPut(t, s, steady(500), start)
			mustRefuse(t, s, steady(503), start, LimitSteady)
			fill(t, s, 498, func(i int) Message { return contact(600 + i) })
			mustRefuse(t, s, contact(2000), start, LimitRecipientMessages)
		}},
		// spec/003: offline_queue_max_bytes_per_recipient, overhead charged.
		{"recipient bytes", withLimits(func(l *Limits) { l.RecipientBytes = 3*small + 8 }), func(t *testing.T, s Store) {
			fill(t, s, 2, contact)
			mustRefuse(t, s, sized(contact(2), 17), start, LimitRecipientBytes)
			mustPut(t, s, sized(contact(2), 16), start)
			mustRefuse(t, s, sized(contact(3), 0), start, LimitRecipientBytes)
			mustPut(t, s, letter(2, 7, 1, "another's mailbox"), start)
		}},
		{"recipient bytes, one message", withLimits(func(l *Limits) { l.RecipientBytes = Charge(65536) }), func(t *testing.T, s Store) {
			mustRefuse(t, s, sized(contact(1), 65537), start, LimitRecipientBytes)
			mustPut(t, s, sized(contact(1), 65536), start)
		}},
		// Strangers together: a quarter of the slots.
		{"250 strangers", plenty(), func(t *testing.T, s Store) {
			fill(t, s, 250, crowd)
			mustRefuse(t, s, crowd(250), start, LimitStrangers)
			fill(t, s, 750, func(i int) Message { return contact(1000 + i) })
			mustRefuse(t, s, contact(2000), start, LimitRecipientMessages)
		}},
		// Strangers together: a quarter of the bytes.
		{"strangers' bytes", withLimits(func(l *Limits) { l.RecipientBytes = 4 * 10 * small; l.Sources = false }), func(t *testing.T, s Store) {
			fill(t, s, 9, oneSource)
			mustRefuse(t, s, sized(oneSource(9), 9), start, LimitStrangers)
			mustPut(t, s, oneSource(9), start)
			mustRefuse(t, s, sized(oneSource(10), 0), start, LimitStrangers)
			fill(t, s, 30, func(i int) Message { return contact(1000 + i) })
			mustRefuse(t, s, sized(contact(2000), 0), start, LimitRecipientBytes)
		}},
		// One source of strangers: a sixteenth of the slots, whatever their identities are.
		{"62 from one source", plenty(), func(t *testing.T, s Store) {
			fill(t, s, 62, oneSource)
			mustRefuse(t, s, oneSource(62), start, LimitStrangerSource)
			mustPut(t, s, crowd(63), start)
			m := oneSource(64)
			m.Contact = true
			mustPut(t, s, m, start)
			m.Recipient, m.Contact = identity(2), false
			mustPut(t, s, m, start)
		}},
		// One source of strangers: a sixteenth of the bytes.
		{"one source's bytes", withLimits(func(l *Limits) { l.RecipientBytes = 16 * 3 * small }), func(t *testing.T, s Store) {
			fill(t, s, 2, oneSource)
			mustRefuse(t, s, sized(oneSource(2), 9), start, LimitStrangerSource)
			mustPut(t, s, oneSource(2), start)
			mustRefuse(t, s, sized(oneSource(3), 0), start, LimitStrangerSource)
			mustPut(t, s, crowd(4), start)
		}},
		// Without addresses there is no share of one source.
		{"no sources", withLimits(func(l *Limits) { l.Sources = false }), func(t *testing.T, s Store) {
			fill(t, s, 250, oneSource)
			mustRefuse(t, s, oneSource(250), start, LimitStrangers)
		}},
		// spec/003: offline_queue_max_total_bytes.
		{"total", withLimits(func(l *Limits) { l.TotalBytes, l.RecipientBytes = 10*small, 10*small }), func(t *testing.T, s Store) {
			apart := func(i int) Message {
				m := sized(letter(i, i, i, ""), 8)
				return m
			}
			fill(t, s, 9, apart)
			mustRefuse(t, s, sized(apart(9), 9), start, LimitTotalBytes)
			mustPut(t, s, apart(9), start)
			mustRefuse(t, s, sized(apart(10), 0), start, LimitTotalBytes)
			inbox(t, s, 4, start)
			s.Ack(identity(4), ids(4), start)
			mustPut(t, s, apart(10), start)
		}},
		{"total without sources", withLimits(func(l *Limits) { l.TotalBytes, l.RecipientBytes, l.Sources = 10*small, 10*small, false }), func(t *testing.T, s Store) {
			fill(t, s, 10, contact)
			mustRefuse(t, s, sized(letter(2, 8, 1, ""), 0), start, LimitTotalBytes)
		}},
		// One source: a sixteenth of the total.
		{"a source's share", withLimits(func(l *Limits) { l.TotalBytes, l.RecipientBytes = 16*5*small, 2*small }), func(t *testing.T, s Store) {
			spread := func(i int) Message {
				m := contact(i)
				m.Recipient, m.Sender = identity(i), identity(50+i)
				return m
			}
			fill(t, s, 4, spread)
			mustRefuse(t, s, sized(spread(4), 9), start, LimitSource)
			mustPut(t, s, spread(4), start)
			mustRefuse(t, s, sized(spread(5), 0), start, LimitSource)
			m := spread(5)
			m.Source = netip.Prefix{} // those without an address are a source too
			mustPut(t, s, m, start)
			inbox(t, s, 2, start)
			s.Ack(identity(2), ids(2), start)
			mustPut(t, s, spread(6), start)
		}},
		// spec/003: an accepted contact can fill a recipient's offline queue.
		{"a source's share is a mailbox at least", withLimits(func(l *Limits) { l.TotalBytes, l.RecipientBytes = 32*small, 8*small }), func(t *testing.T, s Store) {
			fill(t, s, 8, contact)
			mustRefuse(t, s, contact(8), start, LimitRecipientBytes)
			m := contact(9)
			m.Recipient = identity(2)
			mustRefuse(t, s, m, start, LimitSource)
		}},
		// Many heavy sources leave room for a light one.
		{"heavy sources are refused first", withLimits(func(l *Limits) { l.TotalBytes, l.RecipientBytes = 40*small, 20*small }), func(t *testing.T, s Store) {
			n, refused := 0, 0
			for round := range 30 {
				for from := range 4 {
					n++
					m := sized(letter(from, from, n, ""), 8)
					if err := s.Put(m, start); err != nil {
						refused++
						if err.(*Refusal).Limit != LimitSource {
							t.Fatalf("round %d: %v", round, err)
						}
					}
				}
			}
			if st := s.Stats(start); st.Messages != 32 || refused != 120-32 {
				t.Errorf("%d are held, %d refused; four that are as heavy as what they leave hold 32 of 40", st.Messages, refused)
			}
			mustPut(t, s, letter(20, 20, 1, "light"), start)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
				s, _ := open(row.limits)
				row.run(t, s)
				want(t, "a mailbox that nobody wrote to", inbox(t, s, 999_999, start))
			})
		})
	}
}

// Strangers and an honest contact beside them: what she sends keeps arriving.
func TestStrangersFillOneMailbox(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		l := plenty()
		l.RecipientBytes, l.TotalBytes = 16<<20, 256<<20
		s, _ := open(l)
		honest, refused := 0, 0
		for i := range 600 {
			m := stranger(sized(letter(1, 1000+i, i, ""), 60<<10))
			m.Source = source(i % 40)
			if s.Put(m, start) != nil {
				refused++
			}
			if i%2 == 0 {
				mustPut(t, s, letter(1, 7, 10_000+i, "honest"), start)
				honest++
			}
		}
		st := s.Stats(start)
		if refused == 0 || st.Messages != 600-refused+honest {
			t.Errorf("%d refused, %+v", refused, st)
		}
		if strangers := st.Bytes - int64(honest)*Charge(6); strangers > l.RecipientBytes/4 {
			t.Errorf("strangers hold %d bytes of %d", strangers, l.RecipientBytes)
		}
	})
}

// A thousand identities of one /48 against one honest sender who writes to others.
func TestOneSourceFillsTheTotal(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		l := plenty()
		l.RecipientBytes, l.TotalBytes = 1<<20, 16<<20
		s, _ := open(l)
		site := netip.MustParsePrefix("2001:db8:1::/48")
		for i := range 1000 {
			m := sized(letter(10_000+i%50, 1000+i, i, ""), 16<<10)
			m.Source, m.Contact = site, i%2 == 0
			s.Put(m, start)
			if i%4 == 0 {
				mustPut(t, s, letter(i%7, 7, 20_000+i, "honest"), start)
			}
		}
		st := s.Stats(start)
		if attacker := st.Bytes - 250*Charge(6); attacker > l.TotalBytes/16 || attacker < l.TotalBytes/20 {
			t.Errorf("one source holds %d bytes of %d", attacker, l.TotalBytes)
		}
		if st.Sources != 2 || st.Refused[LimitSource] == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Limits bind newcomers: a lower one evicts nobody.
func TestLoweredLimits(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		s, _ := open(plenty())
		for i := range 5 {
			mustPut(t, s, letter(1, 7, i, "a"), start)
		}
		l := plenty()
		l.TotalBytes, l.RecipientBytes = 3*Charge(1), 2*Charge(1)
		s.SetLimits(l)
		if len(inbox(t, s, 1, start)) != 5 {
			t.Error("messages have gone")
		}
		mustRefuse(t, s, letter(1, 7, 9, "a"), start, LimitRecipientBytes)
		mustRefuse(t, s, letter(2, 8, 9, "a"), start, LimitTotalBytes)
	})
}

// The time to wait is until the first message expires, within a second and a minute.
func TestRetryAfter(t *testing.T) {
	each(t, func(t *testing.T, open func(Limits) (Store, *book)) {
		l := plenty()
		l.RecipientBytes, l.TTL = Charge(1), time.Hour
		s, _ := open(l)
		mustPut(t, s, letter(1, 7, 1, "a"), start)
		for _, row := range []struct{ at, want time.Duration }{
			{0, time.Minute}, {time.Hour - 30*time.Second - time.Millisecond, 31 * time.Second},
			{time.Hour - 30*time.Second, 30 * time.Second}, {time.Hour - time.Millisecond, time.Second},
		} {
			if r := mustRefuse(t, s, letter(1, 7, 2, "b"), start.Add(row.at), LimitRecipientBytes); r.RetryAfter != row.want {
				t.Errorf("after %v: %v, want %v", row.at, r.RetryAfter, row.want)
			}
		}
	})
}
