package certs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// reload puts cfg in force, as one that can be.
func reload(t *testing.T, s *Store, cfg Config) (warnings []string) {
	t.Helper()
	r, err := s.Prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r.Apply()
}

// unknown fails the test if a name is served.
func unknown(t *testing.T, s *Store, name string) {
	t.Helper()
	if _, err := s.Certificate(helloFor(0x0304, name, 0x0403)); err != ErrUnknownName {
		t.Errorf("%s: %v, want ErrUnknownName", name, err)
	}
}

// Pairs come and go, and those that stay are the same ones.
func TestReloadOfPairs(t *testing.T) {
	a, b, c := makeCert(t, nil, time.Hour, "a.example"), makeCert(t, nil, 2*time.Hour, "b.example"), makeCert(t, nil, 3*time.Hour, "c.example")
	atA, atB, atC := placed(t, a), placed(t, b), placed(t, c)
	s := mustOpen(t, Config{Files: []FilePair{atA, atB}, SelfIssued: []string{"own.example"}}, quiet)
	own, err := s.Certificate(helloFor(0x0304, "own.example", 0x0403))
	try(t, err)
	held := s.sources[1]

	r, err := s.Prepare(Config{Files: []FilePair{atB, atC}, SelfIssued: []string{"own.example"}})
	try(t, err)
	serves(t, s, "a.example", a)
	unknown(t, s, "c.example")
	if at := s.NotAfter(); !at.Equal(a.leaf.NotAfter) {
		t.Errorf("NotAfter %v before Apply", at)
	}
	r.Apply()
	unknown(t, s, "a.example")
	serves(t, s, "b.example", b)
	serves(t, s, "c.example", c)
	serves(t, s, "", b) // the first of files
	if s.sources[0] != held {
		t.Error("a pair that stays is another source")
	}
	if now, err := s.Certificate(helloFor(0x0304, "own.example", 0x0403)); err != nil || now != own {
		t.Errorf("the certificate of our own making is another one, %v", err)
	}
	if at := s.NotAfter(); !at.Equal(b.leaf.NotAfter) {
		t.Errorf("NotAfter %v after Apply", at)
	}

	reload(t, s, Config{Files: []FilePair{atB}, SelfIssued: []string{"other.example"}})
	unknown(t, s, "own.example")
	if _, err := s.Certificate(helloFor(0x0304, "other.example", 0x0403)); err != nil {
		t.Errorf("other.example: %v", err)
	}
	reload(t, s, Config{})
	unknown(t, s, "b.example")
}

// A pair that is written twice is two sources before and after.
func TestReloadOfAPairThatIsWrittenTwice(t *testing.T) {
	a := makeCert(t, nil, time.Hour, "a.example")
	at := placed(t, a)
	s := mustOpen(t, Config{Files: []FilePair{at, at}}, quiet)
	reload(t, s, Config{Files: []FilePair{at, at, at}})
	for i, src := range s.sources {
		if slices.Contains(s.sources[:i], src) {
			t.Errorf("source %d is another one too", i)
		}
	}
	serves(t, s, "a.example", a)
}

