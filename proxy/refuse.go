package proxy

import (
	"net"

	"relayedge/proxy/loop"
)

// refuse closes a connection that is not let in, as refuse_with says. It waits
// for nothing, allocates nothing and starts nothing: there may be very many.
func (t *terms) refuse(conn net.Conn) {
	t.partWith(conn)
	conn.Close()
}

// partWith says what there is to say before the close of a refused connection.
func (t *terms) partWith(conn net.Conn) {
	switch t.config.RefuseWith {
	case "reset":
		abort(conn) // a unix socket has no reset: its close is one to whoever has written
	case "tls_alert":
		// Seven bytes fit into what was sent nothing yet, unless the kernel has no memory.
		if c, ok := conn.(loop.Stream); ok {
			c.TryWrite(alertAccessDenied) // a loop refuses in its own goroutine, which must not wait
		} else {
			conn.Write(alertAccessDenied)
		}
	}
}
