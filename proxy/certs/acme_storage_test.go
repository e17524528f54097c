package certs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestStorage(t *testing.T) {
	s, ctx := newFolder(t.TempDir()), t.Context()
	if _, err := s.Load(ctx, "a/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of nothing: %v", err)
	}
	if s.Exists(ctx, "a") {
		t.Error("nothing exists")
	}
	try(t, s.Delete(ctx, "a/b"))
	for _, value := range []string{"one", "another", ""} {
		try(t, s.Store(ctx, "a/b", []byte(value)))
		if got, err := s.Load(ctx, "a/b"); string(got) != value || err != nil {
			t.Errorf("%q, %v, want %q", got, err, value)
		}
	}
	try(t, s.Store(ctx, "a/c/d", []byte("x")))
	try(t, s.Store(ctx, "e", []byte("y")))
	if got, err := s.List(ctx, "a", true); err != nil || !slices.Equal(got, []string{"a/b", "a/c", "a/c/d"}) {
		t.Errorf("List %q, %v", got, err)
	}
	if got, err := s.List(ctx, "a", false); err != nil || !slices.Equal(got, []string{"a/b", "a/c"}) {
		t.Errorf("List %q, %v", got, err)
	}
	if info, err := s.Stat(ctx, "a/c/d"); err != nil || info.Key != "a/c/d" || info.Size != 1 || !info.IsTerminal {
		t.Errorf("Stat %+v, %v", info, err)
	}
	if info, err := s.Stat(ctx, "a"); err != nil || info.IsTerminal {
		t.Errorf("Stat %+v, %v", info, err)
	}
	try(t, s.Delete(ctx, "a"))
	if s.Exists(ctx, "a/c/d") || !s.Exists(ctx, "e") {
		t.Error("a prefix is deleted with what is below, and nothing else")
	}
	try(t, s.probe(ctx))
	if got, _ := s.List(ctx, ".", true); !slices.Equal(got, []string{"e"}) {
		t.Errorf("left behind: %q", got)
	}
}

func TestStorageCannotBeLeft(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "f"), "secret")
	s, ctx := newFolder(filepath.Join(outside, "storage")), t.Context()
	try(t, s.Store(ctx, "a", nil))
	try(t, os.Symlink(outside, filepath.Join(s.path, "link")))
	for _, key := range []string{"../f", "a/../../f", "link/f"} {
		if got, err := s.Load(ctx, key); err == nil {
			t.Errorf("%s: read %q", key, got)
		}
		if err := s.Store(ctx, key, []byte("x")); err == nil {
			t.Errorf("%s: written", key)
		}
		s.Delete(ctx, key)
	}
	if got, err := os.ReadFile(filepath.Join(outside, "f")); string(got) != "secret" || err != nil {
		t.Errorf("outside: %q, %v", got, err)
	}
}

func TestLocks(t *testing.T) {
	ctx := t.Context()
	a := newFolder(t.TempDir())
	b := newFolder(a.path) // as another process has it
	taken := func(s *folder, name string, want bool) {
		t.Helper()
		if ok, err := s.TryLock(ctx, name); ok != want || err != nil {
			t.Errorf("TryLock %s: %v, %v, want %v", name, ok, err, want)
		}
	}
	taken(a, "one", true)
	taken(a, "one", false)
	taken(b, "one", false)
	taken(b, "two", true)
	if err := b.Unlock(ctx, "one"); err == nil {
		t.Error("a lock that is not held was given back")
	}
	try(t, a.Unlock(ctx, "one"))
	taken(b, "one", true)
	over, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := a.Lock(over, "one"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		time.AfterFunc(time.Second, func() { b.Unlock(ctx, "one") })
		began := time.Now()
		try(t, a.Lock(ctx, "one"))
		if waited := time.Since(began); waited < time.Second || waited > time.Second+lockPoll {
			t.Errorf("waited %s", waited)
		}
	})
}

func TestStorageFaults(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, "let the user of this process write there"},
		{&fs.PathError{Op: "open", Path: "x", Err: errnoReadOnly}, "read-only file system; mount it for writing"},
		{&fs.PathError{Op: "write", Path: "x", Err: errnoNoSpace}, "no space left on device; make room there"},
		{errors.New("else"), "else; nothing is ordered"},
	} {
		got := storageFault("/var/lib/x", tt.err).Error()
		if !strings.HasPrefix(got, "storage /var/lib/x cannot be written: ") || !strings.Contains(got, tt.want) {
			t.Errorf("%q does not say %q", got, tt.want)
		}
	}
}
