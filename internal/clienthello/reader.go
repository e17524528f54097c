// Package clienthello finds the end of a TLS ClientHello in what a client sends,
// and reads from it what a route is chosen by: the server name and the
// application protocols. It does no I/O and holds what it was given, so that all
// of it can be passed on byte for byte; it ends no TLS and judges no name.
//
// A hello may come in any pieces: of segments, and of records (RFC 8446,
// section 5.1), across whose borders it may be cut anywhere. Nothing is decided
// before it is whole, but that it cannot become one.
package clienthello

import "errors"

// What a client sent instead of a ClientHello.
var (
	// ErrNotTLS says that the first bytes begin no TLS record.
	ErrNotTLS = errors.New("the first bytes are no TLS")
	// ErrTooLong says that the hello announces more than MaxMessage bytes.
	ErrTooLong = errors.New("the ClientHello is longer than 64 KiB")
	// ErrMalformed says that TLS begins, but no ClientHello comes of it.
	ErrMalformed = errors.New("no well-formed ClientHello")
)

const (
	// MaxMessage is how long a ClientHello may be, without the four bytes before
	// it: as long as crypto/tls takes one.
	MaxMessage = 64 << 10
	// MaxWire is how many bytes a hello of MaxMessage bytes takes up if each one
	// comes in a record of its own. A Reader holds no more before its hello ends.
	MaxWire = (recordHead + 1) * (messageHead + MaxMessage)

	recordHead  = 5
	messageHead = 4
	maxRecord   = 1 << 14 // RFC 8446, section 5.1

	typeAlert       = 21
	typeHandshake   = 22
	typeClientHello = 1
)

// Hello is what a ClientHello says that routes hang on.
type Hello struct {
	ServerName string   // as it was sent; empty: none
	Protocols  []string // ALPN's offer, in the client's order
}

// Reader takes what a client sends until its ClientHello is whole. The zero
// Reader is ready. Each byte is looked at once, in however many pieces it comes.
type Reader struct {
	wire   []byte
	at     int // what has been looked at
	record int // bytes left of the record that wire[at] is in
	begun  bool

	head    [messageHead]byte // of the handshake message
	message int               // bytes of it that were seen, the head included
	hello   Hello
	err     error
	done    bool
}

// Add takes the next bytes and reports whether the hello is whole. Its error is
// one of the package's, and stays. It keeps a copy of all of p.
func (r *Reader) Add(p []byte) (done bool, err error) {
	r.wire = append(r.wire, p...)
	if r.done || r.err != nil {
		return r.done, r.err
	}
	r.done, r.err = r.scan()
	return r.done, r.err
}

// Bytes are all that was added.
func (r *Reader) Bytes() []byte { return r.wire }

// Hello is what the hello says, once it is whole.
func (r *Reader) Hello() Hello { return r.hello }

// scan goes on with the records from where it was.
func (r *Reader) scan() (done bool, err error) {
	for {
		if r.record == 0 {
			if len(r.wire)-r.at < recordHead {
				return false, nil
			}
			if err := r.beginRecord(r.wire[r.at : r.at+recordHead]); err != nil {
				return false, err
			}
			r.at += recordHead
		}
		part := r.wire[r.at:min(r.at+r.record, len(r.wire))]
		if len(part) == 0 {
			return false, nil
		}
		n := len(part)
		if r.message < messageHead {
			n = copy(r.head[r.message:], part)
		} else {
			n = min(n, r.length()-r.message)
		}
		r.at, r.record, r.message = r.at+n, r.record-n, r.message+n
		switch {
		case r.head[0] != typeClientHello:
			return false, ErrMalformed
		case r.message < messageHead:
		case r.length() > messageHead+MaxMessage:
			return false, ErrTooLong
		case r.message == r.length():
			r.hello, err = parse(r.gather())
			return err == nil, err
		}
	}
}

// length is that of the message with its head, once the head is there.
func (r *Reader) length() int {
	return messageHead + int(r.head[1])<<16 + int(r.head[2])<<8 + int(r.head[3])
}

// gather returns the message without its head: as it stands in the wire if it
// came in one record, else put together.
func (r *Reader) gather() []byte {
	body := r.length() - messageHead
	if r.at == recordHead+r.length() {
		return r.wire[r.at-body : r.at]
	}
	message := make([]byte, 0, r.length())
	for at := 0; at < r.at; {
		n := int(r.wire[at+3])<<8 | int(r.wire[at+4])
		at += recordHead
		message = append(message, r.wire[at:min(at+n, r.at)]...)
		at += n
	}
	return message[messageHead:]
}

// beginRecord judges the head of a record.
func (r *Reader) beginRecord(head []byte) error {
	first := !r.begun
	r.begun = true
	if first && (head[0] != typeHandshake && head[0] != typeAlert || head[1] != 3) {
		return ErrNotTLS
	}
	r.record = int(head[3])<<8 | int(head[4])
	if head[0] != typeHandshake || head[1] != 3 || r.record == 0 || r.record > maxRecord {
		return ErrMalformed
	}
	return nil
}
