//go:build !unix

package places

import "net"

func (c *conn) read(p []byte) (int, error) { return c.readUnseen(p) }

// unread cannot tell here: who has not been read within firstWord counts as silent.
func unread(net.Conn) bool { return false }
