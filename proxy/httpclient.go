package proxy

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"relayedge/admission"
)

// httpClient is the client's side of a session as net/http reads and writes it.
// The client's bytes come through the byte bucket, and each wait for them has
// its limit:
//
//	the first byte      first_byte_timeout_secs, or connection_timeout_secs
//	the next request    connection_timeout_secs
//	a request's header  request_header_timeout_secs, in all
//	a request's body    request_body_timeout_secs, from byte to byte
//
// While a request is being answered net/http reads one byte ahead, to learn of a
// client that is gone. That wait has no limit of its own: then it is the relay
// that is waited for. A client that ends its stream meanwhile is not gone: it
// gets its answer, as long as half_close_timeout_secs allows.
type httpClient struct {
	h     *httpSession
	taken bool // by net/http

	reading sync.Mutex       // held by a read
	retired bool             // guarded by reading: net/http has let go of the connection
	bucket  admission.Bucket // owned by the reader

	mu       sync.Mutex
	serving  bool          // a request's header has been read, and it is not answered in full
	deadline time.Time     // net/http's, for a header or for the next request; zero: none
	recalled chan struct{} // closed while net/http wants its reader back
	spoken   bool          // a byte of the client's has come
	late     bool          // the body came too slowly: nothing more is read
	gone     bool          // the client's stream has ended
}

func newHTTPClient(h *httpSession) *httpClient {
	return &httpClient{h: h, recalled: make(chan struct{})}
}

// serve says whether a request is being served.
func (c *httpClient) serve(serving bool) {
	c.mu.Lock()
	c.serving = serving
	c.mu.Unlock()
}

// Read waits for bytes of the client's. Its timeout means that net/http recalled
// the reader, or that a limit is over, whose reason has then been named.
func (c *httpClient) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.retired {
		return 0, net.ErrClosed
	}
	for {
		n, err := c.readAhead(p)
		if n > 0 {
			c.came()
			return n, nil
		}
		switch {
		case err == errWouldBlock:
			err = c.await(len(p) == 1)
		case err == io.EOF:
			err = c.streamEnded(len(p) == 1)
		default:
			err = c.failed(err)
		}
		if err != nil {
			return 0, err
		}
	}
}

// retire waits for a read that has not noticed yet that the connection is closed,
// and lets none follow. net/http may leave one behind: its look whether the client
// is gone begins with the end of a body, also of one that it reads for nobody.
func (c *httpClient) retire() {
	c.reading.Lock()
	c.retired = true
	c.reading.Unlock()
}

// readAhead takes what was read from the socket already, through TLS where it ends here.
func (c *httpClient) readAhead(p []byte) (int, error) {
	if tls := c.h.s.secure; tls != nil {
		return c.h.s.wire.readTLS(tls, p)
	}
	return c.h.s.wire.Read(p)
}

// came: bytes go to net/http.
func (c *httpClient) came() {
	c.h.move()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.spoken {
		c.spoken = true
		c.deadline = time.Now().Add(c.h.s.terms.times.header)
	}
	if !c.serving {
		c.h.begin()
	}
}

// await waits until bytes are there, and charges them. watching says that no byte
// is expected: it is only looked whether the client is gone.
func (c *httpClient) await(watching bool) error {
	if err := c.pause(); err != nil {
		return err
	}
	times, wire := c.h.s.terms.times, c.h.s.wire
	began := time.Now()
	for {
		if !c.arm(began, watching) {
			return os.ErrDeadlineExceeded
		}
		n, err := wire.fill()
		if err == nil {
			c.bucket.Charge(times.bytes, int64(n), time.Now())
			return nil
		}
		if !isTimeout(err) {
			return nil // how the stream ended is for the next read to find
		}
		if c.expired(began, watching) {
			return os.ErrDeadlineExceeded
		}
	}
}

// arm sets the deadline of a wait, and reports false if the reader is recalled.
func (c *httpClient) arm(began time.Time, watching bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late || c.isRecalled() {
		return false
	}
	at, _ := c.limit(began, watching)
	c.h.s.wire.SetReadDeadline(at)
	return true
}

// expired names why a wait is over, if it is, and reports whether it is.
func (c *httpClient) expired(began time.Time, watching bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isRecalled() {
		return true
	}
	at, reason := c.limit(began, watching)
	if at.IsZero() || time.Now().Before(at) {
		return false
	}
	c.late = true
	c.h.s.end(reason)
	return true
}

// limit requires mu. It returns when a wait is over, and what for; the zero time
// is never.
func (c *httpClient) limit(began time.Time, watching bool) (time.Time, Reason) {
	times := c.h.s.terms.times
	switch {
	case c.serving && watching:
		return time.Time{}, ""
	case c.serving:
		return began.Add(times.body), IdleTimeout
	case c.spoken:
		return c.deadline, IdleTimeout
	case times.firstByte > 0 && times.firstByte < times.idle:
		return c.h.ready.Add(times.firstByte), FirstByteTimeout
	}
	return c.h.ready.Add(times.idle), IdleTimeout
}

