// Package admission decides who may have how much: which connection may exist,
// how fast one source may open more of them, and how fast one connection may
// send. It owns the counts behind those decisions and nothing else: it opens no
// socket, starts no goroutine, writes no log and knows no metric.
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
// connection rates, and takes all or nothing. What it took stands in a [Lease];
// giving the lease back is the only way a count goes down.
package admission
