// Package api is the relay's HTTP message API: who may send a message to an
// identity, fetch and acknowledge what waits, and publish a bundle, without a
// session. It owns the shapes of requests and answers, the signatures on them,
// the challenge, the order in which limits and faults are judged, and the answers
// that are kept for those who ask twice. It does not know sessions, sockets,
// frames or who is connected: what the relay behind it does is [Relay].
//
//	h := api.New(api.Options{Relay: relay, Messages: limits, Throttle: throttle, Keys: keys})
//	http.Serve(ln, h) // whose requests carry their client: see WithClient
//
// # The path of a request
//
// [Handler.ServeHTTP] finds the route (handler.go). A request that a sender has
// signed goes one way (limits.go), whatever it asks for: its body is read field by
// field (fields.go) until the sender is known, and no further; the sender's
// counters are looked at, and the host's allowance for senders who have not proven
// who they are; then the rest is read and judged, the signature last. With it the
// host has its unit back, and the sender and the relay as a whole are charged, in
// one decision that holds. Who is refused anywhere before has spent nothing but,
// for a signature that does not hold, the host's unit.
//
// Public reads are charged to the relay as a whole, by a share of their host.
//
// # Asking twice
//
// A message that was accepted is remembered by its id, and by its Idempotency-Key
// if it had one (answers.go): who asks again gets the first answer, and is not
// charged. Who asks while the first is still being decided waits for that.
//
// # Bounds
//
// A body is 96 KiB long at most, those without a message 32 KiB. A request holds
// about five times its body, in pieces that end with it; what that costs the
// relay is charged by whoever serves the handler. An answer holds one message of
// the mailbox at a time. Kept answers have a count, a budget, a life and a ledger
// of sources. Challenges are not kept at all.
package api
