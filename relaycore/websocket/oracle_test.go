package websocket

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// judged is what gobwas/ws makes of a stream: the frames of whole messages and
// control frames, until a frame that it or RFC 6455 refuses.
func judged(stream []byte, limit int) (events []Event, refused bool) {
	r := bytes.NewReader(stream)
	var data []byte
	state := ws.StateServerSide
	for {
		h, err := ws.ReadHeader(r)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return events, false
		}
		if err != nil || ws.CheckHeader(h, state) != nil || h.OpCode == ws.OpText {
			return events, true
		}
		if !h.OpCode.IsControl() && int64(len(data))+h.Length > int64(limit) {
			return events, true
		}
		payload := make([]byte, h.Length)
		if _, err := io.ReadFull(r, payload); err != nil {
			return events, false
		}
		ws.Cipher(payload, h.Mask, 0)
		switch {
		case h.OpCode.IsControl():
			if h.OpCode == ws.OpClose && len(payload) > 0 {
				// gobwas/ws takes codes above 4999 and refuses 1012 to 1014, which
				// are registered: the codes have a test of their own.
				code, reason := ws.ParseCloseFrameData(payload)
				if len(payload) == 1 || !Code(code).onWire() || !utf8.ValidString(reason) {
					return events, true
				}
			}
			events = append(events, Event{Opcode(h.OpCode), payload})
		case h.Fin:
			events = append(events, Event{Binary, append(data, payload...)})
			data, state = nil, ws.StateServerSide
		default:
			data, state = append(data, payload...), ws.StateServerSide|ws.StateFragmented
		}
	}
}

// nonMinimal reports a length that is not in its shortest form, which gobwas/ws
// takes and this package does not.
func nonMinimal(stream []byte) bool {
	r := bytes.NewReader(stream)
	for {
		at := len(stream) - r.Len()
		h, err := ws.ReadHeader(r)
		if err != nil {
			return false
		}
		switch stream[at+1] & 0x7f {
		case 126:
			if h.Length < 126 {
				return true
			}
		case 127:
			if h.Length <= 0xffff {
				return true
			}
		}
		if h.Length > int64(r.Len()) {
			return false
		}
		r.Seek(h.Length, io.SeekCurrent)
	}
}

// parsed is what a parser makes of a stream in pieces of the given sizes, over
// and over (none: all at once), and the code that ended it, if one did.
func parsed(t *testing.T, limit int, stream, pieces []byte) (events []Event, code Code) {
	p := NewParser(limit)
	rest := bytes.Clone(stream)
	for i := 0; len(rest) > 0; i++ {
		n := len(rest)
		if len(pieces) > 0 {
			n = min(int(pieces[i%len(pieces)])+1, n)
		}
		in := rest[:n]
		rest = rest[n:]
		for len(in) > 0 {
			ev, used, err := p.Next(in)
			in = in[used:]
			if v, ok := errors.AsType[*Violation](err); ok {
				return events, v.Code
			}
			if ev.Op != Continuation {
				events = append(events, Event{ev.Op, bytes.Clone(ev.Payload)})
			} else if len(in) > 0 {
				t.Fatal("bytes are left without an event")
			}
		}
		if p.Buffered() > 2*limit+2*MaxControl {
			t.Fatalf("%d bytes are held", p.Buffered())
		}
	}
	return events, 0
}

func sameEvent(a, b Event) bool { return a.Op == b.Op && bytes.Equal(a.Payload, b.Payload) }

func FuzzParser(f *testing.F) {
	f.Add(raw(0x82, "hello"), []byte{3})
	f.Add(join(raw(0x02, "a"), raw(0x89, "p"), raw(0x80, "b")), []byte{0, 7, 1})
	f.Add(raw(0x88, "\x03\xe8bye"), []byte{200})
	f.Add([]byte("\x82\xff\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), []byte{5})
	f.Add(raw(0x82, string(make([]byte, 300))), []byte{20, 1})
	f.Add(bytes.Repeat(raw(0x00, ""), 3), []byte{2})
	f.Add(join(raw(0x02, ""), raw(0x00, string(make([]byte, 400))), raw(0x00, string(make([]byte, 100))), raw(0x80, "z")), []byte{90})
	f.Add(join(raw(0x81, "\xc3\x28"), raw(0x82, "b")), []byte{1})
	f.Add(join(raw(0x89, string(make([]byte, 125))), raw(0x8a, ""), raw(0x88, "\x03\xe8\xff")), []byte{0})
	f.Fuzz(func(t *testing.T, stream, pieces []byte) {
		const limit = 500
		if len(stream) > 20000 || nonMinimal(stream) {
			return
		}
		want, wantRefused := judged(stream, limit)
		got, code := parsed(t, limit, stream, pieces)
		refused := code != 0
		// However the stream is cut, the outcome is one.
		if whole, wholeCode := parsed(t, limit, stream, nil); code != wholeCode || !slices.EqualFunc(got, whole, sameEvent) {
			t.Fatalf("%d events and %d in pieces, %d events and %d at once", len(got), code, len(whole), wholeCode)
		}
		// A fault may show here before the oracle has its whole header.
		if wantRefused && !refused {
			t.Fatal("a stream is taken that the oracle refuses")
		}
		if len(got) < len(want) || len(got) > len(want) && !wantRefused {
			t.Fatalf("%d events, the oracle has %d", len(got), len(want))
		}
		for i, w := range want {
			if !sameEvent(got[i], w) {
				t.Fatalf("event %d: %x %q, the oracle has %x %q", i, got[i].Op, got[i].Payload, w.Op, w.Payload)
			}
		}
	})
}

// The frames that are written are those that gobwas/ws reads.
func TestAppendFrame(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 70000} {
		payload := bytes.Repeat([]byte{0x5a}, n)
		b := AppendFrame([]byte("before"), Binary, payload)[6:]
		r := bytes.NewReader(b)
		h, err := ws.ReadHeader(r)
		if err != nil || !h.Fin || h.Masked || h.OpCode != ws.OpBinary || h.Length != int64(n) || !bytes.Equal(b[len(b)-r.Len():], payload) {
			t.Errorf("%d bytes: %+v, %v", n, h, err)
		}
		if len(b) != HeaderSize(n)+n {
			t.Errorf("%d bytes: the header has %d", n, len(b)-n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	frame := raw(0x82, string(make([]byte, 1269)))
	in := make([]byte, len(frame))
	p := NewParser(4 << 20)
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		copy(in, frame)
		if ev, n, err := p.Next(in); ev.Op != Binary || n != len(in) || err != nil {
			b.Fatal(ev, n, err)
		}
	}
}
