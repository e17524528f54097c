// Package proxy is the edge: it takes connections, has them admitted, ends TLS or
// looks at its first message, chooses the relay, tells the relay who the client
// is, and moves bytes both ways until one rule or one side ends it. It owns the
// path of a connection and its reasons.
// It does not know where certificates come from (certs), how a relay is reached
// (upstream), who may have how much (admission), or that there is a policy file.
//
// # The journey of a connection
//
// In the order in which it happens, with the function that does it; where the
// engines differ, the stream engine's function comes first.
//
//  1. listener.accept, or the acceptor of an event loop (acceptOn), takes it from
//     the kernel. An accept that fails for a reason that passes is tried again
//     after a pause.
//  2. listener.admit looks for room among the descriptors and asks the gate,
//     before any TLS, goroutine, buffer or log line. What is refused is counted,
//     and closed by terms.refuse. On a listener with trust_proxy_from only the
//     global slot is taken; a peer outside it is refused. The peers of a unix
//     socket have no address: they take the global slot alone, and the permissions
//     of the file say who is trusted.
//  3. engine.serve takes the session over: serveStream in a goroutine, or
//     loopEngine.await, in which the loop carries the session (arrival) until its
//     first byte or the end of its time; then a goroutine goes on (loopEngine.carry),
//     because what follows may wait. Both go through session.carry:
//  4. session.awaitProxyHeader reads the header that a trusted peer owes,
//     in proxy_header_timeout_secs in all, and charges the client that it names.
//     A LOCAL, UNSPEC or UNKNOWN header names nobody: the connection keeps its
//     global slot alone, and the peer's own address is what the relay is told.
//  5. session.handshake ends TLS in tls_handshake_timeout_secs, counted
//     from accept or from the complete header; in passthrough it awaits the
//     whole ClientHello in that time (session.awaitHello). It takes one of
//     max_handshakes' places for as long, and may lose it to another handshake;
//     in the loop the place is taken when the connection is (loopEngine.await).
//     Nothing but the socket is held until the client's first byte. The server
//     name chooses the route (routes.find), and the route what ALPN offers.
//     A CA's validation ends here.
//  6. session.dial reaches one of the relay's addresses in connect_timeout_secs,
//     and learns from then on if that address is lost. The engine's connector makes
//     the socket.
//  7. The PROXY header is the first that the relay gets, at once, so that a relay
//     that speaks first can: session.introduce, or pair.begin, which writes what
//     the client has sent by then with it.
//  8. forwarding.forward, or a pair in its loop (pair.Ready), moves bytes both ways:
//     the client's through a byte bucket, ends of streams passed on, silence and
//     stalls timed (silence.go). Where requests are parsed (protocol: http),
//     session.serveHTTP stands in the place of steps 6 to 8: it dials for the first
//     request, and what follows an upgrade is forwarded.
//  9. session.finish counts the one outcome and gives the lease, the room and the
//     upstream's count back.
//
// A CA's validation has to get in although the caps are full. While one may come,
// what a cap refuses is no more than turned away (listener.turnAway at accept,
// session.turnedAway behind it): it may take a place in the lane (lane.go),
// where session.validate answers a validation and refuses everything else.
//
// # Around the connections
//
// New builds the server by a first reload, and Server.Serve runs it: an accept
// loop for each listener, the health checks of each upstream, the rotation of
// ticket keys (tickets.go), and the watch for load balancers that are taken for
// one client (balancer.go).
//
// A reload (reload.go) is made ready by Server.Prepare, which does all of it that
// can fail, and put in force by Reload.Apply. What a policy says of a listener is
// its terms: a connection keeps the ones that it came in under, and newcomers get
// those in force. Sockets, upstreams and counts that both policies have go on.
//
// When Serve's context ends, the listeners close and Server.drain (drain.go) ends
// who has not reached a relay, gives the others drain_secs, and closes what is
// left, spread out.
//
// # Engines
//
// A session decides; an engine (engine.go) moves its bytes and watches its time.
// Gate, routes, headers, upstreams and outcomes are the same code under both.
//
// The stream engine (stream.go, forward.go, watch.go) is portable and defines the
// behaviour: one goroutine a connection until the relay is reached, two afterwards,
// and no buffer for those that are idle.
//
// The loop engine (loops.go, pair*.go) is for Linux, where it is what auto means. An
// event loop (proxy/loop) carries what is idle or moves bytes, without a goroutine,
// a buffer or a deadline of the runtime's for any connection. A pair's states are
// what it waits for: its client (clientWaits), its relay (relayWaits), or that one
// of them takes what it was sent (backlog). TLS is crypto/tls's, which is read only
// when something is there to be read: the wire answers errWouldBlock otherwise, and
// gathers what is written, so that a turn's records leave in one write. The loop
// says later what became of a write (pair.Wrote), because it makes those of many
// pairs together. What a peer does not take is bounded by a buffer of the loop's
// and its TLS records, because the other side is not read until it has gone;
// clientBacklog bounds what TLS itself answers. One loop accepts; the pairs are
// shared out among more loops as the load grows (loopshare.go).
//
// Under both, what a client may cost is bounded beside its bytes: a TLS record
// without data is charged as many bytes of data as it costs (records.go).
//
// # Requests
//
// With protocol: http net/http serves the connection (http.go), which it reads
// through httpClient: there the client's bytes are charged and its waits are
// limited. What a client claims of itself is taken off each request
// (httpclaims.go), the guard is asked, and net/http's reverse proxy carries it
// (httprequest.go) over a connection that is this client's alone (httprelay.go).
// Once the relay consents to an upgrade, net/http lets go, and the forwarding of
// step 8 takes the two connections as they are (httpupgrade.go).
//
// # The ends of streams
//
// The client's FIN, or its close_notify, ends its stream and reaches the relay
// as a FIN; what the relay still sends is delivered. A FIN without a
// close_notify at the end of a TLS record counts as the end of the stream; one
// inside a record cuts it, and the pair ends. The relay's FIN reaches a TLS
// client as close_notify. A reset reaches the other side as a reset.
package proxy
