// Package proxy is the edge: it takes connections, has them admitted, ends TLS or
// looks at its first message, chooses the relay, tells the relay who the client
// is, and moves bytes both ways until one rule or one side ends it. It owns the
// path of a connection and its reasons.
// It does not know where certificates come from (certs), how a relay is reached
// (upstream), who may have how much (admission), or that there is a policy file.
//
// # The journey of a connection
//
// In the order in which it happens, with the function that does it:
//
//  1. listener.accept takes it from the kernel. An accept that fails for a
//     reason that passes is tried again after a pause.
//  2. listener.admit looks for room among the descriptors and asks the gate, before
//     any TLS, goroutine, buffer or log line. What is refused is counted, and closed
//     by terms.refuse. On a listener with trust_proxy_from only the global slot is
//     taken; a peer outside it is refused. The peers of a unix socket have no
//     address: they take the global slot alone, and the permissions of the file say
//     who is trusted.
//  3. session.awaitProxyHeader reads the header that a trusted peer owes, in
//     proxy_header_timeout_secs in all, and charges the client that it names. A
//     LOCAL, UNSPEC or UNKNOWN header names nobody: the connection keeps its
//     global slot alone, and the peer's own address is what the relay is told.
//  4. session.handshake ends TLS in tls_handshake_timeout_secs, counted from
//     accept or from the complete header; in passthrough it awaits the whole
//     ClientHello in that time (session.awaitHello). It takes one of max_handshakes'
//     places for as long, and may lose it to another handshake. Nothing but the
//     socket is held until the client's first byte. The server name chooses the route
//     (routes.find), and the route what ALPN offers. A CA's validation ends here.
//  5. session.dial reaches one of the relay's addresses in connect_timeout_secs,
//     and learns from then on if that address is lost.
//  6. session.introduce writes the PROXY header at once, so that a relay that
//     speaks first can.
//  7. forwarding.forward copies both ways: the client's bytes through a byte
//     bucket, ends of streams passed on, silence and stalls timed.
//     Where requests are parsed (protocol: http), session.serveHTTP stands in the
//     place of steps 5 to 7: it dials for the first request, and forwards what
//     follows an upgrade.
//  8. session.finish counts the one outcome and gives the lease, the room and
//     the upstream's count back.
//
// A CA's validation has to get in although the caps are full. While one may come,
// what a cap refuses is no more than turned away (listener.turnAway at accept,
// session.turnedAway behind it): it may take a place in the lane (lane.go), where
// session.validate answers a validation and refuses everything else.
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
// A session decides; an engine moves its bytes and watches its time. The stream
// engine (serveStream) is portable and defines the behaviour: one goroutine a
// connection until the relay is reached, two afterwards, and no buffer for
// those that are idle. Another engine is one more entry of engines: a function
// that takes a session from its admission to its finish.
//
// # Requests
//
// With protocol: http net/http serves the connection (http.go), which it reads
// through httpClient: there the client's bytes are charged and its waits are
// limited. What a client claims of itself is taken off each request
// (httpclaims.go), the guard is asked, and net/http's reverse proxy carries it
// (httprequest.go) over a connection that is this client's alone (httprelay.go).
// Once the relay consents to an upgrade, net/http lets go, and the forwarding of
// step 7 takes the two connections as they are (httpupgrade.go).
//
// # The ends of streams
//
// The client's FIN, or its close_notify, ends its stream and reaches the relay
// as a FIN; what the relay still sends is delivered. A FIN without a
// close_notify at the end of a TLS record counts as the end of the stream; one
// inside a record cuts it, and the pair ends. The relay's FIN reaches a TLS
// client as close_notify. A reset reaches the other side as a reset.
package proxy
