package proxy

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"

	"relayedge/internal/socket"
)

// httpSession serves a session whose listener has protocol: http, from the end of
// the handshake on. net/http parses the client's requests, and one connection to
// the relay carries them: it is this client's alone, as in tcp mode, so that
// nothing that one client sends can become part of what another is answered.
//
// The requests of a connection come one after the other, in net/http's goroutine
// for it. An upgrade ends this phase: the bytes that follow are forwarded as in
// tcp mode.
type httpSession struct {
	// Static.
	s         *session
	ready     time.Time // the end of the handshake, or what came before it
	client    *httpClient
	server    http.Server
	transport http.Transport
	proxy     httputil.ReverseProxy

	// Of the goroutine that serves requests.
	requests  int           // how many have begun
	oversized bool          // its header is
	closes    bool          // the connection ends behind the request
	hijacked  bool          // net/http has given the connection up
	body      *requestBody  // of the request, or nil
	id        string        // of the request
	told      string        // client_address, as the relay's connection is used
	next      *httpUpgrade  // what the connection goes on as; nil: it does not
	over      chan struct{} // closed when no request will follow

	moved atomic.Int64 // when bytes last moved, either way, since ready
	stall atomic.Bool  // the relay took no byte of a request for too long

	answering atomic.Bool // the relay's answer has begun, and is not passed on in full

	mu       sync.Mutex
	busy     bool       // a request has begun to come, and is not answered in full
	draining bool       // the request in flight is the last
	ended    bool       // over is closed
	relay    *httpRelay // that carries the requests; nil: there is none
	fresh    *httpRelay // relay, while the transport has not taken it
}

// httpUpgrade is what an upgraded connection begins with.
type httpUpgrade struct {
	relay *socket.Socket
	early early
}

// Bounds of HTTP mode that are no keys.
const (
	// maxHeaderFields is how many header fields a request may have: thousands of
	// tiny ones cost more than their bytes.
	maxHeaderFields = 256
	// maxAnswerHeaderBytes is for the header of a relay's answer.
	maxAnswerHeaderBytes = 256 << 10
	// continueWait is how long a relay may take to ask for the body of a request
	// that expects to be asked (RFC 9110, section 10.1.1).
	continueWait = time.Second
)

var (
	httpOnly = func() *http.Protocols {
		p := new(http.Protocols)
		p.SetHTTP1(true)
		return p
	}()
	// quiet: what clients and relays do wrong is counted, and not logged.
	quiet = log.New(io.Discard, "", 0)
)

// serveHTTP serves requests until the connection ends, or goes on as one that is
// forwarded, which it returns.
func (s *session) serveHTTP(ready time.Time) *forwarding {
	h := newHTTPSession(s, ready)
	s.mu.Lock()
	s.http = h
	s.mu.Unlock()
	h.server.Serve(h)
	h.client.retire()
	h.transport.CloseIdleConnections()
	if h.next == nil {
		return nil
	}
	return &forwarding{
		s: s, times: s.terms.times, client: s.wire, tls: s.secure, relay: h.next.relay,
		bucket: h.client.bucket, early: h.next.early, begun: true,
	}
}

func newHTTPSession(s *session, ready time.Time) *httpSession {
	t := s.terms.times
	h := &httpSession{s: s, ready: ready, over: make(chan struct{})}
	h.client = newHTTPClient(h)
	h.server = http.Server{
		Handler: h, Protocols: httpOnly, ErrorLog: quiet, ConnState: h.state,
		BaseContext: func(net.Listener) context.Context { return s.ctx },
		// OPTIONS * is the relay's to answer, and the guard's to count.
		DisableGeneralOptionsHandler: true,
		MaxHeaderBytes:               t.headerBytes, ReadHeaderTimeout: t.header, IdleTimeout: t.idle,
	}
	h.transport = http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return h.take() },
		MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1,
		DisableCompression:    true, // what the client did not ask for is not asked for
		ResponseHeaderTimeout: t.response, ExpectContinueTimeout: continueWait,
		MaxResponseHeaderBytes: maxAnswerHeaderBytes, Protocols: httpOnly,
	}
	h.proxy = httputil.ReverseProxy{
		Rewrite: h.rewrite, Transport: upgrader{&h.transport}, ModifyResponse: h.amend, ErrorHandler: h.failed,
		// FlushInterval is 0: answers without a length, which may be streams, are
		// passed on at once all the same.
		BufferPool: copyBuffers{}, ErrorLog: quiet,
	}
	return h
}

// Accept gives net/http the one connection, and then waits until no request
// will follow on it.
func (h *httpSession) Accept() (net.Conn, error) {
	if h.client.taken {
		<-h.over
		return nil, net.ErrClosed
	}
	h.client.taken = true
	return h.client, nil
}

// Close and Addr make the session a net.Listener; its connection is closed by
// whoever ends the session.
func (h *httpSession) Close() error   { return nil }
func (h *httpSession) Addr() net.Addr { return h.client.LocalAddr() }

// state is what net/http tells of the connection, in the goroutine that serves it.
func (h *httpSession) state(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateActive:
		h.client.serve(true)
	case http.StateIdle:
		h.client.serve(false)
		h.rest()
	case http.StateClosed:
		h.end()
	}
}

// begin: bytes of a request have come.
func (h *httpSession) begin() {
	h.mu.Lock()
	h.busy = true
	h.mu.Unlock()
}

// rest: a request was answered in full, and the next has not begun.
func (h *httpSession) rest() {
	h.mu.Lock()
	h.busy = false
	draining := h.draining
	h.mu.Unlock()
	if draining {
		h.s.stop(Drain)
	}
}

// end says that no request will follow.
func (h *httpSession) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.ended = true
		close(h.over)
	}
}

// last makes the request in flight the last one, and reports whether there is one.
func (h *httpSession) last() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	return h.busy
}

// isLast reports whether the client is to be told that no request may follow.
func (h *httpSession) isLast() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

// inFlight reports whether a request is being served.
func (h *httpSession) inFlight() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.busy
}

// move notes that bytes have moved.
func (h *httpSession) move() { h.moved.Store(int64(time.Since(h.ready))) }

// silent is how long none have.
func (h *httpSession) silent() time.Duration {
	return time.Since(h.ready) - time.Duration(h.moved.Load())
}

// copyBuffers lends the buffers of the stream engine to the copies of bodies.
type copyBuffers struct{}

func (copyBuffers) Get() []byte  { return *buffers.Get() }
func (copyBuffers) Put(b []byte) { buffers.Put(&b) }
