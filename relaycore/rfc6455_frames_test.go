package relaycore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"relayedge/relaycore/wire"
)

// times repeats a case's payloads.
func times[T any](n int, v T) []T { return slices.Repeat([]T{v}, n) }

// RFC 6455, section 5.2: lengths around every border of their three forms.
func TestSuiteFraming(t *testing.T) {
	var cases []rfcCase
	add := func(c rfcCase) { cases = append(cases, c) }
	lengths := []int{wire.SendHead, 125, 126, 127, 128, 65535, 65536}
	for _, n := range lengths {
		add(rfcCase{name: fmt.Sprintf("binary of %d bytes", n),
			send: func(k talk) []byte { return k.whole(n) }, delivered: []int{n}})
	}
	// A relay frame has one byte at least: an empty message is one of the right
	// framing and the wrong content.
	add(rfcCase{name: "binary of 0 bytes", send: sends(frameOf(0x82, nil)), fails: 1007})
	add(rfcCase{name: "binary of 1 byte", send: sends(wireFrame(wire.Keepalive{}))})
	for _, n := range append([]int{0, 1}, lengths...) {
		// Text is refused by its first two bytes.
		add(rfcCase{name: fmt.Sprintf("text of %d bytes", n),
			send: sends(frameOf(0x81, []byte(strings.Repeat("*", n)))), fails: 1003})
	}
	add(rfcCase{name: "all lengths one after another", delivered: lengths,
		send: func(k talk) []byte {
			var b []byte
			for _, n := range lengths {
				b = append(b, k.whole(n)...)
			}
			return b
		}})

	// The lengths that a header must not have, with the bytes that follow it.
	long := func(first byte, form byte, n uint64) []byte {
		b := []byte{first, 0x80 | form}
		if form == 126 {
			b = binary.BigEndian.AppendUint16(b, uint16(n))
		} else {
			b = binary.BigEndian.AppendUint64(b, n)
		}
		return append(b, make([]byte, 4+min(n, 200))...)
	}
	for _, n := range []uint64{0, 1, 43, 125} {
		add(rfcCase{name: fmt.Sprintf("16-bit form of %d", n), send: sends(long(0x82, 126, n)), fails: 1002})
	}
	for _, n := range []uint64{0, 1, 125, 126, 65535, 1 << 63, 1<<64 - 1} {
		add(rfcCase{name: fmt.Sprintf("64-bit form of %d", n), send: sends(long(0x82, 127, n)), fails: 1002})
	}
	for _, n := range []uint64{suiteLimit + 1, 1 << 31, 1 << 32, 1<<32 + 43, 1<<63 - 1} {
		add(rfcCase{name: fmt.Sprintf("length %d", n), send: sends(long(0x82, 127, n)), fails: 1009})
		add(rfcCase{name: fmt.Sprintf("first fragment of %d", n), send: sends(long(0x02, 127, n)), fails: 1009})
		add(rfcCase{name: fmt.Sprintf("second fragment of %d", n),
			send: sends(frameOf(0x02, []byte("a")), long(0x00, 127, n)), fails: 1009})
	}
	// RFC 6455, section 5.1: a client's frames are masked.
	for first, what := range map[byte]string{0x82: "message", 0x02: "fragment", 0x89: "ping", 0x8a: "pong", 0x88: "close"} {
		add(rfcCase{name: what + " without a mask", send: sends([]byte{first, 0x01, 0x08}, ping("a")), fails: 1002})
		add(rfcCase{name: what + " without a mask behind a message",
			send:      func(k talk) []byte { return all(k.whole(60), []byte{first, 0x02, 0x03, 0xe8}, k.whole(61)) },
			delivered: []int{60}, fails: 1002})
	}
	add(rfcCase{name: "text without a mask", send: sends([]byte{0x81, 0x01, 0x41}), fails: 1002})
	for _, mask := range []string{"\x00\x00\x00\x00", "\xff\xff\xff\xff", "\x00\x00\x00\x01"} {
		add(rfcCase{name: fmt.Sprintf("mask %x", mask), delivered: []int{100}, send: func(k talk) []byte {
			b := append([]byte{0x82, 0x80 | 100}, mask...)
			for i, c := range k.message(100) {
				b = append(b, c^mask[i%4])
			}
			return b
		}})
	}
	play(t, cases)
}

