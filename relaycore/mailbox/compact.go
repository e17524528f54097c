package mailbox

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// compact makes a file shorter that is four times as long as what it holds. A
// copy is written beside it and takes its place; until then, and if that fails,
// the file stays. An error means that there is no open file any more.
func (f *File) compact(live int64, o options) error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	f.opened.Bytes = info.Size()
	if info.Size() < o.compactFrom || live >= info.Size()/4 {
		return nil
	}
	beside := f.path + ".compact"
	err = guarded(func() error { return f.copyTo(beside) })
	if err == nil {
		err = os.Rename(beside, f.path)
	}
	if err != nil {
		os.Remove(beside)
		f.opened.CompactErr = err
		return nil
	}
	// From here on the old file has no name. The new one must keep its own over a crash.
	if err := syncFolder(f.path); err != nil {
		return err
	}
	// The lock of the old file is held until the new one's is.
	db, err := openDB(f.path, o)
	if err != nil {
		return err
	}
	err = f.db.Close()
	f.db = db
	if err != nil {
		return err
	}
	if info, err = os.Stat(f.path); err != nil {
		return err
	}
	f.opened.Freed, f.opened.Bytes = f.opened.Bytes-info.Size(), info.Size()
	return nil
}

// copyTo writes what the file holds into a new one.
func (f *File) copyTo(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	to, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	const perTransaction = 16 << 20
	return errors.Join(bbolt.Compact(to, f.db, perTransaction), to.Close())
}

// Backup writes a copy of the file, as it is at one moment, to path, which is
// replaced only once the copy is complete on disk. Senders and recipients go on
// meanwhile. The copy is encrypted with the same key, which it does not contain.
func (f *File) Backup(path string) error {
	err := guarded(func() error { return f.backup(path) })
	if err != nil {
		return fmt.Errorf("mailbox backup: %w", err)
	}
	return nil
}

// Copy writes such a copy to w. It is taken beside the file first: a w that is slow
// must not keep the room of what has left meanwhile from being used again.
func (f *File) Copy(w io.Writer) error {
	dir, name := filepath.Split(f.path)
	part, err := os.CreateTemp(cmp.Or(dir, "."), name+".part-*")
	if err != nil {
		return fmt.Errorf("mailbox backup: %w", err)
	}
	defer part.Close()
	// It has no name any more: nothing is left of it, however this process ends.
	err = os.Remove(part.Name())
	if err == nil {
		err = guarded(func() error {
			return f.db.View(func(tx *bbolt.Tx) error {
				_, err := tx.WriteTo(part)
				return err
			})
		})
	}
	if err == nil {
		_, err = part.Seek(0, io.SeekStart)
	}
	if err == nil {
		_, err = io.Copy(w, part)
	}
	if err != nil {
		return fmt.Errorf("mailbox backup: %w", err)
	}
	return nil
}

func (f *File) backup(path string) (err error) {
	if there, err := os.Stat(path); err == nil {
		if ours, err := os.Stat(f.path); err == nil && os.SameFile(there, ours) {
			return errors.New("that is the mailbox file itself")
		}
	}
	part, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name()) // in vain once it has its name
	err = f.db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(part)
		return err
	})
	if err = errors.Join(err, part.Sync(), part.Close()); err != nil {
		return err
	}
	if err := os.Rename(part.Name(), path); err != nil {
		return err
	}
	return syncFolder(path)
}

// syncFolder brings the name of a file to the disk.
func syncFolder(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
