// Package memconn makes in-memory TCP connections for tests in synthetic time:
// with addresses, deadlines, a bounded buffer in each direction, half-close and
// reset. Everything that waits does so on channels or timers, so that a
// testing/synctest bubble sees it as durably blocked.
package memconn

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// BufferSize is how many bytes one direction holds before a write waits.
const BufferSize = 64 << 10

// Conn is one end of a connection. It keeps the contract of net.TCPConn: a
// write that meets its deadline returns how many bytes were taken; reads
// deliver what was sent before the peer's CloseWrite or Close and then io.EOF;
// after the peer closed altogether, a write fails with syscall.ECONNRESET or EPIPE
// wrapped in a *net.OpError; a read or write after Close fails with net.ErrClosed.
type Conn struct{}

// Pipe returns a connected pair: the first end has address a and peer b, the second the reverse.
func Pipe(a, b netip.AddrPort) (*Conn, *Conn) { panic("stub") }

func (c *Conn) Read(p []byte) (int, error)         { panic("stub") }
func (c *Conn) Write(p []byte) (int, error)        { panic("stub") }
func (c *Conn) Close() error                       { panic("stub") }
func (c *Conn) LocalAddr() net.Addr                { panic("stub") } // *net.TCPAddr
func (c *Conn) RemoteAddr() net.Addr               { panic("stub") } // *net.TCPAddr
func (c *Conn) SetDeadline(t time.Time) error      { panic("stub") }
func (c *Conn) SetReadDeadline(t time.Time) error  { panic("stub") }
func (c *Conn) SetWriteDeadline(t time.Time) error { panic("stub") }

// CloseWrite ends this direction: the peer reads what was sent, then io.EOF.
func (c *Conn) CloseWrite() error { panic("stub") }

// Reset closes the connection as a RST does: the peer loses what it has not
// read, and its reads and writes fail with syscall.ECONNRESET.
func (c *Conn) Reset() { panic("stub") }

// Listener is a net.Listener in memory with an unbounded backlog.
type Listener struct{}

// Listen returns a listener with the address addr.
func Listen(addr netip.AddrPort) *Listener { panic("stub") }

// Dial connects to the listener from the address from. It fails with
// syscall.ECONNREFUSED once the listener is closed.
func (l *Listener) Dial(ctx context.Context, from netip.AddrPort) (*Conn, error) { panic("stub") }

func (l *Listener) Accept() (net.Conn, error) { panic("stub") }
func (l *Listener) Close() error              { panic("stub") }
func (l *Listener) Addr() net.Addr            { panic("stub") }
