package admission

import (
	"errors"
	"net"
	"syscall"
)

// Conn is an admitted connection: it holds a lease and gives it back when it is
// closed. It has no ReadFrom and no WriteTo, so that whoever wraps it to count
// its bytes sees them all.
type Conn struct {
	net.Conn
	lease *Lease
}

// Close closes the connection and then gives its slot back, once, however
// often it is called.
func (c *Conn) Close() error {
	defer c.lease.Release() // after the descriptor is free, and even if Close panics
	return c.Conn.Close()
}

// CloseWrite ends the sending direction. It returns errors.ErrUnsupported if
// the connection below has no half-close.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// NetConn returns the connection below. Closing it does not give the slot back.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// SyscallConn returns the raw connection below, for socket options. It returns
// errors.ErrUnsupported if there is none.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
