package proxyheader

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// The header that most rows begin with: 192.0.2.10:51000 to 198.51.100.5:443.
const (
	sigHex   = "0d0a0d0a000d0a515549540a"
	addrsHex = "c000020a c6336405 c738 01bb"
	baseHex  = sigHex + "21 11 000c" + addrsHex
)

var (
	baseSource      = netip.MustParseAddrPort("192.0.2.10:51000")
	baseDestination = netip.MustParseAddrPort("198.51.100.5:443")
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// head builds a version 2 header of any command, family and body.
func head(command, family byte, body []byte) []byte {
	b := append(slices.Clone(signatureV2), command, family, byte(len(body)>>8), byte(len(body)))
	return append(b, body...)
}

func tlv(typ byte, value []byte) []byte { return appendTLV(nil, typ, value) }

// accepted checks that header is accepted as want wherever it is cut, and that
// what follows it stays payload.
func accepted(t *testing.T, header []byte, want Header) {
	t.Helper()
	for cut := range header {
		if h, n, err := Parse(header[:cut], V1|V2); err != ErrShort || n != 0 || h.Version != 0 {
			t.Fatalf("cut at %d: %+v, %d, %v; want ErrShort", cut, h, n, err)
		}
	}
	payloads := [][]byte{nil, []byte("GET /health HTTP/1.1\r\n\r\n"), header, bytes.Repeat([]byte("\r\nPROXY "), 2340)}
	for _, payload := range payloads {
		whole := append(slices.Clone(header), payload...)
		h, n, err := Parse(whole, V1|V2)
		if err != nil || n != len(header) || !equal(h, want) {
			t.Fatalf("got %+v, %d, %v; want %+v, %d", h, n, err, want, len(header))
		}
		if !bytes.Equal(whole[n:], payload) {
			t.Fatal("the payload was changed")
		}
	}
}

// refused checks that b is refused with want from byte at on, and not before.
func refused(t *testing.T, b []byte, want error, at int) {
	t.Helper()
	for cut := range len(b) + 1 {
		expected := want
		if cut < at {
			expected = ErrShort
		}
		if h, n, err := Parse(b[:cut], V1|V2); err != expected || n != 0 || h.Version != 0 {
			t.Fatalf("%d bytes: %+v, %d, %v; want %v", cut, h, n, err, expected)
		}
	}
}

func equal(a, b Header) bool {
	return a.Version == b.Version && a.Local == b.Local && a.Source == b.Source && a.Destination == b.Destination &&
		slices.EqualFunc(a.TLVs, b.TLVs, func(x, y TLV) bool { return x.Type == y.Type && bytes.Equal(x.Value, y.Value) })
}

func TestParseAddresses(t *testing.T) {
	base := Header{Version: 2, Source: baseSource, Destination: baseDestination}
	accepted(t, unhex(t, baseHex), base)

	six := Header{Version: 2, Source: netip.MustParseAddrPort("[2001:db8::a]:51000"), Destination: netip.MustParseAddrPort("[2001:db8::5]:443")}
	accepted(t, unhex(t, sigHex+"21 21 0024 20010db800000000000000000000000a 20010db8000000000000000000000005 c738 01bb"), six)

	mapped := Header{Version: 2, Source: netip.MustParseAddrPort("[::ffff:192.0.2.10]:51000"), Destination: netip.MustParseAddrPort("[2001:db8::5]:443")}
	accepted(t, unhex(t, sigHex+"21 21 0024 00000000000000000000ffffc000020a 20010db8000000000000000000000005 c738 01bb"), mapped)

	accepted(t, head(commandProxy, familyUnix, bytes.Repeat([]byte("/run/x\x00"), 31)[:216]), Header{Version: 2})
	accepted(t, head(commandProxy, familyUnix, append(make([]byte, 216), tlv(TypeALPN, []byte("h2"))...)),
		Header{Version: 2, TLVs: []TLV{{TypeALPN, []byte("h2")}}})
}

// A header with much behind its addresses, cut at every offset.
func TestParseCutEverywhere(t *testing.T) {
	value := bytes.Repeat([]byte{0x0d, 0x0a}, 297)
	body := append(unhex(t, addrsHex), tlv(0xe0, value)...)
	accepted(t, head(commandProxy, familyTCP4, body),
		Header{Version: 2, Source: baseSource, Destination: baseDestination, TLVs: []TLV{{0xe0, value}}})
}

// LOCAL is accepted and skipped whatever family and block it carries.
func TestParseLocal(t *testing.T) {
	block := unhex(t, addrsHex+"20010db800000000000000000000000a")
	for family := range 256 {
		for size := range len(block) + 1 {
			b := head(commandLocal, byte(family), block[:size])
			h, n, err := Parse(append(b, "\x16\x03\x01"...), V2)
			if err != nil || n != len(b) || !h.Local || h.Source.IsValid() || h.Destination.IsValid() {
				t.Fatalf("family %#02x, %d bytes: %+v, %d, %v", family, size, h, n, err)
			}
		}
	}
	accepted(t, head(commandLocal, familyUnspec, nil), Header{Version: 2, Local: true})
	accepted(t, head(commandLocal, familyTCP4, unhex(t, addrsHex)), Header{Version: 2, Local: true})
	accepted(t, head(commandLocal, familyTCP4, append(unhex(t, addrsHex), tlv(TypeUniqueID, []byte("id"))...)),
		Header{Version: 2, Local: true, TLVs: []TLV{{TypeUniqueID, []byte("id")}}})
	accepted(t, head(commandLocal, familyUnix, make([]byte, 216)), Header{Version: 2, Local: true})
}

// UNSPEC is accepted without addresses; its body is TLVs or is skipped.
func TestParseUnspec(t *testing.T) {
	accepted(t, unhex(t, sigHex+"21 00 0005 deadbeef00"), Header{Version: 2})
	accepted(t, unhex(t, sigHex+"21 00 0000"), Header{Version: 2})
	accepted(t, unhex(t, sigHex+"21 00 0005 0100026832"), Header{Version: 2, TLVs: []TLV{{TypeALPN, []byte("h2")}}})
	for size := range 64 {
		b := head(commandProxy, familyUnspec, bytes.Repeat([]byte{0xff}, size))
		accepted(t, b, Header{Version: 2})
	}
}

// Each value of the 13th and the 14th byte that is not named is refused at that byte.
func TestParseHead(t *testing.T) {
	for command := range 256 {
		if command != commandLocal && command != commandProxy {
			refused(t, head(byte(command), familyTCP4, unhex(t, addrsHex)), ErrMalformed, 13)
		}
	}
	for family := range 256 {
		switch family {
		case familyUnspec, familyTCP4, familyTCP6, familyUnix:
		default:
			refused(t, head(commandProxy, byte(family), make([]byte, 216)), ErrMalformed, 14)
		}
	}
}

// A length that is shorter than the family's addresses is refused with the head.
func TestParseShortBlock(t *testing.T) {
	for _, row := range []struct {
		family byte
		block  int
	}{{familyTCP4, 12}, {familyTCP6, 36}, {familyUnix, 216}} {
		for size := range row.block {
			refused(t, append(head(commandProxy, row.family, make([]byte, size)), "payload"...), ErrMalformed, 16)
		}
		accepted(t, head(commandProxy, row.family, make([]byte, row.block)), zeroAddressed(row.family))
	}
}

func zeroAddressed(family byte) Header {
	h := Header{Version: 2}
	switch family {
	case familyTCP4:
		h.Source = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	case familyTCP6:
		h.Source = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	h.Destination = h.Source
	return h
}

func TestParseTLVs(t *testing.T) {
	want := Header{Version: 2, Source: baseSource, Destination: baseDestination}
	addrs := unhex(t, addrsHex)

	for name, area := range map[string]string{"empty NOOP": "040000", "NOOP": "04000100"} {
		t.Run(name, func(t *testing.T) {
			h := want
			h.TLVs = []TLV{{TypeNoop, nil}}
			accepted(t, head(commandProxy, familyTCP4, append(slices.Clone(addrs), unhex(t, area)...)), h)
		})
	}
	t.Run("every type", func(t *testing.T) {
		value := bytes.Repeat([]byte{0xa5}, 200)
		for typ := range 256 {
			if typ == TypeCRC32C || typ == TypeNoop {
				continue
			}
			h := want
			h.TLVs = []TLV{{byte(typ), value}, {byte(typ), nil}}
			area := append(tlv(byte(typ), value), tlv(byte(typ), nil)...)
			accepted(t, head(commandProxy, familyTCP4, append(slices.Clone(addrs), area...)), h)
		}
	})
	t.Run("overrun", func(t *testing.T) {
		for _, area := range []string{"04", "0400", "04ffff", "0100026832 e00001", "e0000568656c6c", "030005 00000000"} {
			b := head(commandProxy, familyTCP4, append(slices.Clone(addrs), unhex(t, area)...))
			refused(t, append(b, make([]byte, 64)...), ErrMalformed, len(b))
		}
	})
	t.Run("values are copies", func(t *testing.T) {
		b := head(commandProxy, familyTCP4, append(slices.Clone(addrs), tlv(TypeALPN, []byte("h2"))...))
		h, _, err := Parse(b, V2)
		if err != nil {
			t.Fatal(err)
		}
		clear(b)
		if v, ok := h.Lookup(TypeALPN); !ok || string(v) != "h2" {
			t.Fatalf("%q, %v", v, ok)
		}
		if _, ok := h.Lookup(TypeUniqueID); ok {
			t.Fatal("found what is not there")
		}
	})
	t.Run("lookup takes the first", func(t *testing.T) {
		h := Header{TLVs: []TLV{{1, []byte("a")}, {2, []byte("b")}, {1, []byte("c")}}}
		if v, ok := h.Lookup(1); !ok || string(v) != "a" {
			t.Fatalf("%q, %v", v, ok)
		}
	})
}

func TestParseChecksum(t *testing.T) {
	good := Header{Version: 2, Source: baseSource, Destination: baseDestination, TLVs: []TLV{{TypeCRC32C, unhex(t, "97f1d246")}}}
	accepted(t, unhex(t, sigHex+"21 11 0013"+addrsHex+"030004 97f1d246"), good)

	bad := unhex(t, sigHex+"21 11 0013"+addrsHex+"030004 97f1d247")
	refused(t, append(bad, "payload"...), ErrChecksum, len(bad))

	t.Run("any flipped bit", func(t *testing.T) {
		b := unhex(t, sigHex+"21 11 0013"+addrsHex+"030004 97f1d246")
		for bit := range len(b) * 8 {
			flipped := slices.Clone(b)
			flipped[bit/8] ^= 1 << (bit % 8)
			h, _, err := Parse(flipped, V2)
			// A flip that turns the header into one without a checksum, or into a
			// LOCAL whose block is skipped, is another valid header.
			if err == nil && !h.Local {
				if _, still := h.Lookup(TypeCRC32C); still {
					t.Fatalf("bit %d: accepted", bit)
				}
			}
		}
	})
	t.Run("anywhere among the TLVs", func(t *testing.T) {
		h := Header{Source: baseSource, Destination: baseDestination}
		b, err := AppendV2(nil, h, true)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, tlv(TypeUniqueID, []byte("after"))...)
		b[15] += byte(len(tlv(TypeUniqueID, []byte("after"))))
		at := headSize + 12 + 3
		clear(b[at : at+4])
		copy(b[at:], sum(b))
		if _, n, err := Parse(b, V2); err != nil || n != len(b) {
			t.Fatalf("%d, %v", n, err)
		}
		b[len(b)-1]++
		refused(t, b, ErrChecksum, len(b))
	})
	t.Run("of a wrong size or twice", func(t *testing.T) {
		for _, area := range []string{"030000", "030003 97f1d2", "030005 97f1d24600", "030004 97f1d246 030004 97f1d246"} {
			b := head(commandProxy, familyTCP4, append(unhex(t, addrsHex), unhex(t, area)...))
			refused(t, b, ErrMalformed, len(b))
		}
	})
	t.Run("below LOCAL and UNSPEC", func(t *testing.T) {
		for _, command := range []byte{commandLocal, commandProxy} {
			b := head(command, familyUnspec, tlv(TypeCRC32C, make([]byte, 4)))
			right := slices.Clone(b)
			copy(right[len(right)-4:], sum(b))
			accepted(t, right, Header{Version: 2, Local: command == commandLocal, TLVs: []TLV{{TypeCRC32C, sum(b)}}})
			refused(t, b, ErrChecksum, len(b))
			accepted(t, head(command, familyUnspec, tlv(TypeCRC32C, []byte{1})), Header{Version: 2, Local: command == commandLocal})
		}
	})
}

func TestParseLargest(t *testing.T) {
	addrs := unhex(t, addrsHex)
	largest := func(size int) ([]byte, Header) {
		value := make([]byte, size-headSize-len(addrs)-3)
		return head(commandProxy, familyTCP4, append(slices.Clone(addrs), tlv(0xe0, value)...)),
			Header{Version: 2, Source: baseSource, Destination: baseDestination, TLVs: []TLV{{0xe0, value}}}
	}
	b, want := largest(MaxSize)
	if h, n, err := Parse(append(b, "payload"...), V2); err != nil || n != MaxSize || !equal(h, want) {
		t.Fatalf("%d, %v", n, err)
	}
	if _, _, err := Parse(b[:MaxSize-1], V2); err != ErrShort {
		t.Fatal(err)
	}
	b, _ = largest(MaxSize + 1)
	refused(t, b, ErrTooLong, headSize)
	for _, command := range []byte{commandLocal, commandProxy} {
		for _, family := range []byte{familyUnspec, familyTCP4, familyTCP6, familyUnix} {
			refused(t, append(slices.Clone(signatureV2), command, family, 0xff, 0xff), ErrTooLong, headSize)
		}
	}
}

func TestParseMissing(t *testing.T) {
	line, v2 := "PROXY UNKNOWN\r\n", string(head(commandLocal, familyUnspec, nil))
	for _, row := range []struct {
		in     string
		accept Versions
		want   error
	}{
		{"", V1 | V2, ErrShort},
		{"", V1, ErrShort},
		{"", 0, ErrMissing},
		{line, 0, ErrMissing},
		{line, V2, ErrMissing},
		{"P", V2, ErrMissing},
		{"\r", V1, ErrMissing},
		{v2, V1, ErrMissing},
		{"P", V1, ErrShort},
		{"\r", V2, ErrShort},
		{"\r\n\r\n\x00\r\nQUIT\r", V1 | V2, ErrMissing},
		{"\r\n\r\n\x01", V1 | V2, ErrMissing},
		{"\r\n\r\nG", V1 | V2, ErrMissing},
		{"proxy TCP4", V1 | V2, ErrMissing},
		{"PROXX", V1 | V2, ErrMissing},
		{"GET / HTTP/1.1\r\n", V1 | V2, ErrMissing},
		{"\x16\x03\x01", V1 | V2, ErrMissing},
		{"\x00", V1 | V2, ErrMissing},
		{line, V1, nil},
		{line, V1 | V2, nil},
		{v2, V2, nil},
		{v2, V1 | V2, nil},
	} {
		t.Run(fmt.Sprintf("%q", row.in), func(t *testing.T) {
			if _, _, err := Parse([]byte(row.in), row.accept); err != row.want {
				t.Fatalf("accepting %d: %v, want %v", row.accept, err, row.want)
			}
		})
	}
}
