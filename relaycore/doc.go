// Package relaycore is the relay: WebSocket sessions behind a front end, their
// identities, conversation requests, circuits, and the messages on them. It
// owns what a session may do and how long it may take for it. It knows frames
// (relaycore/wire), framing (relaycore/websocket), what waits for those who are
// away (relaycore/mailbox), how they are woken (relaycore/push), the HTTP API that it
// serves on the same address (relaycore/api) and the gate (admission); it does not
// know TLS, the edge, YAML or Prometheus.
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
// In order, with the function that does it: Server.accept and Server.admit
// (server.go); Server.connection and Server.upgrade (connection.go); session.run
// (session.go), which reads, keeps the times and pauses; session.finish (finish.go),
// which says goodbye.
//
// A connection whose first request is one of the HTTP API's takes another turn
// after Server.judge: it becomes a caller (handover.go), which an http.Server serves
// from there on, behind the request limit; Server.serveRoute is its routes. apiRelay
// (apirelay.go) is what the API can ask of the relay. A caller that asks for an
// upgrade becomes a session like any other.
//
// # The path of a frame
//
// session.frame (frames.go) takes it. A PUBLISH makes the session its identity's
// connection (directory.join, directory.go), with a bundle that outlives it
// (identities.go). An ASK is decided in one step by directory.ask (asks.go), in the
// tables of requests (pending.go), circuits (circuits.go), knocks (knocks.go) and
// those who bring them (askers.go). A SEND goes into the queue of the circuit's other
// side (outbound.go), where session.deliver (writer.go) waits for room, or, for who is
// away, into the mailbox (session.keep, mail.go).
//
// session.write (writer.go) takes turns between the queue and what waits in the
// stores, knocks and mailbox, which session.hand (mail.go) brings.
//
// # Reload and drain
//
// Server.Prepare judges another config, and Reload.Apply puts it in force
// (reload.go): each table has a method bind for it, which evicts nobody. At the end of
// its context Server.Serve drains (drain.go): 1001 to every session, spread out, and
// to callers the answer to what they have asked.
//
// # Locks
//
// None is held across a wait. directory.mu guards everything that clients have
// in common: who is connected, requests, circuits, knocks and those who brought
// them, identities, contacts; each of these tables is a struct without a lock of its own,
// whose methods say what has to go and leave the telling to the directory's
// callers, after the lock. outbound.mu guards one session's queue. Neither of the
// two is taken while the other is held. budget.mu guards what the sessions hold of
// one budget, and is the last to be taken. So is the mailbox's own, which opens and
// closes readers under directory.mu and is never held while a disk is waited for: a
// session waits for its disk with no lock at all, neither when a message is put nor
// when the writer reads what waits. mail.mu guards the alarm beside the mailbox, and
// session.mu how a session ends; like Server.mu, over the table of connections, they
// are taken with none of the others held.
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
// Two budgets bound the bytes of sessions and callers: frames and answers on their
// way to clients, and what has come of unfinished messages and requests. Who charges one and finds it spent makes
// room by itself (budget.makeRoom) and goes on. Before a session a connection
// holds at most its header and its request head. What outlives a session, knocks,
// bundles, contacts (contacts.go), kept answers and messages in the mailbox, has a
// count, a budget and a life.
package relaycore
