package push

import (
	"strings"
	"testing"
)

// Hosts take turns: one for which much waits does not come before the others.
func TestQueueTurns(t *testing.T) {
	q := newQueue()
	q.most = 1
	for _, host := range []string{"a:443", "a:443", "a:443", "b:443", "c:443"} {
		q.add(&registration{host: host})
	}
	var turns strings.Builder
	for range 5 {
		r := q.next()
		if r == nil || q.next() != nil {
			t.Fatal("one may fly at a time")
		}
		turns.WriteString(r.host[:1])
		q.landed(r.host)
	}
	if turns.String() != "abcaa" || q.waiting != 0 || q.flying != 0 || len(q.lanes) != 0 {
		t.Errorf("%s, then %+v", turns.String(), q)
	}
}
