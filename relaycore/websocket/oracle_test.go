package websocket

import (
	"bytes"
	"errors"
	"io"
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

func FuzzParser(f *testing.F) {
	f.Add(raw(0x82, "hello"), uint8(3))
	f.Add(join(raw(0x02, "a"), raw(0x89, "p"), raw(0x80, "b")), uint8(1))
	f.Add(raw(0x88, "\x03\xe8bye"), uint8(200))
	f.Add([]byte("\x82\xff\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), uint8(5))
	f.Add(raw(0x82, string(make([]byte, 300))), uint8(20))
	f.Add(bytes.Repeat(raw(0x00, ""), 3), uint8(2))
	f.Fuzz(func(t *testing.T, stream []byte, piece uint8) {
		const limit = 500
		if len(stream) > 20000 || nonMinimal(stream) {
			return
		}
		want, wantRefused := judged(stream, limit)
		p := NewParser(limit)
		var got []Event
		refused := false
	stream:
		for rest := bytes.Clone(stream); len(rest) > 0; {
			in := rest[:min(int(piece)+1, len(rest))]
			rest = rest[len(in):]
			for len(in) > 0 {
				ev, n, err := p.Next(in)
				in = in[n:]
				if err != nil {
					refused = true
					break stream
				}
				if ev.Op != Continuation {
					got = append(got, Event{ev.Op, bytes.Clone(ev.Payload)})
				}
			}
			if p.Buffered() > 2*limit+2*MaxControl {
				t.Fatalf("%d bytes are held", p.Buffered())
			}
		}
		// A fault may show here before the oracle has its whole header.
		if wantRefused && !refused {
			t.Fatal("a stream is taken that the oracle refuses")
		}
		if len(got) < len(want) || len(got) > len(want) && !wantRefused {
			t.Fatalf("%d events, the oracle has %d", len(got), len(want))
		}
		for i, w := range want {
			if got[i].Op != w.Op || !bytes.Equal(got[i].Payload, w.Payload) {
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
