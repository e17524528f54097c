package mailbox

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

func mustClose(t testing.TB, s Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// change changes a file behind the store's back.
func change(t testing.TB, path string, by func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(by); err != nil {
		t.Fatal(err)
	}
}

func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	l := plenty()
	l.RecipientBytes = 16 * 2 * Charge(3) // two for one source of strangers
	f := openTest(t, path, l, start)
	mustPut(t, f, letter(1, 7, 1, "a"), start)
	mustPut(t, f, letter(1, 8, 2, "b"), start.Add(time.Minute))
	for i := 3; i < 5; i++ {
		m := stranger(letter(2, i, i, "xyz"))
		m.Source = source(55)
		mustPut(t, f, m, start.Add(2*time.Minute))
	}
	inbox(t, f, 1, start)
	f.Ack(identity(1), ids(2), start.Add(2*time.Minute))
	mustClose(t, f)

	later := start.Add(71 * time.Hour)
	f = openTest(t, path, l, later)
	if o := f.Opened(); o.Messages != 3 || o.Expired != 0 || o.Bytes == 0 {
		t.Errorf("%+v", o)
	}
	want(t, "inbox", inbox(t, f, 1, later), "7:a")
	// Sources are known again, so that a restart gives nobody a new share.
	m := stranger(letter(2, 9, 9, "xyz"))
	m.Source = source(55)
	mustRefuse(t, f, m, later, LimitStrangerSource)
	m.Source = source(56)
	mustPut(t, f, m, later)
	// A new message comes behind the old ones, and the old ones' time is not begun anew.
	mustPut(t, f, letter(1, 7, 10, "c"), later)
	want(t, "inbox", inbox(t, f, 1, later), "7:a", "7:c")
	want(t, "inbox at the end of the first", inbox(t, f, 1, start.Add(72*time.Hour)), "7:c")
	mustClose(t, f)

	f = openTest(t, path, l, start.Add(72*time.Hour+time.Minute))
	if o := f.Opened(); o.Messages != 4 || o.Expired != 0 {
		t.Errorf("%+v", o)
	}
	mustClose(t, f)
	f = openTest(t, path, l, start.Add(200*time.Hour))
	if o := f.Opened(); o.Messages != 4 || o.Expired != 4 {
		t.Errorf("%+v", o)
	}
	mustClose(t, f)
	f = openTest(t, path, l, start.Add(200*time.Hour))
	if o := f.Opened(); o.Messages != 0 {
		t.Errorf("%+v: what has expired is still in the file", o)
	}
	// Places are never given again: a record of before fits nowhere.
	mustPut(t, f, letter(1, 7, 11, "d"), start.Add(200*time.Hour))
	if portion, err := f.Read(identity(1), 0, 1, 100, start.Add(200*time.Hour)); err != nil || len(portion) != 1 || portion[0].Seq != 7 {
		t.Errorf("%+v, %v, want the seventh place", portion, err)
	}
}

// What was acknowledged is written away soon, without anything else being put.
func TestAcknowledgedLeavesTheFile(t *testing.T) {
	f := openTest(t, filepath.Join(t.TempDir(), "mailbox"), plenty(), start)
	mustPut(t, f, letter(1, 7, 1, "a"), start)
	inbox(t, f, 1, start)
	f.Ack(identity(1), ids(1), start)
	for {
		n := 0
		if err := f.db.View(func(tx *bbolt.Tx) error {
			n = tx.Bucket(bucketMessages).Stats().KeyN
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal("it is still there")
		}
	}
}

// The wall clock was set between two runs.
func TestClockSteps(t *testing.T) {
	for _, row := range []struct {
		name           string
		put, open, end time.Duration // end: the last moment of the message's life
	}{
		{"no step", 0, time.Hour, 72 * time.Hour},
		{"set back before the restart", 10 * time.Hour, time.Hour, 73 * time.Hour},
		{"set forward", 0, 71 * time.Hour, 72 * time.Hour},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mailbox")
			f := openTest(t, path, plenty(), start)
			mustPut(t, f, letter(1, 7, 1, "a"), start.Add(row.put))
			mustPut(t, f, letter(1, 7, 2, "b"), start.Add(row.put))
			mustClose(t, f)
			f = openTest(t, path, plenty(), start.Add(row.open))
			want(t, "before", inbox(t, f, 1, start.Add(row.end-1)), "7:a", "7:b")
			want(t, "behind", inbox(t, f, 1, start.Add(row.end)))
		})
	}
}

