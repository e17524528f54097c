// Command edge measures what relayedge costs beside haproxy, nginx (stream), hitch
// and the plain io.Copy proxy of bench/naive: CPU time of the proxy's processes for
// an operation, and memory for a connection.
//
//	make bench           everything, 5 rounds
//	make bench-quick     handshake, echo64, paced and refusal, 3 rounds
//	go run ./bench/edge -ops echo64,paced -peers nginx -engine stream -rounds 3 -out run.json
//	go run ./bench/edge publish bench/testdata/edge-*.json
//
// All serve TLS 1.3 with AES-128-GCM and one ECDSA P-256 certificate, which the
// clients verify; tell the backend of the client by PROXY v2 (nginx by v1, which is
// all that it can write); and hold the same cap of connections from one address,
// where they know one. relayedge is the binary as it is released, with everything on
// that it has by default: the caps, the connection rate, a byte bucket for each
// connection (which the loads do not exhaust), metrics, health checks, and PROXY v2
// with all default TLVs and its checksum.
//
// # What is measured
//
// CPU time is what the kernel's clock of each process of a proxy says, in
// nanoseconds: utime and stime of /proc/PID/stat without their rounding to 10 ms.
// The clients and the backend are other processes and are not counted. The operations:
//
//   - handshake: full handshake over X25519, one byte echoed, close
//   - mlkem: the same over X25519MLKEM768
//   - resumed: the same with a session of before
//   - echo64, echo1000: 1 KB there and back, over so many connections as fast as it goes
//   - paced: the same, 3,000 a second over 1,000 connections
//   - refusal: a connection of an address that has its 64 already
//   - download, upload: 1 GiB over 4 connections
//   - fairness: the 99th percentile of what 1,000 echoes a second over 16 connections
//     take, alone, and beside four bulk streams of another process, two each way.
//     An echo counts from when it was due
//   - idle: PSS for each of 6,000 connections, each open and silent after one echo;
//     what they cost of a core then; and how much of RSS is left when all have been
//     gone for thirteen seconds
//   - silent, half, refused: relayedge alone: PSS for a connection that says nothing,
//     for one that has sent half of its ClientHello, and what a refused one leaves
//
// A round has every proxy do every operation once, one proxy after the other in an
// order that rotates. What is compared is the ratio of the two figures of one round,
// the peer's over ours: it holds on a machine whose single figures drift by a third.
// Below 8 % a difference is noise.
//
// # Where it runs
//
// As root, in network, process and mount namespaces of its own, which the kernel
// takes away when it ends, however it ends. The peers come from Debian trixie, which
// debootstrap puts into a folder of the user's cache once, and run by chroot. Without
// root, or where one of them cannot be had, it runs on the host, with the peers that
// this machine has; and says so. Linux alone.
package main
