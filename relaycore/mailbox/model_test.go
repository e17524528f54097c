package mailbox

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"relayedge/relaycore/wire"
)

// model is the store as one list that is counted through for every question.
type model struct {
	limits  Limits
	caps    caps
	all     []*modelItem
	readers map[int]int // recipient to the reader it has, by number
	expired uint64
}

type modelItem struct {
	m         Message
	recipient int
	at        time.Duration
	read      bool
	reader    int // 0: in no flight
}

func (m *model) pass(now time.Duration) {
	m.all = slices.DeleteFunc(m.all, func(it *modelItem) bool {
		over := it.at+m.limits.TTL <= now
		if over {
			m.expired++
		}
		return over
	})
}

// sum counts the messages, and their charges, of which a question is true.
func (m *model) sum(of func(*modelItem) bool) (n int, bytes int64) {
	for _, it := range m.all {
		if of(it) {
			n++
			bytes += Charge(len(it.m.Payload))
		}
	}
	return n, bytes
}

// refusals returns every limit that keeps a message out.
func (m *model) refusals(x Message) (all []Limit) {
	charge := Charge(len(x.Payload))
	refuse := func(l Limit, when bool) {
		if when {
			all = append(all, l)
		}
	}
	mine := func(it *modelItem) bool { return it.m.Recipient == x.Recipient }
	n, bytes := m.sum(mine)
	refuse(LimitRecipientMessages, n+1 > m.caps.messages)
	refuse(LimitRecipientBytes, bytes+charge > m.limits.RecipientBytes)
	n, _ = m.sum(func(it *modelItem) bool { return mine(it) && len(it.m.Payload) == 1226 })
	refuse(LimitSteady, len(x.Payload) == 1226 && n+1 > m.caps.steady)
	if !x.Contact {
		n, bytes = m.sum(func(it *modelItem) bool { return mine(it) && !it.m.Contact })
		refuse(LimitStrangers, 4*(n+1) > m.caps.messages || 4*(bytes+charge) > m.limits.RecipientBytes)
		n, bytes = m.sum(func(it *modelItem) bool { return mine(it) && !it.m.Contact && it.m.Source == x.Source })
		refuse(LimitStrangerSource, m.limits.Sources && (16*(n+1) > m.caps.messages || 16*(bytes+charge) > m.limits.RecipientBytes))
	}
	_, total := m.sum(func(*modelItem) bool { return true })
	refuse(LimitTotalBytes, total+charge > m.limits.TotalBytes)
	_, bytes = m.sum(func(it *modelItem) bool { return it.m.Source == x.Source })
	refuse(LimitSource, m.limits.Sources && (16*(bytes+charge) > m.limits.TotalBytes && bytes+charge > m.limits.RecipientBytes ||
		bytes > m.limits.TotalBytes-total-charge))
	return all
}

func (m *model) inFlight(of func(*modelItem) bool) (n, bytes int) {
	for _, it := range m.all {
		if it.reader != 0 && of(it) {
			n, bytes = n+1, bytes+len(it.m.Payload)
		}
	}
	return n, bytes
}

func (m *model) next(recipient int) (out []string) {
	reader := m.readers[recipient]
	if reader == 0 {
		return nil
	}
	portion := 0
	for _, it := range m.all {
		if it.recipient != recipient || it.reader != 0 {
			continue
		}
		if portion += len(it.m.Payload); portion > m.caps.portionBytes && len(out) > 0 {
			break
		}
		tracked, _ := m.inFlight(func(*modelItem) bool { return true })
		n, bytes := m.inFlight(func(o *modelItem) bool { return o.reader == reader })
		if tracked >= m.caps.tracked || n > m.caps.tracked-tracked || n >= m.caps.window || n > 0 && bytes+len(it.m.Payload) > m.caps.windowBytes {
			break
		}
		it.reader, it.read = reader, true
		out = append(out, modelShow(it.m))
	}
	return out
}

func (m *model) land(reader int) {
	for _, it := range m.all {
		if it.reader == reader {
			it.reader = 0
		}
	}
}

func modelShow(m Message) string {
	return fmt.Sprintf("%v %v %d", m.Sender[15], m.ID[15], len(m.Payload))
}

func showAll(portion []Held) (out []string) {
	for _, h := range portion {
		out = append(out, fmt.Sprintf("%v %v %d", h.Sender[15], h.ID[15], len(h.Payload)))
	}
	return out
}

// Random lives of a store, and of the file over restarts, against the model.
func TestAgainstModel(t *testing.T) {
	for _, kind := range []string{"memory", "file"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			life := 0
			rapid.Check(t, func(t *rapid.T) {
				life++
				against(t, kind, filepath.Join(dir, fmt.Sprint(life)))
			})
		})
	}
}

