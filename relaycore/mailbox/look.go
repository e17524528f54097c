package mailbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// Look reports what OpenFile would find wrong, with the file's key and what it
// holds included, and changes nothing. A file that does not exist yet is well if
// its folder lets one be made.
func Look(path string, key Key) error {
	err := lookAtFolder(filepath.Dir(path))
	if err == nil {
		err = guarded(func() error { return lookAtFile(path, key) })
	}
	if err != nil {
		return fmt.Errorf("mailbox file %s: %w", path, err)
	}
	return nil
}

func lookAtFolder(dir string) error {
	// Permission bits do not tell of read-only file systems and of rules beside them.
	probe, err := os.CreateTemp(dir, ".mailbox-*")
	if err != nil {
		return fmt.Errorf("its folder must exist and be writable: %w", err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

func lookAtFile(path string, key Key) error {
	if err := walk(path); errors.Is(err, bbolterrors.ErrTimeout) {
		return ErrOpenElsewhere
	} else if err != nil {
		return err
	}
	if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close()
	now := time.Now()
	f := &File{path: path, db: db}
	f.book.init(Limits{}, now)
	if f.sealer, err = unlock(db, key); err != nil {
		return err
	}
	if _, err = f.scan(now); err != nil {
		return err
	}
	rw, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return rw.Close()
}
