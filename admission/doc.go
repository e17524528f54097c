// Package admission decides who may have how much: which connection may exist,
// how fast one source may open more of them, how fast one connection may send,
// how many requests and messages there may be, and who makes way when a bounded
// thing is full. It owns the counts behind those decisions and nothing else: it
// starts no goroutine, writes no log and knows no metric, and the only socket it
// touches is the listener it is given to guard.
//
// A [Gate] is for connections, of this process or, with a [Fleet], of several;
// [Shares] and [Handshakes] for what is full; [FixedWindows], [MessageLimits],
// [Throttle] and [Credentials] for requests and messages. Each stands alone. The
// packages below put them to use: httpguard before an HTTP server, redisstore in a
// store that processes share.
//
// # A relay of your own
//
// A [Listener] yields only admitted connections, so a relay written in Go gets
// the limits by one line. This is a whole one:
//
//	package main
//
//	import (
//		"expvar"
//		"io"
//		"log"
//		"net"
//
//		"relayedge/admission"
//	)
//
//	func main() {
//		gate, err := admission.NewGate(admission.DefaultLimits())
//		if err != nil {
//			log.Fatal(err)
//		}
//		ln, err := net.Listen("tcp", "127.0.0.1:7777")
//		if err != nil {
//			log.Fatal(err)
//		}
//		refusals := expvar.NewMap("refusals")
//		ln = admission.NewListener(ln, gate, func(reason admission.Reason) {
//			refusals.Add(string(reason), 1)
//		})
//		for {
//			conn, err := ln.Accept()
//			if err != nil {
//				log.Fatal(err)
//			}
//			go func() {
//				defer conn.Close() // gives the slot back
//				io.Copy(conn, conn)
//			}()
//		}
//	}
//
// An http.Server takes the Listener as it is. A relay that accepts by other
// means calls [Gate.Admit] before it spends anything on a connection, and
// [Lease.Release] when the connection is closed; [AddrOf] and [AcceptBackoff]
// are the rest of the Listener's loop.
//
// # Sources
//
// [Keys] turns a client address into the two keys that are charged: its host
// (an IPv4 address, or the /64 of an IPv6 address) and its site (the /48 of an
// IPv6 address; IPv4 has none). [Source] is the fair-share key inside a relay:
// an IPv4 address, or an IPv6 /48.
//
// # The gate
//
// A [Gate] admits a connection or names the [Reason] why not. It looks at the
// deny list, then the global cap, the host's cap, the site's cap, then the
// connection rates, and takes all or nothing: a refused attempt costs no slot, no
// token and no memory, neither its host nor the neighbours in its site. What the
// gate took stands in a [Lease]; giving the lease back is the only way a count
// goes down.
//
// Where a PROXY header will name the client, the connection is admitted without
// an address first, which takes a global slot, and charged to its host and site
// by [Lease.Name] afterwards.
//
// A [Class] gives the addresses in its networks other values, higher or lower: of
// all networks of all classes the most specific one that holds an address
// decides. The counts and buckets stay the host's and the site's own, so a class
// is no pool; where the hosts of one site are of different classes, the
// newcomer's says how much the site may have. [ReadNetworks] reads a deny list
// from a file; whoever has the file hands it to the gate in [Limits].
//
// An observed limit lets in what it would have refused, and counts it
// ([Gate.Observed]), if nothing else refuses it. Its bucket then pays nothing, so
// the count is what the limit would have refused in earnest. The deny list and
// the global cap cannot be observed.
//
// # A fleet
//
// [NewFleetGate] returns a gate that keeps its caps and rates together with those of
// other processes, and a [Fleet], its side of that: what it has to tell a store that
// they share, and what it makes of the answers. The store is none of this package's;
// decisions never wait for it.
//
// # Shares
//
// [Shares] is the ledger of one bounded thing: it knows what each source holds
// and names the heaviest, so that whoever holds most pays when the thing is full.
// [Handshakes] are such a thing: places for TLS handshakes, which a newcomer may
// take from a heavier source at once, and from an equal one after a second.
//
// # Rates of requests and messages
//
// A [Decision] is what every rate limiter answers, and a [Key] whom it counts for:
// a keyed hash that a [KeyMaker] makes. [Windows] and [Messages] are what a store of
// counts has to do, in memory or wherever several processes share it.
//
//   - [FixedWindows] are Windows in memory: requests of a credential or a host, or
//     what a provider allows an hour.
//   - [MessageLimits] are Messages in memory: a sender's minute, hour and day, and
//     those of all senders, on which public reads draw by shares.
//   - [Throttle] holds each host to so many units a minute, and takes one back once
//     it proves to have been honest: requests in the name of a sender that nothing
//     has proven yet.
//   - [Credentials] knows which credentials were seen, and lets a host bring so many
//     new ones.
//
// A message is decided in this order, and whatever refuses it spends nothing:
// [MessageLimits.Peek] at the sender it claims, [Throttle.Take] of its host, the
// proof of the sender and [Throttle.Return], [MessageLimits.Take]. So nobody can
// spend another's allowance by claiming its name, and what fails to prove itself
// costs its host.
//
// These four are bounded tables without a timer. A row lives while it counts and
// is never given up for another; a refusal makes none. Keys that find a table full
// share a few rows of the same limit, so that whoever fills a table with invented
// keys frees nobody from a limit, and shuts nobody out. Time is the monotonic
// reading of what the caller gives, so that a stepped wall clock neither locks out
// nor refills; what the client is told as a time follows the wall clock.
//
// # What the gate keeps
//
// One table of hosts and one of sites. A row holds a 128-bit hash of its key,
// made with a secret of this gate, a count of connections, and the time at which
// its bucket is full again; no address is kept. A row lives while it has
// connections or its bucket is not full. There is no timer: full rows without
// connections are dropped a few at a time by the decisions that follow, and all
// of them by [Gate.Stats]. After the last connection of all they stay until then.
//
// Each table is bounded: it holds at most max_connections rows with connections
// (after a reload that lowers it, as many as were open before) and at most 65536
// rows without. Beyond those the row that is nearest to full is forgotten, which
// forgives the smallest debt there is. A row takes about 100 bytes with its place in
// the index and its turn to go, so a table full in both ways at the default of 10,000
// connections takes about 7 MB; a table that is empty goes back to its first size.
package admission
