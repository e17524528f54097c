// Package sockopt says how a TCP socket of ours is set: how soon a dead peer is
// noticed, how much kernel memory a connection may take, and that nothing is
// held back to fill a segment. It knows no addresses and no policy.
//
// On Linux everything is set on the listening socket, whose accepted sockets
// inherit it: a connection costs no system call for it. Elsewhere the net
// package sets the keepalive on every connection, and the rest is the system's.
//
// A peer that has gone without a word (a phone out of reach, a NAT that forgot)
// is noticed in 90 seconds either way: while nothing is sent, by three keepalive
// probes 15 seconds apart after 45 idle seconds; while bytes wait for its
// acknowledgement, by TCP_USER_TIMEOUT. Carrier NATs forget idle mappings after
// a minute and more, which is why the first probe comes before.
//
// TCP_USER_TIMEOUT also ends a peer that answers and keeps its window shut, so it
// must not be shorter than the patience that somebody wrote down: see Options.
//
// Buffers are bounded by SO_SNDBUF and SO_RCVBUF, which turn the kernel's
// autotuning off. Its bound, tcp_wmem and tcp_rmem, is of megabytes a
// connection, and a peer that reads nothing chooses how much of them it takes.
package sockopt

import (
	"cmp"
	"fmt"
	"net"
	"syscall"
	"time"
)

// How a dead peer is noticed.
const (
	keepIdle     = 45 * time.Second
	keepInterval = 15 * time.Second
	keepProbes   = 3
	userTimeout  = keepIdle + keepProbes*keepInterval
)

// BufferBytes is the default of Options.BufferBytes: over a path of 100 ms it
// carries about 1.5 MB a second, more than a client may send by default.
const BufferBytes = 128 << 10

// Options are what differs between sockets. The zero value is the default.
type Options struct {
	// BufferBytes bounds what the kernel holds of a connection's bytes, in each
	// direction. The kernel counts its own bookkeeping too and takes up to twice as
	// much; net.core.rmem_max and wmem_max cap it without a word.
	BufferBytes int
	// Patience is how long a peer may take no byte while bytes wait for it. A
	// longer one than 90 seconds takes TCP_USER_TIMEOUT with it.
	Patience time.Duration
}

func (o Options) buffer() int                { return cmp.Or(o.BufferBytes, BufferBytes) }
func (o Options) userTimeout() time.Duration { return max(userTimeout, o.Patience) }

// ListenConfig sets the TCP sockets that listen, and so those that they accept.
func (o Options) ListenConfig() *net.ListenConfig {
	c := &net.ListenConfig{Control: o.control, KeepAlive: keepAlive, KeepAliveConfig: keepAliveConfig}
	// Multipath TCP, Go's default, takes only some of these options.
	c.SetMultipathTCP(false)
	return c
}

// Dialer sets the TCP sockets that connect.
func (o Options) Dialer() *net.Dialer {
	return &net.Dialer{Control: o.control, KeepAlive: keepAlive, KeepAliveConfig: keepAliveConfig}
}

// Apply gives a listener of ListenConfig these options instead of those that it
// has. Connections that are accepted already keep theirs. What is no kernel's
// TCP socket is left alone.
func (o Options) Apply(l net.Listener) error {
	if _, ok := l.Addr().(*net.TCPAddr); !ok {
		return nil
	}
	socket, ok := l.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	return o.control(l.Addr().Network(), "", raw)
}

func (o Options) control(network, _ string, raw syscall.RawConn) error {
	if len(network) < 3 || network[:3] != "tcp" {
		return nil
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = o.Set(int(fd)) }); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("socket options: %w", failed)
	}
	return nil
}
