package relaycore

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// texts are byte strings and whether they are UTF-8, kind by kind (RFC 3629).
var texts = []struct {
	name, text string
	valid      bool
}{
	{"nothing", "", true},
	{"ASCII", "Hello", true},
	{"control characters", "\x00\x1f\x7f", true},
	{"two bytes", "\u00e4\u00f6\u00fc\u00df", true},
	{"three bytes", "\u65e5\u672c\u8a9e", true},
	{"four bytes", "\U0001f984", true},
	{"all lengths", "a\u00b5\u20ac\U0001f984z", true},
	{"Greek with accents", "\u03ba\u1f79\u03c3\u03bc\u03b5", true},
	{"first of two bytes", "\u0080", true},
	{"last of two bytes", "\u07ff", true},
	{"first of three bytes", "\u0800", true},
	{"last before the surrogates", "\ud7ff", true},
	{"first behind the surrogates", "\ue000", true},
	{"last of three bytes", "\uffff", true},
	{"first of four bytes", "\U00010000", true},
	{"last of all", "\U0010ffff", true},
	{"replacement character", "\ufffd", true},
	{"byte order mark", "\ufeffa", true},
	{"noncharacter U+FDD0", "\ufdd0", true},
	{"noncharacter U+FFFE", "\ufffe", true},
	{"noncharacter U+1FFFE", "\U0001fffe", true},
	{"noncharacter U+1FFFF", "\U0001ffff", true},
	{"noncharacter U+8FFFF", "\U0008ffff", true},
	{"noncharacter U+10FFFE", "\U0010fffe", true},

	{"continuation byte alone", "\x80", false},
	{"last continuation byte alone", "\xbf", false},
	{"two continuation bytes", "\x80\xbf", false},
	{"continuation byte behind ASCII", "abc\x80", false},
	{"start of two bytes alone", "\xc3", false},
	{"start of two bytes and a space", "\xc3\x20", false},
	{"start of two bytes and a bracket", "\xc3\x28", false},
	{"start of three bytes alone", "\xe2", false},
	{"two of three bytes", "\xe2\x82", false},
	{"two of three bytes, then ASCII", "\xe2\x82a", false},
	{"start of four bytes alone", "\xf0", false},
	{"three of four bytes", "\xf0\x9f\xa6", false},
	{"three of four bytes, then ASCII", "\xf0\x9f\xa6a", false},
	{"cut at the end of good text", "\u03ba\u1f79\u03c3\xce", false},
	{"a bad byte in the midst of good text", "\u03ba\u1f79\xff\u03c3\u03bc", false},
	{"slash in two bytes", "\xc0\xaf", false},
	{"slash in three bytes", "\xe0\x80\xaf", false},
	{"slash in four bytes", "\xf0\x80\x80\xaf", false},
	{"zero in two bytes", "\xc0\x80", false},
	{"largest that one byte holds, in two", "\xc1\xbf", false},
	{"largest that two bytes hold, in three", "\xe0\x9f\xbf", false},
	{"largest that three bytes hold, in four", "\xf0\x8f\xbf\xbf", false},
	{"first surrogate", "\xed\xa0\x80", false},
	{"last high surrogate", "\xed\xaf\xbf", false},
	{"first low surrogate", "\xed\xb0\x80", false},
	{"last surrogate", "\xed\xbf\xbf", false},
	{"pair of surrogates", "\xed\xa0\x80\xed\xb0\x80", false},
	{"one beyond U+10FFFF", "\xf4\x90\x80\x80", false},
	{"start beyond U+10FFFF", "\xf5\x80\x80\x80", false},
	{"five bytes", "\xf8\x88\x80\x80\x80", false},
	{"six bytes", "\xfc\x84\x80\x80\x80\x80", false},
	{"FE", "\xfe", false},
	{"FF", "\xff", false},
	{"UTF-16", "\xff\xfeH\x00i\x00", false},
	{"Latin-1", "na\xefve", false},
}

