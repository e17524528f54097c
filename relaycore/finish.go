package relaycore

import (
	"log/slog"
	"net"
	"time"

	"relayedge/relaycore/websocket"
)

// finish ends what end began: the session leaves the directory, gives its slot
// back, and only then spends time on a client that may not listen.
func (c *session) finish() {
	defer c.contain()
	defer c.out.account.writeOff() // a writer may take a moment to end
	defer c.out.drop()
	defer c.io.Close()
	defer c.lease.Release()
	c.settle()
	c.buffers.add(-c.weight)
	c.parser, c.weight = nil, 0
	c.mu.Lock()
	why := c.why
	c.mu.Unlock()
	s := c.server
	if why.reason != "" {
		s.count.reject(why.reason)
	}
	told := s.dir.leave(c)
	if why == endDrain {
		told.allSpare() // those who hear of it end too, behind what is queued for them
	}
	c.lease.Release()
	s.tell(slog.LevelDebug, &c.about, "session ended", slog.String("reason", why.told()), slog.Duration("after", time.Since(c.started).Round(time.Millisecond)))
	told.send()
	if why.code == 0 {
		return
	}
	last := newFrame()
	last.buf = websocket.AppendClose(last.buf, why.code, why.text)
	if why == endDrain {
		// A drain is bounded as a whole, and nobody comes after it.
		start, written := c.out.close(last)
		if start {
			c.startWriter()
		}
		c.awaitTaken(written)
		by := time.Now().Add(lastWords)
		c.io.CloseAt(by)
		lingeringClose(c.io, by)
		return
	}
	// At other times there may be any number of the ended.
	by := time.Now().Add(lastWord)
	linger := s.lingers.take()
	if linger {
		defer s.lingers.give()
		by = time.Now().Add(lastWords)
	}
	c.io.CloseAt(by)
	start, written := c.out.close(last)
	if start {
		c.startWriter()
	}
	<-written
	if linger {
		lingeringClose(c.io, by)
	}
}

// lingerBytes is what a closed connection's client may still send before it is cut.
const lingerBytes = 64 << 10

// lingeringClose ends the sending side and reads until the client has closed
// too. A socket that is closed with unread bytes answers them with a reset,
// which can take from the client what was written last.
func lingeringClose(nc net.Conn, by time.Time) {
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	nc.SetReadDeadline(by)
	var sink [512]byte
	for total := 0; total < lingerBytes; {
		n, err := nc.Read(sink[:])
		if err != nil {
			return
		}
		total += n
	}
}
