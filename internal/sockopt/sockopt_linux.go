package sockopt

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// What package syscall does not name.
const (
	tcpUserTimeout      = 18 // TCP_USER_TIMEOUT, tcp(7)
	ipBindAddressNoPort = 24 // IP_BIND_ADDRESS_NO_PORT, ip(7)
)

// keepAlive keeps the net package from setting on every connection what it
// inherits or has already.
const keepAlive = time.Duration(-1)

var keepAliveConfig net.KeepAliveConfig

// setting is one option of a socket.
type setting struct{ level, name, value int }

// Set sets a TCP socket that will connect or listen.
func (o Options) Set(fd int) error {
	return set(fd, append([]setting{
		{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, int(keepIdle / time.Second)},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, int(keepInterval / time.Second)},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, keepProbes},
		{syscall.IPPROTO_TCP, tcpUserTimeout, int(o.userTimeout() / time.Millisecond)},
	}, o.near()...))
}

// SetNear is Set for a socket that connects to this machine, whose other end
// cannot go without a word: that is for the kernel to tell.
func (o Options) SetNear(fd int) error { return set(fd, o.near()) }

func (o Options) near() []setting {
	return []setting{
		{syscall.SOL_SOCKET, syscall.SO_RCVBUF, o.buffer()},
		{syscall.SOL_SOCKET, syscall.SO_SNDBUF, o.buffer()},
		{syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1}, // for engines that accept by themselves
	}
}

func set(fd int, options []setting) error {
	for _, opt := range options {
		err := syscall.SetsockoptInt(fd, opt.level, opt.name, opt.value)
		// A socket that was handed over may be one of Multipath TCP, which lacks some.
		if err != nil && err != syscall.ENOPROTOOPT {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// BindSource has a socket that will connect come from an address, without
// taking a port for it alone: the port is chosen at connect, when the other end
// is known, so that one port serves a connection to each of them.
func BindSource(fd int, source netip.Addr) error {
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, ipBindAddressNoPort, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	var address syscall.Sockaddr = &syscall.SockaddrInet6{Addr: source.As16()}
	if source.Is4() {
		address = &syscall.SockaddrInet4{Addr: source.As4()}
	}
	return os.NewSyscallError("bind", syscall.Bind(fd, address))
}