// Neither payloads nor who writes to whom can be read in the file.
func TestFileTellsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	f := openTest(t, path, plenty(), start)
	m := letter(1, 7, 1, "a secret that nobody else may read")
	mustPut(t, f, m, start)
	mustClose(t, f)
	b := mustRead(t, path)
	addr := m.Source.Addr().As4()
	for what, secret := range map[string][]byte{
		"payload": m.Payload, "recipient": m.Recipient[:], "sender": m.Sender[:], "id": m.ID[:], "key": testKey[:],
		"address": addr[:], "address in text": []byte(m.Source.Addr().String()),
	} {
		if bytes.Contains(b, secret) {
			t.Errorf("the %s stands in the file", what)
		}
	}
	if !bytes.Contains(b, format) {
		t.Error("the format does not stand in the file: this test reads something else")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A file that cannot be opened stays as it is, and the error says why.
func TestOpenRefuses(t *testing.T) {
	for _, row := range []struct {
		name  string
		spoil func(t *testing.T, path string)
		key   Key
		is    error
		says  string
	}{
		{"wrong key", nil, Key{9}, ErrWrongKey, ""},
		{"another database", func(t *testing.T, path string) {
			os.Remove(path)
			change(t, path, func(tx *bbolt.Tx) error {
				_, err := tx.CreateBucket([]byte("other"))
				return err
			})
		}, testKey, nil, "something else"},
		{"no database", func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("text\n"), 9000), 0o600); err != nil {
				t.Fatal(err)
			}
		}, testKey, nil, "invalid database"},
		{"a format to come", func(t *testing.T, path string) {
			change(t, path, func(tx *bbolt.Tx) error { return tx.Bucket(bucketHead).Put(keyFormat, []byte("relaycore mailbox 2")) })
		}, testKey, nil, "its format is not"},
		{"a damaged record", func(t *testing.T, path string) {
			change(t, path, func(tx *bbolt.Tx) error {
				b := tx.Bucket(bucketMessages)
				v := bytes.Clone(b.Get(partKey(2, 0)))
				v[40] ^= 1
				return b.Put(partKey(2, 0), v)
			})
		}, testKey, errRecord, "1 of its messages"},
		{"two records that were swapped", func(t *testing.T, path string) {
			change(t, path, func(tx *bbolt.Tx) error {
				b := tx.Bucket(bucketMessages)
				one, two := bytes.Clone(b.Get(partKey(1, 0))), bytes.Clone(b.Get(partKey(2, 0)))
				return errors.Join(b.Put(partKey(1, 0), two), b.Put(partKey(2, 0), one))
			})
		}, testKey, errRecord, "2 of its messages"},
		{"no messages", func(t *testing.T, path string) {
			change(t, path, func(tx *bbolt.Tx) error { return tx.DeleteBucket(bucketMessages) })
		}, testKey, nil, "no messages bucket"},
		{"cut short", func(t *testing.T, path string) {
			if err := os.Truncate(path, 8<<10); err != nil {
				t.Fatal(err)
			}
		}, testKey, nil, "damaged"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mailbox")
			f := openTest(t, path, plenty(), start)
			for i := range 3 {
				mustPut(t, f, letter(1, 7, i, "a"), start)
			}
			mustClose(t, f)
			if row.spoil != nil {
				row.spoil(t, path)
			}
			before := mustRead(t, path)
			f, err := OpenFile(path, row.key, plenty(), start)
			if err == nil {
				f.Close()
				t.Fatal("it is opened")
			}
			if row.is != nil && !errors.Is(err, row.is) || !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
			if !bytes.Equal(mustRead(t, path), before) {
				t.Error("the file has changed")
			}
		})
	}
}

func TestWrongKeyLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	f := openTest(t, path, plenty(), start)
	mustPut(t, f, letter(1, 7, 1, "a"), start)
	mustClose(t, f)
	if _, err := OpenFile(path, Key{9}, plenty(), start); !errors.Is(err, ErrWrongKey) {
		t.Fatal(err)
	}
	f = openTest(t, path, plenty(), start)
	want(t, "inbox", inbox(t, f, 1, start), "7:a")
}

func TestOneProcessAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	openTest(t, path, plenty(), start)
	if _, err := OpenFile(path, testKey, plenty(), start); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("%v", err)
	}
}

func TestNoFolder(t *testing.T) {
	if _, err := OpenFile(filepath.Join(t.TempDir(), "none", "mailbox"), testKey, plenty(), start); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// A record that is damaged while the relay runs costs that message and no other.
func TestDamageWhileRunning(t *testing.T) {
	f := openTest(t, filepath.Join(t.TempDir(), "mailbox"), plenty(), start)
	for i := range 3 {
		mustPut(t, f, letter(1, 7, i, string(rune('a'+i))), start)
	}
	if err := f.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMessages).Put(partKey(2, 0), []byte("damaged")) }); err != nil {
		t.Fatal(err)
	}
	r := f.Reader(identity(1))
	portion, err := r.Next(start)
	if d, ok := errors.AsType[*DamageError](err); !ok || d.Messages != 1 || len(portion) != 2 {
		t.Errorf("%d messages, %v", len(portion), err)
	}
	if st := f.Stats(start); st.Messages != 2 || st.InFlight != 2 || st.Damaged != 1 {
		t.Errorf("%+v", st)
	}
	r.Close()
	want(t, "inbox", inbox(t, f, 1, start), "7:a", "7:c")
}

