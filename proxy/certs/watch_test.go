package certs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// look lets Watch look once.
func look(t *testing.T) {
	t.Helper()
	time.Sleep(pollInterval)
	synctest.Wait()
}

// watched is a store under watch in a bubble, with one pair in force.
type watched struct {
	*testing.T
	s   *Store
	at  FilePair
	old made // the pair in force at the beginning: valid for 10 hours
	j   journal
}

const oldLife = 10 * time.Hour

func watching(t *testing.T, story func(w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{T: t}
		w.old = makeCert(t, nil, oldLife, "a.example")
		w.at = placed(t, w.old)
		w.s = mustOpen(t, Config{Files: []FilePair{w.at}}, w.j.logger())
		go w.s.Watch(t.Context())
		look(t)
		w.serves(w.old)
		w.logged()
		story(w)
	})
}

// serves also holds the time that the metric shows against the pair in force.
func (w *watched) serves(want made) {
	w.Helper()
	serves(w.T, w.s, "a.example", want)
	if got := w.s.NotAfter(); !got.Equal(want.leaf.NotAfter) {
		w.Fatalf("NotAfter %v, want %v", got, want.leaf.NotAfter)
	}
}

func (w *watched) logged(want ...[]string) {
	w.Helper()
	w.j.logged(w.T, want...)
}

// kept fails the test unless the old pair stays for a long while, with one ERROR
// line that names both paths and the reason.
func (w *watched) kept(reason string) {
	w.Helper()
	for range 10 {
		look(w.T)
		w.serves(w.old)
	}
	w.logged([]string{"ERROR", "certificate=" + w.at.Certificate, "key=" + w.at.Key, reason})
}

func TestPairReplaced(t *testing.T) {
	watching(t, func(w *watched) {
		renewed := makeCert(t, nil, 20*time.Hour, "a.example")
		renewed.writeTo(t, w.at)
		look(t)
		w.serves(renewed)
		w.logged([]string{"INFO", "certificate replaced", "a.example", w.at.Certificate, w.at.Key})
		look(t)
		w.logged()
	})
}

func TestNamesFollowTheFile(t *testing.T) {
	watching(t, func(w *watched) {
		makeCert(t, nil, 20*time.Hour, "b.example").writeTo(t, w.at)
		look(t)
		_, known := w.s.served.Load().find("a.example")
		if _, other := w.s.served.Load().find("b.example"); known || !other {
			t.Errorf("a.example known %v, b.example %v", known, other)
		}
	})
}

// A renewal writes two files, and not at one moment.
func TestKeyTwoSecondsBeforeCertificate(t *testing.T) {
	for _, order := range []string{"key first", "certificate first"} {
		t.Run(order, func(t *testing.T) {
			watching(t, func(w *watched) {
				renewed := makeCert(t, nil, 20*time.Hour, "a.example")
				if order == "key first" {
					write(t, w.at.Key, renewed.key)
				} else {
					write(t, w.at.Certificate, renewed.chain)
				}
				look(t)
				w.serves(w.old)
				w.logged([]string{"ERROR", "does not belong", w.at.Certificate, w.at.Key})
				renewed.writeTo(t, w.at)
				look(t)
				w.serves(renewed)
				w.logged([]string{"INFO", "certificate replaced"})
			})
		})
	}
}

