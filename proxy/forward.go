package proxy

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"relayedge/admission"
	"relayedge/internal/socket"
)

// forwarding is the last phase of a connection: bytes go both ways, each
// direction in a goroutine of its own, until both streams have ended or a rule
// ends the pair. The rules are those of silence, and the writer stall: a peer
// for which bytes wait takes none of them for too long.
type forwarding struct {
	s      *session
	times  *times
	client *wire
	tls    *tls.Conn // nil: the client's bytes pass as they are
	relay  *socket.Socket
	bucket admission.Bucket // owned by fromClient
	early  early
	begun  bool // the client has spoken before

	introduce bool // the relay has not been told who the client is

	watch watch
}

// early is what came of either side before the forwarding began.
type early struct{ client, relay []byte }

// forward copies both ways until the pair ends. The caller's goroutine reads
// the client, whose first byte is awaited since it was ready for it.
func (f *forwarding) forward(ready time.Time) {
	if f.introduce {
		if reason := f.s.introduce(f.relay, f.s.upstream.Config()); reason != "" {
			f.s.end(reason)
			return
		}
	}
	f.watch.begin(f.times, f.client, f.relay, ready)
	if f.begun {
		f.watch.clientSpoke()
	}

	var other sync.WaitGroup
	other.Go(func() {
		defer f.contain()
		f.fromRelay()
	})
	func() {
		defer f.contain()
		f.fromClient()
	}()
	other.Wait()
}

// contain turns a panic of one direction into the end of the pair.
func (f *forwarding) contain() {
	if p := recover(); p != nil {
		f.s.panicked(p)
		f.s.stop(TaskPanic)
	}
}

// errStopped: the pair has ended, and its reason has been named.
var errStopped = errors.New("the pair has ended")

// fromClient moves the client's bytes to the relay.
func (f *forwarding) fromClient() {
	if len(f.early.client) > 0 && f.toRelay(f.early.client) != nil {
		return
	}
	f.early.client = nil
	for {
		err := f.moveFromClient()
		if err == errWouldBlock {
			err = f.pause()
		}
		if err == nil {
			err = f.awaitClient()
		}
		switch {
		case err == nil:
			continue
		case err == errStopped:
		case err == io.EOF:
			f.endClientStream()
		case f.client.stalled.Load():
			// An answer of TLS's own, written inside the read, was not taken.
			f.s.stop(WriterStall)
		default:
			f.s.stop(readFault(err, ClientClosed))
		}
		return
	}
}

// moveFromClient writes to the relay what was read ahead, until errWouldBlock
// says that nothing is left.
func (f *forwarding) moveFromClient() error {
	if f.tls == nil {
		return f.passFromClient()
	}
	held := buffers.Get()
	defer buffers.Put(held)
	b := *held
	for {
		// A record holds at most 16 KiB: several make one write.
		n, err := 0, error(nil)
		for n < len(b) && err == nil {
			var m int
			m, err = f.client.readTLS(f.tls, b[n:])
			n += m
		}
		if n > 0 {
			if err := f.toRelay(b[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

func (f *forwarding) passFromClient() error {
	if len(f.client.ahead) == 0 {
		return cmp.Or(f.client.readErr, errWouldBlock)
	}
	err := f.toRelay(f.client.ahead)
	f.client.drop()
	return cmp.Or(err, errWouldBlock)
}

func (f *forwarding) toRelay(p []byte) error {
	err := f.relay.WriteAll(p, f.times.writerStall)
	if err != nil {
		f.s.stop(writeFault(err, f.watch.relayHasEnded(), UpstreamClosed))
		return errStopped
	}
	f.watch.clientSpoke()
	return nil
}

// awaitClient waits for the client's next bytes and charges them to the byte
// bucket. How its stream ended is for the next move to find: a TLS stream that
// is cut inside a record has not ended well.
func (f *forwarding) awaitClient() error {
	for {
		f.watch.armClient()
		n, err := f.client.fill()
		if err == nil {
			f.bucket.Charge(f.times.bytes, int64(n), time.Now())
			f.watch.clientMoved()
			return nil
		}
		if !isTimeout(err) {
			return nil
		}
		if r := f.watch.clientExpired(); r != "" {
			f.s.stop(r)
			return errStopped
		}
	}
}

// pause waits until the byte bucket is out of debt: the client is throttled by
// not being read. It comes after the bytes were passed on, so that nothing that
// came is held back.
func (f *forwarding) pause() error {
	debt := f.bucket.Charge(f.times.bytes, f.client.records.due(), time.Now())
	if debt == 0 {
		return nil
	}
	f.s.server.stats.refuse(RateLimit)
	timer := time.NewTimer(debt)
	defer timer.Stop()
	select {
	case <-timer.C:
		f.watch.clientMoved()
		return nil
	case <-f.s.ctx.Done():
		return errStopped
	}
}

// endClientStream passes the end of the client's stream on to the relay.
func (f *forwarding) endClientStream() {
	if f.watch.clientEnded() {
		f.s.stop(UpstreamClosed)
		return
	}
	f.relay.CloseWrite()
}

// fromRelay moves the relay's bytes to the client.
func (f *forwarding) fromRelay() {
	if len(f.early.relay) > 0 && f.toClient(f.early.relay) != nil {
		return
	}
	f.early.relay = nil
	for {
		p, err := f.awaitRelay()
		if err == nil {
			err = f.toClient(p)
			f.relay.Release()
		}
		switch {
		case err == nil:
			continue
		case err == errStopped:
		case err == io.EOF:
			f.endRelayStream()
		default:
			f.s.stop(readFault(err, UpstreamClosed))
		}
		return
	}
}

func (f *forwarding) toClient(p []byte) error {
	var err error
	if f.tls != nil {
		_, err = f.tls.Write(p)
	} else {
		_, err = f.client.Write(p)
	}
	if err != nil {
		f.s.stop(writeFault(err, f.watch.clientHasEnded(), ClientClosed))
		return errStopped
	}
	f.watch.relayMoved()
	return nil
}

func (f *forwarding) awaitRelay() ([]byte, error) {
	for {
		f.watch.armRelay()
		p, err := f.relay.ReadReady()
		if err == nil || !isTimeout(err) {
			return p, err
		}
		if r := f.watch.relayExpired(); r != "" {
			f.s.stop(r)
			return nil, errStopped
		}
	}
}

// endRelayStream passes the end of the relay's stream on to the client: as
// close_notify where there is TLS, because a client that only saw a FIN could
// not tell a whole answer from a cut one.
func (f *forwarding) endRelayStream() {
	// The relay has ended from here, whatever the client answers to the goodbye; the
	// pair, if the client's stream has ended too, only once that is written.
	first := UpstreamClosed
	if f.watch.relayEnds() {
		first = ClientClosed
	}
	if f.tls != nil {
		if err := f.tls.CloseWrite(); err != nil && f.client.stalled.Load() {
			f.s.stop(WriterStall)
			return
		}
	}
	if f.watch.relayEnded() {
		f.s.stop(first)
	} else if f.tls == nil {
		f.client.CloseWrite()
	}
}

// readFault names the end of a stream that did not end as it should. closed is
// the reason for a peer that is gone without one.
func readFault(err error, closed Reason) Reason {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return closed
	}
	return Reset
}

// writeFault names why a peer took no more bytes. A peer whose own stream had
// ended before has merely closed; closed is the reason for that.
func writeFault(err error, ended bool, closed Reason) Reason {
	switch {
	case errors.Is(err, socket.ErrStalled):
		return WriterStall
	case ended && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)):
		return closed
	}
	return Reset
}
