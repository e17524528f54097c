package proxyheader

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"strconv"
)

// maxWritten is the longest header that AppendV2 writes.
const maxWritten = 65535

var errTooLongToWrite = errors.New("proxy header: longer than 65535 bytes")

// AppendV2 appends h as a version 2 header, followed by a CRC32C TLV over the
// whole header if checksum is set; a CRC32C TLV of h itself is left out, for it
// was another header's. A Source and Destination that both are IPv4, mapped or
// not, are written as IPv4; of different families, as IPv6, the IPv4 address
// mapped. A missing Destination is written as the unspecified address. A LOCAL
// header has no addresses; a header that is not LOCAL and has no Source is
// written as LOCAL. It fails only if the header would be longer than 65535
// bytes, and then returns dst as it was.
func AppendV2(dst []byte, h Header, checksum bool) ([]byte, error) {
	size := headSize
	for _, t := range h.TLVs {
		if t.Type != TypeCRC32C {
			size += 3 + len(t.Value)
		}
	}
	if checksum {
		size += 3 + 4
	}
	command, family := byte(commandLocal), byte(familyUnspec)
	source, destination, ok := oneFamily(h)
	if ok {
		command, family = commandProxy, familyTCP6
		if source.Addr().Is4() {
			family = familyTCP4
		}
	}
	size += blockSize(family)
	if size > maxWritten {
		return dst, errTooLongToWrite
	}

	start := len(dst)
	dst = append(dst, signatureV2...)
	dst = append(dst, command, family)
	dst = binary.BigEndian.AppendUint16(dst, uint16(size-headSize))
	switch family {
	case familyTCP4:
		s, d := source.Addr().As4(), destination.Addr().As4()
		dst = append(append(dst, s[:]...), d[:]...)
	case familyTCP6:
		s, d := source.Addr().As16(), destination.Addr().As16()
		dst = append(append(dst, s[:]...), d[:]...)
	}
	if ok {
		dst = binary.BigEndian.AppendUint16(dst, source.Port())
		dst = binary.BigEndian.AppendUint16(dst, destination.Port())
	}
	for _, t := range h.TLVs {
		if t.Type != TypeCRC32C {
			dst = appendTLV(dst, t.Type, t.Value)
		}
	}
	if checksum {
		dst = append(dst, TypeCRC32C, 0, 4, 0, 0, 0, 0)
		binary.BigEndian.PutUint32(dst[len(dst)-4:], crc32.Checksum(dst[start:], castagnoli))
	}
	return dst, nil
}

// AppendV1 appends h as a version 1 line, with the addresses as AppendV2 has
// them, or as UNKNOWN where AppendV2 writes LOCAL. TLVs cannot be written.
func AppendV1(dst []byte, h Header) []byte {
	source, destination, ok := oneFamily(h)
	if !ok {
		return append(dst, "PROXY UNKNOWN\r\n"...)
	}
	family := "PROXY TCP6 "
	if source.Addr().Is4() {
		family = "PROXY TCP4 "
	}
	dst = append(dst, family...)
	dst = append(appendAddr(dst, source.Addr()), ' ')
	dst = append(appendAddr(dst, destination.Addr()), ' ')
	dst = append(strconv.AppendUint(dst, uint64(source.Port()), 10), ' ')
	dst = strconv.AppendUint(dst, uint64(destination.Port()), 10)
	return append(dst, "\r\n"...)
}

// appendAddr writes a mapped address in hexadecimal groups, since section 2.1
// knows no dots in an IPv6 address.
func appendAddr(dst []byte, a netip.Addr) []byte {
	if !a.Is4In6() {
		return a.AppendTo(dst)
	}
	b := a.As16()
	dst = append(dst, "::ffff:"...)
	dst = strconv.AppendUint(dst, uint64(binary.BigEndian.Uint16(b[12:])), 16)
	dst = append(dst, ':')
	return strconv.AppendUint(dst, uint64(binary.BigEndian.Uint16(b[14:])), 16)
}

// oneFamily returns the addresses of h so that both are of one family, without
// zones; false if h has none to be written.
func oneFamily(h Header) (source, destination netip.AddrPort, ok bool) {
	if h.Local || !h.Source.IsValid() {
		return source, destination, false
	}
	s, d := h.Source.Addr().Unmap(), h.Destination.Addr().Unmap()
	if !d.IsValid() {
		d = netip.IPv6Unspecified()
		if s.Is4() {
			d = netip.IPv4Unspecified()
		}
	}
	if s.Is4() != d.Is4() {
		s, d = netip.AddrFrom16(s.As16()), netip.AddrFrom16(d.As16())
	}
	return netip.AddrPortFrom(s.WithZone(""), h.Source.Port()), netip.AddrPortFrom(d.WithZone(""), h.Destination.Port()), true
}

func appendTLV(dst []byte, typ byte, value []byte) []byte {
	dst = append(dst, typ)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(value)))
	return append(dst, value...)
}
