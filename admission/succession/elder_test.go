package succession

import (
	"net/netip"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"relayedge/admission"
	"relayedge/internal/handover"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// On the way from one process to the other nothing of a message changes, and what is
// cut short or goes on behind its end is none.
func TestWire(t *testing.T) {
	told := admission.Told{Open: 3, Settled: []uint64{7, 8}, Hosts: []admission.Held{{Key: admission.SharedKey{1}, Open: 2, Debt: 5}}, Sites: []admission.Held{{Key: admission.SharedKey{2}}}}
	decision := admission.Decision{Allowed: true, Limit: 9, Remaining: 8, Reset: time.Unix(5, 6), RetryAfter: 7}
	v6, v4 := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1")
	for name, row := range map[string]struct {
		body []byte
		read func([]byte) (any, error)
		want any
	}{
		"told":     {appendTold(nil, told), func(b []byte) (any, error) { return readTold(b) }, told},
		"ask":      {appendAsk(nil, 1, admission.Question{Addr: v6}), func(b []byte) (any, error) { _, q, err := readAsk(b); return q, err }, admission.Question{Addr: v6}},
		"ask v4":   {appendAsk(nil, 1, admission.Question{Addr: v4, All: true}), func(b []byte) (any, error) { _, q, err := readAsk(b); q.Addr = q.Addr.Unmap(); return q, err }, admission.Question{Addr: v4, All: true}},
		"decision": {appendCounted(nil, 1, decision), func(b []byte) (any, error) { _, d, err := readCounted(b); return d, err }, decision},
	} {
		got, err := row.read(row.body)
		if err != nil || !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, row.want)
		}
		if _, err := row.read(row.body[:len(row.body)-1]); err == nil {
			t.Errorf("%s: cut short, and understood", name)
		}
		if _, err := row.read(append(row.body[:len(row.body):len(row.body)], 0)); err == nil {
			t.Errorf("%s: with a byte too many, and understood", name)
		}
	}
	if _, _, err := readAnswer(appendAnswer(nil, 1, "nonsense")); err == nil {
		t.Error("a reason of nobody's is understood")
	}
}

// However many admit, name and release at once while processes follow each other, the
// cap is never exceeded and in the end nothing is held.
func TestCapUnderConcurrency(t *testing.T) {
	gate, err := admission.NewGate(limits())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	members := []*member{newMember(gate)}
	newest := func() *member {
		mu.Lock()
		defer mu.Unlock()
		return members[len(members)-1]
	}
	addr := hosts[0]
	open := 0 // of addr
	var stop, work = make(chan struct{}), sync.WaitGroup{}
	for range 8 {
		work.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				m := newest() // which may have been followed since: then it asks
				l, reason := m.gate.Admit(netip.Addr{}, time.Now())
				if reason != "" {
					continue
				}
				if l.Name(addr, time.Now()) == "" {
					mu.Lock()
					if open++; open > capHost {
						t.Errorf("%d connections of one host", open)
					}
					mu.Unlock()
					time.Sleep(100 * time.Microsecond) // it is open for a while
					mu.Lock()
					open--
					mu.Unlock()
				}
				l.Release()
			}
		})
	}
	for range 3 {
		time.Sleep(5 * time.Millisecond) // some of them come
		next := newest().handsOver(t)
		mu.Lock()
		members = append(members, next)
		mu.Unlock()
	}
	time.Sleep(5 * time.Millisecond)
	close(stop)
	work.Wait()
	h := &history{t: t, members: members, of: map[*admission.Lease]netip.Addr{}}
	h.settles()
	for _, m := range members {
		m.dies()
	}
}

// Whoever hangs and still lives is not taken for dead: the gate does not decide
// beside it, and refuses what it is asked for in vain.
func TestHeirThatHangs(t *testing.T) {
	gate, err := admission.NewGate(limits())
	if err != nil {
		t.Fatal(err)
	}
	m := newMember(gate)
	line, theirs, err := handover.Pair()
	if err != nil {
		t.Fatal(err)
	}
	m.elder.Tell(line, nil)
	if !m.elder.Retire() {
		t.Fatal("the heir is gone")
	}
	if l, reason := gate.Admit(hosts[0], time.Now()); l != nil || reason != admission.StoreUnavailable {
		t.Errorf("%v, %q", l, reason)
	}
	if !m.elder.Retired() {
		t.Error("the gate decides beside an heir that lives")
	}
	theirs.Close() // it dies
	<-m.resumed
	l, reason := gate.Admit(hosts[0], time.Now())
	if reason != "" {
		t.Errorf("after its end: %q", reason)
	}
	l.Release()
}

// An heir that ends on purpose is not succeeded by its elder.
func TestFarewell(t *testing.T) {
	gate, err := admission.NewGate(limits())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	m := &member{gate: gate, successor: NewSuccessor(gate, Requests{}), resumed: make(chan struct{}, 1)}
	m.elder = NewElder(gate, m.successor, func() { m.resumed <- struct{}{} }, func() { close(ended) })
	next := m.handsOver(t)
	next.successor.Farewell()
	<-ended
	next.dies()
	if _, reason := gate.Admit(hosts[0], time.Now()); reason != admission.StoreUnavailable {
		t.Errorf("%q", reason)
	}
	select {
	case <-m.resumed:
		t.Error("it takes over again")
	default:
	}
}
