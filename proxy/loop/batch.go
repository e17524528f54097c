package loop

// Mover is a handler that moves bytes between its connections. Where many are
// told of something in one turn, their reads are made together before they are
// told, and their writes after it.
type Mover interface {
	Handler
	// Reads reports whether the mover, when it is told that c is readable, reads it.
	// It must not use c.
	Reads(c Stream) bool
	// Wrote tells what became of a Write: the socket has taken n bytes and not the
	// rest, which is the loop's when the call ends; or it is broken.
	Wrote(c Stream, n int, rest []byte, err error)
}

// batcher makes the reads and the writes of a turn together.
type batcher interface {
	// begin reads the connections of movers that have something to read, ahead of
	// their TryRead. end is called when all have been told.
	begin([]occurrence)
	// take keeps b to be written in the end, or reports false.
	take(c Stream, b []byte, m Mover) bool
	// settle has what was taken for c written.
	settle(c Stream)
	end()
	close()
}

// Write writes b, at once or at the end of the turn, and tells the mover by
// Wrote what became of it. The mover has been told of all that it wrote to c
// before when it is told of what follows; b is the caller's again when Write
// returns.
func (l *Loop) Write(c Stream, b []byte, m Mover) {
	if l.batch != nil && l.batch.take(c, b, m) {
		return
	}
	n, err := c.TryWrite(b)
	if err == ErrWouldBlock {
		n, err = 0, nil
	}
	m.Wrote(c, n, b[n:], err)
}

// Settle has all that was given to Write for c written, as far as it goes
// without waiting. It comes before anything else that is done to c's sending side.
func (l *Loop) Settle(c Stream) {
	if l.batch != nil {
		l.batch.settle(c)
	}
}
