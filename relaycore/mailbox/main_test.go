package mailbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childJob); job != "" {
		os.Exit(child(job))
	}
	goleak.VerifyTestMain(m)
}

// start is when the tests begin: a wall clock alone, as a table row would have it.
var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// plenty refuses nothing that a test does not want refused.
func plenty() Limits {
	return Limits{TotalBytes: 1 << 30, RecipientBytes: 1 << 28, TTL: 72 * time.Hour, Sources: true}
}

func identity(n int) (id wire.Identity) {
	copy(id[:], "identity ")
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return id
}

func messageID(n int) (id wire.MessageID) {
	copy(id[:], "message ")
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return id
}

func source(n int) netip.Prefix {
	return admission.Source(netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}), nil)
}

// letter is a contact's message from a source of its sender's own.
func letter(to, from, id int, payload string) Message {
	return Message{
		Recipient: identity(to), Sender: identity(from), ID: messageID(id),
		Payload: []byte(payload), Source: source(from), Contact: true,
	}
}

func sized(m Message, n int) Message {
	m.Payload = make([]byte, n)
	return m
}

func stranger(m Message) Message {
	m.Contact = false
	return m
}

func mustPut(t testing.TB, s Store, m Message, now time.Time) {
	t.Helper()
	if r := s.Refuses(m, now); r != nil {
		t.Fatalf("Put would refuse: %v", r)
	}
	if err := s.Put(m, now); err != nil {
		t.Fatalf("Put: %v", err)
	}
}

func mustRefuse(t testing.TB, s Store, m Message, now time.Time, want Limit) *Refusal {
	t.Helper()
	before := s.Stats(now)
	expected := before
	if want != LimitStorage { // which only the disk knows, the first time
		if r := s.Refuses(m, now); r == nil || r.Limit != want {
			t.Fatalf("Put would refuse for %v, want %v", r, want)
		}
		expected.Refused[want]++
	}
	err := s.Put(m, now)
	r, ok := errors.AsType[*Refusal](err)
	if !ok || r.Limit != want {
		t.Fatalf("Put: %v, want a refusal for %v", err, want)
	}
	if r.RetryAfter < time.Second || r.RetryAfter > time.Minute || r.RetryAfter%time.Second != 0 {
		t.Fatalf("retry after %v", r.RetryAfter)
	}
	expected.Refused[want]++
	if after := s.Stats(now); after != expected {
		t.Fatalf("the refusal has left something: %+v, before %+v", after, before)
	}
	return r
}

// inbox gives all that is held for a recipient as "sender:payload", the payload
// cut short.
func inbox(t testing.TB, s Store, recipient int, now time.Time) (all []string) {
	t.Helper()
	var after uint64
	for {
		portion, err := s.Read(identity(recipient), after, 3, 1<<30, now)
		if err != nil {
			t.Fatal(err)
		}
		if len(portion) == 0 {
			return all
		}
		for _, h := range portion {
			all = append(all, show(h))
			after = h.Seq
		}
	}
}

func show(h Held) string {
	return fmt.Sprintf("%d:%.8s", binary.BigEndian.Uint32(h.Sender[12:]), h.Payload)
}

func next(t testing.TB, r *Reader, now time.Time) (all []string) {
	t.Helper()
	portion, err := r.Next(now)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range portion {
		all = append(all, show(h))
	}
	return all
}

func ids(n ...int) (out []wire.MessageID) {
	for _, n := range n {
		out = append(out, messageID(n))
	}
	return out
}

var testKey = Key{1, 2, 3}

// fast is for files whose test does not kill anybody.
func fast() options {
	o := plainOptions
	o.noSync = true
	return o
}

func openTest(t testing.TB, path string, l Limits, now time.Time) *File {
	t.Helper()
	f, err := openFile(path, testKey, l, now, fast())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// kinds are the stores, each with its book, for tests that make fixed limits small.
var kinds = []struct {
	name string
	make func(t testing.TB, l Limits, now time.Time) (Store, *book)
}{
	{"memory", func(t testing.TB, l Limits, now time.Time) (Store, *book) {
		s := NewMemory(l, now)
		return s, &s.book
	}},
	{"file", func(t testing.TB, l Limits, now time.Time) (Store, *book) {
		f := openTest(t, filepath.Join(t.TempDir(), "mailbox"), l, now)
		return f, &f.book
	}},
}

// each runs a test of what every store must do.
func each(t *testing.T, test func(t *testing.T, open func(Limits) (Store, *book))) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			test(t, func(l Limits) (Store, *book) {
				s, b := kind.make(t, l, start)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				return s, b
			})
		})
	}
}
