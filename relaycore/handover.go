package relaycore

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/admission/httpguard"
	"relayedge/relaycore/api"
	"relayedge/relaycore/websocket"
)

// The times of a connection that calls the HTTP API.
const (
	requestTime = 20 * time.Second  // for a whole request, its body included
	replyTime   = 120 * time.Second // for the answer to be taken, from the end of the request's head
	pauseTime   = 60 * time.Second  // from an answer to the next request
)

// What a connection that calls the HTTP API costs in memory: itself, with the
// buffers of its server, and so much for each byte of a body, which is held in as
// many forms until it is dealt with. A test measures both.
const (
	callerCost = 24 << 10
	bodyCost   = 5
)

// handover is where connections that call the HTTP API change hands: from the
// relay, which has read their first request's head, to an http.Server. It is the
// listener of that.
type handover struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case nc := <-h.conns:
		return nc, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handover) Addr() net.Addr { return noAddr{} }

// noAddr is the address of what has none.
type noAddr struct{}

func (noAddr) Network() string { return "none" }
func (noAddr) String() string  { return "" }

// caller is a connection that calls the HTTP API. Its remote address is the client's,
// as far as it is known.
type caller struct {
	net.Conn // until it becomes a session

	// Static.
	server  *Server
	lease   *admission.Lease
	about   about
	binding *[32]byte

	// The server's of its requests, one at a time.
	rest []byte // what was read of its first request

	buffers, replies account // of what it sends, and of what it is sent

	over sync.Once
	shut sync.Once
}

// serveAPI hands a connection over to the server of the HTTP API. rest is what was
// read of it. It reports false while the relay drains.
func (s *Server) serveAPI(a *caller) bool {
	payer := s.sources.payer(s.sources.of(a.about.client))
	a.buffers.open(s.bufferBudget, a, payer)
	a.replies.open(s.outboundBudget, a, payer)
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return false
	}
	// From here on the drain has the server end it.
	delete(s.conns, a.Conn)
	s.running.Add(1)
	s.mu.Unlock()
	a.Conn.SetDeadline(time.Time{})
	a.buffers.add(callerCost)
	s.bufferBudget.makeRoom()
	select {
	case s.handover.conns <- a:
	case <-s.handover.done:
		a.Close()
		a.end()
	}
	return true
}

// end gives back what the connection held. Nothing of it runs any longer.
func (a *caller) end() {
	a.over.Do(func() {
		a.forget()
		a.lease.Release()
		a.server.leave(a.Conn)
		a.server.running.Done()
	})
}

// forget takes its memory off the budgets.
func (a *caller) forget() {
	for _, of := range []*account{&a.buffers, &a.replies} {
		of.writeOff()
		n, _ := of.balance()
		of.add(-int(n))
	}
}

func (a *caller) shed(why ending) {
	a.shut.Do(func() { a.server.count.reject(why.reason) })
	a.Conn.Close()
}

func (a *caller) Read(p []byte) (int, error) {
	if len(a.rest) > 0 {
		n := copy(p, a.rest)
		if a.rest = a.rest[n:]; len(a.rest) == 0 {
			a.rest = nil
		}
		return n, nil
	}
	return a.Conn.Read(p)
}

// CloseWrite lets the server say goodbye before it closes.
func (a *caller) CloseWrite() error {
	if half, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (a *caller) RemoteAddr() net.Addr {
	if !a.about.client.IsValid() {
		return noAddr{}
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.about.client, 0))
}

type callerKey struct{}

// callerOf is the connection of a request.
func callerOf(r *http.Request) *caller { return r.Context().Value(callerKey{}).(*caller) }

// newHTTPServer returns the server of those connections.
func (s *Server) newHTTPServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(s.contained),
		ReadHeaderTimeout: headTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      replyTime,
		IdleTimeout:       pauseTime,
		MaxHeaderBytes:    websocket.MaxHead - 4096, // to which the package adds 4,096
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			a := nc.(*caller)
			ctx = context.WithValue(ctx, callerKey{}, a)
			client := s.sources.client(a.about.client)
			client.RequestID = a.about.id
			return api.WithClient(ctx, client)
		},
		ConnState: func(nc net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				nc.(*caller).end()
			}
		},
	}
}