// What cannot be had is refused as at the start, all faults in one go, and
// nothing changes.
func TestReloadIsRefusedAsAWhole(t *testing.T) {
	a, b := makeCert(t, nil, time.Hour, "a.example"), makeCert(t, nil, time.Hour, "b.example")
	at, good := placed(t, a), placed(t, b)
	broken := placed(t, b)
	write(t, broken.Certificate, b.chain[:100])
	missing := FilePair{filepath.Join(t.TempDir(), "gone.pem"), at.Key}
	storage := t.TempDir()
	for _, tt := range []struct {
		name string
		cfg  Config
		want []string
	}{
		{"files", Config{Files: []FilePair{at, good, broken, missing}}, []string{broken.Certificate, "PEM blocks", missing.Certificate, "no such file"}},
		{"the section", Config{Files: []FilePair{{}}, SelfIssued: []string{"?"}}, []string{"certificates: ", "name a PEM file", "self_issued"}},
		{"files of acme", Config{Files: []FilePair{missing}, ACME: ACME{
			Domains: []string{"c.example.org"}, AgreeToTerms: true, Challenges: []string{challengeALPN}, Storage: storage, CARootFile: missing.Certificate, EABKeyID: "kid", EABKeyFile: missing.Certificate,
		}}, []string{"certificate " + missing.Certificate, "ca_root_file: ", "eab_key_file: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := mustOpen(t, Config{Files: []FilePair{at}}, quiet)
			served := s.served.Load()
			r, err := s.Prepare(tt.cfg)
			if err == nil || r != nil {
				t.Fatalf("%v, %v", r, err)
			}
			fresh, opened := Open(tt.cfg, quiet)
			if fresh != nil || opened.Error() != err.Error() {
				t.Errorf("Open says %q, Prepare %q", opened, err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if s.served.Load() != served || len(s.sources) != 1 || s.acme.Load() != nil {
				t.Error("something has changed")
			}
			serves(t, s, "a.example", a)
		})
	}
}

// While a pair is half replaced, a reload keeps the one in force, whatever is
// wrong, with one line; the rest of the reload takes effect.
func TestReloadWhileAPairIsReplaced(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(w *watched)
		want  string
	}{
		{"the key without its certificate", func(w *watched) { write(w.T, w.at.Key, makeCert(w.T, nil, time.Hour, "a").key) }, "does not belong"},
		{"the certificate without its key", func(w *watched) { write(w.T, w.at.Certificate, makeCert(w.T, nil, time.Hour, "a").chain) }, "does not belong"},
		{"truncated certificate", func(w *watched) { write(w.T, w.at.Certificate, w.old.chain[:100]) }, "PEM blocks"},
		{"truncated key", func(w *watched) { write(w.T, w.at.Key, w.old.key[:100]) }, "PEM blocks"},
		{"empty", func(w *watched) { write(w.T, w.at.Certificate, "") }, "no PEM block"},
		{"gone", func(w *watched) { try(w.T, os.Remove(w.at.Key)) }, "no such file"},
		{"unreadable", func(w *watched) {
			// A loop of links is one for root as well.
			try(w.T, os.Remove(w.at.Key))
			try(w.T, os.Symlink(w.at.Key, w.at.Key))
		}, "too many levels of symbolic links"},
		{"a link to nowhere", func(w *watched) {
			try(w.T, os.Remove(w.at.Certificate))
			try(w.T, os.Symlink("gone", w.at.Certificate))
		}, "no such file"},
		{"expired", func(w *watched) { makeCert(w.T, nil, -time.Second, "a.example").writeTo(w.T, w.at) }, "expired at"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			watching(t, func(w *watched) {
				tt.spoil(w)
				other := makeCert(t, nil, 15*time.Hour, "b.example")
				both := Config{Files: []FilePair{w.at, placed(t, other)}}
				if warnings := reload(t, w.s, both); len(warnings) != 1 || !strings.Contains(warnings[0], tt.want) || !strings.Contains(warnings[0], w.at.Certificate) {
					t.Errorf("warnings %q", warnings)
				}
				w.serves(w.old)
				serves(t, w.s, "b.example", other)
				reload(t, w.s, both)
				w.kept(tt.want)

				_ = os.RemoveAll(w.at.Key)
				_ = os.RemoveAll(w.at.Certificate)
				renewed := makeCert(t, nil, 12*time.Hour, "a.example")
				renewed.writeTo(t, w.at)
				if warnings := reload(t, w.s, both); len(warnings) != 0 { // at once, without Watch
					t.Errorf("warnings %q", warnings)
				}
				w.serves(renewed)
				w.logged([]string{"INFO", "certificate replaced"})
			})
		})
	}
}

// A certificate that ends earlier is taken by a reload as without one: with a
// loud warning.
func TestReloadOfAnEarlierEnd(t *testing.T) {
	watching(t, func(w *watched) {
		earlier := makeCert(t, nil, oldLife/2, "a.example")
		earlier.writeTo(t, w.at)
		reload(t, w.s, Config{Files: []FilePair{w.at}})
		w.serves(earlier)
		w.logged([]string{"WARN", "EARLIER"})
	})
}

// What Watch looks after is what was applied last.
func TestWatchFollowsReload(t *testing.T) {
	watching(t, func(w *watched) {
		other := makeCert(t, nil, 20*time.Hour, "b.example")
		at := placed(t, other)
		reload(t, w.s, Config{Files: []FilePair{at}})
		synctest.Wait()
		makeCert(t, nil, 30*time.Hour, "a.example").writeTo(t, w.at) // nobody's any longer
		renewed := makeCert(t, nil, 25*time.Hour, "b.example")
		renewed.writeTo(t, at)
		look(t)
		look(t)
		serves(t, w.s, "b.example", renewed)
		unknown(t, w.s, "a.example")
		w.logged([]string{"INFO", "certificate replaced", at.Certificate})
	})
}
