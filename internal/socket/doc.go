// Package socket reads and writes connections of which most are idle and some
// stall. It owns reads that hold no buffer while they wait, and writes whose
// patience is measured from the last byte that the peer took.
//
// Where the operating system can say that a connection is readable or writable,
// the runtime's poller waits and the system calls are made here; a connection
// that cannot say so, and every connection on a system without file
// descriptors, is served by the net.Conn contract alone.
//
// It refuses to know what the bytes mean, whose they are, how long a peer may
// be silent (read deadlines stay the caller's), and who closes a connection.
package socket
