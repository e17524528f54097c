package mailbox

import (
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// transaction is the number of the latest transaction.
func transaction(t testing.TB, f *File) (n int) {
	t.Helper()
	if err := f.db.View(func(tx *bbolt.Tx) error {
		n = tx.ID()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// blocked has the disk busy until the returned function is called.
func blocked(t testing.TB, f *File) (release func()) {
	t.Helper()
	tx, err := f.db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}
}

// queued waits until so many messages are charged.
func queued(t testing.TB, f *File, n int) {
	t.Helper()
	for f.Stats(start).Messages != n {
		if t.Context().Err() != nil {
			t.Fatalf("%d messages are queued, want %d", f.Stats(start).Messages, n)
		}
		time.Sleep(time.Millisecond)
	}
}

// One wait for the disk serves all senders there are, and nothing that is on its
// way there is held yet.
func TestSendersShareTheDisk(t *testing.T) {
	f := openTest(t, filepath.Join(t.TempDir(), "mailbox"), plenty(), start)
	mustPut(t, f, letter(1, 7, 9999, "first"), start)
	before := transaction(t, f)
	release := blocked(t, f)
	const senders = 400
	var all sync.WaitGroup
	var mu sync.Mutex
	returned := 0
	put := func(m Message) {
		all.Go(func() {
			if err := f.Put(m, start); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			returned++
		})
	}
	for i := range senders {
		put(letter(1, 7+i, i, fmt.Sprint(i)))
	}
	queued(t, f, senders+1)
	put(letter(1, 7+3, 3, "again")) // waits for the first of its kind
	r := f.Reader(identity(1))
	defer r.Close()
	want(t, "reader", next(t, r, start), "7:first")
	if !f.Waits(identity(1), identity(7), start) {
		t.Error("a message on its way to the disk may be overtaken")
	}
	if portion, err := f.Read(identity(1), 0, 9, 100, start); err != nil || len(portion) != 1 {
		t.Errorf("%d messages, %v, want the first alone", len(portion), err)
	}
	mu.Lock()
	if st := f.Stats(start); returned != 0 || st.Put != 1 || st.Messages != senders+1 {
		t.Errorf("%d have returned, %+v", returned, st)
	}
	mu.Unlock()
	release()
	all.Wait()
	// Batches of one message at least, 256 at most, and one for what is gone.
	if n := transaction(t, f) - before; n > 4 {
		t.Errorf("%d transactions for %d messages", n, senders)
	}
	if st := f.Stats(start); st.Put != senders+1 {
		t.Errorf("%+v", st)
	}
	defer blocked(t, f)() // the bound is the writer's
	if f.db.MaxSize != fileBound(1<<30) {
		t.Errorf("the file may be %d bytes long", f.db.MaxSize)
	}
}

// A message's life does not end before its sender has an answer.
func TestExpiryOnTheWay(t *testing.T) {
	f := openTest(t, filepath.Join(t.TempDir(), "mailbox"), plenty(), start)
	release := blocked(t, f)
	var all sync.WaitGroup
	all.Go(func() {
		if err := f.Put(letter(1, 7, 1, "a"), start); err != nil {
			t.Error(err)
		}
	})
	queued(t, f, 1)
	f.Expire(start.Add(72 * time.Hour))
	if st := f.Stats(start); st.Messages != 1 || st.Expired != 0 {
		t.Errorf("%+v", st)
	}
	release()
	all.Wait()
	if st := f.Stats(start); st.Put != 1 || st.Messages != 0 || st.Expired != 1 {
		t.Errorf("%+v", st)
	}
}

// What was acknowledged before Close does not come again.
func TestCloseWritesAcknowledgements(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	for i := range 20 {
		f := openTest(t, path, plenty(), start)
		if o := f.Opened(); o.Messages != 0 {
			t.Fatalf("round %d: %+v", i, o)
		}
		mustPut(t, f, letter(1, 7, 1, "a"), start)
		inbox(t, f, 1, start)
		f.Ack(identity(1), ids(1), start)
		mustClose(t, f)
	}
}

func TestBatchBounds(t *testing.T) {
	f := openTest(t, filepath.Join(t.TempDir(), "mailbox"), plenty(), start)
	release := blocked(t, f)
	var all sync.WaitGroup
	put := func(i, size int) {
		all.Go(func() {
			if err := f.Put(sized(letter(1, i, i, ""), size), start); err != nil {
				t.Error(err)
			}
		})
		queued(t, f, i+1)
	}
	// The first is being written; then three of a third each, and one more byte.
	put(0, 1)
	for taken := false; !taken; {
		f.mu.Lock()
		taken = len(f.queue) == 0
		f.mu.Unlock()
	}
	put(1, batchBytes/2)
	put(2, batchBytes/2)
	put(3, 1)
	put(4, batchBytes+1)
	put(5, 0)
	f.mu.Lock()
	var sizes []int
	for _, b := range f.queue {
		sizes = append(sizes, len(b.items))
	}
	f.mu.Unlock()
	release()
	all.Wait()
	if fmt.Sprint(sizes) != "[2 1 1 1]" {
		t.Errorf("batches of %v", sizes)
	}
	if st := f.Stats(start); st.Put != 6 {
		t.Errorf("%+v", st)
	}
}

// Close waits for what is on its way, and takes nothing more.
func TestCloseWaitsForTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	f := openTest(t, path, plenty(), start)
	mustPut(t, f, letter(1, 7, 100, "gone"), start)
	inbox(t, f, 1, start)
	release := blocked(t, f)
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			if err := f.Put(letter(2, 7+i, i, "x"), start); err != nil {
				t.Error(err)
			}
		})
	}
	queued(t, f, 11)
	f.Ack(identity(1), ids(100), start)
	all.Go(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	for closed := false; !closed; {
		f.mu.Lock()
		closed = f.closed
		f.mu.Unlock()
	}
	if err := f.Put(letter(3, 1, 1, ""), start); err != ErrClosed {
		t.Errorf("Put: %v", err)
	}
	release()
	all.Wait()
	f = openTest(t, path, plenty(), start)
	if o := f.Opened(); o.Messages != 10 || len(inbox(t, f, 2, start)) != 10 {
		t.Errorf("%+v", o)
	}
}

