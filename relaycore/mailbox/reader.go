package mailbox

import (
	"time"

	"relayedge/relaycore/wire"
)

// Reader hands what waits for one identity to one connection of it.
type Reader struct {
	Recipient wire.Identity // static
	store     interface {   // static
		next(*Reader, time.Time) ([]Held, error)
		leave(*Reader)
	}

	// Guarded by the store's lock.
	inFlight int
	bytes    int // their payloads
	over     bool
}

// Next returns what is to be written to the connection next, in order: at most
// 32 KiB of payload, a first message of any length aside, so that many readers at
// a time take little memory. It returns nothing while the window is full, when
// nothing waits, and after Close. Each message is in flight until it is
// acknowledged, expires, or the reader ends.
//
// Ask again once a portion is written, after Put for this recipient and after each
// Ack. Where the relay as a whole has too many messages in flight, what waits is
// due without any of these: ask at every keep-alive as well.
//
// It waits for a disk, in a [File]. A *DamageError comes with the messages that
// could be read.
func (r *Reader) Next(now time.Time) ([]Held, error) { return r.store.next(r, now) }

// Close ends the reader. What is in flight waits for the next one.
func (r *Reader) Close() { r.store.leave(r) }

// open makes r the reader of its recipient.
func (b *book) open(r *Reader) *Reader {
	if old := b.readers.rows[r.Recipient]; old != nil {
		b.close(old)
	}
	b.readers.set(r.Recipient, r)
	return r
}

func (b *book) close(r *Reader) {
	if r.over {
		return
	}
	r.over = true
	b.readers.drop(r.Recipient)
	bx := b.boxes.rows[r.Recipient]
	if bx == nil {
		return
	}
	for it := bx.first; it != nil && r.inFlight > 0; it = it.behind {
		if it.reader == r {
			b.land(it)
		}
	}
}

// take puts the next messages in flight to r, as many as its window holds.
func (b *book) take(r *Reader, now time.Time) (portion []*item) {
	b.pass(now)
	bx := b.boxes.rows[r.Recipient]
	if bx == nil || r.over {
		return nil
	}
	size := 0
	for it := bx.first; it != nil && it.pending == nil; it = it.behind {
		if it.reader != nil {
			continue
		}
		if size += it.size; size > b.caps.portionBytes && len(portion) > 0 || !b.mayFly(r, it) {
			break
		}
		b.unreads(it, -1)
		it.reader, it.read = r, true
		r.inFlight++
		r.bytes += it.size
		b.count.InFlight++
		portion = append(portion, it)
	}
	return portion
}

// mayFly reports whether one more message may be in flight to r. Where many
// readers have much in flight, each has at most what is left for others, so that
// some is always left.
func (b *book) mayFly(r *Reader, it *item) bool {
	left := b.caps.tracked - b.count.InFlight
	if left <= 0 || r.inFlight > left || r.inFlight >= b.caps.window {
		return false
	}
	return r.inFlight == 0 || r.bytes+it.size <= b.caps.windowBytes
}

// land ends the flight of it.
func (b *book) land(it *item) {
	it.reader.inFlight--
	it.reader.bytes -= it.size
	it.reader = nil
	b.unreads(it, 1)
	b.count.InFlight--
}
