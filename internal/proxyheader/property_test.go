package proxyheader

import (
	"bufio"
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/pires/go-proxyproto"
	"pgregory.net/rapid"
)

func drawAddr(t *rapid.T, label string, kinds ...string) netip.AddrPort {
	port := rapid.Uint16().Draw(t, label+" port")
	b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label)
	switch rapid.SampledFrom(kinds).Draw(t, label+" kind") {
	case "v4":
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), port)
	case "v6":
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), port)
	case "mapped":
		return netip.AddrPortFrom(netip.AddrFrom16(netip.AddrFrom4([4]byte(b)).As16()), port)
	}
	return netip.AddrPort{}
}

func drawHeader(t *rapid.T) Header {
	h := Header{
		Version: 2, Local: rapid.Bool().Draw(t, "local"),
		Source:      drawAddr(t, "source", "v4", "v6", "mapped", "none"),
		Destination: drawAddr(t, "destination", "v4", "v6", "mapped", "none"),
	}
	for range rapid.IntRange(0, 6).Draw(t, "TLVs") {
		typ := rapid.Byte().Filter(func(b byte) bool { return b != TypeCRC32C && b != TypeNoop }).Draw(t, "type")
		h.TLVs = append(h.TLVs, TLV{typ, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value")})
	}
	return h
}

// What is appended is read back, alone and by go-proxyproto, with the addresses
// unchanged in value.
func TestAppendThenParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		checksum := rapid.Bool().Draw(t, "checksum")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "payload")
		b, err := AppendV2(nil, h, checksum)
		if err != nil {
			t.Fatal(err)
		}
		got, n, err := Parse(append(slices.Clone(b), payload...), V1|V2)
		if err != nil || n != len(b) {
			t.Fatalf("%d of %d bytes, %v", n, len(b), err)
		}
		if checksum {
			last := len(got.TLVs) - 1
			if last < 0 || got.TLVs[last].Type != TypeCRC32C {
				t.Fatalf("no checksum at the end of %+v", got.TLVs)
			}
			got.TLVs = got.TLVs[:last]
		}
		want := h
		if h.Local || !h.Source.IsValid() {
			want.Local, want.Source, want.Destination = true, netip.AddrPort{}, netip.AddrPort{}
		}
		if !same(got.Source, want.Source) || want.Destination.IsValid() && !same(got.Destination, want.Destination) ||
			got.Source.IsValid() && got.Source.Addr().Is4() != got.Destination.Addr().Is4() {
			t.Fatalf("%v to %v became %v to %v", want.Source, want.Destination, got.Source, got.Destination)
		}
		got.Source, got.Destination = want.Source, want.Destination
		if !equal(got, want) {
			t.Fatalf("%+v became %+v", want, got)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, _, err := Parse(b[:cut], V1|V2); err != ErrShort {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	})
}