func TestBackup(t *testing.T) {
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "mailbox"), filepath.Join(dir, "copy")
	f := openTest(t, path, plenty(), start)
	mustPut(t, f, letter(1, 7, 1, "a"), start)
	if err := os.WriteFile(copied, []byte("the copy of yesterday"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Backup(copied); err != nil {
		t.Fatal(err)
	}
	mustPut(t, f, letter(1, 7, 2, "b"), start)
	if err := f.Backup(path); err == nil {
		t.Error("the file is its own backup")
	}
	if err := f.Backup(filepath.Join(dir, "none", "copy")); err == nil {
		t.Error("a backup without a folder")
	}
	g := openTest(t, copied, plenty(), start)
	want(t, "copy", inbox(t, g, 1, start), "7:a")
	want(t, "file", inbox(t, f, 1, start), "7:a", "7:b")
	if info, err := os.Stat(copied); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.part-*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// A copy goes to a writer however slow it is, while the file grows.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mailbox")
	f := openTest(t, path, plenty(), start)
	mustPut(t, f, letter(1, 7, 1, "a"), start)
	from, to := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		err := f.Copy(to)
		to.CloseWithError(err)
		copied <- err
	}()
	head := make([]byte, 1)
	if _, err := io.ReadFull(from, head); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	for i := range 16 {
		mustPut(t, f, sized(letter(2, 7, 2+i, ""), 4<<20), start)
	}
	if after, _ := os.Stat(path); after.Size() < before.Size()+64<<20 {
		t.Fatalf("the file has %d bytes in place of %d: this test tries nothing", after.Size(), before.Size())
	}
	rest, err := io.ReadAll(from)
	if err := errors.Join(err, <-copied); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "copy"), append(head, rest...), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "copy", inbox(t, openTest(t, filepath.Join(dir, "copy"), plenty(), start), 1, start), "7:a")
	if left, _ := filepath.Glob(filepath.Join(dir, "*.part-*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	from.Close()
	if err := f.Copy(to); err == nil {
		t.Error("nobody takes the copy, and that is no fault")
	}
}

// Nobody who reads keeps a file from growing.
func TestGrowsBesideReaders(t *testing.T) {
	f := openTest(t, filepath.Join(t.TempDir(), "mailbox"), plenty(), start)
	tx, err := f.db.Begin(false)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	done := make(chan error, 1)
	go func() {
		for i := range 8 {
			if err := f.Put(sized(letter(2, 7, i, ""), 4<<20), start); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("senders wait for a reader")
	}
}

// A file that is much longer than what it holds is made shorter at the start.
func TestCompaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	f := openTest(t, path, plenty(), start)
	for i := range 200 {
		mustPut(t, f, sized(letter(i%3, 7, i, ""), 64<<10), start)
	}
	for to := range 3 {
		inbox(t, f, to, start)
		for i := range 190 {
			f.Ack(identity(to), ids(i), start)
		}
	}
	left := inbox(t, f, 1, start)
	mustClose(t, f)
	long := int64(len(mustRead(t, path)))
	// What a start that was cut off has left is in nobody's way.
	if err := os.WriteFile(path+".compact", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := fast()
	o.compactFrom = 1 << 20
	f, err := openFile(path, testKey, plenty(), start, o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	opened := f.Opened()
	if opened.CompactErr != nil || opened.Bytes+opened.Freed != long || opened.Bytes > 2<<20 || opened.Messages != 10 {
		t.Errorf("%+v of %d", opened, long)
	}
	want(t, "inbox", inbox(t, f, 1, start), left...)
	mustPut(t, f, letter(1, 7, 999, "new"), start)
	if _, err := OpenFile(path, testKey, plenty(), start); err == nil {
		t.Error("the shorter file is not locked")
	}
	if _, err := os.Stat(path + ".compact"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy is left: %v", err)
	}
	mustClose(t, f)
	f = openTest(t, path, plenty(), start)
	want(t, "after a restart", inbox(t, f, 1, start), append(left, "7:new")...)
	// Places go on where they were.
	if p, err := f.Read(identity(1), 200, 9, 100, start); err != nil || len(p) != 1 || p[0].Seq != 201 {
		t.Errorf("%+v, %v", p, err)
	}
}

// Where it cannot be made shorter, it is used as it is.
func TestCompactionFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	f := openTest(t, path, plenty(), start)
	mustPut(t, f, letter(1, 7, 1, "a"), start)
	mustClose(t, f)
	if err := os.MkdirAll(filepath.Join(path+".compact", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	o := fast()
	o.compactFrom = 1
	f, err := openFile(path, testKey, plenty(), start, o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Opened().CompactErr == nil || f.Opened().Freed != 0 {
		t.Errorf("%+v", f.Opened())
	}
	want(t, "inbox", inbox(t, f, 1, start), "7:a")
}
