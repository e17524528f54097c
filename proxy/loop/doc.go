// Package loop waits for many connections at once. A Loop is one goroutine that
// sleeps until something can be done for one of its connections, does it, and goes
// on; a connection that is idle has no goroutine, no buffer and no deadline that
// the runtime knows of. It owns the waiting: the poller, the turn, the wheel of
// timers, the buffers that all connections of a loop share, and the accept of
// newcomers. It knows no TLS, no policy and no reason.
//
// # A turn
//
// Loop.turn takes what the poller found ready and tells each connection's
// Handler. Then it runs what was asked for from other goroutines (Post), those
// who wanted to go on after the others had their turn (Again), and the timers
// that are due. Between turns the loop sleeps in the runtime's own poller, which
// costs no thread: a thread blocked in a system call of its own makes the
// scheduler look after it (poll_linux.go).
//
// Whoever is told something does as much as it may without waiting, and no more
// than a buffer at a time: a connection that has more to do asks for Again, so
// that one which moves bulk does not hold the others up.
//
// A Mover, which passes bytes on, does not notice what most of its time would go
// to: where several of them are told in one turn, their connections are read by
// one system call before they are told, and what they Write is written by another
// when all have been (batch_linux.go), if the kernel has io_uring (ring_linux.go).
// None of those calls waits, so that nothing is under way between turns.
//
// # A connection
//
// Conn is a socket of the kernel's. It is somebody's at each moment: of a
// goroutine, for which it waits as a net.Conn does, or of a Handler, which is
// told when it may be read and written, and then uses TryRead and TryWrite.
// Loop.Hand gives it to a handler, Loop.Lend back to a goroutine. Readiness is
// reported once per change (edge-triggered): whoever is told reads until nothing
// is left, or asks for Again. Close may be called from anywhere at any time.
//
// Stream is what a handler needs of a connection. A connection in memory that can
// say when it is ready (Notifier) fits too: InMemory makes a loop for those, which
// sleeps on a channel, so that everything above is tested in synthetic time.
//
// # Numbers in the poller's hands
//
// A batch of events may hold one of a descriptor that was closed earlier in the
// same batch, and whose number has another connection by then. So what the kernel
// is told to report is a slot of the loop's own table and the slot's generation,
// never the descriptor.
package loop
