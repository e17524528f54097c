//go:build unix

package mailbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// fillDisk has the system refuse to make files longer, which fails in the same
// places as a full disk, and then allow it again.
func fillDisk(path string) error {
	f, err := openFile(path, testKey, plenty(), start, plainOptions)
	if err != nil {
		return err
	}
	var free syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &free); err != nil {
		return err
	}
	full := free
	full.Cur = 1 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		return err
	}
	held := 0
	for i := 0; ; i++ {
		err := f.Put(sized(letter(1, 7, i, ""), 64<<10), start)
		if err == nil {
			held++
			if held > 100 {
				return errors.New("the disk does not get full")
			}
			continue
		}
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Limit != LimitStorage || r.Err == nil || r.RetryAfter <= 0 {
			return fmt.Errorf("a full disk: %v", err)
		}
		break
	}
	// What is held is all there and can be acknowledged, which makes room.
	r := f.Reader(identity(1))
	var portion []Held
	for more := true; more; {
		next, err := r.Next(start)
		if err != nil {
			return err
		}
		portion, more = append(portion, next...), len(next) > 0
	}
	if len(portion) != held || held == 0 {
		return fmt.Errorf("%d can be read of %d", len(portion), held)
	}
	if st := f.Stats(start); st.Messages != held || st.Bytes != int64(held)*Charge(64<<10) {
		return fmt.Errorf("a refused message has left something: %+v", st)
	}
	for _, h := range portion[:held/2] {
		if n := f.Ack(identity(1), ids(int(h.ID[15])), start); n != 1 {
			return fmt.Errorf("%d were forgotten", n)
		}
	}
	if err := putWithin(f, sized(letter(3, 7, 1000, ""), 1000)); err != nil {
		return fmt.Errorf("room was made, and still: %w", err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &free); err != nil {
		return err
	}
	for i := range 40 {
		if err := putWithin(f, sized(letter(4, 7, 2000+i, ""), 64<<10)); err != nil {
			return fmt.Errorf("the disk has room again, and still: %w", err)
		}
	}
	if failed, now := f.Fault(); now != nil || failed == 0 {
		return fmt.Errorf("fault %v, %d failed", now, failed)
	}
	if err := f.Put(letter(2, 8, 3000, "last"), start); err != nil {
		return err
	}
	fmt.Println(held - held/2)
	return f.Close()
}

// putWithin puts a message as soon as the store takes it.
func putWithin(f *File, m Message) (err error) {
	for range 500 {
		if err = f.Put(m, start); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// A file that cannot be written, as on a disk that has become read-only.
func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	f := openTest(t, path, plenty(), start)
	mustPut(t, f, letter(1, 7, 1, "a"), start)
	mustClose(t, f)
	before := mustRead(t, path)
	o := plainOptions
	o.openFile = func(name string, flag int, mode os.FileMode) (*os.File, error) { return os.Open(name) }
	f, err := openFile(path, testKey, plenty(), start, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r := mustRefuse(t, f, letter(1, 7, 10+i, "b"), start, LimitStorage)
		if r.Err == nil || r.Unwrap() != r.Err {
			t.Errorf("%v does not say why", r)
		}
	}
	if failed, now := f.Fault(); now == nil || failed == 0 {
		t.Errorf("%v, %d", now, failed)
	}
	if r := f.Refuses(letter(1, 7, 20, "b"), start); r == nil || r.Limit != LimitStorage || r.Err == nil {
		t.Errorf("Put would refuse for %v", r)
	}
	want(t, "inbox", inbox(t, f, 1, start), "7:a")
	if n := f.Ack(identity(1), ids(1), start); n != 1 {
		t.Errorf("%d were forgotten", n)
	}
	if err := f.Close(); err == nil {
		t.Error("Close does not say that an acknowledgement was not written")
	}
	if string(mustRead(t, path)) != string(before) {
		t.Error("the file has changed")
	}
	// The disk is well again: the message comes a second time.
	f = openTest(t, path, plenty(), start)
	want(t, "inbox", inbox(t, f, 1, start), "7:a")
}
