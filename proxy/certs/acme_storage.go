package certs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/caddyserver/certmagic"
)

const (
	// maxValueBytes bounds what is read of one file of the storage.
	maxValueBytes = 1 << 20
	// probeBytes is more than a certificate, its key and what is noted of them,
	// so that a disk that takes the probe takes the result of an order.
	probeBytes = 64 << 10
	lockPoll   = 100 * time.Millisecond
)

// folder is a certmagic.Storage in one folder of the file system, which it
// cannot leave. A value is on the disk before Store returns, whole or not at
// all. Locks are the kernel's: those of a process that was killed are gone with
// it.
type folder struct {
	path string

	mu    sync.Mutex
	open  *os.Root            // nil until it could be opened
	locks map[string]*os.File // held by this process
}

var _ storage = (*folder)(nil)

func newFolder(path string) *folder {
	return &folder{path: path, locks: make(map[string]*os.File)}
}

func (f *folder) name() string             { return f.path }
func (f *folder) volatile() string         { return volatile(f.path) }
func (f *folder) unusable(err error) error { return storageFault(f.path, err) }

// keep does nothing: a folder forgets nothing by itself.
func (f *folder) keep(context.Context, ...string) error { return nil }

// hold takes a lock, which is the kernel's and cannot be lost.
func (f *folder) hold(ctx context.Context, name string) (under context.Context, release func(), err error) {
	ok, err := f.TryLock(ctx, name)
	if err != nil || !ok {
		return nil, nil, err
	}
	return ctx, func() { f.Unlock(ctx, name) }, nil
}

// root opens the folder. A folder that is missing is not there to be read.
func (f *folder) root() (*os.Root, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open != nil {
		return f.open, nil
	}
	root, err := os.OpenRoot(f.path)
	if err != nil {
		return nil, err
	}
	f.open = root
	return root, nil
}

// writable is root for those who write: it makes the folder where it is missing.
func (f *folder) writable() (*os.Root, error) {
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		return nil, err
	}
	return f.root()
}

// forget has the folder opened anew at its next use: another one may stand
// under its name by then. It is not closed, since others may be using it.
func (f *folder) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = nil
}

// probe writes, reads and removes a file as large as the result of an order. Its
// error says what to do.
func (f *folder) probe(ctx context.Context) error {
	key := "probe-" + randomName()
	want := make([]byte, probeBytes)
	rand.Read(want)
	err := f.Store(ctx, key, want)
	if err == nil {
		var got []byte
		if got, err = f.Load(ctx, key); err == nil && !bytes.Equal(got, want) {
			err = errors.New("what was written was read back otherwise")
		}
	}
	err = errors.Join(err, f.Delete(ctx, key))
	if err == nil {
		return nil
	}
	f.forget()
	return storageFault(f.path, err)
}

// ProbeStorage tells whether what a CA issues could be kept: in the storage, or
// where that would be made. It leaves nothing behind.
func (a ACME) ProbeStorage() error {
	at := a.Storage
	for {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	if at == a.Storage {
		return newFolder(at).probe(context.Background())
	}
	dir, err := os.MkdirTemp(at, ".probe-")
	if err != nil {
		return storageFault(a.Storage, err)
	}
	return os.Remove(dir)
}

// storageFault says what is wrong with the folder and what to do.
func storageFault(folder string, err error) error {
	cause, hint := err, "nothing is ordered until it can be written"
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		cause = errno
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		hint = "let the user of this process write there, or name another certificates.acme.storage"
	case errors.Is(err, syscall.EROFS):
		hint = "mount it for writing, or name another certificates.acme.storage"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "make room there"
	}
	return fmt.Errorf("storage %s cannot be written: %w; %s", folder, cause, hint)
}

// Store keeps value at key. Its folder is synced too, so that the name outlasts
// a crash.
func (f *folder) Store(_ context.Context, key string, value []byte) error {
	root, err := f.writable()
	if err != nil {
		return err
	}
	name := filepath.FromSlash(key)
	dir := filepath.Dir(name)
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temporary := filepath.Join(dir, ".new-"+randomName())
	if err := writeSynced(root, temporary, value); err != nil {
		root.Remove(temporary)
		return err
	}
	if err := root.Rename(temporary, name); err != nil {
		root.Remove(temporary)
		return err
	}
	if d, err := root.Open(dir); err == nil {
		d.Sync() // not every file system can
		d.Close()
	}
	return nil
}

func writeSynced(root *os.Root, name string, value []byte) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(value)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func randomName() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Load returns the value at key, or an error that is fs.ErrNotExist.
func (f *folder) Load(_ context.Context, key string) ([]byte, error) {
	root, err := f.root()
	if err != nil {
		return nil, err
	}
	file, err := root.Open(filepath.FromSlash(key))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	value, err := io.ReadAll(io.LimitReader(file, maxValueBytes+1))
	if err == nil && len(value) > maxValueBytes {
		err = fmt.Errorf("%s: is larger than %d bytes", key, maxValueBytes)
	}
	return value, err
}

// Delete removes what is at key and below; that nothing is there is no error.
func (f *folder) Delete(_ context.Context, key string) error {
	root, err := f.root()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return root.RemoveAll(filepath.FromSlash(key))
}

// Exists reports whether something is at key.
func (f *folder) Exists(_ context.Context, key string) bool {
	root, err := f.root()
	if err != nil {
		return false
	}
	_, err = root.Stat(filepath.FromSlash(key))
	return err == nil
}

// List returns the keys under a prefix.
func (f *folder) List(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	root, err := f.root()
	if err != nil {
		return nil, err
	}
	var keys []string
	err = fs.WalkDir(root.FS(), path.Clean(prefix), func(key string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case key == path.Clean(prefix):
			return nil
		}
		keys = append(keys, key)
		if d.IsDir() && !recursive {
			return fs.SkipDir
		}
		return nil
	})
	return keys, err
}

// Stat describes what is at key.
func (f *folder) Stat(_ context.Context, key string) (certmagic.KeyInfo, error) {
	root, err := f.root()
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	info, err := root.Stat(filepath.FromSlash(key))
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	return certmagic.KeyInfo{Key: key, Modified: info.ModTime(), Size: info.Size(), IsTerminal: !info.IsDir()}, nil
}

// Lock waits for the lock of a name until ctx ends.
func (f *folder) Lock(ctx context.Context, name string) error {
	for {
		ok, err := f.TryLock(ctx, name)
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// TryLock takes the lock of a name, unless this process or another holds it.
func (f *folder) TryLock(_ context.Context, name string) (bool, error) {
	root, err := f.writable()
	if err != nil {
		return false, err
	}
	if err := root.MkdirAll("locks", 0o700); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locks[name] != nil {
		return false, nil
	}
	file, err := root.OpenFile(filepath.Join("locks", certmagic.StorageKeys.Safe(name)+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	if ok, err := tryLockFile(file); !ok || err != nil {
		file.Close()
		return false, err
	}
	f.locks[name] = file
	return true, nil
}

// Unlock gives a lock back. Its file stays: to remove it would let two hold the
// lock of one name.
func (f *folder) Unlock(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.locks[name]
	if file == nil {
		return fmt.Errorf("the lock %q is not held", name)
	}
	delete(f.locks, name)
	return file.Close()
}
