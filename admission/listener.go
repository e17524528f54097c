package admission

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Listener yields only admitted connections. A refusal is closed and never an
// Accept error; an accept that fails for a reason that passes is tried again
// after a pause.
type Listener struct {
	// Static.
	ln      net.Listener
	gate    *Gate
	refused func(Reason)

	closing sync.Once
	closed  chan struct{} // closed by Close: it ends the pause of an Accept
}

// NewListener guards ln with g. refused, if not nil, is told of each refusal; it must not block.
func NewListener(ln net.Listener, g *Gate, refused func(Reason)) *Listener {
	return &Listener{ln: ln, gate: g, refused: refused, closed: make(chan struct{})}
}

// Accept waits for the next connection that the gate admits; it is a [*Conn].
// Connections that the gate refuses are closed on the way. An error is one of
// the guarded listener that no pause would mend, net.ErrClosed above all.
func (l *Listener) Accept() (net.Conn, error) {
	var backoff AcceptBackoff
	for {
		c, err := l.ln.Accept()
		if err != nil {
			if !backoff.Wait(err, l.closed) {
				return nil, err
			}
			continue
		}
		backoff.Reset()
		lease, reason := l.gate.Admit(AddrOf(c.RemoteAddr()), time.Now())
		if reason == "" {
			return &Conn{Conn: c, lease: lease}, nil
		}
		c.Close() // nothing was sent, so nothing can be lost
		if l.refused != nil {
			l.refused(reason)
		}
	}
}

// Close closes the guarded listener. Connections that were accepted stay open
// and keep their leases.
func (l *Listener) Close() error {
	// An Accept that wakes from its pause must find the listener closed.
	defer l.closing.Do(func() { close(l.closed) })
	return l.ln.Close()
}

// Addr returns the address of the guarded listener.
func (l *Listener) Addr() net.Addr { return l.ln.Addr() }

// AddrOf returns the IP address of a, or the zero Addr if it has none: the
// address of a unix socket, or nil.
func AddrOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case nil:
		return netip.Addr{}
	case interface{ AddrPort() netip.AddrPort }: // *net.TCPAddr, among others
		return a.AddrPort().Addr()
	}
	// A listener that wraps another may have an address type of its own, and
	// its connections must not escape the caps of their hosts by it.
	if strings.HasPrefix(a.Network(), "tcp") {
		if ap, err := netip.ParseAddrPort(a.String()); err == nil {
			return ap.Addr()
		}
	}
	return netip.Addr{}
}
