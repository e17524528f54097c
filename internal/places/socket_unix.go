//go:build unix

package places

import (
	"io"
	"net"
	"os"
	"syscall"
)

// raw returns the socket of a connection, nil if it has none.
func raw(c net.Conn) syscall.RawConn {
	source, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	socket, err := source.SyscallConn()
	if err != nil {
		return nil
	}
	return socket
}

// read reads under the lock, so that what was taken out of the socket and has not
// come to the server yet is never taken for silence.
func (c *conn) read(p []byte) (n int, err error) {
	socket := raw(c.Conn)
	if socket == nil || len(p) == 0 {
		return c.readUnseen(p)
	}
	waited := socket.Read(func(fd uintptr) bool {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		for {
			// The sockets of the net package never block.
			if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
				break
			}
		}
		c.wait(err == syscall.EAGAIN, len(p))
		return !c.reading
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// unread reports whether bytes have come that the server has not read.
func unread(c net.Conn) (there bool) {
	socket := raw(c)
	if socket == nil {
		return false
	}
	// Not socket.Read, which waits for the read that is under way.
	_ = socket.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		there = err == nil && n > 0
	})
	return there
}
