package loop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dial connects to an address of the network "tcp", literal and with its port, or
// to a path of the network "unix". prepare may set options of the socket before
// it connects. It fails as the net package's Dialer does.
func (l *Loop) Dial(ctx context.Context, network, address string, prepare func(fd int) error) (*Conn, error) {
	c, err := l.dial(ctx, network, address, prepare)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return c, nil
}

func (l *Loop) dial(ctx context.Context, network, address string, prepare func(fd int) error) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	family, remote, peer, err := target(network, address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &Conn{loop: l, fd: fd, unix: network == "unix", peer: peer}
	if prepare != nil {
		if err := prepare(fd); err != nil {
			c.Close()
			return nil, err
		}
	}
	err = c.connect(ctx, remote)
	if err == nil && c.isItsOwnPeer() {
		err = os.NewSyscallError("connect", syscall.ECONNREFUSED)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// isItsOwnPeer reports whether TCP has connected a socket to itself: to a port of
// this machine that nobody listens to, and that the kernel has chosen for this end.
func (c *Conn) isItsOwnPeer() bool {
	peer := netip.AddrPortFrom(c.peer.Addr().WithZone(""), c.peer.Port())
	return !c.unix && c.LocalAddrPort() == peer
}

func target(network, address string) (family int, remote unix.Sockaddr, peer netip.AddrPort, err error) {
	if network == "unix" {
		return unix.AF_UNIX, &unix.SockaddrUnix{Name: address}, peer, nil
	}
	peer, err = netip.ParseAddrPort(address)
	if err != nil {
		return 0, nil, peer, fmt.Errorf("%q is no literal address: %w", address, err)
	}
	peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	if a := peer.Addr(); a.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(peer.Port()), Addr: a.As4()}, peer, nil
	}
	remote = &unix.SockaddrInet6{Port: int(peer.Port()), Addr: peer.Addr().As16(), ZoneId: zone(peer.Addr())}
	return unix.AF_INET6, remote, peer, nil
}

func zone(a netip.Addr) uint32 {
	if a.Zone() == "" {
		return 0
	}
	if i, err := net.InterfaceByName(a.Zone()); err == nil {
		return uint32(i.Index)
	}
	return 0
}

// connect waits for the peer's consent, as long as ctx allows. A peer on this
// machine has given it before the first call returns, which is what the second
// call finds out.
func (c *Conn) connect(ctx context.Context, to unix.Sockaddr) error {
	err := connectOnce(c.fd, to)
	if err == unix.EINPROGRESS {
		err = connectOnce(c.fd, to)
	}
	if err == nil || err == unix.EISCONN {
		return nil
	}
	if err != unix.EALREADY && err != unix.EINPROGRESS {
		return os.NewSyscallError("connect", err)
	}
	stop := context.AfterFunc(ctx, func() { c.SetWriteDeadline(past) })
	var failed error
	err = rawConn{c}.Write(func(fd uintptr) bool {
		switch failed = connectOnce(int(fd), to); failed {
		case unix.EALREADY, unix.EINPROGRESS:
			return false
		case unix.EISCONN:
			failed = nil
		}
		return true
	})
	switch {
	case !stop(): // the deadline may be set at this moment: the connection is of no use
		return ctx.Err()
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return os.NewSyscallError("connect", failed)
}

func connectOnce(fd int, to unix.Sockaddr) error {
	for {
		if err := unix.Connect(fd, to); err != unix.EINTR {
			return err
		}
	}
}

// Adopt takes over a socket of the net package's, which is closed in the process.
func (l *Loop) Adopt(conn net.Conn) (*Conn, error) {
	defer conn.Close()
	source, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a loop cannot watch a %T", conn)
	}
	raw, err := source.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Conn{loop: l}
	var failed error
	if err := raw.Control(func(fd uintptr) { c.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("fcntl", failed)
	}
	switch a := conn.RemoteAddr().(type) {
	case *net.TCPAddr:
		c.peer = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
	case *net.UnixAddr:
		c.unix = true
	}
	return c, nil
}
