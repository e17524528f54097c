package proxyheader

import (
	"errors"
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
	// TLVs are in the order of the header. The value of a NOOP is not kept.
	TLVs []TLV
}

// The ways in which a header can be wrong. All but ErrShort are final.
var (
	ErrShort     = errors.New("proxy header: more bytes are needed")
	ErrMissing   = errors.New("proxy header: missing")
	ErrMalformed = errors.New("proxy header: malformed")
	ErrTooLong   = errors.New("proxy header: longer than 8192 bytes")
	ErrChecksum  = errors.New("proxy header: the CRC32C does not match")
)

// Lookup returns the value of the first TLV of the type.
func (h *Header) Lookup(typ byte) ([]byte, bool) {
	for _, t := range h.TLVs {
		if t.Type == typ {
			return t.Value, true
		}
	}
	return nil, false
}