// UTF-8 is judged where text is taken: in the reason of a close frame. Text
// messages are refused whatever they hold, by their header, so that no byte of
// one reaches another client; and binary ones and pings may hold anything.
func TestSuiteUTF8(t *testing.T) {
	var cases []rfcCase
	for _, tc := range texts {
		if utf8.ValidString(tc.text) != tc.valid {
			t.Fatalf("%s: the table is wrong", tc.name)
		}
		half := len(tc.text) / 2
		closed := rfcCase{name: "reason: " + tc.name, send: sends(closing(1000, tc.text), ping("behind")), closes: 1000}
		padded := rfcCase{name: "reason of 123 bytes: " + tc.name, closes: 3000,
			send: sends(closing(3000, strings.Repeat("*", 123-len(tc.text))+tc.text))}
		if !tc.valid {
			closed.closes, closed.fails = 0, 1007
			padded.closes, padded.fails = 0, 1007
		}
		cases = append(cases, closed, padded,
			rfcCase{name: "text: " + tc.name, send: sends(frameOf(0x81, []byte(tc.text)), ping("behind")), fails: 1003},
			rfcCase{name: "text in two frames: " + tc.name, fails: 1003,
				send: sends(frameOf(0x01, []byte(tc.text[:half])), frameOf(0x80, []byte(tc.text[half:])))},
		)
	}
	const few = 14 // as many as are answered for certain
	for n := 0; n < len(texts); n += few {
		c := rfcCase{name: fmt.Sprintf("pings: %s and those behind it", texts[n].name)}
		var pings []byte
		for _, tc := range texts[n:min(n+few, len(texts))] {
			c.pongs = append(c.pongs, tc.text)
			pings = append(pings, ping(tc.text)...)
		}
		c.send = sends(pings)
		cases = append(cases, c)
	}
	cases = append(cases, rfcCase{name: "text between messages", delivered: []int{70}, fails: 1003,
		send: func(k talk) []byte { return all(k.whole(70), frameOf(0x81, []byte("Hello")), k.whole(71)) }})
	// The first two bytes of text say enough, whatever is or is not to follow.
	for first, what := range map[byte]string{0x81: "text", 0x01: "fragment of text"} {
		cases = append(cases,
			rfcCase{name: "two bytes of a " + what, send: sends([]byte{first, 0xff}), fails: 1003},
			rfcCase{name: "endless " + what, send: sends([]byte{first, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), fails: 1003})
	}
	play(t, cases)
}

// RFC 6455, sections 5.5.1 and 7.
func TestSuiteClose(t *testing.T) {
	closes := func(name string, code int, parts ...[]byte) rfcCase {
		return rfcCase{name: name, send: sends(parts...), closes: code}
	}
	fails := func(name string, code int, parts ...[]byte) rfcCase {
		return rfcCase{name: name, send: sends(parts...), fails: code}
	}
	body := func(b string) []byte { return frameOf(0x88, []byte(b)) }
	cases := []rfcCase{
		closes("no body", 1000, body("")),
		closes("code alone", 1000, closing(1000, "")),
		closes("code and reason", 1000, closing(1000, "Hello")),
		closes("reason of 123 bytes", 1000, closing(1000, strings.Repeat("*", 123))),
		fails("body of one byte", 1002, body("\x03")),
		fails("body of one byte that is zero", 1002, body("\x00")),
		fails("reason of 124 bytes", 1002, closing(1000, strings.Repeat("*", 124))),
		fails("body of 65,536 bytes", 1002, closing(1000, strings.Repeat("*", 65534))),
		fails("fragmented close", 1002, frameOf(0x08, []byte("\x03\xe8"))),
		fails("fragmented close and its rest", 1002, frameOf(0x08, []byte("\x03")), frameOf(0x80, []byte("\xe8"))),

		closes("two closes", 1000, closing(1000, ""), closing(1001, "")),
		closes("a bad close behind a good one", 1000, closing(1000, ""), closing(1005, "")),
		closes("ping behind", 1000, closing(1000, ""), ping("behind")),
		closes("pong behind", 1000, closing(1000, ""), pong("behind")),
		closes("text behind", 1000, closing(1000, ""), frameOf(0x81, []byte("a"))),
		closes("bytes that are no frame behind", 1000, closing(1000, ""), []byte("\xff\xff\xff\xff")),
		{name: "ping before", send: sends(ping("before"), closing(1000, "")), pongs: []string{"before"}, closes: 1000},
		{name: "message before and behind", delivered: []int{80}, closes: 1000,
			send: func(k talk) []byte { return all(k.whole(80), closing(1000, ""), k.whole(81)) }},
		{name: "inside a message", closes: 1000,
			send: func(k talk) []byte { return k.cut(80, closing(1000, ""), 40) }},
		{name: "inside a message, behind a ping", closes: 1001, pongs: []string{"a"},
			send: func(k talk) []byte { return k.cut(80, all(ping("a"), closing(1001, ""), ping("b")), 40) }},
		{name: "behind 256 KiB, with a ping behind", delivered: []int{256 << 10}, closes: 1000,
			send: func(k talk) []byte { return all(k.whole(256<<10), closing(1000, "Hello"), ping("behind")) }},
		{name: "256 KiB behind", closes: 1000,
			send: func(k talk) []byte { return all(closing(1000, "Hello"), k.whole(256<<10)) }},
		{name: "every close but the first is behind a close", closes: 4999, send: sends(closing(4999, ""), body(""), closing(1000, "\xff"))},
	}
	for _, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		cases = append(cases, closes(fmt.Sprintf("code %d", code), code, closing(code, "")),
			closes(fmt.Sprintf("code %d with a reason", code), code, closing(code, "because")))
	}
	for _, code := range []int{0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 1999, 2000, 2999, 5000, 65535} {
		cases = append(cases, fails(fmt.Sprintf("code %d", code), 1002, closing(code, ""), ping("behind")),
			fails(fmt.Sprintf("code %d with a reason", code), 1002, closing(code, "because")))
	}
	play(t, cases)
}

