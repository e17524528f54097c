package mailbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"relayedge/relaycore/wire"
)

// File is a [Store] in an encrypted file. Beside the file it keeps in memory
// what it must know of each message, [Overhead] bytes at most, and no payload.
type File struct {
	// Static.
	path   string
	db     *bbolt.DB
	sealer *sealer
	opened Opened
	wake   chan struct{} // of the goroutine that commits
	ended  chan struct{} // closed when it has ended

	lockedBook

	// Guarded by mu.
	queue  []*batch // what is to be written, the last one still open
	gone   []uint64 // what is to be taken out of the file
	stuck  error    // the file takes nothing, not even that
	closed bool
	faults uint64 // commits that failed
}

var _ Store = (*File)(nil)

// Opened is what was found in a file.
type Opened struct {
	Messages int
	Expired  int   // of them, for which it was too late
	Bytes    int64 // length of the file
	// Freed is by how much it is shorter than it was; CompactErr why it could
	// not be made shorter, which does no harm.
	Freed      int64
	CompactErr error
}

var (
	bucketHead     = []byte("head")
	bucketMessages = []byte("messages")
	keyFormat      = []byte("format")
	keySalt        = []byte("salt")
	keyCheck       = []byte("check")
	format         = []byte("relaycore mailbox 1")
)

// ErrOpenElsewhere says that the file is in use.
var ErrOpenElsewhere = errors.New("another process has it open")

// lockWait is how long the lock of a file that another process has is waited for.
const lockWait = time.Second

// options are what tests change of how a file is opened.
type options struct {
	openFile    func(string, int, os.FileMode) (*os.File, error)
	noSync      bool
	mapped      int   // addresses that are kept for the file to grow into
	compactFrom int64 // length of a file that is worth it
}

var plainOptions = options{openFile: os.OpenFile, compactFrom: 64 << 20}

// OpenFile opens the file at path, or makes it, and reads what it holds. With a
// key that is not the file's it returns ErrWrongKey; a file of something else, a
// damaged one, and one that another process has open are errors too. In each of
// these cases the file stays as it is.
func OpenFile(path string, key Key, l Limits, now time.Time) (*File, error) {
	return openFile(path, key, l, now, plainOptions)
}

func openFile(path string, key Key, l Limits, now time.Time, o options) (_ *File, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("mailbox file %s: %w", path, err)
		}
	}()
	o.mapped = mapping(l.TotalBytes)
	db, err := openDB(path, o)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, db: db, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	// Closing is safe for a file that another process gets next, for this one reads no more.
	defer func() {
		if err != nil {
			f.db.Close()
		}
	}()
	f.book.init(l, now)
	f.book.gone = func(seq uint64) { f.gone = append(f.gone, seq) }
	var live int64
	err = guarded(func() error {
		if f.sealer, err = unlock(db, key); err != nil {
			return err
		}
		live, err = f.scan(now)
		return err
	})
	if err != nil {
		return nil, err
	}
	// A file that was made just now must keep its name over a crash.
	if err := syncFolder(path); err != nil {
		return nil, err
	}
	f.opened.Messages = f.book.count.Messages
	f.book.pass(now)
	f.opened.Expired = int(f.book.count.Expired)
	if err := f.compact(live, o); err != nil {
		return nil, err
	}
	go f.commit()
	f.signal()
	return f, nil
}

// openDB opens and locks the database at path.
func openDB(path string, o options) (*bbolt.DB, error) {
	for range 3 {
		var file *os.File
		var db *bbolt.DB
		err := guarded(func() (err error) {
			if err = walk(path); err != nil {
				return err
			}
			db, err = bbolt.Open(path, 0o600, &bbolt.Options{
				Timeout: lockWait,
				// Where much is free, writing down what is would cost more than what is
				// written. It is found at the start instead.
				NoFreelistSync: true,
				FreelistType:   bbolt.FreelistMapType,
				NoSync:         o.noSync,
				// A file that outgrows its mapping waits for all who read, backups included.
				InitialMmapSize: o.mapped,
				OpenFile: func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
					file, err = o.openFile(name, flag, mode)
					return file, err
				},
			})
			return err
		})
		if errors.Is(err, bbolterrors.ErrTimeout) {
			return nil, ErrOpenElsewhere
		}
		if err != nil {
			return nil, err
		}
		// Who had the lock before may have put a shorter file in its place.
		ours, err := file.Stat()
		if err == nil {
			var there os.FileInfo
			if there, err = os.Stat(path); err == nil && os.SameFile(ours, there) {
				return db, nil
			}
		}
		db.Close()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return nil, errors.New("it is being replaced all the time")
}

