//go:build unix

package places

import (
	"net"
	"syscall"
)

// unread reports whether bytes have come that the server has not read.
func unread(c net.Conn) (there bool) {
	source, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := source.SyscallConn()
	if err != nil {
		return false
	}
	// Not raw.Read, which waits for the read that is under way. The sockets of the
	// net package never block.
	_ = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		there = err == nil && n > 0
	})
	return there
}
