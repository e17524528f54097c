package proxy

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"relayedge/admission"
	"relayedge/internal/sockopt"
	"relayedge/proxy/loop"
	"relayedge/proxy/upstream"
)

const loopsWork = true

// watchable reports whether a loop can take a listener's newcomers.
func watchable(l net.Listener) bool {
	_, ok := l.(syscall.Conn)
	return ok
}

// acceptOn has a loop take a listener's newcomers until stop. final is told of an
// error that the listener cannot recover from.
func acceptOn(l *loop.Loop, from *listener, final func(error)) (stop func(), err error) {
	var backoff admission.AcceptBackoff
	return l.Accept(from.socket, loop.Accepts{
		Take: func(c *loop.Conn) bool {
			backoff.Reset()
			return from.admit(c)
		},
		Failed: func(err error) time.Duration {
			from.failed(err)
			pause, retry := backoff.Retry(err)
			if !retry {
				final(err)
				return -1
			}
			return pause
		},
	})
}

// connector makes the sockets of dials the loop's.
type connector struct{ loop *loop.Loop }

func connectorOf(l *loop.Loop) upstream.Connector { return connector{l} }

// Connect has the net package connect where a name has to be resolved.
func (c connector) Connect(ctx context.Context, sockets sockopt.Options, network, address string) (net.Conn, error) {
	if network == "unix" {
		return c.loop.Dial(ctx, network, address, nil)
	}
	if to, err := netip.ParseAddrPort(address); err == nil {
		prepare := sockets.Set
		if to.Addr().Unmap().IsLoopback() {
			prepare = sockets.SetNear
		}
		return c.loop.Dial(ctx, network, address, prepare)
	}
	conn, err := sockets.Dialer().DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return c.Adopt(conn)
}

func (c connector) Adopt(conn net.Conn) (net.Conn, error) { return c.loop.Adopt(conn) }
