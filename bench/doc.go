// Package bench measures what the relay costs, alone and behind the edge: the CPU
// time and the memory of the real binaries, each a process of its own, under the load
// of another process, which is the test binary. What the load costs is not counted.
// The edge beside its peers is measured by bench/edge.
//
//	make bench-relay                                  everything, 4 rounds, as docs/benchmarks.md has it
//	go test -run '^$' -bench Relay/unix ./bench       one round of one benchmark
//	go test -run '^$' -bench Steady ./bench -clients 1000 -period 20s
//
// A round is one iteration of b.Loop, so -benchtime 4x makes four; what is
// printed is the median, with the least and the most beside it.
//
// BenchmarkRelay drives relaycore, with all limits on, each client with a PROXY
// header and an address of its own, as if an edge stood in front; and, in the
// same round, the plain WebSocket echo server of bench/plain, which has no limits.
// The ratios between the two are of one round each: they hold on a machine whose
// single figures drift. Rows:
//
//   - connect: accept, PROXY header (relaycore alone) and upgrade
//   - idle: PSS of the process for each connection that is open and silent
//   - identify: HELLO and PUBLISH, of which two Ed25519 verifications
//   - identified: PSS for each connection whose identity is known
//   - forward: a message of the steady size (1,269 bytes) to another client,
//     and its acknowledgement to the sender; two clients and one message on
//     its way in each of 64 pairs
//   - answer: a message of that size that the relay refuses (its circuit is not
//     there), and the relay's answer: one message in, one out, as in an echo;
//     64 connections
//   - echo: what the plain server does instead, with a message of that size
//   - paced: 1,000 messages a second, each connection in turn
//
// BenchmarkSteady has the clients behind relayedge, over TLS: all are paired up,
// and a tenth of them send a message every half second, which is 1,299 bytes on
// the wire.
//
// CPU time is utime and stime of /proc/PID/stat, memory the PSS of
// /proc/PID/smaps_rollup, at rest twelve seconds after all was done: so long the
// programs take to give back what a burst has left. The kernel's socket memory
// is the whole machine's: mem of /proc/net/sockstat and Slab of /proc/meminfo,
// the load's own sockets included. All of it is Linux.
package bench