func TestFaultyReplacementLeavesTheOldPair(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(w *watched)
		want  string
	}{
		{"mismatch", func(w *watched) { write(w.T, w.at.Key, makeCert(w.T, nil, time.Hour, "a").key) }, "does not belong"},
		{"truncated certificate", func(w *watched) { write(w.T, w.at.Certificate, w.old.chain[:100]) }, "PEM blocks"},
		{"truncated intermediate", func(w *watched) { write(w.T, w.at.Certificate, w.old.chain+w.old.chain[:100]) }, "PEM blocks"},
		{"truncated key", func(w *watched) { write(w.T, w.at.Key, w.old.key[:100]) }, "PEM blocks"},
		{"empty certificate", func(w *watched) { write(w.T, w.at.Certificate, "") }, "no PEM block"},
		{"certificate gone", func(w *watched) { try(w.T, os.Remove(w.at.Certificate)) }, "no such file"},
		{"key gone", func(w *watched) { try(w.T, os.Remove(w.at.Key)) }, "no such file"},
		{"both gone", func(w *watched) { try(w.T, os.RemoveAll(filepath.Dir(w.at.Key))) }, "no such file"},
		{"directory", func(w *watched) { try(w.T, os.Remove(w.at.Key)); try(w.T, os.Mkdir(w.at.Key, 0o700)) }, "regular file"},
		{"encrypted", func(w *watched) { write(w.T, w.at.Key, block("ENCRYPTED PRIVATE KEY", []byte("x"))) }, "encrypted"},
		{"huge", func(w *watched) { try(w.T, os.Truncate(w.at.Certificate, 1<<40)) }, "larger than"},
		{"expired", func(w *watched) { makeCert(w.T, nil, -time.Second, "a.example").writeTo(w.T, w.at) }, "expired at 2000-01-01T00:00:01Z"},
		{"not valid yet", func(w *watched) {
			makeCertBetween(w.T, nil, time.Now().Add(time.Hour), time.Now().Add(99*time.Hour), "a.example").writeTo(w.T, w.at)
		}, "not valid before 2000-01-01T01:00:02Z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			watching(t, func(w *watched) {
				tt.spoil(w)
				w.kept(tt.want)

				// The files as they were: no news of the pair, but of the fault's end.
				_ = os.RemoveAll(w.at.Key)
				try(t, os.MkdirAll(filepath.Dir(w.at.Key), 0o700))
				w.old.writeTo(t, w.at)
				look(t)
				w.serves(w.old)
				w.logged([]string{"INFO", "in force again"})

				renewed := makeCert(t, nil, 20*time.Hour, "a.example")
				renewed.writeTo(t, w.at)
				look(t)
				w.serves(renewed)
				w.logged([]string{"INFO", "certificate replaced"})
			})
		})
	}
}

func TestEachFaultIsToldOnce(t *testing.T) {
	watching(t, func(w *watched) {
		write(t, w.at.Certificate, "")
		w.kept("no PEM block")
		write(t, w.at.Certificate, w.old.chain[:100])
		w.kept("PEM blocks")
		w.old.writeTo(t, w.at)
		look(t)
		w.logged([]string{"INFO"})
		write(t, w.at.Certificate, "") // the same fault, another time
		w.kept("no PEM block")
	})
}

// A pair that is read again while nothing about its files changed.
func TestFaultHealsUnderTheSameStat(t *testing.T) {
	watching(t, func(w *watched) {
		long := time.Unix(1e9, 0)
		renewed := makeCert(t, nil, 20*time.Hour, "a.example")
		broken := strings.Repeat("x", len(renewed.chain))
		write(t, w.at.Key, renewed.key)
		write(t, w.at.Certificate, broken)
		try(t, os.Chtimes(w.at.Certificate, long, long))
		w.kept("no PEM block")
		write(t, w.at.Certificate, renewed.chain)
		try(t, os.Chtimes(w.at.Certificate, long, long))
		look(t)
		w.serves(renewed)
	})
}

func TestNotValidYetIsTakenInTime(t *testing.T) {
	watching(t, func(w *watched) {
		next := makeCertBetween(t, nil, time.Now().Add(time.Minute), time.Now().Add(99*time.Hour), "a.example")
		next.writeTo(t, w.at)
		w.kept("not valid before")
		time.Sleep(time.Minute)
		synctest.Wait()
		w.serves(next)
		w.logged([]string{"INFO", "certificate replaced"})
	})
}

func TestNotValidYetIsBetterThanExpired(t *testing.T) {
	watching(t, func(w *watched) {
		time.Sleep(oldLife)
		synctest.Wait()
		w.logged([]string{"ERROR", "certificate has expired"})
		next := makeCertBetween(t, nil, time.Now().Add(time.Hour), time.Now().Add(99*time.Hour), "a.example")
		next.writeTo(t, w.at)
		look(t)
		w.serves(next)
		w.logged([]string{"WARN", "not valid yet"}, []string{"INFO", "certificate replaced"})
	})
}

