package proxy

import (
	"crypto/tls"
	"errors"
	"sync/atomic"
	"time"

	"relayedge/internal/socket"
)

// buffers hold what a connection reads, and what TLS makes of it.
var buffers = socket.NewPool(bufferSize)

const bufferSize = 32 << 10

// wire is the client's socket as crypto/tls and the forwarding see it. It
// reads ahead into a buffer that it holds only while there are bytes in it,
// and counts the bytes that pass.
//
// Two modes: while settling (the PROXY header and the handshake) Read waits as
// a net.Conn does; afterwards it answers errWouldBlock when the buffer is
// empty, so that nothing is held while a connection is idle: fill waits.
//
// What is written goes to the socket, or is gathered for whoever writes it: what
// an event loop does with one turn's records, and with the tickets at the end of
// a handshake.
//
// Owned by the goroutine that reads; Write is called by the goroutine that
// holds crypto/tls's write lock.
type wire struct {
	*socket.Socket
	stats    *stats
	patience time.Duration // of writes, once settled

	gather *[]byte // where writes go; nil: to the socket
	flight []byte  // gathered in the handshake

	ahead   []byte // bytes read from the socket and not taken yet
	records records
	readErr error  // how the client's stream ended, kept for the reader
	route   *route // of its server name, from crypto/tls's callback
	certErr error  // why there was no certificate for it, from crypto/tls's callback

	settled atomic.Bool
	stalled atomic.Bool // the client took no byte for too long
}

// errWouldBlock is what a settled wire answers when it holds no byte. Its
// Temporary keeps crypto/tls from taking it for the end of the connection.
var errWouldBlock error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "no bytes are here yet" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// fill waits until the client sent something, and reads it ahead. It returns
// the bytes that came.
func (w *wire) fill() (int, error) {
	if len(w.ahead) > 0 {
		return len(w.ahead), nil
	}
	if w.readErr != nil {
		return 0, w.readErr
	}
	p, err := w.ReadReady()
	if err != nil {
		if !isTimeout(err) {
			w.readErr = err
		}
		return 0, err
	}
	w.stats.bytesIn.Add(uint64(len(p)))
	w.ahead = p
	return len(p), nil
}

// unread puts bytes back in front of what follows. It is for what was read
// together with a PROXY header, and for a ClientHello that is the relay's.
func (w *wire) unread(p []byte) { w.ahead = p }

// Read takes what was read ahead.
func (w *wire) Read(p []byte) (int, error) {
	if len(w.ahead) > 0 {
		n := copy(p, w.ahead)
		w.records.saw(p[:n])
		if w.ahead = w.ahead[n:]; len(w.ahead) == 0 {
			w.drop()
		}
		return n, nil
	}
	if w.settled.Load() {
		if w.readErr != nil {
			return 0, w.readErr
		}
		return 0, errWouldBlock
	}
	if err := w.depart(); err != nil {
		return 0, err
	}
	n, err := w.Socket.Read(p)
	w.stats.bytesIn.Add(uint64(n))
	w.records.saw(p[:n])
	return n, err
}

// readTLS reads what TLS has for its reader.
func (w *wire) readTLS(secure *tls.Conn, p []byte) (int, error) {
	n, err := secure.Read(p)
	if n > 0 {
		w.records.data++
	}
	return n, err
}

// depart writes what the handshake has gathered.
func (w *wire) depart() error {
	if len(w.flight) == 0 {
		return nil
	}
	n, err := w.Socket.Write(w.flight)
	w.stats.bytesOut.Add(uint64(n))
	w.flight = w.flight[:0]
	return err
}

// drop forgets what was read ahead and gives its buffer back.
func (w *wire) drop() {
	w.ahead = nil
	w.Release()
}

// Write writes all of p or fails for good: crypto/tls keeps a write error for
// ever, so a slow client is waited for here. After a stall nothing more is
// written: what the client took ends at an unknown byte.
func (w *wire) Write(p []byte) (n int, err error) {
	switch {
	case w.gather != nil:
		*w.gather = append(*w.gather, p...)
		return len(p), nil
	case w.stalled.Load():
		return 0, socket.ErrStalled
	case len(w.flight) > 0: // records of before: these make no sense without them
		if err := w.depart(); err != nil {
			return 0, err
		}
		return w.Write(p)
	case !w.settled.Load():
		n, err = w.Socket.Write(p)
	default:
		if err = w.WriteAll(p, w.patience); err == nil {
			n = len(p)
		}
	}
	if errors.Is(err, socket.ErrStalled) {
		w.stalled.Store(true)
	}
	w.stats.bytesOut.Add(uint64(n))
	return n, err
}

// SetWriteDeadline is crypto/tls's before and after its close_notify; once
// settled, patience decides instead.
func (w *wire) SetWriteDeadline(t time.Time) error {
	if w.settled.Load() {
		return nil
	}
	return w.Socket.SetWriteDeadline(t)
}

// settle ends the first mode and its deadlines; from here writes wait for
// patience.
func (w *wire) settle(patience time.Duration) {
	w.SetDeadline(time.Time{})
	w.patience = patience
	w.settled.Store(true)
}
