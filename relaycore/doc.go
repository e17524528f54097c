// Package relaycore is the relay: WebSocket sessions behind a front end, their
// identities, conversation requests, circuits, and the messages on them. It
// owns what a session may do and how long it may take for it. It knows frames
// (relaycore/wire), framing (relaycore/websocket), what waits for those who are
// away (relaycore/mailbox) and the gate (admission); it does not know TLS, the
// edge, YAML or Prometheus.
//
// # The path of a connection
//
// The accept loop refuses untrusted peers and asks the gate; then one straight
// function takes over: the PROXY header, the HTTP upgrade, and on a goroutine
// with a fresh stack the session. The session's goroutine is its reader and the
// only one that ends it: everybody else says [session.end], which wakes it. What
// its client's frames have queued, for others and in answer, the reader writes
// itself at the end of its turn, as far as the sockets take it at once: it owes
// that (session.owe), and settles before it waits for anything. For all else that
// waits to be written there is a writer, a goroutine that exists only so long. So
// an idle session is its struct and one goroutine without a buffer.
//
// # Locks
//
// None is held across a wait. directory.mu guards everything that clients have
// in common: who is connected, requests (pending.go), circuits, knocks and those
// who brought them (askers.go), identities; each of these tables is a struct
// without a lock of its own, whose methods say what has to go and leave the
// telling to the directory's callers, after the lock. outbound.mu guards one
// session's queue. Neither of the two is taken while the other is held. budget.mu
// guards what the sessions hold of one budget, and is the last to be taken. So is
// the mailbox's own, which opens and closes readers under directory.mu and is
// never held while a disk is waited for: a session waits for its disk with no lock
// at all, neither when a message is put nor when the writer reads what waits.
// Server.mu, over the table of connections, is taken with none of them held.
//
// # Shares
//
// Every bounded thing has a ledger of what each source holds of it
// ([admission.Shares]). When a thing is full, the heaviest source pays: its
// oldest request, its newest pair, its oldest knock, its oldest identity, its
// heaviest session. Where sources are not known, nobody is lighter than another,
// and each session pays for its bytes alone.
//
// # Memory
//
// Two budgets bound the bytes of sessions: frames on their way to clients, and
// what has come of unfinished messages. Who charges one and finds it spent makes
// room by itself (budget.makeRoom) and goes on. Before a session a connection
// holds at most its header and its request head. What outlives a session, knocks,
// bundles and messages in the mailbox, has a count, a budget and a life.
package relaycore