// walk looks at every page that is in use, if there is a file.
func walk(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is no regular file")
	case info.Size() == 0:
		return nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close() // with its lock, which keeps others from writing meanwhile
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := checkPages(file, db.Info().PageSize); err != nil {
		return fmt.Errorf("the file is damaged: %w", err)
	}
	return nil
}

// guarded runs f. A panic of the database, or a page of its file that cannot be
// read, is an error like any other.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the file is damaged: %v", fault)
		}
	}()
	return f()
}

// unlock returns the keys of a file, which it makes where the file is new.
func unlock(db *bbolt.DB, key Key) (s *sealer, err error) {
	empty := false
	err = db.View(func(tx *bbolt.Tx) error {
		head := tx.Bucket(bucketHead)
		if head == nil {
			first, _ := tx.Cursor().First()
			if empty = first == nil; empty {
				return nil
			}
			return errors.New("it is a database of something else")
		}
		if string(head.Get(keyFormat)) != string(format) {
			return fmt.Errorf("its format is not %q", format)
		}
		if s, err = newSealer(key, head.Get(keySalt)); err != nil {
			return err
		}
		if r, _, err := s.records.open(nil, 0, head.Get(keyCheck)); err != nil || len(r.payload) != 0 {
			return ErrWrongKey
		}
		if tx.Bucket(bucketMessages) == nil {
			return errors.New("it has no messages bucket")
		}
		return nil
	})
	if err != nil || !empty {
		return s, err
	}
	salt := randomSalt()
	if s, err = newSealer(key, salt); err != nil {
		return nil, err
	}
	return s, db.Update(func(tx *bbolt.Tx) error {
		head, err := tx.CreateBucket(bucketHead)
		if err != nil {
			return err
		}
		_, err = tx.CreateBucket(bucketMessages)
		// Messages begin at 1, so this record's place is its own.
		check := s.records.seal(0, &record{put: time.Unix(0, 0)})
		return errors.Join(err, head.Put(keyFormat, format), head.Put(keySalt, salt), head.Put(keyCheck, check))
	})
}

// scan reads all messages into the book, and returns how long the records are.
func (f *File) scan(now time.Time) (live int64, err error) {
	damaged := 0
	err = f.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMessages)
		var scratch []byte
		var latest time.Duration = -1 << 62
		c := b.Cursor()
		var sealed []byte
		for k, v := c.First(); k != nil; {
			key := k
			sealed, k, v = appendRecord(sealed[:0], c, k, v)
			live += int64(len(sealed))
			if len(key) < 8 {
				damaged++
				continue
			}
			seq := binary.BigEndian.Uint64(key)
			r, plain, err := f.sealer.records.open(scratch, seq, sealed)
			scratch = plain
			if err != nil || seq == 0 {
				damaged++
				continue
			}
			// The wall clock may have been set back, and messages stay in order.
			latest = max(latest, min(0, r.put.Sub(now.Round(0))))
			source := netip.Prefix{}
			if f.book.limits.Sources {
				source = prefixOf(r.source)
			}
			it := &item{
				seq: seq, at: latest, sender: r.sender, id: r.id, size: len(r.payload), contact: r.contact,
				source: f.book.sourceKey(source), holding: f.book.shares.Holding(source, struct{}{}),
				read: true, // its recipient may have it already, and acknowledge it
			}
			f.book.link(&r.recipient, it)
		}
		f.book.seq = max(f.book.seq, b.Sequence())
		return nil
	})
	if err == nil && damaged > 0 {
		err = fmt.Errorf("%d of its messages cannot be read: %w; restore a backup, or move the file away to begin with an empty one", damaged, errRecord)
	}
	return live, err
}

// Opened returns what was found when the file was opened.
func (f *File) Opened() Opened { return f.opened }

// Fault returns how often writing to the file has failed, and why it takes
// nothing at present; the error is nil while it does.
func (f *File) Fault() (failed uint64, now error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faults, f.stuck
}