// RFC 6455, sections 5.5.2 and 5.5.3.
func TestSuitePings(t *testing.T) {
	longest := strings.Repeat("\xfe", 125)
	ten := func(between []byte) (stream []byte, pongs []string) {
		for i := range 10 {
			pongs = append(pongs, fmt.Sprintf("payload %d", i))
			stream = all(stream, ping(pongs[i]), between)
		}
		return stream, pongs
	}
	tenPings, tenPongs := ten(nil)
	mixed, _ := ten(pong("nobody asked"))
	many := func(n int, payload string) []byte { return all(times(n, ping(payload))...) }
	play(t, []rfcCase{
		{name: "empty ping", send: sends(ping("")), pongs: []string{""}},
		{name: "ping", send: sends(ping("Hello, world!")), pongs: []string{"Hello, world!"}},
		{name: "ping that is not UTF-8", send: sends(ping("\x00\xff\xfe\xfd\xfc\xfb\x00\xff")), pongs: []string{"\x00\xff\xfe\xfd\xfc\xfb\x00\xff"}},
		{name: "ping of 125 bytes", send: sends(ping(longest)), pongs: []string{longest}},
		{name: "ping of 126 bytes", send: sends(ping(longest + "a")), fails: 1002},
		{name: "ping of 126 bytes in 64 bits", send: sends([]byte{0x89, 0xff, 0, 0, 0, 0, 0, 0, 0, 126}), fails: 1002},
		{name: "ping of 65536 bytes", send: sends(ping(strings.Repeat("a", 65536))), fails: 1002},
		{name: "pong of 125 bytes", send: sends(pong(longest))},
		{name: "pong of 126 bytes", send: sends(pong(longest + "a")), fails: 1002},
		{name: "pong that nobody asked for", send: sends(pong("unsolicited"))},
		{name: "empty pong that nobody asked for", send: sends(pong(""))},
		{name: "pong that nobody asked for, then ping", send: sends(pong("unsolicited"), ping("asked")), pongs: []string{"asked"}},
		{name: "eight bytes that are no ping's number", send: sends(pong("\x00\x00\x00\x00\x00\x00\x00\x01"))},
		{name: "ten pings", send: sends(tenPings), pongs: tenPongs},
		{name: "ten pings with pongs between", send: sends(mixed), pongs: tenPongs},
		{name: "sixteen pings of 125 bytes", send: sends(many(16, longest), closing(1000, "")), pongs: times(16, longest), closes: 1000},
		{name: "ping before and behind messages", delivered: []int{50, 60}, pongs: []string{"1", "2", "3"},
			send: func(k talk) []byte { return all(ping("1"), k.whole(50), ping("2"), k.whole(60), ping("3")) }},
		{name: "1,024 pongs without a message", send: sends(all(times(1022, pong(""))...))}, // two more come at the end
		{name: "1,025 pongs without a message", send: sends(all(times(1025, pong(""))...)), fails: 1008},
		{name: "fragmented ping", send: sends(frameOf(0x09, []byte("a")), frameOf(0x80, []byte("b"))), fails: 1002},
		{name: "fragmented empty ping", send: sends(frameOf(0x09, nil)), fails: 1002},
		{name: "fragmented pong", send: sends(frameOf(0x0a, []byte("a")), frameOf(0x80, []byte("b"))), fails: 1002},
		{name: "fragmented pong inside a message", send: sends(frameOf(0x02, []byte("a")), frameOf(0x0a, []byte("a")), frameOf(0x80, []byte("b"))), fails: 1002},
	})
}

// RFC 6455, section 5.2: reserved bits without an extension, and reserved opcodes.
func TestSuiteReserved(t *testing.T) {
	var cases []rfcCase
	for rsv := byte(1); rsv < 8; rsv++ {
		for first, what := range map[byte]string{0x82: "message", 0x81: "text", 0x02: "fragment", 0x89: "ping", 0x8a: "pong", 0x88: "close"} {
			cases = append(cases,
				rfcCase{name: fmt.Sprintf("reserved bits %03b on a %s", rsv, what), send: sends(frameOf(first|rsv<<4, nil)), fails: 1002},
				rfcCase{name: fmt.Sprintf("reserved bits %03b on a %s behind a message and a ping", rsv, what),
					send: func(k talk) []byte {
						return all(k.whole(64), ping("before"), frameOf(first|rsv<<4, []byte("Hello")), ping("behind"), k.whole(65))
					},
					delivered: []int{64}, pongs: []string{"before"}, fails: 1002})
		}
		cases = append(cases, rfcCase{name: fmt.Sprintf("reserved bits %03b on a continuation", rsv),
			send: func(k talk) []byte {
				m := k.message(64)
				return all(frameOf(0x02, m[:32]), frameOf(0x80|rsv<<4, m[32:]))
			}, fails: 1002})
	}
	for _, op := range []byte{3, 4, 5, 6, 7, 0xb, 0xc, 0xd, 0xe, 0xf} {
		for _, payload := range []string{"", "reserved opcode"} {
			cases = append(cases,
				rfcCase{name: fmt.Sprintf("opcode %x with %d bytes", op, len(payload)), send: sends(frameOf(0x80|op, []byte(payload)), ping("a")), fails: 1002},
				rfcCase{name: fmt.Sprintf("opcode %x with %d bytes behind a message", op, len(payload)), delivered: []int{64}, fails: 1002,
					send: func(k talk) []byte { return all(k.whole(64), frameOf(0x80|op, []byte(payload)), k.whole(65)) }})
		}
		cases = append(cases, rfcCase{name: fmt.Sprintf("opcode %x inside a message", op), fails: 1002,
			send: func(k talk) []byte { return k.cut(64, frameOf(op, nil), 32) }})
	}
	play(t, cases)
}