// What cannot be read at the moment is in nobody's flight.
func TestReadFails(t *testing.T) {
	f := openTest(t, filepath.Join(t.TempDir(), "mailbox"), plenty(), start)
	mustPut(t, f, letter(1, 7, 1, "a"), start)
	if err := f.db.Close(); err != nil {
		t.Fatal(err)
	}
	r := f.Reader(identity(1))
	defer r.Close()
	if portion, err := r.Next(start); err == nil || len(portion) > 0 {
		t.Errorf("%d messages, %v", len(portion), err)
	}
	if _, err := f.Read(identity(1), 0, 1, 1, start); err == nil {
		t.Error("Read finds something")
	}
	if st := f.Stats(start); st.InFlight != 0 || st.Messages != 1 || st.Damaged != 0 {
		t.Errorf("%+v", st)
	}
}

func TestFileBound(t *testing.T) {
	if n := fileBound(256 << 20); n != 1<<30+64<<20 {
		t.Errorf("%d for 256 MiB", n)
	}
	if n := fileBound(math.MaxInt64); n != math.MaxInt {
		t.Errorf("%d for everything", n)
	}
}

// A panic of the database is an error of the store.
func TestGuarded(t *testing.T) {
	if err := guarded(func() error { panic("page 3") }); err == nil || err.Error() != "the file is damaged: page 3" {
		t.Errorf("%v", err)
	}
	if err := guarded(func() error { return ErrClosed }); err != ErrClosed {
		t.Errorf("%v", err)
	}
}