// Put implements [Store].
func (f *File) Put(m Message, now time.Time) error {
	m.Source = f.sealer.pseudonym(m.Source)
	b, err := f.enqueue(&m, now)
	if b == nil {
		return err
	}
	<-b.done
	return b.err
}

// Refuses implements [Store]. That the file takes nothing at present it does know.
func (f *File) Refuses(m Message, now time.Time) *Refusal {
	m.Source = f.sealer.pseudonym(m.Source)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stuck != nil {
		return f.storageRefusal(f.stuck)
	}
	return f.book.refuses(&m, now)
}

// enqueue admits m and returns the batch to wait for, nil if there is none.
func (f *File) enqueue(m *Message, now time.Time) (*batch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.signal()
	if f.closed {
		return nil, ErrClosed
	}
	if f.stuck != nil {
		return nil, f.storageRefusal(f.stuck)
	}
	it, known, refused := f.book.admit(m, now)
	switch {
	case refused != nil:
		return nil, refused
	case known && it.pending != nil:
		return it.pending, nil
	case known:
		return nil, nil
	}
	b := f.filling(len(m.Payload))
	it.pending = b
	b.add(it, m, now)
	return b, nil
}

func (f *File) storageRefusal(err error) *Refusal {
	r := f.book.refuse(LimitStorage, nil)
	r.Err = err
	return r
}

// Read implements [Store].
func (f *File) Read(recipient wire.Identity, after uint64, n, size int, now time.Time) ([]Held, error) {
	f.mu.Lock()
	portion := f.book.behind(&recipient, after, n, size, now)
	f.mu.Unlock()
	return f.load(portion, nil)
}

func (f *File) next(r *Reader, now time.Time) ([]Held, error) {
	f.mu.Lock()
	portion := f.book.take(r, now)
	f.mu.Unlock()
	return f.load(portion, r)
}

// load reads the payloads of a portion, which is in flight to r if r is not nil.
func (f *File) load(portion []*item, r *Reader) (out []Held, err error) {
	f.signal() // time may have taken something away
	if len(portion) == 0 {
		return nil, nil
	}
	out = make([]Held, 0, len(portion))
	var missing []*item
	err = guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			c := tx.Bucket(bucketMessages).Cursor()
			var sealed []byte
			for _, it := range portion {
				if k, v := c.Seek(place(it.seq)); bytes.HasPrefix(k, place(it.seq)) {
					sealed, _, _ = appendRecord(sealed[:0], c, k, v)
				} else {
					sealed = nil
				}
				rec, _, err := f.sealer.records.open(nil, it.seq, sealed)
				if err != nil {
					missing = append(missing, it)
					continue
				}
				out = append(out, Held{Sender: it.sender, ID: it.id, Payload: rec.payload, Seq: it.seq})
			}
			return nil
		})
	})
	if err == nil && len(missing) == 0 {
		return out, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		for _, it := range portion {
			if r != nil && it.reader == r {
				f.book.land(it)
			}
		}
		return nil, fmt.Errorf("mailbox file: %w", err)
	}
	damaged := 0
	for _, it := range missing {
		if it.box == nil {
			continue // acknowledged meanwhile
		}
		f.book.unlink(it)
		damaged++
	}
	f.book.count.Damaged += uint64(damaged)
	if damaged > 0 {
		err = &DamageError{damaged, errRecord}
	}
	return out, err
}

// Ack implements [Store]. It does not wait for the disk.
func (f *File) Ack(recipient wire.Identity, ids []wire.MessageID, now time.Time) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Most acknowledgements are of messages that were never in a mailbox.
	if n = f.book.ack(&recipient, ids, now); len(f.gone) > 0 {
		f.signal()
	}
	return n
}

// Reader implements [Store].
func (f *File) Reader(recipient wire.Identity) *Reader {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.book.open(&Reader{Recipient: recipient, store: f})
}

// Expire implements [Store].
func (f *File) Expire(now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.signal()
	f.book.pass(now)
	return f.book.due()
}

// Close implements [Store]. Its error says that the disk did not take what was
// acknowledged last: those messages come again.
func (f *File) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	f.mu.Unlock()
	f.signal()
	<-f.ended
	f.mu.Lock()
	err := f.stuck
	f.book.clear()
	f.mu.Unlock()
	return errors.Join(err, f.db.Close())
}