// RFC 6455, section 5.4.
func TestSuiteFragmentation(t *testing.T) {
	ok := func(name string, n int, send func(talk) []byte, pongs ...string) rfcCase {
		return rfcCase{name: name, send: send, delivered: []int{n}, pongs: pongs}
	}
	fails := func(name string, send func(talk) []byte) rfcCase { return rfcCase{name: name, send: send, fails: 1002} }
	cases := []rfcCase{
		ok("two frames", 100, func(k talk) []byte { return k.cut(100, nil, 50) }),
		ok("three frames", 100, func(k talk) []byte { return k.cut(100, nil, 1, 98) }),
		ok("empty first frame", 100, func(k talk) []byte { return k.cut(100, nil, 0) }),
		ok("empty frames between", 100, func(k talk) []byte { return k.cut(100, nil, 40, 0, 0, 0, 30) }),
		ok("empty last frame", 100, func(k talk) []byte { return k.cut(100, nil, 60, 40) }),
		ok("a frame for each byte", 300, func(k talk) []byte { return k.each(300, 1) }),
		ok("a frame of 65,536 bytes and one of 125", 65661, func(k talk) []byte { return k.cut(65661, nil, 65536) }),
		ok("1,024 frames", 1024, func(k talk) []byte { return k.each(1024, 1) }),
		ok("ping between two frames", 100, func(k talk) []byte { return k.cut(100, ping("mid"), 50) }, "mid"),
		ok("pong between two frames", 100, func(k talk) []byte { return k.cut(100, pong("mid"), 50) }),
		ok("ping between five frames", 100, func(k talk) []byte { return k.cut(100, ping("mid"), 20, 20, 20, 20) }, times(4, "mid")...),
		ok("ping of 125 bytes between two frames", 100, func(k talk) []byte { return k.cut(100, ping(strings.Repeat("p", 125)), 50) }, strings.Repeat("p", 125)),
		ok("ping and pong before the last frame", 100, func(k talk) []byte { return k.cut(100, all(ping("a"), pong("b"), ping("c")), 50) }, "a", "c"),
		{name: "two messages in fragments", delivered: []int{100, 200}, send: func(k talk) []byte { return all(k.each(100, 30), k.each(200, 30)) }},
		{name: "1,024 control frames inside a message", delivered: []int{100}, send: func(k talk) []byte { return k.cut(100, all(times(1024, pong(""))...), 50) }},
		{name: "1,025 control frames inside a message", fails: 1008, send: func(k talk) []byte { return k.cut(100, all(times(1025, pong(""))...), 50) }},

		{name: "last continuation of nothing, then a message", fails: 1002, send: func(k talk) []byte { return all(frameOf(0x80, []byte("a")), k.whole(100)) }},
		{name: "continuation of nothing, then a message", fails: 1002, send: func(k talk) []byte { return all(frameOf(0x00, []byte("a")), k.whole(100)) }},
		fails("empty continuation of nothing", sends(frameOf(0x00, nil))),
		fails("continuations of nothing for ever", sends(times(10, frameOf(0x00, []byte("a")))...)),
		fails("new message inside a message", func(k talk) []byte { return all(frameOf(0x02, k.message(100)[:50]), k.whole(100)) }),
		fails("new fragmented message inside a message", func(k talk) []byte { return all(frameOf(0x02, k.message(100)[:50]), k.each(100, 50)) }),
		fails("text inside a message", func(k talk) []byte { return all(frameOf(0x02, k.message(100)[:50]), frameOf(0x81, []byte("a"))) }),
		fails("new message behind a ping inside a message", func(k talk) []byte {
			return all(frameOf(0x02, k.message(100)[:50]), pong("p"), k.whole(100))
		}),
		{name: "continuation behind a whole message", delivered: []int{100}, fails: 1002, send: func(k talk) []byte { return all(k.whole(100), frameOf(0x80, []byte("a"))) }},
		{name: "continuation behind a fragmented message", delivered: []int{100}, fails: 1002, send: func(k talk) []byte { return all(k.each(100, 50), frameOf(0x80, []byte("a"))) }},
		{name: "text in fragments", fails: 1003, send: sends(frameOf(0x01, []byte("a")), frameOf(0x80, []byte("b")))},
	}
	for _, more := range []struct{ n, size int }{{65536, 997}, {65536, 1300}, {65536, 65535}, {65536, 64}} {
		cases = append(cases, ok(fmt.Sprintf("%d bytes in frames of %d", more.n, more.size), more.n,
			func(k talk) []byte { return k.each(more.n, more.size) }))
	}
	play(t, cases)
}
