package relaycore

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/wire"
)

// stored is a store of identities with sizes of the test's own.
func stored(most int, budget int64) *identities {
	l := DefaultConfig().Limits
	t := newIdentities(l)
	t.most, t.budget = most, budget
	return &t
}

func numbered(n int) (id wire.Identity) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	return id
}

// What is published stays readable while its identity is connected and for
// identity_ttl_secs after it has left; the newest counts.
func TestBundleIsKept(t *testing.T) {
	bubble(t, func(c *Config) { fronted(c); c.Limits.IdentityTTLSecs = 3600 }, func(t *testing.T, w *world) {
		p := w.behind("192.0.2.1:1")
		p.publishAs(keyOf(1), []byte("first"))
		p.publishAs(keyOf(1), []byte("second"))
		check := func(want string) {
			t.Helper()
			got, signature, ok := w.s.dir.bundle(idOf(1))
			if f := (wire.Publish{Identity: idOf(1), Bundle: got, BundleSignature: signature}); string(got) != want || ok != (want != "") ||
				ok && f.BundleSignature != wire.NewPublish(keyOf(1), got, p.nonce, [32]byte{}).BundleSignature {
				t.Fatalf("%q, %v", got, ok)
			}
		}
		check("second")
		w.stay(2*time.Hour, p) // who is connected is not forgotten
		check("second")
		p.nc.Close()
		time.Sleep(time.Hour - time.Nanosecond)
		check("second")
		time.Sleep(time.Nanosecond)
		check("")
		synctest.Wait()
		if st := w.s.dir.stats(); st.identities != 0 { // by itself
			t.Fatalf("%+v", st)
		}
	})
}

// Who is forgotten when the store is full: of the source that holds the most,
// who has been away for the longest; nobody who is connected while another of
// that source is not.
func TestWhoIsForgotten(t *testing.T) {
	now := time.Unix(1000, 0)
	type step struct {
		id     int
		from   source
		bundle int
		away   bool // it leaves after it has published
		gone   int  // who is forgotten for it; 0: nobody
	}
	full := func(n int) int { return n - recordOverhead }
	for _, tc := range []struct {
		name   string
		most   int
		budget int64
		steps  []step
	}{
		{"by places: the heaviest's", 3, 1 << 20, []step{{1, 1, 0, true, 0}, {2, 2, 0, true, 0}, {3, 2, 0, true, 0}, {4, 3, 0, true, 2}}},
		{"by places: however large another's bundle", 3, 1 << 20, []step{{1, 1, 9999, true, 0}, {2, 2, 0, true, 0}, {3, 2, 0, true, 0}, {4, 3, 0, true, 2}}},
		{"the newcomer's own source", 3, 1 << 20, []step{{1, 1, 0, true, 0}, {2, 2, 0, true, 0}, {3, 2, 0, true, 0}, {4, 2, 0, true, 2}}},
		{"who is away before who is connected", 3, 1 << 20, []step{{1, 1, 0, false, 0}, {2, 1, 0, true, 0}, {3, 1, 0, true, 0}, {4, 2, 0, true, 2}}},
		{"of those who are connected the oldest", 3, 1 << 20, []step{{1, 1, 0, false, 0}, {2, 1, 0, false, 0}, {3, 2, 0, true, 0}, {4, 3, 0, true, 1}}},
		{"all alike", 2, 1 << 20, []step{{1, 1, 0, true, 0}, {2, 2, 0, true, 0}, {3, 3, 9999, true, 1}}},
		{"again is no other", 2, 1 << 20, []step{{1, 1, 0, true, 0}, {2, 2, 0, true, 0}, {1, 1, 10, true, 0}, {3, 3, 0, true, 2}}},
		{"by bytes: exactly full", 9, 3000, []step{{1, 1, full(1000), true, 0}, {2, 2, full(1000), true, 0}, {3, 2, full(1000), true, 0}}},
		{"by bytes: one more", 9, 3000, []step{{1, 1, full(1000), true, 0}, {2, 2, full(1000), true, 0}, {3, 2, full(1000), true, 0}, {4, 3, 0, true, 2}}},
		{"by bytes: the one large one", 9, 3000, []step{{1, 1, 0, true, 0}, {2, 2, full(2000), true, 0}, {3, 3, full(1000), true, 2}}},
	} {
		s := stored(tc.most, tc.budget)
		for i, st := range tc.steps {
			before := map[wire.Identity]bool{}
			for id := range s.byIdentity {
				before[id] = true
			}
			evicted := s.publish(numbered(st.id), make([]byte, st.bundle), [64]byte{}, st.from)
			if st.away {
				s.leave(numbered(st.id), now)
				now = now.Add(time.Second)
			}
			for id := range before {
				if want := id == numbered(st.gone); (s.byIdentity[id] == nil) != want {
					t.Errorf("%s: step %d: %d gone: %v", tc.name, i+1, binary.BigEndian.Uint64(id[:]), !want)
				}
			}
			if (evicted == 1) != (st.gone != 0) || s.byIdentity[numbered(st.id)] == nil {
				t.Errorf("%s: step %d: %d evicted", tc.name, i+1, evicted)
			}
		}
	}
}

// A bundle that the client's read buffer held is copied: it stays what was signed.
func TestBundleIsCopied(t *testing.T) {
	s := stored(10, 1<<20)
	b := []byte("bundle")
	s.publish(numbered(1), b, [64]byte{}, 1)
	copy(b, "XXXXXX")
	if got := s.byIdentity[numbered(1)].bundle; !bytes.Equal(got, []byte("bundle")) {
		t.Fatalf("%q", got)
	}
}

// The overhead that is charged is at least what it takes: of identities and of knocks' bookkeeping.
func TestOverheadIsCharged(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("measures memory")
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const n = 100_000
	now := time.Unix(1000, 0)
	before := heap()
	s := stored(n, 1<<40)
	for i := range n {
		s.publish(numbered(i), nil, [64]byte{}, source(i)) // each from a source of its own
		s.leave(numbered(i), now)
	}
	if each := (heap() - before) / n; each > recordOverhead {
		t.Errorf("an identity takes %d bytes beside its bundle, charged are %d", each, recordOverhead)
	} else {
		t.Logf("an identity takes %d bytes beside its bundle", each)
	}
	runtime.KeepAlive(s)
}
