package proxyheader

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"sync"

	"github.com/pires/go-proxyproto"
)

// headSize is the fixed part of a version 2 header.
const headSize = 16

// The bytes of a version 2 head that follow its signature.
const (
	commandLocal = 0x20
	commandProxy = 0x21

	familyUnspec = 0x00
	familyTCP4   = 0x11
	familyTCP6   = 0x21
	familyUnix   = 0x31
)

var (
	signatureV1 = []byte("PROXY")
	signatureV2 = []byte("\r\n\r\n\x00\r\nQUIT\n")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeroSum    = make([]byte, 4)
)

func init() {
	// The decoder has a bound of its own, below ours. It cannot be set per call,
	// and this package is the only one here that uses it.
	proxyproto.MaxV2HeaderSize = MaxSize - headSize
}

// Parse reads the header at the start of b and returns it with its length in
// bytes; what follows is payload. ErrShort means that b is the beginning of a
// header; any other error is final. A fault in a signature, a head or a line is
// told as soon as no further byte can mend it, one in the TLVs when the header
// is complete. The header keeps nothing of b.
func Parse(b []byte, accept Versions) (h Header, n int, err error) {
	v1 := accept&V1 != 0 && agrees(b, signatureV1)
	v2 := accept&V2 != 0 && agrees(b, signatureV2)
	switch {
	case v1 && len(b) >= len(signatureV1):
		n, err = lineSize(b)
	case v2 && len(b) >= len(signatureV2):
		n, err = sizeV2(b)
	case v1 || v2:
		err = ErrShort
	default:
		err = ErrMissing
	}
	if err == nil && len(b) < n {
		err = ErrShort
	}
	if err != nil {
		return Header{}, 0, err
	}
	if v1 {
		h, err = decodeLine(b[:n])
	} else {
		h, err = decodeV2(b[:n])
	}
	if err != nil {
		return Header{}, 0, err
	}
	return h, n, nil
}

// agrees reports whether b begins with the signature, or the signature with b.
func agrees(b, signature []byte) bool {
	return bytes.HasPrefix(signature, b[:min(len(b), len(signature))])
}

// sizeV2 returns the length that a version 2 head announces. b holds the signature.
func sizeV2(b []byte) (int, error) {
	if len(b) > 12 && b[12] != commandLocal && b[12] != commandProxy {
		return 0, ErrMalformed
	}
	if len(b) > 13 && b[12] == commandProxy {
		switch b[13] {
		case familyUnspec, familyTCP4, familyTCP6, familyUnix:
		default:
			return 0, ErrMalformed
		}
	}
	if len(b) < headSize {
		return 0, ErrShort
	}
	size := headSize + int(binary.BigEndian.Uint16(b[14:]))
	if size > MaxSize {
		return 0, ErrTooLong
	}
	if b[12] == commandProxy && size < headSize+blockSize(b[13]) {
		return 0, ErrMalformed
	}
	return size, nil
}

// blockSize is the length of the addresses of a family.
func blockSize(family byte) int {
	switch family >> 4 {
	case 1:
		return 2*4 + 2*2
	case 2:
		return 2*16 + 2*2
	case 3:
		return 2 * 108
	}
	return 0
}

// decodeV2 decodes a header whose head was checked and which is complete.
func decodeV2(b []byte) (Header, error) {
	h := Header{Version: 2, Local: b[12] == commandLocal}
	if h.Local || b[13] == familyUnspec {
		// Nothing says what such a body is. If it reads as TLVs it is; the
		// checksum of a header that is not TLVs cannot be told from noise.
		area := min(len(b), headSize+blockSize(b[13]))
		tlvs, err := decodeTLVs(b, area)
		if err == ErrChecksum {
			return Header{}, err
		}
		if err == nil {
			h.TLVs = tlvs
		}
		return h, nil
	}
	raw, err := decode(b)
	if err != nil {
		return Header{}, err
	}
	h.Source, h.Destination = addresses(raw)
	h.TLVs, err = decodeTLVs(b, headSize+blockSize(b[13]))
	if err != nil {
		return Header{}, err
	}
	return h, nil
}

// decodeTLVs decodes b[area:] and checks the CRC32C if there is one.
func decodeTLVs(b []byte, area int) ([]TLV, error) {
	raw, err := proxyproto.SplitTLVs(b[area:])
	if err != nil {
		return nil, ErrMalformed
	}
	if len(raw) == 0 {
		return nil, nil
	}
	tlvs := make([]TLV, len(raw))
	for i, t := range raw {
		tlvs[i] = TLV{Type: byte(t.Type), Value: t.Value}
	}
	return tlvs, checkCRC(b, area)
}

// checkCRC looks for a CRC32C in b[area:], which holds whole TLVs, and holds it
// against b with the field zeroed (section 2.2.3).
func checkCRC(b []byte, area int) error {
	var field []byte
	at := 0
	for i := area; i < len(b); {
		size := int(binary.BigEndian.Uint16(b[i+1:]))
		if b[i] == TypeCRC32C {
			if field != nil || size != 4 {
				return ErrMalformed
			}
			at = i + 3
			field = b[at : at+4]
		}
		i += 3 + size
	}
	if field == nil {
		return nil
	}
	sum := crc32.Checksum(b[:at], castagnoli)
	sum = crc32.Update(sum, castagnoli, zeroSum)
	sum = crc32.Update(sum, castagnoli, b[at+4:])
	if sum != binary.BigEndian.Uint32(field) {
		return ErrChecksum
	}
	return nil
}

// decoder feeds a header to go-proxyproto, which reads from a bufio.Reader. It
// takes a version 1 line only if the reader holds all of it, hence the size.
type decoder struct {
	bytes  bytes.Reader
	reader *bufio.Reader
}

var decoders = sync.Pool{New: func() any {
	return &decoder{reader: bufio.NewReaderSize(nil, 128)}
}}

// decode has go-proxyproto read b, which is one header exactly.
func decode(b []byte) (*proxyproto.Header, error) {
	d := decoders.Get().(*decoder)
	defer decoders.Put(d)
	d.bytes.Reset(b)
	d.reader.Reset(&d.bytes)
	raw, err := proxyproto.Read(d.reader)
	d.bytes.Reset(nil)
	if err != nil {
		return nil, ErrMalformed
	}
	return raw, nil
}

func addresses(raw *proxyproto.Header) (source, destination netip.AddrPort) {
	return addrPort(raw.SourceAddr), addrPort(raw.DestinationAddr)
}

func addrPort(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
}
