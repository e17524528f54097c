package websocket

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// raw makes a client's frame, whatever its first byte says.
func raw(first byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	mask := []byte{0x37, 0xfa, 0x21, 0x3d}
	b = append(b, mask...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i&3])
	}
	return b
}

func join(frames ...[]byte) []byte { return bytes.Join(frames, nil) }

func bytesOf(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// outcome is what a parser makes of a stream: its events, and the violation that ended it.
func outcome(p *Parser, stream []byte, piece int) string {
	var out []string
	for len(stream) > 0 {
		in := bytes.Clone(stream[:min(piece, len(stream))])
		stream = stream[len(in):]
		for len(in) > 0 {
			ev, n, err := p.Next(in)
			in = in[n:]
			if v, ok := errors.AsType[*Violation](err); ok {
				return strings.Join(append(out, fmt.Sprint(v.Code)), " ")
			}
			if ev.Op == Continuation {
				if len(in) > 0 {
					return "bytes left without an event"
				}
				continue
			}
			out = append(out, fmt.Sprintf("%x:%.20s/%d", byte(ev.Op), ev.Payload, len(ev.Payload)))
		}
	}
	return strings.Join(out, " ")
}

// RFC 6455, section 5, from raw bytes: what is taken, and the code that ends what is not.
func TestParser(t *testing.T) {
	const limit = 1000
	long := strings.Repeat("x", limit)
	half := strings.Repeat("h", limit/2)
	for _, tc := range []struct {
		name   string
		stream []byte
		want   string
	}{
		{"message", raw(0x82, "hello"), "2:hello/5"},
		{"empty message", raw(0x82, ""), "2:/0"},
		{"two", join(raw(0x82, "a"), raw(0x82, "b")), "2:a/1 2:b/1"},
		{"125 bytes", raw(0x82, long[:125]), "2:xxxxxxxxxxxxxxxxxxxx/125"},
		{"126 bytes", raw(0x82, long[:126]), "2:xxxxxxxxxxxxxxxxxxxx/126"},
		{"mask of zeros", bytesOf(t, "82 82 00000000 4142"), "2:AB/2"},

		{"exactly the limit", raw(0x82, long), "2:xxxxxxxxxxxxxxxxxxxx/1000"},
		{"one over", raw(0x82, long+"x"), "1009"},
		{"one over, from the header alone", raw(0x82, long+"x")[:4], "1009"},
		{"exactly the limit in three", join(raw(0x02, half), raw(0x00, half[:499]), raw(0x80, "z")), "2:hhhhhhhhhhhhhhhhhhhh/1000"},
		{"one over in three", join(raw(0x02, half), raw(0x00, half), raw(0x80, "z")), "1009"},
		{"never ending", join(raw(0x02, half), raw(0x00, half), raw(0x00, half)), "1009"},
		{"the limit is each message's", join(raw(0x82, long), raw(0x82, long)), "2:xxxxxxxxxxxxxxxxxxxx/1000 2:xxxxxxxxxxxxxxxxxxxx/1000"},

		{"top bit of the length", bytesOf(t, "82 ff 8000000000000000 00000000"), "1002"},
		{"all bits of the length", bytesOf(t, "82 ff ffffffffffffffff 00000000 41"), "1002"},
		{"text with all bits", bytesOf(t, "81 ff ffffffffffffffff 00000000 41"), "1003"},
		{"largest length", bytesOf(t, "82 ff 7fffffffffffffff 00000000"), "1009"},
		{"64-bit form of 5", bytesOf(t, "82 ff 0000000000000005 00000000 4142434445"), "1002"},
		{"64-bit form of 65535", bytesOf(t, "82 ff 000000000000ffff"), "1002"},
		{"64-bit form of 65536", bytesOf(t, "82 ff 0000000000010000"), "1009"},
		{"16-bit form of 5", bytesOf(t, "82 fe 0005 00000000 4142434445"), "1002"},
		{"16-bit form of 125", bytesOf(t, "82 fe 007d"), "1002"},
		{"16-bit form of 126", bytesOf(t, "82 fe 007e 00000000"), ""},

		{"fragments", join(raw(0x02, "a"), raw(0x00, ""), raw(0x00, "b"), raw(0x80, "c")), "2:abc/3"},
		{"empty fragments", join(raw(0x02, ""), raw(0x80, "")), "2:/0"},
		{"ping and pong between", join(raw(0x02, "a"), raw(0x89, "p"), raw(0x8a, "q"), raw(0x80, "b")), "9:p/1 a:q/1 2:ab/2"},
		{"close between", join(raw(0x02, "a"), raw(0x88, "\x03\xe8")), "8:\x03\xe8/2"},
		{"continuation of nothing", raw(0x80, "a"), "1002"},
		{"continuation after an end", join(raw(0x02, "a"), raw(0x80, "b"), raw(0x80, "c")), "2:ab/2 1002"},
		{"message inside a message", join(raw(0x02, "a"), raw(0x82, "b")), "1002"},
		{"text inside a message", join(raw(0x02, "a"), raw(0x81, "b")), "1002"},

		{"ping", raw(0x89, "p"), "9:p/1"},
		{"ping of 125", raw(0x89, long[:125]), "9:xxxxxxxxxxxxxxxxxxxx/125"},
		{"ping of 126", raw(0x89, long[:126])[:2], "1002"},
		{"fragmented ping", bytesOf(t, "09 80 00000000"), "1002"},
		{"fragmented close", bytesOf(t, "08 80 00000000"), "1002"},
		{"64-bit ping", bytesOf(t, "89 ff"), "1002"},

		{"not masked", bytesOf(t, "82 01 41"), "1002"},
		{"ping not masked", bytesOf(t, "89 00"), "1002"},
		{"RSV1", bytesOf(t, "c2 81 00000000 41"), "1002"},
		{"RSV2", bytesOf(t, "a2 81 00000000 41"), "1002"},
		{"RSV3", bytesOf(t, "92 81 00000000 41"), "1002"},
		{"RSV1 on a ping", bytesOf(t, "c9 80 00000000"), "1002"},

		{"text", raw(0x81, "hello"), "1003"},
		{"text that is not UTF-8", bytesOf(t, "81 82 00000000 c328"), "1003"},

		{"close", raw(0x88, ""), "8:/0"},
		{"close with a reason", raw(0x88, "\x03\xe8bye"), "8:\x03\xe8bye/5"},
		{"close of one byte", raw(0x88, "\x03"), "1002"},
		{"close, reason not UTF-8", raw(0x88, "\x03\xe8\xff"), "1007"},
		{"close, reason of 123", raw(0x88, "\x03\xe8"+long[:123]), "8:\x03\xe8xxxxxxxxxxxxxxxxxx/125"},
		{"close, reason of 124", raw(0x88, "\x03\xe8"+long[:124]), "1002"},
	} {
		for _, piece := range []int{1, 2, 3, 7, 1 << 20} {
			p := NewParser(limit)
			if got := outcome(p, tc.stream, piece); got != tc.want {
				t.Errorf("%s, %d bytes at a time: %q, want %q", tc.name, piece, got, tc.want)
			}
			if held := p.Buffered(); held > 2*limit {
				t.Errorf("%s: %d bytes are held", tc.name, held)
			}
		}
	}
	for op := range Opcode(16) {
		want := map[Opcode]string{Continuation: "1002", Text: "1003", Binary: "2:/0", Close: "8:/0", Ping: "9:/0", Pong: "a:/0"}[op]
		if want == "" {
			want = "1002"
		}
		if got := outcome(NewParser(limit), raw(0x80|byte(op), ""), 1<<20); got != want {
			t.Errorf("opcode %x: %q, want %q", byte(op), got, want)
		}
	}
}

// RFC 6455, section 7.4: which codes may stand in a close frame.
func TestCloseCodes(t *testing.T) {
	good := map[int]bool{1000: true, 1001: true, 1002: true, 1003: true}
	for c := 1007; c <= 1014; c++ {
		good[c] = true
	}
	for c := 3000; c <= 4999; c++ {
		good[c] = true
	}
	for c := range 1 << 16 {
		_, _, err := ParseClose([]byte{byte(c >> 8), byte(c)})
		if good[c] != (err == nil) {
			t.Errorf("%d: %v", c, err)
		}
	}
	if code, _, err := ParseClose(nil); code != CodeNone || err != nil {
		t.Errorf("%d, %v", code, err)
	}
}

// An announced length allocates nothing: memory grows with the bytes that come.
func TestAnnouncedLengthIsNotMemory(t *testing.T) {
	p := NewParser(64 << 20)
	head := bytesOf(t, "82 ff 0000000004000000 00000000")
	if got := outcome(p, head, 1<<20); got != "" || p.Buffered() != 0 {
		t.Fatalf("%q, %d bytes held", got, p.Buffered())
	}
	for have := 0; have < 1<<20; have += 1000 {
		if _, _, err := p.Next(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if held := p.Buffered(); held > 2*(have+1000) {
			t.Fatalf("%d bytes are held for %d", held, have+1000)
		}
	}
}

// A message of many small fragments is not copied for each of them.
func TestFragmentsAreCopiedSeldom(t *testing.T) {
	const limit, size = 1 << 20, fragmentBytes
	stream := join(raw(0x02, ""), bytes.Repeat(raw(0x00, strings.Repeat("a", size)), limit/size-2), raw(0x80, strings.Repeat("z", size)))
	if n := testing.AllocsPerRun(1, func() {
		p := NewParser(limit)
		for in := bytes.Clone(stream); len(in) > 0; {
			ev, used, err := p.Next(in)
			if err != nil {
				t.Fatal(err)
			}
			if in = in[used:]; len(in) == 0 && len(ev.Payload) != limit-size {
				t.Fatalf("%d bytes", len(ev.Payload))
			}
		}
	}); n > 30 {
		t.Errorf("memory was taken %v times", n)
	}
}

// What was handed out is not held once the next bytes come, or Forget is called.
func TestMemoryIsGivenBack(t *testing.T) {
	for _, let := range []func(*Parser){
		func(p *Parser) { outcome(p, raw(0x89, "p"), 100) },
		(*Parser).Forget,
	} {
		p := NewParser(1 << 20)
		if got := outcome(p, join(raw(0x02, strings.Repeat("a", 1000)), raw(0x80, "b")), 100); got != "2:aaaaaaaaaaaaaaaaaaaa/1001" {
			t.Fatal(got)
		}
		if let(p); p.Buffered() != 0 {
			t.Fatalf("%d bytes are held", p.Buffered())
		}
	}
	// What is not whole yet stays.
	p := NewParser(1 << 20)
	outcome(p, raw(0x02, "a"), 100)
	p.Forget()
	if got := outcome(p, raw(0x80, "b"), 100); got != "2:ab/2" {
		t.Fatal(got)
	}
}

// Fragments and control frames are counted: neither goes on for ever.
func TestCounts(t *testing.T) {
	repeat := func(first, again []byte, n int) []byte { return join(first, bytes.Repeat(again, n)) }
	for _, tc := range []struct {
		name   string
		limit  int
		stream []byte
		closed bool
	}{
		{"fragments, small limit", 1000, repeat(raw(0x02, ""), raw(0x00, ""), minFragments-1), false},
		{"one more", 1000, repeat(raw(0x02, ""), raw(0x00, ""), minFragments), true},
		{"fragments, large limit", 1 << 20, repeat(raw(0x02, ""), raw(0x00, ""), 1<<20/fragmentBytes-1), false},
		{"one more", 1 << 20, repeat(raw(0x02, ""), raw(0x00, ""), 1<<20/fragmentBytes), true},
		{"messages have no end", 1000, repeat(nil, raw(0x82, ""), 5000), false},
		{"pings", 1000, repeat(nil, raw(0x89, ""), maxControls), false},
		{"one more", 1000, repeat(nil, raw(0x89, ""), maxControls+1), true},
		{"pings between messages", 1000, bytes.Repeat(repeat(raw(0x82, ""), raw(0x89, ""), maxControls), 3), false},
		{"pings between fragments", 1000, repeat(nil, join(raw(0x02, ""), bytes.Repeat(raw(0x8a, ""), maxControls+1)), 1), true},
	} {
		got := outcome(NewParser(tc.limit), tc.stream, 4096)
		if closed := strings.HasSuffix(got, "1008"); closed != tc.closed {
			t.Errorf("%s, limit %d: %.60q", tc.name, tc.limit, got)
		}
	}
}

// Pongs that were asked for are no flood, however many there are; what comes
// beside them still is.
func TestAskedPongsDoNotCount(t *testing.T) {
	p := NewParser(1000)
	feed := func(frame []byte) error {
		for len(frame) > 0 {
			_, n, err := p.Next(frame)
			if err != nil {
				return err
			}
			frame = frame[n:]
		}
		return nil
	}
	for range 3 * maxControls {
		if err := feed(raw(0x8a, "")); err != nil {
			t.Fatal(err)
		}
		p.Asked()
	}
	for i := range maxControls {
		if err := feed(raw(0x89, "")); err != nil {
			t.Fatalf("ping %d: %v", i, err)
		}
	}
	if feed(raw(0x89, "")) == nil {
		t.Error("a flood of pings goes on")
	}
}

func TestUnmaskAtEveryOffset(t *testing.T) {
	mask := [4]byte{1, 2, 3, 4}
	for n := range 100 {
		for at := range 5 {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(i*7) ^ mask[(at+i)%4]
			}
			unmask(b, mask, at)
			for i, c := range b {
				if c != byte(i*7) {
					t.Fatalf("length %d, offset %d: byte %d", n, at, i)
				}
			}
		}
	}
}

func TestAppendClose(t *testing.T) {
	for _, tc := range []struct {
		code   Code
		reason string
		want   string
	}{
		{CodeNormal, "", "\x88\x02\x03\xe8"},
		{CodePolicy, "idle_timeout", "\x88\x0e\x03\xf0idle_timeout"},
		{CodeNone, "lost", "\x88\x00"},
		{0, "", "\x88\x00"},
		{CodeNormal, strings.Repeat("a", 200), "\x88\x7d\x03\xe8" + strings.Repeat("a", 123)},
		{CodeNormal, strings.Repeat("é", 100), "\x88\x7c\x03\xe8" + strings.Repeat("é", 61)},
	} {
		if got := string(AppendClose(nil, tc.code, tc.reason)); got != tc.want {
			t.Errorf("%d %q: %q", tc.code, tc.reason, got)
		}
	}
}
