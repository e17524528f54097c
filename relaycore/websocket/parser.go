package websocket

import (
	"encoding/binary"
	"unicode/utf8"
)

// MaxControl is the longest payload of a control frame (RFC 6455, section 5.5).
const MaxControl = 125

// maxControls is how many control frames may come between the ends of two data
// messages. A peer that pings and says nothing would otherwise cost work
// without ever owing an answer for it.
const maxControls = 1024

// fragmentBytes bounds the fragments of one message: one for each of so many
// bytes of the limit, so that empty fragments cannot go on for ever.
const fragmentBytes = 64

// minFragments is the bound on fragments where the limit is small.
const minFragments = 1024

// Event is a complete message or control frame. The zero Event is none: more
// bytes are needed.
type Event struct {
	Op Opcode // Binary, Ping, Pong or Close
	// Payload is unmasked. It may be part of the bytes that were given to Next,
	// and is valid until the next call of Next or Forget.
	Payload []byte
}

// Parser reads one client's frames. It is not safe for concurrent use. A
// Parser that returned a Violation must not be used again.
type Parser struct {
	limit int // bytes of a message, and of a frame

	// The header of the current frame, as far as it has come.
	head  [14]byte
	have  uint8
	need  uint8
	stage stage

	// The current frame.
	op        Opcode
	fin       bool
	mask      [4]byte
	at        int // payload bytes that have come
	remaining int // payload bytes that are still to come

	// The message whose fragments are coming in.
	open      bool // a first fragment came, the last did not
	spent     bool // data was handed out by the last call
	fragments int
	controls  int
	data      []byte
	control   []byte
}

type stage uint8

const (
	stageStart   stage = iota // the first two bytes
	stageLength               // the extended length
	stageMask                 // the masking key
	stagePayload              // the payload
)

// NewParser returns a parser that takes messages of at most limit bytes.
func NewParser(limit int) *Parser { return &Parser{limit: limit, need: 2} }

// Allow changes the limit to the one of NewParser's meaning, for what is announced from here on.
func (p *Parser) Allow(limit int) { p.limit = limit }

// Buffered is how many bytes of memory the parser holds for what has not come
// wholly: capacities, not lengths.
func (p *Parser) Buffered() int { return cap(p.data) + cap(p.control) }

// Next reads from the front of in and returns how many bytes it used. It uses
// all of in where it returns no event, so the caller need keep nothing; after
// an event it is called again with the rest. It unmasks in place. An error is
// always a *Violation.
func (p *Parser) Next(in []byte) (ev Event, n int, err error) {
	p.Forget()
	for {
		if p.stage != stagePayload {
			used, err := p.header(in[n:])
			n += used
			if err != nil || p.stage != stagePayload {
				return Event{}, n, err
			}
		}
		chunk := in[n:]
		if len(chunk) > p.remaining {
			chunk = chunk[:p.remaining]
		}
		unmask(chunk, p.mask, p.at)
		n += len(chunk)
		p.at += len(chunk)
		p.remaining -= len(chunk)

		ev, err := p.payload(chunk)
		if err != nil || ev.Op != Continuation || p.remaining > 0 {
			return ev, n, err
		}
	}
}

// Forget lets go of the message that the last call of Next returned, for a
// caller that does not know when the next bytes come.
func (p *Parser) Forget() {
	if p.spent {
		p.data, p.spent = nil, false
	}
}

// payload takes a piece of the current frame's payload, and ends the frame
// where the piece is its last.
func (p *Parser) payload(chunk []byte) (Event, error) {
	done := p.remaining == 0
	if done {
		p.stage, p.have, p.need = stageStart, 0, 2
	}
	if p.op.control() {
		if !done || len(p.control) > 0 {
			p.control = append(p.control, chunk...)
			chunk = p.control
		}
		if !done {
			return Event{}, nil
		}
		p.control = nil
		if p.op == Close {
			if _, _, err := ParseClose(chunk); err != nil {
				return Event{}, err
			}
		}
		return Event{Op: p.op, Payload: chunk}, nil
	}
	if done && p.fin && p.fragments == 1 && len(p.data) == 0 {
		p.ended()
		return Event{Op: Binary, Payload: chunk}, nil
	}
	p.data = p.grow(len(chunk))
	p.data = append(p.data, chunk...)
	if !done || !p.fin {
		return Event{}, nil
	}
	p.ended()
	p.spent = true
	return Event{Op: Binary, Payload: p.data}, nil
}

// Asked says that the control frame which Next returned last was asked for (a
// pong to a ping of ours): it does not count among those that a client may send
// on its own.
func (p *Parser) Asked() { p.controls = max(0, p.controls-1) }

// ended forgets the message that came wholly.
func (p *Parser) ended() { p.open, p.fragments, p.controls = false, 0, 0 }

