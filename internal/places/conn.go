package places

import (
	"net"
	"time"
)

// stage is how far a connection is.
type stage int

const (
	asking    stage = iota // no request has come whole
	answering              // the handler has it
	sending                // the handler has returned; the rest of the answer may still go out
	answered
)

// conn is a connection that holds its place until it is closed, by whomever.
type conn struct {
	net.Conn
	of *listener // static

	// Guarded by of.mu.
	entered time.Time
	timer   *time.Timer // nil: there is no bound
	placed  bool
	reading bool // the server waits for bytes, and found none
	stage   stage
	common  bool // counted in of.common
}

// begin says that a request has come. It reports whether the connection still has
// its place, and whether what is not kept for the request is full.
func (c *conn) begin(kept bool) (placed, full bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if !c.placed {
		return false, false
	}
	c.stage = answering
	c.of.silent = 0
	if kept {
		return true, false
	}
	if c.of.common >= c.of.cfg.Most-1 {
		return true, true
	}
	c.of.common++
	c.common = true
	return true, false
}

// handled says that the handler has returned.
func (c *conn) handled() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.stage = sending
}

// sent says that the whole answer is out of the server's hands. The caller holds of.mu.
func (c *conn) sent() {
	c.stage = answered
	c.giveCommon()
	c.of.changed.Broadcast()
}

func (c *conn) giveCommon() {
	if c.common {
		c.common = false
		c.of.common--
	}
}

func (c *conn) Read(p []byte) (int, error) { return c.read(p) }

// wait says whether the server waits for bytes, of which it would take size. The
// caller holds of.mu.
func (c *conn) wait(waits bool, size int) {
	c.reading = waits
	switch {
	case !waits:
	case c.stage == asking:
		c.of.changed.Broadcast()
	case c.stage == sending && size > 1:
		// net/http sends all of an answer before it reads what is left of the request.
		// Its watch for the client's end reads a single byte, and may begin any time.
		c.sent()
	}
}

// readUnseen is a Read of a connection whose bytes cannot be seen before they are
// read: it counts as waiting from its beginning to its end.
func (c *conn) readUnseen(p []byte) (int, error) {
	c.of.mu.Lock()
	c.wait(true, len(p))
	c.of.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.of.mu.Lock()
	c.wait(false, 0)
	c.of.mu.Unlock()
	return n, err
}

// CloseWrite lets net/http end an answer before it closes on a request that was
// not read whole; the client would lose the answer to a RST otherwise.
func (c *conn) CloseWrite() error {
	c.of.mu.Lock()
	if c.stage == sending {
		c.sent()
	}
	c.of.mu.Unlock()
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.remove(c)
	return err
}