func TestEarlierEndIsTakenWithALoudWarning(t *testing.T) {
	watching(t, func(w *watched) {
		older := makeCert(t, nil, oldLife-time.Hour, "a.example")
		older.writeTo(t, w.at)
		look(t)
		w.serves(older)
		w.logged([]string{"WARN", "EARLIER", w.at.Certificate, "not_after", "before"})
	})
}

// Both are expired: the newer one is no worse, and may be all that there is.
func TestExpiredReplacesOneThatExpiredEarlier(t *testing.T) {
	watching(t, func(w *watched) {
		later := makeCert(t, nil, oldLife+time.Hour, "a.example")
		earlier := makeCert(t, nil, oldLife-time.Hour, "a.example")
		time.Sleep(oldLife + 2*time.Hour)
		synctest.Wait()
		w.logged([]string{"ERROR", "certificate has expired"})
		earlier.writeTo(t, w.at)
		w.kept("expired at")
		later.writeTo(t, w.at)
		look(t)
		w.serves(later)
		w.logged([]string{"WARN", "has expired and is served"}, []string{"INFO", "certificate replaced"})
		for range 10 {
			look(t)
		}
		w.logged()
	})
}

func TestEndIsToldOnce(t *testing.T) {
	watching(t, func(w *watched) {
		time.Sleep(time.Until(w.old.leaf.NotAfter))
		synctest.Wait()
		w.logged()
		look(t)
		w.logged([]string{"ERROR", "certificate has expired", w.at.Certificate})
		for range 10 {
			look(t)
		}
		w.logged()
		w.serves(w.old)
	})
	// It is told while a fault stands in the way of a newer one, too.
	watching(t, func(w *watched) {
		write(t, w.at.Certificate, "")
		w.kept("no PEM block")
		time.Sleep(oldLife)
		synctest.Wait()
		w.logged([]string{"ERROR", "certificate has expired", w.at.Certificate})
	})
}

func TestSameContentIsNoNews(t *testing.T) {
	watching(t, func(w *watched) {
		before := w.s.served.Load()
		w.old.writeTo(t, w.at)
		try(t, os.Chtimes(w.at.Key, time.Unix(1e9, 0), time.Unix(1e9, 0)))
		look(t)
		w.logged()
		if w.s.served.Load() != before {
			t.Error("published again")
		}
	})
}

func TestLongerChainIsNews(t *testing.T) {
	watching(t, func(w *watched) {
		write(t, w.at.Certificate, w.old.chain+makeCert(t, nil, time.Hour, "issuer").chain)
		look(t)
		if n := len(w.s.served.Load().fallback[0].Certificate); n != 2 {
			t.Errorf("chain of %d", n)
		}
		w.logged([]string{"INFO", "certificate replaced"})
	})
}

func TestFaultOfOnePairIsNotTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		one := makeCert(t, nil, oldLife, "one.example")
		two := makeCert(t, nil, oldLife, "two.example")
		pairs := []FilePair{placed(t, one), placed(t, two)}
		s := mustOpen(t, Config{Files: pairs, SelfIssued: []string{"localhost"}}, j.logger())
		go s.Watch(t.Context())
		write(t, pairs[0].Certificate, "")
		renewed := makeCert(t, nil, 20*time.Hour, "two.example")
		renewed.writeTo(t, pairs[1])
		look(t)
		serves(t, s, "one.example", one)
		serves(t, s, "two.example", renewed)
		if !s.NotAfter().Equal(one.leaf.NotAfter) {
			t.Errorf("NotAfter %v", s.NotAfter())
		}
		j.logged(t, []string{"ERROR", pairs[0].Certificate}, []string{"INFO", pairs[1].Certificate})
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Config{SelfIssued: []string{"localhost"}}, quiet)
		s.Watch(contextFor(t, 3*pollInterval)) // a Watch that does not return deadlocks the bubble's end
	})
}
