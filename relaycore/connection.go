package relaycore

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"relayedge/admission"
	"relayedge/internal/proxyheader"
	"relayedge/relaycore/api"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// The times of a connection before its session.
const (
	proxyHeaderTime = 5 * time.Second  // for the whole PROXY header, from accept
	headTime        = 5 * time.Second  // for the whole request head, from the end of that
	upgradeTime     = 10 * time.Second // for the upgrade, from the same moment
)

var endpoint = websocket.Endpoint{Path: wire.Path, Subprotocol: wire.Subprotocol}

// connection takes an admitted connection through its PROXY header and its
// upgrade, and hands it to a session, or to the server of the HTTP API, which then
// owns nc and the lease.
func (s *Server) connection(nc net.Conn, lease *admission.Lease, accepted time.Time) {
	handed, check := false, false
	who := about{client: peerAddr(nc)}
	defer func() {
		if fault := recover(); fault != nil {
			s.panicked(fault, &who)
			s.count.reject(ReasonTaskPanic)
		}
		if !handed {
			nc.Close()
			lease.Release()
			s.leave(nc)
			if !check {
				s.tell(slog.LevelDebug, &who, "connection ended before a session")
			}
		}
	}()

	in := arrivals{nc: nc}
	var binding *[32]byte
	start := accepted
	if s.start.ProxyProtocol {
		nc.SetReadDeadline(accepted.Add(proxyHeaderTime))
		h, rest, err := proxyheader.Read(nc, proxyheader.V2)
		if err != nil {
			s.count.reject(ReasonProxyHeader)
			return
		}
		in.b = rest
		start, check = time.Now(), h.Local
		who = about{connectionID(h), h.Source.Addr()}
		if reason := lease.Name(who.client, start); reason != "" {
			s.count.reject(reason)
			return
		}
		if value, ok := h.Lookup(byte(s.start.ChannelBindingTLV)); ok && len(value) == 32 {
			binding = (*[32]byte)(append([]byte(nil), value...))
		}
	}
	rest, follows := s.upgrade(&in, start)
	switch follows {
	case nothing:
		return
	case calls:
		handed = s.serveAPI(&caller{Conn: nc, server: s, lease: lease, about: who, binding: binding, rest: rest})
		return
	}
	c := s.newSession(nc, lease, who, accepted, binding)
	if !s.enter(nc, c) {
		return
	}
	// A fresh goroutine: this one's stack has grown, and an idle session would keep it.
	handed = true
	s.running.Go(func() {
		defer s.leave(nc)
		c.run(rest)
	})
}

// arrivals is what has come and is not used yet. It grows only with bytes that
// are there.
type arrivals struct {
	nc net.Conn
	b  []byte
}

// more waits for bytes and appends them. The caller bounds b.
func (a *arrivals) more() error {
	const step = 1 << 10
	if cap(a.b)-len(a.b) < step/2 {
		a.b = append(make([]byte, 0, max(2*cap(a.b), step)), a.b...)
	}
	n, err := a.nc.Read(a.b[len(a.b):cap(a.b)])
	a.b = a.b[:len(a.b)+n]
	if n > 0 {
		return nil
	}
	return err
}

// follows is what a connection becomes behind its first request's head.
type follows int

const (
	nothing follows = iota // it was answered
	frames                 // of a session
	calls                  // the HTTP API's, the first of them included
)

// upgrade reads the request's head and answers it, unless it is for the HTTP API.
// It returns what is there for who takes over.
func (s *Server) upgrade(in *arrivals, start time.Time) (rest []byte, next follows) {
	in.nc.SetReadDeadline(start.Add(headTime))
	in.nc.SetWriteDeadline(start.Add(upgradeTime))
	scanned := 0
	for {
		n, err := websocket.HeadLength(in.b, scanned)
		if err != nil {
			status := http.StatusRequestHeaderFieldsTooLarge
			if errors.Is(err, websocket.ErrNotHTTP) {
				status = http.StatusBadRequest
			}
			s.answer(in.nc, websocket.Response(status, true, time.Now()))
			return nil, nothing
		}
		if n > 0 {
			return s.judge(in, n)
		}
		scanned = len(in.b)
		if err := in.more(); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.count.reject(ReasonHandshakeTimeout)
				s.answer(in.nc, websocket.Response(http.StatusRequestTimeout, true, time.Now()))
			}
			return nil, nothing
		}
	}
}

// judge answers the request whose head is n bytes long.
func (s *Server) judge(in *arrivals, n int) (rest []byte, next follows) {
	a := endpoint.Judge(in.b[:n], time.Now())
	if a.Decoy && api.Serves(a.Method, a.Path) {
		return in.b, calls
	}
	if !a.Upgraded {
		if a.Decoy {
			s.count.decoys.Add(1)
		}
		s.answer(in.nc, a.Response)
		return nil, nothing
	}
	if _, err := in.nc.Write(a.Response); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.count.reject(ReasonHandshakeTimeout)
		}
		return nil, nothing
	}
	in.nc.SetDeadline(time.Time{})
	return in.b[n:], frames
}

// answer writes a response that is the connection's last.
func (s *Server) answer(nc net.Conn, response []byte) {
	if _, err := nc.Write(response); err != nil || !s.lingers.take() {
		return
	}
	defer s.lingers.give()
	lingeringClose(nc, time.Now().Add(lastWords))
}
