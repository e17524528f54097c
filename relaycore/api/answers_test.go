package api

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

func sized(n int) mailbox.Message {
	return mailbox.Message{Recipient: idOf(bob), Sender: idOf(alice), ID: messageID(n), Payload: make([]byte, n-wire.SendHead), Contact: true}
}

// The same id, or the same key, of the same sender gets the first answer again and
// sends nothing twice.
func TestReplay(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		send := func(n int, body, key string) *httptest.ResponseRecorder {
			c := post("/messages", letter(alice, messageID(n), body))
			if key != "" {
				c = c.keyed(key)
			}
			return d.do(c)
		}
		first := d.want(send(1, "a", "key 1"[:3]), 202, "")
		d.shelf.connected[idOf(bob)] = true // the answer would be another
		for _, row := range []struct {
			name      string
			n         int
			body, key string
			status    int
		}{
			{"the same", 1, "a", "key", 202},
			{"the id alone", 1, "a", "", 202},
			{"the id under another key", 1, "a", "other", 202},
			{"another body under the id", 1, "b", "", 409},
			{"another id under the key", 2, "a", "key", 409},
			{"another body under id and key", 1, "b", "key", 409},
		} {
			w := send(row.n, row.body, row.key)
			if w.Code != row.status || row.status == 202 && w.Body.String() != first.Body.String() {
				t.Errorf("%s: %d %s", row.name, w.Code, w.Body)
			}
			time.Sleep(time.Second) // the time of signing is no part of what is the same
		}
		if len(d.shelf.got) != 1 || d.charged(alice) != 1 || d.Counts.Replayed.Load() != 3 || d.Counts.Accepted.Load() != 1 {
			t.Errorf("%d messages, charged %d, %d replays", len(d.shelf.got), d.charged(alice), d.Counts.Replayed.Load())
		}
		// A key and an id are their sender's.
		d.want(d.do(post("/messages", letter(bob, messageID(1), "b")).keyed("key")), 202, "")
		// Nobody gets an answer without the signature.
		d.want(d.do(post("/messages", letter(alice, messageID(1), "a").with("signature", make([]byte, 64)))), 401, BadSignature)
		// After its life it is forgotten.
		time.Sleep(AnswerLife - 6*time.Second - time.Nanosecond)
		if n, _ := d.Kept(); n != 2 {
			t.Errorf("%d are kept", n)
		}
		time.Sleep(time.Nanosecond)
		if n, bytes := d.Kept(); n != 1 {
			t.Errorf("%d are kept, %d bytes", n, bytes)
		}
		time.Sleep(6 * time.Second)
		if n, bytes := d.Kept(); n != 0 || bytes != 0 || len(d.answers.byName) != 0 || d.answers.oldest != nil || d.answers.newest != nil {
			t.Errorf("%d are kept, %d bytes", n, bytes)
		}
	})
}

// A refusal is no answer that is kept.
func TestRefusalIsNotReplayed(t *testing.T) {
	bubble(t, func(c *admission.MessageLimitsConfig) { c.Sender.Minute = 1 }, func(t *testing.T, d *desk) {
		d.want(d.sends(alice, 1), 202, "")
		again := post("/messages", letter(alice, messageID(2), "")).keyed("k")
		time.Sleep(d.limited(d.do(again), admission.ScopeSender, admission.Minute, 1))
		d.want(d.do(again), 202, "")
	})
}