// Large messages: in one frame, in frames of many sizes, and many of them; and
// what exceeds max_message_bytes, each frame under the limit or not.
func TestSuiteLarge(t *testing.T) {
	const limit = suiteLimit
	var cases []rfcCase
	add := func(c rfcCase) { cases = append(cases, c) }
	for _, n := range []int{1 << 17, 1 << 18, limit - 1, limit} {
		add(rfcCase{name: fmt.Sprintf("%d bytes", n), delivered: []int{n}, send: func(k talk) []byte { return k.whole(n) }})
	}
	for _, size := range []int{64, 1024, 1300, 1 << 16, limit / 3} {
		add(rfcCase{name: fmt.Sprintf("the limit in frames of %d", size), delivered: []int{limit}, send: func(k talk) []byte { return k.each(limit, size) }})
	}
	half := make([]byte, limit/2)
	add(rfcCase{name: "one byte more", fails: 1009, send: sends(frameOf(0x82, make([]byte, limit+1))[:1000])})
	add(rfcCase{name: "one byte more in three frames", fails: 1009, send: sends(frameOf(0x02, half), frameOf(0x00, half), frameOf(0x80, []byte("z")))})
	add(rfcCase{name: "halves for ever", fails: 1009, send: sends(frameOf(0x02, half), frameOf(0x00, half), frameOf(0x00, half), frameOf(0x00, half))})
	add(rfcCase{name: "one byte more with pings between", fails: 1009, pongs: []string{"a", "b"},
		send: sends(frameOf(0x02, half), ping("a"), frameOf(0x00, half), ping("b"), frameOf(0x80, []byte("z")))})
	for _, n := range []int{43, 256, 1024} {
		add(rfcCase{name: fmt.Sprintf("1,000 messages of %d bytes", n), delivered: times(1000, n),
			send: func(k talk) []byte { return all(times(1000, k.whole(n))...) }})
	}
	play(t, cases)
}
