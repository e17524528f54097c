package mailbox

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"relayedge/relaycore/wire"
)

// Message is what is put.
type Message struct {
	Recipient wire.Identity
	Sender    wire.Identity
	ID        wire.MessageID
	Payload   []byte
	// Source is the sender's, admission.Source of its address.
	Source netip.Prefix
	// Contact says that the sender has had a circuit with the recipient; a
	// sender who never had is a stranger.
	Contact bool
}

// Held is a message that waits, as its recipient gets it.
type Held struct {
	Sender  wire.Identity
	ID      wire.MessageID
	Payload []byte // not to be changed
	Seq     uint64 // its place: higher than that of all that were put before
}

// Store keeps what waits. Its methods are safe for concurrent use. Those that
// wait for a disk say so.
type Store interface {
	// Put holds m and returns nil once it is held for good: a [File] has it on
	// disk by then, for which Put waits. What the same sender put under the same
	// id for the same recipient, and still waits, is not held twice: Put returns
	// nil once the first is held. It keeps a copy of the payload. Otherwise the
	// error is a *Refusal, or ErrClosed, and nothing of m is left.
	Put(m Message, now time.Time) error

	// Refuses returns, and counts, the refusal that Put would have for m at this
	// moment, or nil: for those who charge for a message before it is put. It waits
	// for nothing, so it does not know what the disk will say.
	Refuses(m Message, now time.Time) *Refusal

	// Read returns the messages for recipient behind the place after, in order,
	// at most n of them and, the first one aside, at most size bytes of payload.
	// It is for those who have no reader. What was read can be acknowledged.
	// A *DamageError comes with the messages that could be read.
	Read(recipient wire.Identity, after uint64, n, size int, now time.Time) ([]Held, error)

	// Ack forgets what recipient has received: the messages of these ids that
	// were read. It returns how many there were. An acknowledgement that a crash
	// undoes makes the message come again.
	Ack(recipient wire.Identity, ids []wire.MessageID, now time.Time) int

	// Reader begins to hand out what waits for recipient to a new connection of
	// it. The reader that it had before, if any, hands out nothing more.
	Reader(recipient wire.Identity) *Reader

	// Waits reports whether anything of sender waits for recipient that the
	// recipient's reader has not handed out: a message that is forwarded past
	// the mailbox would overtake it.
	Waits(recipient, sender wire.Identity, now time.Time) bool

	// Expire forgets what has lived its time, as every other method does in
	// passing, and returns when something is due next; the zero Time if nothing waits.
	Expire(now time.Time) time.Time

	// SetLimits binds what is put from here on; the ttl binds what waits too.
	SetLimits(Limits)

	// Stats returns what is held and what was counted.
	Stats(now time.Time) Stats

	// Close ends the store. A [File] is complete on disk when it returns. Put
	// then returns ErrClosed; all else finds nothing.
	Close() error
}

// ErrClosed is the answer of a store that was closed.
var ErrClosed = errors.New("mailbox: closed")

// Limit is what a message is refused for. The list is closed.
type Limit uint8

const (
	LimitRecipientMessages Limit = iota // 1000 messages of one recipient
	LimitSteady                         // 500 of them steady-size
	LimitRecipientBytes                 // offline_queue_max_bytes_per_recipient
	LimitStrangers                      // a quarter of a mailbox, for all strangers
	LimitStrangerSource                 // a sixteenth of a mailbox, for one source of strangers
	LimitTotalBytes                     // offline_queue_max_total_bytes
	LimitSource                         // the share of one source in the total
	LimitStorage                        // the file takes nothing: disk full, read-only, broken
	limitCount
)

var limitNames = [limitCount]string{
	"messages of a recipient", "steady-size messages of a recipient", "offline_queue_max_bytes_per_recipient",
	"strangers' share of a mailbox", "one source's share of a stranger's mailbox", "offline_queue_max_total_bytes",
	"one source's share of the total", "storage",
}

// String returns the key that sets the limit, or what it is.
func (l Limit) String() string {
	if l < limitCount {
		return limitNames[l]
	}
	return fmt.Sprintf("limit %d", uint8(l))
}

// Refusal says why a message is not held.
type Refusal struct {
	Limit Limit
	// RetryAfter is when to try again: whole seconds, at least one and at most a
	// minute, since the recipient can come back at any moment.
	RetryAfter time.Duration
	Err        error // what the storage said; nil for the other limits
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return fmt.Sprintf("mailbox: %v: %v", r.Limit, r.Err)
	}
	return "mailbox: full: " + r.Limit.String()
}

func (r *Refusal) Unwrap() error { return r.Err }

// retryMax bounds how long a refused sender is asked to wait.
const retryMax = time.Minute

// DamageError says that messages were held and cannot be read back. They are
// taken out of the mailbox and left in the file as they are.
type DamageError struct {
	Messages int
	Err      error // of the first
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("mailbox: %d messages cannot be read back: %v", e.Messages, e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

// Stats is what a store holds, and what it has counted since it was made.
type Stats struct {
	Messages   int   // held
	Bytes      int64 // charged
	Recipients int
	Sources    int // of senders
	InFlight   int // handed to readers and not acknowledged, of MaxTracked

	Put     uint64 // messages that were held
	Acked   uint64
	Expired uint64
	Damaged uint64 // see DamageError
	Refused [limitCount]uint64
}
