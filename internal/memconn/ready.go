package memconn

import "syscall"

// TryRead reads what is there and never waits: with nothing there it fails with
// syscall.EAGAIN, after the peer's end with io.EOF, after its reset with
// syscall.ECONNRESET, after Close with net.ErrClosed, each unwrapped. Deadlines
// do not concern it.
func (c *Conn) TryRead(p []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return c.readNow(p)
}

// TryWrite writes as much of p as there is room for and never waits. An error
// means that nothing was taken: syscall.EAGAIN if there is no room or a Write
// has its turn, else what Write fails with, each unwrapped. Deadlines do not
// concern it.
func (c *Conn) TryWrite(p []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if err := c.cannotWrite(); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if !c.hasRoom() {
		return 0, syscall.EAGAIN
	}
	n := c.peer.in.add(p)
	c.link.changed.Broadcast()
	c.peer.tell()
	return n, nil
}

// Notify has f called whenever TryRead or TryWrite may have come to give
// something else than syscall.EAGAIN: bytes have come or gone, an end, a reset,
// a Write of this end that has had its turn. If one of them would do so already,
// Notify itself calls f once. A call may come for nothing; none is left out. It
// replaces the function of an earlier Notify; nil turns it off, and so does
// Close, but for a call that is under way.
//
// f is called in whatever goroutine caused it, the peer's reader or writer for
// one, in several at once if they race, and without a lock held. It must not
// wait, and should only pass the word on: reading and writing in it calls the
// peer's function inside of it.
func (c *Conn) Notify(f func()) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return
	}
	c.notify = f
	readable := c.reset || c.in.len() > 0 || c.peer.ended || c.peer.closed
	if readable || c.cannotWrite() != nil || c.hasRoom() {
		c.tell()
	}
}

// hasRoom reports whether a byte of TryWrite would be taken, if it can be written.
func (c *Conn) hasRoom() bool { return !c.writing && c.peer.in.len() < BufferSize }

// tell calls this end's function, if it has one. It is called with the lock held
// and lets go of it for the call: what the caller knew before may have changed.
func (c *Conn) tell() {
	f := c.notify
	if f == nil {
		return
	}
	c.link.mu.Unlock()
	defer c.link.mu.Lock()
	f()
}
