// Package proxyheader reads and writes the PROXY protocol, versions 1 and 2,
// as the HAProxy project specifies it (proxy-protocol.txt). It does no I/O but
// Read, decides nothing about trust, and knows no policy. The wire format of a
// well-framed header is go-proxyproto's work; framing, the strictness of
// version 1 lines, bounds and CRC32C are this package's.
package proxyheader

import (
	"errors"
	"io"
	"net/netip"
)

// MaxSize is the longest header that is accepted, in bytes, TLVs included.
const MaxSize = 8192

// Versions is a set of protocol versions.
type Versions uint8

const (
	V1 Versions = 1 << iota
	V2
)

// The TLV types of section 2.2 of the specification.
const (
	TypeALPN      = 0x01
	TypeAuthority = 0x02
	TypeCRC32C    = 0x03
	TypeNoop      = 0x04
	TypeUniqueID  = 0x05
	TypeSSL       = 0x20
	TypeNetNS     = 0x30
)

// TLV is one type-length-value of a version 2 header.
type TLV struct {
	Type  byte
	Value []byte
}

// Header is one PROXY header.
type Header struct {
	Version int // 1 or 2
	// Local: the LOCAL command, which stands for the sender itself (a health check).
	Local bool
	// Source and Destination are the zero AddrPort for LOCAL, UNSPEC, UNKNOWN
	// and unix addresses. IPv4-mapped addresses are kept as they came.
	Source, Destination netip.AddrPort
	TLVs                []TLV
}

// SSL is the content of the SSL TLV (section 2.2.6).
type SSL struct {
	Verified   bool   // the client presented a certificate and it was verified
	Version    string // "TLSv1.3"
	Cipher     string // OpenSSL's name: "ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"
	CommonName string // of the client's certificate; empty without one
}

// The ways in which a header can be wrong. All but ErrShort are final.
var (
	ErrShort     = errors.New("proxy header: more bytes are needed")
	ErrMissing   = errors.New("proxy header: missing")
	ErrMalformed = errors.New("proxy header: malformed")
	ErrTooLong   = errors.New("proxy header: longer than 8192 bytes")
	ErrChecksum  = errors.New("proxy header: the CRC32C does not match")
)

// Parse reads the header at the start of b and returns it with its length in
// bytes; what follows is payload. ErrShort means that b is the beginning of a
// header; any other error is final and is returned as soon as it is certain.
func Parse(b []byte, accept Versions) (h Header, n int, err error) { panic("stub") }

// Read reads one header from r and returns it with the bytes that were read
// beyond it. It holds at most MaxSize bytes plus one read's worth. An end of
// stream before the first byte is io.EOF, inside the header io.ErrUnexpectedEOF.
func Read(r io.Reader, accept Versions) (h Header, rest []byte, err error) { panic("stub") }

// Lookup returns the value of the first TLV of the type.
func (h *Header) Lookup(typ byte) ([]byte, bool) { panic("stub") }

// SSL decodes the SSL TLV; false if there is none or it is malformed.
func (h *Header) SSL() (SSL, bool) { panic("stub") }

// TLV encodes s as the SSL TLV.
func (s SSL) TLV() TLV { panic("stub") }

// AppendV2 appends h as a version 2 header, followed by a CRC32C TLV over the
// whole header if checksum is set. A Source and Destination of different
// families are written as one: IPv4 as IPv4-mapped IPv6. A LOCAL header has no
// addresses; a header that is not LOCAL and has no Source is written as LOCAL.
// It fails only if the header would be longer than 65535 bytes.
func AppendV2(dst []byte, h Header, checksum bool) ([]byte, error) { panic("stub") }