// newGuard returns the request limit.
func (s *Server) newGuard(o Options, keys *admission.KeyMaker) (*httpguard.Guard, error) {
	cfg := httpguard.DefaultConfig()
	if o.RequestLimits != nil {
		cfg = *o.RequestLimits
	}
	return httpguard.New(cfg, httpguard.Options{
		Windows: o.RequestWindows, Keys: keys, Embedded: s.sources.embedded,
		Addr:      func(r *http.Request) netip.Addr { return callerOf(r).about.client },
		RequestID: func(r *http.Request) string { return callerOf(r).about.id },
		Refused:   func(admission.Decision) { s.count.overRequests.Add(1) },
	})
}

// SetRequestLimits puts other request limits in force. What was counted stays. Its
// error is c.Validate's.
func (s *Server) SetRequestLimits(c httpguard.Config) error { return s.guard.SetConfig(c) }

// contained serves one request. A fault in it ends its connection alone.
func (s *Server) contained(w http.ResponseWriter, r *http.Request) {
	a := callerOf(r)
	defer func() {
		if fault := recover(); fault != nil {
			if fault != http.ErrAbortHandler {
				s.panicked(fault, &a.about)
				s.count.reject(ReasonTaskPanic)
			}
			panic(http.ErrAbortHandler)
		}
	}()
	body := &chargedBody{ReadCloser: r.Body, caller: a}
	defer body.giveBack()
	r.Body = body
	s.routes.ServeHTTP(chargedReply{w, a}, r)
}

// serveRoute answers a request: the API's, an upgrade on a connection that has
// called the API before, or the decoy.
func (s *Server) serveRoute(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.RawPath == "" && api.Serves(r.Method, r.URL.Path):
		s.api.ServeHTTP(w, r)
	case r.URL.Path == endpoint.Path && r.Header.Get("Upgrade") != "":
		s.upgradeCaller(w, r)
	default:
		s.count.decoys.Add(1)
		page := websocket.Page(http.StatusNotFound)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Length", strconv.Itoa(len(page)))
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, page)
	}
}

// upgradeCaller makes a session of a connection that has called the API: clients
// that keep connections send an upgrade on one of them.
func (s *Server) upgradeCaller(w http.ResponseWriter, r *http.Request) {
	a := callerOf(r)
	now := time.Now()
	answer := endpoint.Judge(headOf(r), now)
	if answer.Decoy {
		s.count.decoys.Add(1)
	}
	_, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	nc, handed := a.Conn, false
	defer func() {
		if !handed {
			nc.Close()
			a.end()
		}
	}()
	nc.SetDeadline(now.Add(upgradeTime))
	if !answer.Upgraded {
		s.answer(nc, answer.Response)
		return
	}
	if _, err := nc.Write(answer.Response); err != nil {
		return
	}
	nc.SetDeadline(time.Time{})
	rest, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	rest = append(append([]byte(nil), rest...), a.rest...)
	c := s.newSession(nc, a.lease, a.about, now, a.binding)
	if !s.enter(nc, c) {
		return
	}
	handed = true
	s.running.Go(func() {
		defer s.leave(nc)
		c.run(rest)
	})
	a.over.Do(func() {
		a.forget()
		s.running.Done()
	})
}

// headOf is the head of a request, as it may have been sent.
func headOf(r *http.Request) []byte {
	b := []byte(r.Method + " " + r.RequestURI + " " + r.Proto + "\r\nHost: " + r.Host + "\r\n")
	if r.ContentLength != 0 {
		b = append(b, "Content-Length: 1\r\n"...) // any will do: it is refused
	}
	for name, values := range r.Header {
		for _, v := range values {
			b = append(b, name+": "+v+"\r\n"...)
		}
	}
	return append(b, "\r\n"...)
}

// chargedBody charges what comes of a body to its connection, until the request
// has been dealt with.
type chargedBody struct {
	io.ReadCloser
	caller  *caller
	charged int
}

func (b *chargedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.charged += bodyCost * n
		b.caller.buffers.add(bodyCost * n)
		b.caller.server.bufferBudget.makeRoom()
	}
	return n, err
}

func (b *chargedBody) giveBack() { b.caller.buffers.add(-b.charged) }

// chargedReply charges a piece of an answer to its connection while it is written,
// with as much for what it was made of.
type chargedReply struct {
	http.ResponseWriter
	caller *caller
}

func (w chargedReply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w chargedReply) Write(p []byte) (int, error) {
	w.caller.replies.add(2 * len(p))
	defer w.caller.replies.add(-2 * len(p))
	w.caller.server.outboundBudget.makeRoom()
	return w.ResponseWriter.Write(p)
}