// grow returns p.data with room for n more bytes: doubling, so that a message of
// many small pieces is not copied for each, but never beyond what the message
// can have: what its last frame announces, or the limit before that came.
func (p *Parser) grow(n int) []byte {
	want := len(p.data) + n
	if want <= cap(p.data) {
		return p.data
	}
	most := p.limit
	if p.fin {
		most = want + p.remaining
	}
	c := max(want, min(2*cap(p.data), most))
	return append(make([]byte, 0, c), p.data...)
}

// header reads the rest of a frame's header and judges each part as soon as it is there.
func (p *Parser) header(in []byte) (n int, err error) {
	for p.stage != stagePayload {
		c := copy(p.head[p.have:p.need], in[n:])
		n += c
		p.have += uint8(c)
		if p.have < p.need {
			return n, nil
		}
		switch p.stage {
		case stageStart:
			err = p.judgeStart()
		case stageLength:
			err = p.judgeLength()
		case stageMask:
			p.mask = [4]byte(p.head[p.need-4 : p.need])
			p.at = 0
			p.stage = stagePayload
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func protocolError(text string) error { return &Violation{CodeProtocolError, text} }

// judgeStart looks at a frame's first two bytes.
func (p *Parser) judgeStart() error {
	b0, b1 := p.head[0], p.head[1]
	p.fin, p.op = b0&0x80 != 0, Opcode(b0&0x0f)
	length := int(b1 & 0x7f)
	switch {
	case b0&0x70 != 0:
		return protocolError("a reserved bit is set and no extension was negotiated")
	case p.op > Binary && p.op < Close || p.op > Pong:
		return protocolError("reserved opcode")
	case b1&0x80 == 0:
		return protocolError("a client's frame is not masked")
	case p.op.control() && !p.fin:
		return protocolError("fragmented control frame")
	case p.op.control() && length > MaxControl:
		return protocolError("control frame longer than 125 bytes")
	case p.op == Continuation && !p.open:
		return protocolError("continuation of no message")
	case (p.op == Binary || p.op == Text) && p.open:
		return protocolError("new message inside a fragmented one")
	case p.op == Text:
		return &Violation{CodeUnsupported, "text is not taken"}
	}
	if p.op.control() {
		if p.controls++; p.controls > maxControls {
			return &Violation{CodePolicy, "too many control frames"}
		}
	} else {
		if p.fragments++; p.fragments > max(minFragments, p.limit/fragmentBytes) {
			return &Violation{CodePolicy, "too many fragments"}
		}
	}
	switch length {
	case 126:
		p.stage, p.need = stageLength, 4
	case 127:
		p.stage, p.need = stageLength, 10
	default:
		return p.announce(uint64(length))
	}
	return nil
}

// judgeLength looks at an extended length.
func (p *Parser) judgeLength() error {
	if p.need == 4 {
		length := uint64(binary.BigEndian.Uint16(p.head[2:4]))
		if length < 126 {
			return protocolError("length not in its shortest form")
		}
		return p.announce(length)
	}
	length := binary.BigEndian.Uint64(p.head[2:10])
	switch {
	case length>>63 != 0:
		return protocolError("length with its top bit set")
	case length <= 0xffff:
		return protocolError("length not in its shortest form")
	}
	return p.announce(length)
}

// announce takes the length that a header gave; the masking key comes next.
func (p *Parser) announce(length uint64) error {
	if !p.op.control() {
		if length > uint64(p.limit-len(p.data)) {
			return &Violation{CodeTooBig, "message longer than the limit"}
		}
		p.open = true
	}
	p.remaining = int(length)
	p.stage = stageMask
	p.need += 4
	return nil
}

// ParseClose judges the body of a close frame: empty, or a code that may be
// sent and a reason in UTF-8. An empty body gives CodeNone.
func ParseClose(body []byte) (Code, string, error) {
	switch {
	case len(body) == 0:
		return CodeNone, "", nil
	case len(body) == 1:
		return 0, "", protocolError("close body of one byte")
	}
	code := Code(binary.BigEndian.Uint16(body))
	if !code.onWire() {
		return 0, "", protocolError("close code that may not be sent")
	}
	if !utf8.Valid(body[2:]) {
		return 0, "", &Violation{CodeInvalidData, "close reason that is not UTF-8"}
	}
	return code, string(body[2:]), nil
}

// unmask removes the mask from b, whose first byte is byte at of its frame's payload.
func unmask(b []byte, mask [4]byte, at int) {
	var k [8]byte
	for i := range k {
		k[i] = mask[(at+i)&3]
	}
	key := binary.LittleEndian.Uint64(k[:])
	for len(b) >= 32 {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^key)
		binary.LittleEndian.PutUint64(b[8:], binary.LittleEndian.Uint64(b[8:])^key)
		binary.LittleEndian.PutUint64(b[16:], binary.LittleEndian.Uint64(b[16:])^key)
		binary.LittleEndian.PutUint64(b[24:], binary.LittleEndian.Uint64(b[24:])^key)
		b = b[32:]
	}
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^key)
		b = b[8:]
	}
	for i := range b {
		b[i] ^= k[i]
	}
}
