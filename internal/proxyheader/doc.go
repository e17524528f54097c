// Package proxyheader reads and writes the PROXY protocol, versions 1 and 2,
// as the HAProxy project specifies it (proxy-protocol.txt). It does no I/O but
// Read, decides nothing about trust, and knows no policy. Decoding a well-framed
// header is go-proxyproto's work; framing, the strictness of version 1 lines,
// bounds, CRC32C and writing are this package's.
//
// What the specification leaves to the receiver is decided so:
//
//   - LOCAL is accepted whatever its family and block are. Its block is skipped.
//   - UNKNOWN, UNSPEC (0x00) and unix streams (0x31) are accepted without addresses.
//   - Datagram families are malformed: relayedge carries streams.
//   - A version 2 header longer than MaxSize is refused when its head announces it.
//   - TLVs that overrun the header are malformed, except below LOCAL and UNSPEC,
//     where bytes that do not read as TLVs are a block to be skipped.
//   - A CRC32C that is there is checked. One of a wrong size, or a second one, is
//     malformed.
//   - A version 1 line is exact: single spaces, upper case words, canonical dotted
//     quads, ports without sign or leading zero, no zone, the family that it names.
package proxyheader
