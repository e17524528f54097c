package proxy

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"relayedge/admission"
	"relayedge/internal/proxyheader"
	"relayedge/internal/socket"
	"relayedge/proxy/certs"
	"relayedge/proxy/upstream"
)

// session is one connection that was admitted, or let into the lane, from accept
// to its one outcome. It is the seam at which an engine fits: an engine moves the
// bytes and watches the time; what a connection may do, where it goes, what the
// relay is told and how its end is counted are decided here, in this order:
//
//	named      the client's address is known (from the socket, or a PROXY header)
//	enter      a place among the handshakes in flight is taken, where TLS is looked at
//	secured    the TLS handshake is done, where TLS ends here
//	dial       the relay is reached
//	header     the PROXY header for the relay (introduction.go)
//	finish     the outcome is counted and the lease given back
//
// A session is carried by a goroutine, which may wait, or by an event loop, which
// may not: carrier says which.
type session struct {
	server   *Server
	listener *listener
	terms    *terms
	lease    *admission.Lease
	accepted time.Time
	gathers  bool   // the flights of its handshake leave together, see shakeHands
	lane     bool   // it is in the lane, and holds nothing else; of the goroutine that carries it
	id       string // the UNIQUE_ID that the relay is told and the log names

	client, target netip.AddrPort     // as the relay is told; the socket's own unless a trusted header says otherwise
	upstream       *upstream.Upstream // where it goes: the listener's own until a server name says otherwise; nil: nowhere yet
	serverName     string             // that the client asked for, where TLS is looked at
	state          *tls.ConnectionState

	ctx    context.Context // ends with stop
	cancel context.CancelFunc

	mu      sync.Mutex
	outcome Reason
	stopped bool
	carrier carrier        // nil: a goroutine carries it
	cut     bool           // the relay's stream was cut short by a rule
	counted bool           // the gate counts it for the client; client is read by others then
	conn    net.Conn       // the client's socket
	wire    *wire          // conn, as the engine reads it
	secure  *tls.Conn      // nil until the handshake is done
	relay   net.Conn       // nil until the relay is reached
	link    *upstream.Link // relay, as its upstream counts it
	http    *httpSession   // nil unless requests are parsed
}

// carrier is what carries a session without a goroutine.
type carrier interface {
	// interrupt has the carrier end the session for the outcome that is named. It
	// may be called from any goroutine, and does not wait for it.
	interrupt()
}

func newSession(l *listener, terms *terms, lease *admission.Lease, conn net.Conn, now time.Time) *session {
	var id [16]byte
	rand.Read(id[:])
	s := &session{
		server: l.server, listener: l, terms: terms, lease: lease, accepted: now,
		id: hex.EncodeToString(id[:]), counted: lease != nil && terms.trust.Empty(),
		client: peerOf(conn), target: localOf(conn),
		conn: conn, wire: &wire{Socket: socket.New(conn, buffers), stats: l.server.stats},
	}
	if fallback := terms.routes.fallback; fallback != nil {
		s.upstream = fallback.upstream
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// named takes what a trusted peer's PROXY header says and charges the client
// that it names. A header that names nobody leaves the peer's own address and
// the global slot alone. It returns why the client is refused.
func (s *session) named(h proxyheader.Header, now time.Time) Reason {
	if !h.Source.IsValid() {
		return ""
	}
	s.client, s.target = h.Source, h.Destination
	reason := s.lease.Name(h.Source.Addr(), now)
	s.count(reason == "")
	return reason
}

// enter takes one of the places for handshakes. Whoever has to make way
// for it ends at once; if nobody has to, there is no place.
func (s *session) enter(now time.Time) (*admission.Place, bool) {
	source := admission.Source(s.client.Addr(), s.terms.embedded)
	return s.server.places.Enter(source, now, func() { s.stop(HandshakeCap) })
}

// secured keeps what the TLS handshake told; from here the end says goodbye.
func (s *session) secured(conn *tls.Conn) {
	state := conn.ConnectionState()
	s.state, s.serverName = &state, state.ServerName
	if s.wire.route != nil { // a CA's validation has none
		s.upstream = s.wire.route.upstream
	}
	s.wire.records.begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secure = conn
}

// validation reports whether a CA has just validated a name: the handshake was
// all that it wanted, and no relay hears of it.
func (s *session) validation() bool {
	return s.state != nil && s.state.NegotiatedProtocol == certs.ValidationProtocol
}

// dial reaches the relay; stop interrupts it.
func (s *session) dial() (*socket.Socket, Reason) {
	connect := s.server.engine.connector(s)
	link, err := s.upstream.DialBy(s.ctx, connect)
	if err != nil && s.upstream.Retired() && s.reroute() {
		link, err = s.upstream.DialBy(s.ctx, connect)
	}
	switch {
	case err == nil && !s.adopt(link):
		return nil, Drain
	case err == nil:
		link.OnLost(s.lose)
		return socket.New(link.Conn, buffers), ""
	case errors.Is(err, upstream.ErrLocalPorts):
		return nil, LocalPorts
	case errors.Is(err, upstream.ErrDescriptors):
		return nil, Descriptors
	case errors.Is(err, upstream.ErrTimeout):
		return nil, UpstreamTimeout
	}
	return nil, UpstreamUnavailable
}

// reroute chooses the route anew, by the terms in force: a reload has taken the
// upstream away since it was chosen.
func (s *session) reroute() bool {
	route := s.listener.terms.Load().routes.find(s.serverName)
	if route == nil {
		return false
	}
	s.upstream = route.upstream
	return true
}

// adopt has stop close the relay's connection too; if stop was before, it
// closes it and reports false.
func (s *session) adopt(link *upstream.Link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		link.Conn.Close()
		link.Release()
		return false
	}
	s.link, s.relay = link, link.Conn
	return true
}

// part closes the relay's connection, whose place another may take.
func (s *session) part() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		s.relay.Close()
		s.link.Release()
		s.link, s.relay = nil, nil
	}
}

