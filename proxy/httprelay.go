package proxy

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"relayedge/internal/socket"
	"relayedge/proxy/upstream"
)

// httpRelay is the relay's side of a session as net/http's transport reads and
// writes it.
type httpRelay struct {
	h      *httpSession
	link   *upstream.Link
	socket *socket.Socket

	upgraded atomic.Bool // the transport reads no further
}

// reach has a connection to the relay ready for the next request, and returns
// why there is none.
func (h *httpSession) reach() Reason {
	h.mu.Lock()
	there := h.relay != nil
	h.mu.Unlock()
	if there {
		return ""
	}
	relay, reason := h.s.dial()
	if reason != "" {
		return reason
	}
	cfg := h.s.upstream.Config() // after the dial, which may have taken another route
	h.told = cfg.ClientAddress
	if reason := h.s.introduce(relay, cfg); reason != "" {
		h.s.part()
		return reason
	}
	r := &httpRelay{h: h, link: h.s.link, socket: relay}
	relay.SetReadDeadline(time.Now().Add(h.s.terms.times.idle))
	h.mu.Lock()
	h.relay, h.fresh = r, r
	h.mu.Unlock()
	return ""
}

// unreachable is the reason why the relay could not be reached, for the transport.
type unreachable struct{ reason Reason }

func (u unreachable) Error() string { return string(u.reason) }

// errToldOtherwise: a reload has changed how the relay is told of its client.
var errToldOtherwise = errors.New("the request is not for this relay")

// take gives the transport the connection that reach has made. If the transport
// does not want that of before (it keeps those for upgrades apart, and the relay
// may just have closed it), another takes its place.
func (h *httpSession) take() (conn net.Conn, err error) {
	defer func() {
		if p := recover(); p != nil {
			h.s.panicked(p)
			h.s.stop(TaskPanic)
			err = unreachable{TaskPanic}
		}
	}()
	if r := h.takeFresh(); r != nil {
		return r, nil
	}
	h.mu.Lock()
	before := h.relay
	h.mu.Unlock()
	if before != nil {
		before.Close()
	}
	told := h.told
	if reason := h.reach(); reason != "" {
		return nil, unreachable{reason}
	}
	r := h.takeFresh()
	if r == nil || h.told != told {
		return nil, errToldOtherwise
	}
	return r, nil
}

func (h *httpSession) takeFresh() *httpRelay {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.fresh
	h.fresh = nil
	return r
}

// Read is the transport's, which always reads. While no request is in flight the
// relay may be silent as long as the client may; while one is, an answer that has
// come to a halt ends with connection_timeout_secs.
func (r *httpRelay) Read(p []byte) (int, error) {
	for {
		if r.upgraded.Load() {
			return 0, errWouldBlock
		}
		n, err := r.socket.Read(p)
		if n > 0 {
			r.h.move()
			return n, nil
		}
		if !isTimeout(err) || r.upgraded.Load() {
			return 0, err
		}
		idle := r.h.s.terms.times.idle
		left := idle
		if r.h.inFlight() {
			left -= r.h.silent()
		}
		if left <= 0 {
			r.h.s.stop(IdleTimeout)
			return 0, err
		}
		r.socket.SetReadDeadline(time.Now().Add(left))
	}
}

func (r *httpRelay) Write(p []byte) (int, error) {
	if err := r.socket.WriteAll(p, r.h.s.terms.times.writerStall); err != nil {
		if errors.Is(err, socket.ErrStalled) {
			r.h.stall.Store(true)
		}
		return 0, err
	}
	r.h.move()
	return len(p), nil
}

// Close is the transport's: the relay has ended the connection, or an exchange
// on it has failed. The session goes on, and the next request gets another.
func (r *httpRelay) Close() error {
	r.h.mu.Lock()
	held := r.h.relay == r
	if held {
		r.h.relay, r.h.fresh = nil, nil
	}
	r.h.mu.Unlock()
	if held {
		r.h.s.part()
	}
	return nil
}

func (r *httpRelay) LocalAddr() net.Addr                { return r.socket.LocalAddr() }
func (r *httpRelay) RemoteAddr() net.Addr               { return r.socket.RemoteAddr() }
func (r *httpRelay) SetDeadline(t time.Time) error      { return r.socket.SetDeadline(t) }
func (r *httpRelay) SetReadDeadline(t time.Time) error  { return r.socket.SetReadDeadline(t) }
func (r *httpRelay) SetWriteDeadline(t time.Time) error { return r.socket.SetWriteDeadline(t) }