// pause waits until the byte bucket is out of debt, unless the reader is recalled.
// The time is not the client's.
func (c *httpClient) pause() error {
	debt := c.bucket.Charge(c.h.s.terms.times.bytes, c.h.s.wire.records.due(), time.Now())
	if debt == 0 {
		return nil
	}
	c.h.s.server.stats.refuse(RateLimit)
	timer := time.NewTimer(debt)
	defer timer.Stop()
	c.mu.Lock()
	recalled := c.recalled
	c.mu.Unlock()
	select {
	case <-timer.C:
		c.h.move()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.deadline.IsZero() {
			c.deadline = c.deadline.Add(debt)
		}
		return nil
	case <-recalled:
		return os.ErrDeadlineExceeded
	case <-c.h.s.ctx.Done():
		return net.ErrClosed
	}
}

// streamEnded is the end of the client's stream. While a request is being
// answered it is kept from net/http, which would take the client for gone.
func (c *httpClient) streamEnded(watching bool) error {
	c.mu.Lock()
	serving, recalled := c.serving, c.recalled
	first := !c.gone
	c.gone = true
	c.mu.Unlock()
	if !serving || !watching {
		return io.EOF
	}
	if first {
		c.h.move()
	}
	halfClose := c.h.s.terms.times.halfClose
	timer := time.NewTimer(halfClose)
	defer timer.Stop()
	for {
		select {
		case <-recalled:
			return os.ErrDeadlineExceeded
		case <-c.h.s.ctx.Done():
			return net.ErrClosed
		case <-timer.C:
			left := halfClose - c.h.silent()
			if left <= 0 {
				c.h.s.stop(HalfCloseTimeout)
				return io.EOF
			}
			timer.Reset(left)
		}
	}
}

// failed is a stream that did not end well.
func (c *httpClient) failed(err error) error {
	if c.h.s.wire.stalled.Load() {
		// An answer of TLS's own, written inside the read, was not taken.
		c.h.s.stop(WriterStall)
	} else {
		c.h.s.end(readFault(err, ClientClosed))
	}
	return err
}

// tooLate reports whether a request's body came too slowly.
func (c *httpClient) tooLate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}

// Write writes all of p, or ends the session.
func (c *httpClient) Write(p []byte) (n int, err error) {
	if tls := c.h.s.secure; tls != nil {
		n, err = tls.Write(p)
	} else {
		n, err = c.h.s.wire.Write(p)
	}
	if err != nil {
		c.mu.Lock()
		gone := c.gone
		c.mu.Unlock()
		c.h.s.stop(writeFault(err, gone, ClientClosed))
		return n, err
	}
	c.h.move()
	return n, nil
}

// Close is net/http's end of the connection.
func (c *httpClient) Close() error {
	reason := ClientClosed
	if c.h.isLast() {
		reason = Drain
	}
	c.h.s.stop(reason)
	return nil
}

// CloseWrite ends the answers, before a close that must not take the last of
// them away.
func (c *httpClient) CloseWrite() error {
	if tls := c.h.s.secure; tls != nil {
		tls.CloseWrite()
	}
	return c.h.s.wire.CloseWrite()
}

// SetReadDeadline is how net/http limits a header and the wait for the next
// request, and how it recalls its reader: by a moment that is long over.
func (c *httpClient) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.IsZero() && !t.After(time.Now()) {
		if !c.isRecalled() {
			close(c.recalled)
		}
		c.h.s.wire.SetReadDeadline(t)
		return nil
	}
	if c.isRecalled() {
		c.recalled = make(chan struct{})
	}
	c.deadline = t
	return nil
}

// isRecalled requires mu.
func (c *httpClient) isRecalled() bool {
	select {
	case <-c.recalled:
		return true
	default:
		return false
	}
}

func (c *httpClient) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline: a slow client is waited for by the wire's patience.
func (c *httpClient) SetWriteDeadline(time.Time) error { return nil }

func (c *httpClient) LocalAddr() net.Addr { return c.h.s.listener.socket.Addr() }

// RemoteAddr is the client, whoever the socket's peer is.
func (c *httpClient) RemoteAddr() net.Addr {
	if client := c.h.s.client; client.IsValid() {
		return net.TCPAddrFromAddrPort(client)
	}
	return noAddress{}
}

// noAddress is that of a client on a unix socket.
type noAddress struct{}

func (noAddress) Network() string { return "unix" }
func (noAddress) String() string  { return "@" }