// lose ends a session whose relay is lost: what has come of its stream is not
// the whole.
func (s *session) lose() { s.cutShort(UpstreamUnavailable) }

// cutShort ends a session of whose relay's stream the client has not the whole.
func (s *session) cutShort(r Reason) {
	s.mu.Lock()
	s.cut = true
	s.mu.Unlock()
	s.stop(r)
}

// end names the outcome; the first one that is named stands.
func (s *session) end(r Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outcome == "" {
		s.outcome = r
	}
}

// stop ends the session from anywhere: whatever it waits for is interrupted. A
// stream that was cut short ends as such, by a reset and without TLS's goodbye,
// so that the other side does not take what it has for the whole.
func (s *session) stop(r Reason) {
	s.end(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	s.cancel()
	if s.carrier != nil {
		s.carrier.interrupt()
		return
	}
	if s.http != nil && s.http.answering.Load() {
		s.cut = true
	}
	s.wire.Hurry() // crypto/tls's goodbye waits for a write that waits
	if s.isCut() {
		abort(s.conn)
		abort(s.relay)
	} else if s.secure != nil {
		s.secure.Close()
	}
	s.conn.Close()
	if s.relay != nil {
		s.relay.Close()
	}
}

// isCut requires mu. It reports whether the streams end short of their whole.
func (s *session) isCut() bool {
	return s.outcome == Reset || s.outcome == WriterStall || s.outcome == TaskPanic || s.cut
}

// carriedBy has another carrier carry the session; nil is a goroutine. It reports
// false if the session was stopped before: then whoever carried it ends it.
func (s *session) carriedBy(c carrier) bool {
	return s.unlessStopped(func() { s.carrier = c })
}

// unlessStopped changes what stop would interrupt, at a moment at which it does
// not. It reports false if the session was stopped before.
func (s *session) unlessStopped(change func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	change()
	return true
}

// lighten lets go of what was for reaching the relay and telling it who the client
// is: it is no small thing to keep for a connection that is idle.
func (s *session) lighten() {
	s.state = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		s.ctx, s.cancel = nil, func() {}
	}
}

// abort makes the close of a TCP connection a reset.
func abort(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(seconds int) error }); ok {
		tcp.SetLinger(0)
	}
}

// release is the end of a carrier, before finish: from here nobody interrupts it.
// It reports whether the streams end short of their whole.
func (s *session) release() (cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.carrier, s.stopped = nil, true
	s.cancel()
	return s.isCut()
}

// finish closes what is open, counts the outcome and gives the lease back. A
// goroutine that carries the session defers it: it contains a panic.
func (s *session) finish() {
	if p := recover(); p != nil {
		s.panicked(p)
	}
	defer s.server.running.Done()
	s.stop(ClientClosed)
	s.wire.drop()
	s.lease.Release()
	s.part()
	if !s.lane {
		s.server.room.give()
	}
	s.server.forget(s)
	s.listener.open.Add(-1)
	s.server.stats.end(s.outcome)
	s.tell(slog.LevelDebug, "connection ended", slog.String("reason", string(s.outcome)), slog.Duration("after", time.Since(s.accepted).Round(time.Millisecond)))
}

func (s *session) panicked(p any) {
	s.tell(slog.LevelError, "a connection's task panicked; only this connection ends", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	s.end(TaskPanic)
}

// handshakeFailure names why a handshake failed. told is what the certificate
// callback said, if it was asked.
func handshakeFailure(err error, told error) Reason {
	if header, ok := errors.AsType[tls.RecordHeaderError](err); ok && (header.Conn != nil || header.RecordHeader[0] == 0x80) {
		return NotTLS
	}
	switch {
	case isTimeout(err):
		return TLSHandshakeTimeout
	case errors.Is(told, certs.ErrUnknownName):
		return UnknownServerName
	case told != nil:
		return CertificateUnavailable
	}
	if r := streamEnd(err); r != "" {
		return r
	}
	return TLSHandshakeFailed
}

// streamEnd names the end of a client's stream, or nothing for another kind of error.
func streamEnd(err error) Reason {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return ClientClosed
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return Reset
	}
	return ""
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// peerOf is the address of a connection's peer; a socket of an event loop tells it
// without an allocation.
func peerOf(c net.Conn) netip.AddrPort {
	if c, ok := c.(interface{ PeerAddrPort() netip.AddrPort }); ok {
		return c.PeerAddrPort()
	}
	return addrPort(c.RemoteAddr())
}

// localOf is the address of this end of a connection.
func localOf(c net.Conn) netip.AddrPort {
	if c, ok := c.(interface{ LocalAddrPort() netip.AddrPort }); ok {
		return c.LocalAddrPort()
	}
	return addrPort(c.LocalAddr())
}

// addrPort is the address of a TCP socket, or the zero AddrPort.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}
