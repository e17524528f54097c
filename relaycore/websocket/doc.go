// Package websocket is the server's half of RFC 6455 without any I/O: bytes go
// in, messages come out, and what is to be written is appended to the caller's
// buffer. It owns framing, masking, fragmentation, the judgement of close
// bodies and of the HTTP upgrade; it knows no connection, no clock and nothing
// of what the messages mean.
//
// Only binary messages are taken and no extension is negotiated. Every limit is
// applied to what a frame's header announces, before a byte of its payload is
// kept, and memory grows only with bytes that have arrived.
package websocket

// Opcode is the type of a frame (RFC 6455, section 5.2).
type Opcode byte

const (
	Continuation Opcode = 0x0
	Text         Opcode = 0x1
	Binary       Opcode = 0x2
	Close        Opcode = 0x8
	Ping         Opcode = 0x9
	Pong         Opcode = 0xa
)

func (o Opcode) control() bool { return o&0x8 != 0 }

// Code is a close code (RFC 6455, section 7.4).
type Code uint16

const (
	CodeNormal        Code = 1000
	CodeGoingAway     Code = 1001
	CodeProtocolError Code = 1002
	CodeUnsupported   Code = 1003 // a data type that is not taken: text
	CodeNone          Code = 1005 // a close frame without a body; never on the wire
	CodeInvalidData   Code = 1007 // a close reason that is not UTF-8
	CodePolicy        Code = 1008
	CodeTooBig        Code = 1009
	CodeInternalError Code = 1011
	CodeTryAgainLater Code = 1013
)

// onWire reports whether a peer may send c in a close frame.
func (c Code) onWire() bool {
	switch {
	case c >= 1000 && c <= 1003, c >= 1007 && c <= 1014:
		return true
	default:
		return c >= 3000 && c <= 4999
	}
}

// Violation is why a stream of frames cannot be read further, and the code with
// which the connection is to be closed.
type Violation struct {
	Code Code
	Text string
}

func (v *Violation) Error() string { return "websocket: " + v.Text }
