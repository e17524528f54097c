package mailbox

import (
	"math"
	"runtime"
	"time"

	"go.etcd.io/bbolt"
)

// What one transaction does at most, a single message of any length aside.
const (
	batchMessages = 256
	batchBytes    = 8 << 20
	batchGone     = 4096
	stuckGone     = 8 // while the disk is full: the fewer, the less room it takes
)

const (
	// goneWait is how long what was acknowledged stays in the file if nothing else is written.
	goneWait = 200 * time.Millisecond
	// goneMany is how much of it is not waited with.
	goneMany = 1024
	// stuckWait is how often a file that took nothing is tried again.
	stuckWait = time.Second
)

// batch is messages that get to the disk together: while one is being written,
// the next one fills, so that one wait for the disk serves all senders there are.
type batch struct {
	items   []*item
	records []record // the payloads are their senders', who wait
	bytes   int
	done    chan struct{} // closed when err is valid
	err     error
}

func (b *batch) add(it *item, m *Message, now time.Time) {
	b.items = append(b.items, it)
	b.records = append(b.records, record{
		contact: m.Contact, put: now, source: m.Source.Addr().As16(),
		recipient: m.Recipient, sender: m.Sender, id: m.ID, payload: m.Payload,
	})
	b.bytes += len(m.Payload)
}

// filling returns the batch that a message of that length goes into.
func (f *File) filling(size int) *batch {
	if n := len(f.queue); n > 0 {
		if b := f.queue[n-1]; len(b.items) < batchMessages && b.bytes+size <= batchBytes {
			return b
		}
	}
	b := &batch{done: make(chan struct{})}
	f.queue = append(f.queue, b)
	return b
}

// signal wakes the goroutine that commits. It never waits.
func (f *File) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// commit writes what the others have queued, until the file is closed.
func (f *File) commit() {
	defer close(f.ended)
	timer := time.NewTimer(goneWait)
	armed := true
	for {
		due := false
		select {
		case <-f.wake:
		case <-timer.C:
			due, armed = true, false
		}
		for more := true; more; {
			more, due = f.round(due)
		}
		f.mu.Lock()
		waiting, stuck, closed := len(f.gone) > 0 || len(f.queue) > 0, f.stuck != nil, f.closed
		f.mu.Unlock()
		switch {
		case closed && (!waiting || stuck):
			timer.Stop()
			return
		case waiting && !armed:
			wait := goneWait
			if stuck {
				wait = stuckWait
			}
			timer.Reset(wait)
			armed = true
		}
	}
}

// round does one transaction, if there is cause for one, and returns whether to
// go on, and whether what is gone is due then.
func (f *File) round(due bool) (more, dueNext bool) {
	b, gone, bound := f.work(due)
	if b == nil && len(gone) == 0 {
		return false, false
	}
	if err := f.write(b, gone, bound); err != nil {
		f.failed(b, gone, err)
		// Where messages found no room, there can still be some for taking others out.
		return b != nil, true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stuck = nil
	if b != nil {
		f.held(b)
	}
	return true, due
}

// work returns what is to be written next, and how long the file may become.
// What has left goes first, so that it makes room.
func (f *File) work(due bool) (b *batch, gone []uint64, bound int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) > 0 {
		b, f.queue[0] = f.queue[0], nil
		if f.queue = f.queue[1:]; len(f.queue) == 0 {
			f.queue = nil
		}
	}
	if b != nil || due || f.closed || f.stuck == nil && len(f.gone) >= goneMany {
		n := min(len(f.gone), batchGone)
		if f.stuck != nil {
			n = min(n, stuckGone)
		}
		gone = f.gone[:n:n]
		if f.gone = f.gone[n:]; len(f.gone) == 0 {
			f.gone = nil
		}
	}
	return b, gone, fileBound(f.book.limits.TotalBytes)
}

// fileBound is the longest that a file becomes. What is charged for a message is
// more than its record; half-empty pages and free stretches between them take the rest.
func fileBound(total int64) int {
	const spare = 64 << 20
	if total > (math.MaxInt-spare)/4 {
		return math.MaxInt
	}
	return int(4*total + spare)
}

// mapping is how many addresses are kept for a file to grow into: all that it can
// get, where there are as many to spare.
func mapping(total int64) int {
	if math.MaxInt == math.MaxInt32 || runtime.GOOS == "windows" { // where the file would be as long at once
		return 0
	}
	const most = 1 << 40
	return min(fileBound(total), most)
}

func (f *File) write(b *batch, gone []uint64, bound int) error {
	return guarded(func() error {
		return f.db.Update(func(tx *bbolt.Tx) error {
			f.db.MaxSize = bound // read inside transactions that write only
			messages := tx.Bucket(bucketMessages)
			messages.FillPercent = 0.9 // new records come behind all others
			for _, seq := range gone {
				if err := deleteRecord(messages, seq); err != nil {
					return err
				}
			}
			if b == nil {
				return nil
			}
			for i, it := range b.items {
				if err := putRecord(messages, it.seq, f.sealer.records.seal(it.seq, &b.records[i])); err != nil {
					return err
				}
			}
			return messages.SetSequence(b.items[len(b.items)-1].seq)
		})
	})
}

// held lets the messages of b be read.
func (f *File) held(b *batch) {
	for _, it := range b.items {
		it.pending = nil
	}
	f.book.count.Put += uint64(len(b.items))
	b.records = nil
	close(b.done)
}

// failed refuses b and all that is queued behind it. The disk may have taken b
// all the same, so it is to be taken out like what has left.
func (f *File) failed(b *batch, gone []uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults++
	f.stuck = err
	f.gone = append(gone, f.gone...)
	if b == nil {
		return
	}
	for _, b := range append([]*batch{b}, f.queue...) {
		for _, it := range b.items {
			f.book.unlink(it)
			f.gone = append(f.gone, it.seq)
			f.book.count.Refused[LimitStorage]++
		}
		b.records, b.err = nil, &Refusal{Limit: LimitStorage, RetryAfter: retryMax, Err: err}
		close(b.done)
	}
	f.queue = nil
}
