// Package mailbox keeps what waits for identities that are away, and hands it to
// them in order when they come. It owns how much may wait, for how long and at
// whose expense, and the two places where it can: the memory of the process
// ([Memory]) and an encrypted file ([File]). It knows identities and message ids;
// it does not know sessions, frames, HTTP or who has talked to whom.
//
// # The life of a message
//
// [Store.Put] judges a message and holds it: when it returns nil, the message is
// held, in the file on disk, and may be acknowledged to its sender; a [Refusal]
// names the limit that is full and leaves nothing behind. What is held leaves in
// two ways: its recipient acknowledges it ([Store.Ack]), or its time is over.
// Nothing is dropped to make room, and a limit that is lowered evicts nothing.
//
// A connection of the recipient has a [Reader]. Each [Reader.Next] gives what may
// be written to it next, a little at a time and at most a window beyond what it has
// acknowledged, so that a backlog of any length takes little of its connection. A
// reader that ends, or is replaced by a newer one of the same identity, leaves what
// it has not acknowledged to the next: messages can come twice, and are not lost.
// [Store.Read] serves those who have no connection.
//
// Per recipient, what was put first is read first. A sender's messages keep their
// order if whoever forwards past the mailbox asks [Store.Waits] before.
//
// # Where it is decided
//
// All of it is decided in the book (book.go, behind its lock locked.go; reader.go has its readers' part),
// which both stores keep under a lock of their own: [Memory] (memory.go) has the
// payloads there too, [File] (file.go) has them in its database, in sealed records
// (record.go, key.go), which one goroutine writes, those of many senders in one
// transaction (commit.go). A file that has become too long is made shorter when it
// is opened, and copied at any time (compact.go); [Look] judges one and changes
// nothing (look.go).
//
// # Bounds
//
// A message is charged [Charge] bytes, which is at least the memory that it
// takes. The charge counts against everything at once: the total, its recipient,
// and in the ledger the source that its sender has. Strangers together hold at
// most a quarter of a recipient's mailbox, one source of strangers a sixteenth.
// One source holds at most a sixteenth of the total, or one full mailbox where
// that is more, and never more than the room that it leaves to others: where
// nothing may be dropped, the heaviest source pays by being refused first.
//
// # Time
//
// Every method takes the time. Inside a process the monotonic clock counts; the
// file keeps the wall clock, and no step of it gives a message a longer life
// than the ttl from the moment at which the file was opened.
package mailbox
