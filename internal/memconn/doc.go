// Package memconn makes in-memory TCP connections for tests in synthetic time:
// with addresses, deadlines, a bounded buffer in each direction, half-close and
// reset. Everything that waits does so on a sync.Cond or a timer, so that a
// testing/synctest bubble sees it as durably blocked; the same connections work
// outside a bubble.
//
// Errors are those of the net package: *net.OpError around net.ErrClosed,
// os.ErrDeadlineExceeded or an *os.SyscallError, and io.EOF bare.
//
// For an event loop, TryRead, TryWrite and Notify are what read, write and epoll
// are on a non-blocking descriptor; their errors are bare. Who waits in a loop of
// its own does so where it is told, and a bubble sees that as it sees the rest.
//
// Four things differ from Linux, each for the sake of tests that come out the
// same every time:
//
//   - A write after the peer's Close fails at once. A real one succeeds until
//     the peer's RST has travelled back.
//   - Close leaves what was sent readable and ends in io.EOF, even if the closing
//     end had unread bytes of its own. Linux sends a RST then; to test for it,
//     call Reset.
//   - A reset takes away what the peer has not read, and its reads and writes fail
//     with ECONNRESET every time, not only the first.
//   - A deadline is over at its very instant, whether or not its timer ran yet.
package memconn