func against(t *rapid.T, kind, path string) {
	limits := Limits{
		TotalBytes:     rapid.Int64Range(8, 60).Draw(t, "total") * 900,
		RecipientBytes: rapid.Int64Range(3, 40).Draw(t, "recipient") * 900,
		TTL:            time.Minute,
		Sources:        rapid.Bool().Draw(t, "sources"),
	}
	fixed := caps{messages: 16 * rapid.IntRange(1, 2).Draw(t, "messages"), steady: 4, tracked: 6, window: 3, windowBytes: 2000, portionBytes: 1500}
	var s Store
	var b *book
	now := start
	open := func() {
		if kind == "memory" {
			m := NewMemory(limits, now)
			s, b = m, &m.book
		} else {
			f, err := openFile(path, testKey, limits, now, fast())
			if err != nil {
				t.Fatal(err)
			}
			s, b = f, &f.book
		}
		b.caps = fixed
	}
	open()
	defer func() { s.Close() }()
	m := &model{limits: limits, caps: fixed, readers: map[int]int{}}
	readers := map[int]*Reader{} // by number
	owner := map[int]int{}
	number := 0
	elapsed := func() time.Duration { return now.Sub(start) }
	recipient := func() int { return rapid.IntRange(1, 3).Draw(t, "recipient") }
	compare := func(what string, got, want []string) {
		if !slices.Equal(got, want) {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
	}
	actions := map[string]func(*rapid.T){
		"put": func(t *rapid.T) {
			to := recipient()
			x := letter(to, rapid.IntRange(1, 3).Draw(t, "sender"), rapid.IntRange(1, 12).Draw(t, "id"), "")
			x = sized(x, rapid.SampledFrom([]int{0, 1, 500, 1226, 1226, 3000, 9000}).Draw(t, "size"))
			x.Source = source(rapid.IntRange(1, 3).Draw(t, "source"))
			if x.Source == source(3) {
				x.Source = netip.Prefix{}
			}
			x.Contact = rapid.Bool().Draw(t, "contact")
			err := s.Put(x, now)
			if slices.ContainsFunc(m.all, func(it *modelItem) bool {
				return it.m.Recipient == x.Recipient && it.m.Sender == x.Sender && it.m.ID == x.ID
			}) {
				if err != nil {
					t.Fatalf("what is held is refused: %v", err)
				}
				return
			}
			refusals := m.refusals(x)
			if err != nil {
				r, ok := err.(*Refusal)
				if !ok || !slices.Contains(refusals, r.Limit) {
					t.Fatalf("%v, want one of %v", err, refusals)
				}
				return
			}
			if len(refusals) > 0 {
				t.Fatalf("held in spite of %v", refusals)
			}
			m.all = append(m.all, &modelItem{m: x, recipient: to, at: elapsed()})
		},
		"ack": func(t *rapid.T) {
			to, id := recipient(), messageID(rapid.IntRange(1, 12).Draw(t, "id"))
			n := s.Ack(identity(to), []wire.MessageID{id}, now)
			want := 0
			m.all = slices.DeleteFunc(m.all, func(it *modelItem) bool {
				hit := it.recipient == to && it.m.ID == id && it.read
				if hit {
					want++
				}
				return hit
			})
			if n != want {
				t.Fatalf("%d forgotten, want %d", n, want)
			}
		},
		"read": func(t *rapid.T) {
			to := recipient()
			portion, err := s.Read(identity(to), 0, 5, 1<<20, now)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, it := range m.all {
				if it.recipient == to && len(want) < 5 {
					it.read = true
					want = append(want, modelShow(it.m))
				}
			}
			compare("read", showAll(portion), want)
		},
		"reader": func(t *rapid.T) {
			to := recipient()
			number++
			m.land(m.readers[to])
			m.readers[to] = number
			readers[number], owner[number] = s.Reader(identity(to)), to
		},
		"next": func(t *rapid.T) {
			to := recipient()
			r := readers[m.readers[to]]
			if r == nil {
				return
			}
			portion, err := r.Next(now)
			if err != nil {
				t.Fatal(err)
			}
			compare("next", showAll(portion), m.next(to))
		},
		"close": func(t *rapid.T) {
			if number == 0 {
				return
			}
			n := rapid.IntRange(1, number).Draw(t, "reader")
			if r := readers[n]; r != nil {
				r.Close()
			}
			if m.readers[owner[n]] == n {
				m.land(n)
				delete(m.readers, owner[n])
			}
		},
		"waits": func(t *rapid.T) {
			to, from := recipient(), rapid.IntRange(1, 3).Draw(t, "sender")
			want := slices.ContainsFunc(m.all, func(it *modelItem) bool {
				return it.recipient == to && it.m.Sender == identity(from) && it.reader == 0
			})
			if s.Waits(identity(to), identity(from), now) != want {
				t.Fatalf("want %t", want)
			}
		},
		"time": func(t *rapid.T) {
			now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			m.pass(elapsed())
		},
		"": func(t *rapid.T) {
			n, bytes := m.sum(func(*modelItem) bool { return true })
			flying, _ := m.inFlight(func(*modelItem) bool { return true })
			boxes, sources := map[int]bool{}, map[netip.Prefix]bool{}
			for _, it := range m.all {
				boxes[it.recipient] = true
				sources[it.m.Source] = true
			}
			st := s.Stats(now)
			if !limits.Sources {
				sources = map[netip.Prefix]bool{{}: true}
				if n == 0 {
					sources = nil
				}
			}
			if st.Messages != n || st.Bytes != bytes || st.InFlight != flying || st.Recipients != len(boxes) || st.Sources != len(sources) {
				t.Fatalf("%+v, want %d messages, %d bytes, %d in flight, %d recipients, %d sources", st, n, bytes, flying, len(boxes), len(sources))
			}
			if len(b.ids.rows) > n || len(b.boxes.rows) != len(boxes) || len(b.readers.rows) != len(m.readers) {
				t.Fatalf("%d ids, %d boxes, %d readers are kept", len(b.ids.rows), len(b.boxes.rows), len(b.readers.rows))
			}
		},
	}
	if kind == "file" {
		actions["restart"] = func(t *rapid.T) {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			open()
			clear(readers)
			clear(m.readers)
			for _, it := range m.all {
				it.reader, it.read = 0, true
			}
		}
	}
	t.Repeat(actions)
}
