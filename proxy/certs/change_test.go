package certs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Each sign of a change alone is enough.
func TestSignsOfAChange(t *testing.T) {
	long := time.Unix(1e9, 0)
	// Both certificates are padded to one size and dated alike; a row then changes one thing.
	pad := func(m made, n int) made {
		m.chain += strings.Repeat("\n", 2048+n-len(m.chain))
		return m
	}
	put := func(t *testing.T, path, text string, at time.Time) {
		write(t, path, text)
		try(t, os.Chtimes(path, at, at))
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, w *watched, renewed made)
		seen   bool
	}{
		{"none", func(t *testing.T, w *watched, m made) {
			put(t, w.at.Certificate, pad(m, 0).chain, long)
		}, false},
		{"time stamp", func(t *testing.T, w *watched, m made) {
			put(t, w.at.Certificate, pad(m, 0).chain, long.Add(time.Nanosecond))
		}, true},
		{"time stamp, back", func(t *testing.T, w *watched, m made) {
			put(t, w.at.Certificate, pad(m, 0).chain, long.Add(-time.Hour))
		}, true},
		{"size", func(t *testing.T, w *watched, m made) {
			put(t, w.at.Certificate, pad(m, 1).chain, long)
		}, true},
		{"file", func(t *testing.T, w *watched, m made) {
			put(t, w.at.Certificate+".tmp", pad(m, 0).chain, long)
			try(t, os.Rename(w.at.Certificate+".tmp", w.at.Certificate))
		}, true},
		{"key file", func(t *testing.T, w *watched, m made) {
			put(t, w.at.Certificate, pad(m, 0).chain, long)
			put(t, w.at.Key, w.old.key, long.Add(time.Second))
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			watching(t, func(w *watched) {
				put(t, w.at.Certificate, pad(w.old, 0).chain, long)
				look(t)
				w.logged()
				// The same key, so that one file's change is a whole one.
				renewed := makeCert(t, w.old.signer, 20*time.Hour, "a.example")
				tt.change(t, w, renewed)
				for range 5 {
					look(t)
				}
				if tt.seen {
					w.serves(renewed)
				} else {
					w.serves(w.old)
				}
			})
		})
	}
}

// Time stamps are coarse: a file may be written twice within one, and read in
// between. Until its stamp is old enough, it is read at each look.
func TestWrittenAgainWithinOneTimeStamp(t *testing.T) {
	watching(t, func(w *watched) {
		pad := func(m made) string { return m.chain + strings.Repeat("\n", 2048-len(m.chain)) }
		stamp := time.Now().Add(pollInterval)
		write(t, w.at.Certificate, pad(w.old))
		try(t, os.Chtimes(w.at.Certificate, stamp, stamp))
		look(t) // reads at the very time of the stamp
		renewed := makeCert(t, w.old.signer, 20*time.Hour, "a.example")
		write(t, w.at.Certificate, pad(renewed))
		try(t, os.Chtimes(w.at.Certificate, stamp, stamp))
		look(t)
		w.serves(renewed)
	})
}

func TestSymlinkSwap(t *testing.T) {
	// relink points a symbolic link elsewhere in one step.
	relink := func(t *testing.T, target, link string) {
		try(t, os.Symlink(target, link+".tmp"))
		try(t, os.Rename(link+".tmp", link))
	}
	long := time.Unix(1e9, 0)
	// store writes a pair to a folder; all of one size and date, as an archive may restore them.
	store := func(t *testing.T, m made, dir, suffix string) {
		try(t, os.MkdirAll(dir, 0o700))
		for name, text := range map[string]string{"fullchain": m.chain, "privkey": m.key} {
			path := filepath.Join(dir, name+suffix+".pem")
			write(t, path, text+strings.Repeat("\n", 2048-len(text)))
			try(t, os.Chtimes(path, long, long))
		}
	}
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T, dir string, m made) FilePair
		swap  func(t *testing.T, dir string, m made)
	}{
		{"of each file, as certbot does", func(t *testing.T, dir string, m made) FilePair {
			store(t, m, filepath.Join(dir, "archive"), "1")
			at := FilePair{filepath.Join(dir, "fullchain.pem"), filepath.Join(dir, "privkey.pem")}
			relink(t, "archive/fullchain1.pem", at.Certificate)
			relink(t, "archive/privkey1.pem", at.Key)
			return at
		}, func(t *testing.T, dir string, m made) {
			store(t, m, filepath.Join(dir, "archive"), "2")
			relink(t, "archive/fullchain2.pem", filepath.Join(dir, "fullchain.pem"))
			relink(t, "archive/privkey2.pem", filepath.Join(dir, "privkey.pem"))
		}},
		{"of the folder, as Kubernetes does", func(t *testing.T, dir string, m made) FilePair {
			store(t, m, filepath.Join(dir, "..one"), "")
			relink(t, "..one", filepath.Join(dir, "..data"))
			at := FilePair{filepath.Join(dir, "fullchain.pem"), filepath.Join(dir, "privkey.pem")}
			relink(t, "..data/fullchain.pem", at.Certificate)
			relink(t, "..data/privkey.pem", at.Key)
			return at
		}, func(t *testing.T, dir string, m made) {
			store(t, m, filepath.Join(dir, "..two"), "")
			relink(t, "..two", filepath.Join(dir, "..data"))
			try(t, os.RemoveAll(filepath.Join(dir, "..one")))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var j journal
				dir := t.TempDir()
				old := makeCert(t, nil, oldLife, "a.example")
				renewed := makeCert(t, nil, 20*time.Hour, "a.example")
				s := mustOpen(t, Config{Files: []FilePair{tt.setup(t, dir, old)}}, j.logger())
				go s.Watch(t.Context())
				look(t)
				serves(t, s, "a.example", old)
				tt.swap(t, dir, renewed)
				look(t)
				serves(t, s, "a.example", renewed)
				j.logged(t, []string{"INFO", "certificate replaced"})
			})
		})
	}
}