func same(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && a.Addr().Unmap() == b.Addr().Unmap()
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		baseHex,
		sigHex + "20 11 000c" + addrsHex,
		sigHex + "21 00 0005 deadbeef00",
		sigHex + "21 11 0008 c000020a c6336405",
		sigHex + "21 11 000f" + addrsHex + "040000",
		sigHex + "21 11 0010" + addrsHex + "04ffff00",
		sigHex + "21 11 0013" + addrsHex + "030004 97f1d246",
		sigHex + "21 11 0013" + addrsHex + "030004 97f1d247",
		sigHex + "21 11 ffff" + addrsHex,
		sigHex + "21 21 0024 20010db800000000000000000000000a 20010db8000000000000000000000005 c738 01bb",
	} {
		f.Add(append(unhex(f, s), "payload"...), byte(V1|V2))
	}
	for _, s := range []string{
		"PROXY UNKNOWN\r\n", "PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\nGET",
		"PROXY TCP6 2001:db8::a ::ffff:192.0.2.1 51000 0443\r\n", "PROXY TCP4 ", "GET / HTTP/1.1\r\n",
	} {
		f.Add([]byte(s), byte(V1|V2))
	}
	f.Fuzz(func(t *testing.T, b []byte, accept byte) {
		versions := Versions(accept) & (V1 | V2)
		before := slices.Clone(b)
		h, n, err := Parse(b, versions)
		if !bytes.Equal(b, before) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if n != 0 || h.Version != 0 {
				t.Fatalf("an error with %+v, %d", h, n)
			}
			// What is final stays so, whatever comes after it.
			if err != ErrShort {
				if _, _, again := Parse(append(slices.Clone(b), 0), versions); again != err {
					t.Fatalf("%v became %v with one more byte", err, again)
				}
			}
			return
		}
		if n <= 0 || n > len(b) || n > MaxSize {
			t.Fatalf("a header of %d bytes in %d", n, len(b))
		}
		for cut := range n {
			if _, _, err := Parse(b[:cut], versions); err != ErrShort {
				t.Fatalf("cut at %d of %d: %v", cut, n, err)
			}
		}
		again, m, err := Parse(append(slices.Clone(b[:n]), "\r\n"...), versions)
		if err != nil || m != n || !equal(again, h) {
			t.Fatalf("%+v, %d, %v with another payload; %+v, %d", again, m, err, h, n)
		}
		read, rest, err := Read(bytes.NewReader(b), versions)
		if err != nil || !equal(read, h) || !bytes.HasPrefix(b[n:], rest) {
			t.Fatalf("Read: %+v, %v", read, err)
		}
		agreesWithOracle(t, b[:n], h)
	})
}

// agreesWithOracle holds an accepted header against go-proxyproto's own reading,
// which refuses UNSPEC with PROXY and LOCAL with an undefined family.
func agreesWithOracle(t *testing.T, b []byte, h Header) {
	t.Helper()
	if h.Version == 2 && (h.Local || b[13] == familyUnspec) {
		if h.Source.IsValid() || h.Destination.IsValid() {
			t.Fatalf("addresses in %+v", h)
		}
		return
	}
	reader := bufio.NewReader(bytes.NewReader(b))
	raw, err := proxyproto.Read(reader)
	if err != nil {
		t.Fatalf("go-proxyproto refuses %q: %v", b, err)
	}
	if reader.Buffered() != 0 {
		t.Fatalf("go-proxyproto leaves %d bytes of %q", reader.Buffered(), b)
	}
	if int(raw.Version) != h.Version {
		t.Fatalf("version %d", raw.Version)
	}
	source, destination, _ := raw.TCPAddrs()
	if asAddrPort(source) != h.Source || asAddrPort(destination) != h.Destination {
		t.Fatalf("%v to %v, go-proxyproto has %v to %v", h.Source, h.Destination, source, destination)
	}
	tlvs, err := raw.TLVs()
	if err != nil || len(tlvs) != len(h.TLVs) {
		t.Fatalf("%d TLVs, go-proxyproto has %d, %v", len(h.TLVs), len(tlvs), err)
	}
}

func asAddrPort(a *net.TCPAddr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	return a.AddrPort()
}

var benchHeader = Header{
	Version: 2, Source: baseSource, Destination: baseDestination,
	TLVs: []TLV{
		{TypeALPN, []byte("http/1.1")}, {TypeAuthority, []byte("relay.example.org")}, {TypeUniqueID, make([]byte, 16)},
		SSL{Version: "TLSv1.3", Cipher: "TLS_AES_128_GCM_SHA256"}.TLV(),
	},
}

func BenchmarkAppendV2(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 0, 512)
	for b.Loop() {
		if _, err := AppendV2(buf, benchHeader, true); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	v2, err := AppendV2(nil, benchHeader, true)
	if err != nil {
		b.Fatal(err)
	}
	for name, header := range map[string][]byte{"v2": v2, "v1": AppendV1(nil, benchHeader)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Parse(header, V1|V2); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
