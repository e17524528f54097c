package proxyheader

import (
	"net/netip"
	"strings"
	"testing"
)

func TestLineAccepted(t *testing.T) {
	unknown := Header{Version: 1}
	of := func(source, destination string) Header {
		return Header{Version: 1, Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination)}
	}
	full := "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	for line, want := range map[string]Header{
		"PROXY UNKNOWN\r\n": unknown,
		"PROXY UNKNOWN " + full + " " + full + " 65535 65535\r\n": unknown, // 107 bytes
		"PROXY UNKNOWN \r\n":                                                  unknown,
		"PROXY UNKNOWN what  ever\t\x00\xff\r\n":                              unknown,
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n":                    of("192.0.2.10:51000", "198.51.100.5:443"),
		"PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n":                      of("0.0.0.0:0", "255.255.255.255:65535"),
		"PROXY TCP6 2001:db8::a 2001:DB8::5 51000 443\r\n":                    of("[2001:db8::a]:51000", "[2001:db8::5]:443"),
		"PROXY TCP6 :: ::1 1 2\r\n":                                           of("[::]:1", "[::1]:2"),
		"PROXY TCP6 1:2:3:4:5:6:7:8 1:2:3:4:5:6:7:: 1 2\r\n":                  of("[1:2:3:4:5:6:7:8]:1", "[1:2:3:4:5:6:7:0]:2"),
		"PROXY TCP6 ::ffff:192.0.2.10 ::ffff:c633:6405 51000 443\r\n":         of("[::ffff:192.0.2.10]:51000", "[::ffff:198.51.100.5]:443"),
		"PROXY TCP6 64:ff9b::192.0.2.10 1:2:3:4:5:6:198.51.100.5 1 65535\r\n": of("[64:ff9b::c000:20a]:1", "[1:2:3:4:5:6:c633:6405]:65535"),
		"PROXY TCP6 " + full + " " + full + " 65535 65535\r\n":                of("["+full+"]:65535", "["+full+"]:65535"),
		"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n":          of("255.255.255.255:65535", "255.255.255.255:65535"),
	} {
		t.Run(line, func(t *testing.T) { accepted(t, []byte(line), want) })
	}
}

// Each line is refused at its first byte that no valid line has there: the
// byte before "|" is the last that is harmless.
func TestLineRefused(t *testing.T) {
	for _, marked := range []string{
		"PROXY|\r\n",
		"PROXY|X UNKNOWN\r\n",
		"PROXY|\tTCP4 192.0.2.10 198.51.100.5 51000 443\r\n",
		"PROXY | TCP4 192.0.2.10 198.51.100.5 51000 443\r\n",
		"PROXY |\r\n",
		"PROXY |unknown\r\n",
		"PROXY |tcp4 192.0.2.10 198.51.100.5 51000 443\r\n",
		"PROXY TCP|5 192.0.2.10 198.51.100.5 51000 443\r\n",
		"PROXY TCP| 192.0.2.10 198.51.100.5 51000 443\r\n",
		"PROXY U|DP4 192.0.2.10 198.51.100.5 51000 443\r\n",
		"PROXY UNKNOW|\r\n",
		"PROXY UNKNOWN|X\r\n",
		"PROXY UNKNOWN|\n",
		"PROXY UNKNOWN a|\nb\r\n",
		"PROXY UNKNOWN\r|x\r\n",
		"PROXY UNKNOWN a\r|\r\n",
		"PROXY TCP4|\r\n",
		"PROXY TCP4 |\r\n",
		"PROXY TCP4 | 192.0.2.10 198.51.100.5 51000 443\r\n",
		"PROXY TCP4 192.0.2.10 | 198.51.100.5 51000 443\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 | 51000 443\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 | 443\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 443| \r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 443| 1\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000|\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 |\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5|\r\n",
		"PROXY TCP4 192.0.2.10|\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 443|\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r|\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 6553|6\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 10000|0\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 |-1 443\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 |+51000 443\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 0|443\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 0|0 443\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 0|x1bb\r\n",
		"PROXY TCP4 192.0.2.10 198.51.100.5 51000 |https\r\n",
		"PROXY TCP4 192.0.2.0|10 198.51.100.5 51000 443\r\n",
		"PROXY TCP4 192.0.2.25|6 198.51.100.5 51000 443\r\n",
		"PROXY TCP4 192.0.2| 198.51.100.5 51000 443\r\n",
		"PROXY TCP4 192.0.2.10|.1 198.51.100.5 51000 443\r\n",
		"PROXY TCP4 192.|.2.10 198.51.100.5 51000 443\r\n",
		"PROXY TCP4 200|1:db8::a 2001:db8::5 51000 443\r\n",
		"PROXY TCP4 192.0.2.10 |::5 51000 443\r\n",
		"PROXY TCP4 |relay.example.org 198.51.100.5 51000 443\r\n",
		"PROXY TCP6 192|.0.2.10 198.51.100.5 51000 443\r\n",
		"PROXY TCP6 2001:db8::a 198|.51.100.5 51000 443\r\n",
		"PROXY TCP6 fe80::1|%eth0 2001:db8::5 51000 443\r\n",
		"PROXY TCP6 2001:db8::a:|:1 2001:db8::5 51000 443\r\n",
		"PROXY TCP6 1:2:3:4:5:6:7:8|:9 ::1 51000 443\r\n",
		"PROXY TCP6 1:2:3:4:5:6:7| ::1 51000 443\r\n",
		"PROXY TCP6 2001:0db8|0::a ::1 51000 443\r\n",
		"PROXY TCP6 :|1 ::1 51000 443\r\n",
		"PROXY TCP6 |[::1] ::1 51000 443\r\n",
		"PROXY TCP6 ::ffff:192.0.2.0|1 ::1 51000 443\r\n",
	} {
		t.Run(marked, func(t *testing.T) {
			harmless, rest, _ := strings.Cut(marked, "|")
			refused(t, []byte(harmless+rest+"payload"), ErrMalformed, len(harmless)+1)
		})
	}
}

// No line waits past byte 107, and the longest still fits.
func TestLineLongest(t *testing.T) {
	for _, size := range []int{107, 108, 200, 4096} {
		line := "PROXY UNKNOWN " + strings.Repeat("x", size-len("PROXY UNKNOWN \r\n")) + "\r\n"
		if size == 107 {
			accepted(t, []byte(line), Header{Version: 1})
		} else {
			refused(t, []byte(line), ErrMalformed, 106)
		}
	}
	refused(t, []byte("PROXY TCP6 ::ffff:255.255.255.255 0000:0000:0000:0000:0000:ffff:255.255.255.255 65535 65535"+strings.Repeat("9", 30)), ErrMalformed, 92)
}
