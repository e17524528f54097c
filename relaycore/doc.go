// Package relaycore is the relay: WebSocket sessions behind a front end, their
// identities, conversation requests, circuits, and the messages on them. It
// owns what a session may do and how long it may take for it. It knows frames
// (relaycore/wire), framing (relaycore/websocket) and the gate (admission); it
// does not know TLS, the edge, YAML or Prometheus.
//
// # The path of a connection
//
// The accept loop refuses untrusted peers and asks the gate; then one straight
// function takes over: the PROXY header, the HTTP upgrade, and on a goroutine
// with a fresh stack the session. The session's goroutine is its reader and the
// only one that ends it: everybody else says [session.end], which wakes it. The
// writer is a goroutine that exists only while something waits to be written,
// so an idle session is its struct and one goroutine without a buffer.
//
// # Locks
//
// Two kinds, and none is held across a wait: directory.mu guards who is
// connected, who asked for whom, and the circuits; outbound.mu guards one
// session's queue. Neither is taken while the other is held. Server.mu, over
// the table of connections, is taken with none of them held.
//
// # Memory
//
// Two budgets bound what clients make the relay hold: frames on their way to
// them, and what has come of unfinished messages. Who charges one and finds it
// spent makes room by itself ([Server.makeRoom]) and goes on. Before a session
// a connection holds at most its header and its request head.
package relaycore
