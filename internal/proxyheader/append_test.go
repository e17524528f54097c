package proxyheader

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"
)

// sum is the CRC32C of b, computed bit by bit from RFC 9260's polynomial so that
// it shares nothing with the code under test.
func sum(b []byte) []byte {
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78*(crc&1)
		}
	}
	return binary.BigEndian.AppendUint32(nil, ^crc)
}

func TestSumIsCastagnoli(t *testing.T) {
	if got := hex.EncodeToString(sum([]byte("123456789"))); got != "e3069283" { // the polynomial's well-known check value
		t.Fatal(got)
	}
	if crc32.Checksum([]byte("123456789"), castagnoli) != 0xe3069283 {
		t.Fatal("the table is another polynomial's")
	}
}

func TestAppend(t *testing.T) {
	const (
		v4  = "192.0.2.10:51000"
		v4m = "[::ffff:192.0.2.10]:51000"
		v6  = "[2001:db8::a]:51000"
		d4  = "198.51.100.5:443"
		d4m = "[::ffff:198.51.100.5]:443"
		d6  = "[2001:db8::5]:443"

		hexV6  = "20010db800000000000000000000000a"
		hexD6  = "20010db8000000000000000000000005"
		mapped = "00000000000000000000ffff"
		ports  = "c738 01bb"

		four      = "21 11 000c c000020a c6336405" + ports
		lineFour  = "PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n"
		local     = "20 00 0000"
		lineLocal = "PROXY UNKNOWN\r\n"
	)
	for _, row := range []struct {
		name                string
		source, destination string
		local               bool
		want, line          string
	}{
		{"both IPv4", v4, d4, false, four, lineFour},
		{"both mapped", v4m, d4m, false, four, lineFour},
		{"mapped source", v4m, d4, false, four, lineFour},
		{"mapped destination", v4, d4m, false, four, lineFour},
		{"both IPv6", v6, d6, false, "21 21 0024" + hexV6 + hexD6 + ports, "PROXY TCP6 2001:db8::a 2001:db8::5 51000 443\r\n"},
		{"IPv6 to IPv4", v6, d4, false, "21 21 0024" + hexV6 + mapped + "c6336405" + ports, "PROXY TCP6 2001:db8::a ::ffff:c633:6405 51000 443\r\n"},
		{"IPv6 to mapped", v6, d4m, false, "21 21 0024" + hexV6 + mapped + "c6336405" + ports, "PROXY TCP6 2001:db8::a ::ffff:c633:6405 51000 443\r\n"},
		{"IPv4 to IPv6", v4, d6, false, "21 21 0024" + mapped + "c000020a" + hexD6 + ports, "PROXY TCP6 ::ffff:c000:20a 2001:db8::5 51000 443\r\n"},
		{"zones", "[fe80::1%eth0]:1", "[fe80::2%eth0]:2", false,
			"21 21 0024 fe800000000000000000000000000001 fe800000000000000000000000000002 0001 0002", "PROXY TCP6 fe80::1 fe80::2 1 2\r\n"},
		{"IPv4 to nothing", v4, "", false, "21 11 000c c000020a 00000000 c738 0000", "PROXY TCP4 192.0.2.10 0.0.0.0 51000 0\r\n"},
		{"IPv6 to nothing", v6, "", false, "21 21 0024" + hexV6 + strings.Repeat("00", 16) + "c738 0000", "PROXY TCP6 2001:db8::a :: 51000 0\r\n"},
		{"no source", "", d4, false, local, lineLocal},
		{"nothing", "", "", false, local, lineLocal},
		{"LOCAL", v4, d4, true, local, lineLocal},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := Header{Local: row.local}
			if row.source != "" {
				h.Source = netip.MustParseAddrPort(row.source)
			}
			if row.destination != "" {
				h.Destination = netip.MustParseAddrPort(row.destination)
			}
			got, err := AppendV2([]byte("before"), h, false)
			if err != nil || string(got) != "before"+string(unhex(t, sigHex+row.want)) {
				t.Fatalf("% x, %v", got, err)
			}
			line := AppendV1([]byte("before"), h)
			if string(line) != "before"+row.line {
				t.Fatalf("%q", line)
			}
			// What is written is read by the strict side of this package.
			two, _, err := Parse(got[6:], V2)
			if err != nil {
				t.Fatal(err)
			}
			one, _, err := Parse(line[6:], V1)
			if err != nil || one.Source != two.Source || one.Destination != two.Destination {
				t.Fatalf("%+v as a line, %+v as version 2, %v", one, two, err)
			}
		})
	}
}

func TestAppendTLVsAndChecksum(t *testing.T) {
	h := Header{Source: baseSource, Destination: baseDestination}
	got, err := AppendV2([]byte("before"), h, true)
	if want := "before" + string(unhex(t, sigHex+"21 11 0013"+addrsHex+"030004 97f1d246")); err != nil || string(got) != want {
		t.Fatalf("% x, %v", got, err)
	}

	h.TLVs = []TLV{{TypeALPN, []byte("h2")}, {TypeCRC32C, []byte("old!")}, {TypeNoop, nil}}
	got, err = AppendV2(nil, h, false)
	if want := unhex(t, sigHex+"21 11 0014"+addrsHex+"0100026832 040000"); err != nil || string(got) != string(want) {
		t.Fatalf("% x, %v", got, err)
	}
	got, err = AppendV2(nil, h, true)
	unsigned := unhex(t, sigHex+"21 11 001b"+addrsHex+"0100026832 040000 030004 00000000")
	want := append(unsigned[:len(unsigned)-4:len(unsigned)-4], sum(unsigned)...)
	if err != nil || string(got) != string(want) {
		t.Fatalf("% x, %v", got, err)
	}

	got, err = AppendV2(nil, Header{Local: true}, true)
	unsigned = unhex(t, sigHex+"20 00 0007 030004 00000000")
	want = append(unsigned[:len(unsigned)-4:len(unsigned)-4], sum(unsigned)...)
	if err != nil || string(got) != string(want) {
		t.Fatalf("% x, %v", got, err)
	}
}

func TestAppendLongest(t *testing.T) {
	for _, checksum := range []bool{false, true} {
		overhead := headSize + 12 + 3
		if checksum {
			overhead += 7
		}
		h := Header{Source: baseSource, Destination: baseDestination, TLVs: []TLV{{0xe0, make([]byte, maxWritten-overhead)}}}
		if got, err := AppendV2(nil, h, checksum); err != nil || len(got) != maxWritten {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		for _, size := range []int{maxWritten - overhead + 1, 1 << 16, 1 << 20} {
			h.TLVs[0].Value = make([]byte, size)
			if got, err := AppendV2([]byte("before"), h, checksum); err == nil || string(got) != "before" {
				t.Fatalf("%d bytes of value: %d bytes, %v", size, len(got), err)
			}
		}
	}
}