// Of those who send the same at the same time one is taken, and all get its answer.
func TestSimultaneousReplay(t *testing.T) {
	bubble(t, nil, func(t *testing.T, d *desk) {
		going := make(chan struct{})
		d.shelf.enter = func() { <-going }
		answers := make(chan *httptest.ResponseRecorder, 10)
		for range cap(answers) {
			c := post("/messages", letter(alice, messageID(1), "a")).keyed("k")
			go func() { answers <- d.do(c) }()
		}
		synctest.Wait()
		// Who asks for something else need not wait to hear so, and who gives up is told.
		d.want(d.do(post("/messages", letter(alice, messageID(1), "b"))), 409, Conflict)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c := post("/messages", letter(alice, messageID(1), "a"))
		c.ctx = ctx
		d.want(d.do(c), 503, Unavailable)
		if len(answers) != 0 {
			t.Fatal("answered before it was known")
		}
		close(going)
		for range cap(answers) {
			if w := <-answers; w.Code != 202 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		if len(d.shelf.got) != 1 || d.charged(alice) != 1 {
			t.Errorf("%d messages, charged %d", len(d.shelf.got), d.charged(alice))
		}
	})
	// Where the first is not taken, the next one is judged by itself.
	bubble(t, nil, func(t *testing.T, d *desk) {
		going, panics := make(chan struct{}), true
		d.shelf.enter = func() {
			<-going
			if panics {
				panics = false
				panic("a fault")
			}
		}
		codes := make(chan int, 2)
		for range cap(codes) {
			c := post("/messages", letter(alice, messageID(1), "a"))
			go func() {
				defer func() {
					if recover() != nil {
						codes <- 0
					}
				}()
				codes <- d.do(c).Code
			}()
		}
		synctest.Wait()
		close(going)
		if got := []int{<-codes, <-codes}; got[0]+got[1] != 202 {
			t.Errorf("%v", got)
		}
	})
}

// When there are too many, the source that has the most forgets its oldest.
func TestAnswersAreBounded(t *testing.T) {
	source := func(n int) netip.Prefix { return client(n).Source }
	put := func(a *answers, from, n, size int) {
		k, _, _ := a.claim(t.Context(), source(from), namesOf(idOf(alice), messageID(n), fmt.Sprint(n)), [32]byte{})
		a.settle(k, &reply{status: 202, body: make([]byte, size)})
	}
	has := func(a *answers, n int) bool {
		k, first, _ := a.claim(t.Context(), source(9), namesOf(idOf(alice), messageID(n), ""), [32]byte{})
		if k != nil {
			a.settle(k, nil)
		}
		return first != nil
	}
	for _, row := range []struct {
		name   string
		a      *answers
		size   int
		from   []int
		forgot []int
	}{
		{"count", newAnswers(4, 1<<20, time.Hour), 10, []int{1, 2, 2, 1, 2, 3, 3}, []int{1, 0, 2}},
		{"bytes", newAnswers(100, 4*(answerOverhead+10), time.Hour), 10, []int{1, 2, 2, 1, 2, 3, 3}, []int{1, 0, 2}},
		{"one source", newAnswers(3, 1<<20, time.Hour), 10, []int{1, 1, 1, 1, 1}, []int{0, 1}},
		{"one that is larger than all", newAnswers(3, answerOverhead+9, time.Hour), 10, []int{1}, []int{0}},
	} {
		for n, from := range row.from {
			put(row.a, from, n, row.size)
		}
		for n := range row.from {
			want := true
			for _, f := range row.forgot {
				want = want && f != n
			}
			if got := has(row.a, n); got != want {
				t.Errorf("%s: %d is kept: %v", row.name, n, got)
			}
		}
		kept := len(row.from) - len(row.forgot)
		if n, bytes := row.a.stats(time.Now()); n != kept || bytes != int64(kept*(answerOverhead+row.size)) || len(row.a.byName) != 2*kept {
			t.Errorf("%s: %d are kept, %d bytes, %d names", row.name, n, bytes, len(row.a.byName))
		}
	}
}

// What an answer is charged is what it takes.
func TestAnswerOverhead(t *testing.T) {
	const n = 20_000
	a := newAnswers(n, 1<<40, time.Hour)
	before := memory()
	for i := range n {
		from := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		k, _, _ := a.claim(t.Context(), from, namesOf(idOf(alice), messageID(i), fmt.Sprint(i)), [32]byte{})
		a.settle(k, ok(202, wire.Accepted{ID: messageID(i), Status: wire.Delivered}))
	}
	took := int64(memory() - before)
	_, charged := a.stats(time.Now())
	t.Logf("an answer takes %d bytes and is charged %d", took/n, charged/n)
	if took > charged || took < charged/2 {
		t.Errorf("%d bytes are taken, %d are charged", took/n, charged/n)
	}
	runtime.KeepAlive(a)
}

func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Names of ids and of keys never meet, nor those of two senders.
func TestNames(t *testing.T) {
	seen := map[name]string{}
	for _, who := range []wire.Identity{idOf(alice), idOf(bob)} {
		for _, key := range []string{"", "a", strings.Repeat("a", 32), string(make([]byte, 32))} {
			for i, n := range namesOf(who, wire.MessageID{}, key) {
				what := fmt.Sprintf("%s %d %q", who, i, key)
				if i == 0 {
					what = who.String()
				}
				if other, ok := seen[n]; ok && other != what {
					t.Errorf("%s and %s", what, other)
				}
				seen[n] = what
			}
		}
	}
}
