// Package wire is the relay's protocol as bytes: what each frame looks like,
// both ways, without I/O. One WebSocket message is one frame: a type byte, then
// the body, integers big-endian. Decoding is strict: a frame has exactly the
// length that its type and counts give it. Decoded frames refer to the bytes
// they were decoded from.
//
// docs/protocol.md describes every frame with an example that a test decodes.
package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// Version is the protocol version that HELLO and WELCOME carry.
const Version = 1

// Subprotocol is the WebSocket subprotocol, Path where the relay takes it.
const (
	Subprotocol = "relaycore.v1"
	Path        = "/relay"
)

// Sizes in bytes.
const (
	MaxBundle = 16 << 10
	// AskSize is the length of what an ASK carries beside its key: the knock or the filler.
	AskSize = 5120
	// MaxPublish is the longest PUBLISH.
	MaxPublish = 1 + 32 + 2 + MaxBundle + 64 + 64
	// MaxSend is the longest SEND, its head included.
	MaxSend = 4 << 20
	// MaxServerFrame is the longest frame that a client must take.
	MaxServerFrame = 4<<20 + 64<<10
	// MaxAckIDs is how many messages one ACK may name.
	MaxAckIDs = 256
	// MaxErrorText is the longest text of an ERROR.
	MaxErrorText = 200
	// SendHead is the length of a SEND before its payload.
	SendHead = 43
)

// Type is the first byte of a frame.
type Type byte

// Frames from the client. 0x05 is reserved for media and refused.
const (
	TypeHello     Type = 0x01
	TypePublish   Type = 0x02
	TypeAsk       Type = 0x03
	TypeSend      Type = 0x04
	TypeClose     Type = 0x06
	TypeAck       Type = 0x07
	TypeKeepalive Type = 0x08
)

// Frames from the relay.
const (
	TypeWelcome       Type = 0x81
	TypePublished     Type = 0x82
	TypeKnock         Type = 0x83
	TypeMessage       Type = 0x84
	TypeCircuitOpen   Type = 0x86
	TypeCircuitClosed Type = 0x87
	TypeMessageAck    Type = 0x88
	TypeRateLimited   Type = 0x89
	TypeError         Type = 0x8a
)

var typeNames = map[Type]string{
	TypeHello: "HELLO", TypePublish: "PUBLISH", TypeAsk: "ASK", TypeSend: "SEND", TypeClose: "CLOSE",
	TypeAck: "ACK", TypeKeepalive: "KEEPALIVE", TypeWelcome: "WELCOME", TypePublished: "PUBLISHED",
	TypeKnock: "KNOCK", TypeMessage: "MESSAGE", TypeCircuitOpen: "CIRCUIT_OPEN",
	TypeCircuitClosed: "CIRCUIT_CLOSED", TypeMessageAck: "MESSAGE_ACK", TypeRateLimited: "RATE_LIMITED",
	TypeError: "ERROR",
}

// String returns the frame's name.
func (t Type) String() string {
	if name, ok := typeNames[t]; ok {
		return name
	}
	return fmt.Sprintf("frame 0x%02x", byte(t))
}

// ErrUnknownType means that the first byte names no frame of that direction.
var ErrUnknownType = errors.New("unknown frame type")

// ErrMalformed means that a frame's bytes do not fit its type.
var ErrMalformed = errors.New("malformed frame")

func malformed(t Type, what string) error { return fmt.Errorf("%w: %v: %s", ErrMalformed, t, what) }

// Identity is an Ed25519 public key.
type Identity [32]byte

// String returns the lower-case hex form.
func (id Identity) String() string { return hex.EncodeToString(id[:]) }

// MessageID names a message; its sender chooses it.
type MessageID [32]byte

// String returns the lower-case hex form.
func (id MessageID) String() string { return hex.EncodeToString(id[:]) }

// Frame is a frame of either direction.
type Frame interface {
	Type() Type
	// Append appends the frame's bytes. What Decode would refuse is the caller's
	// to avoid: Append checks nothing.
	Append(dst []byte) []byte
}

// DecodeClient decodes a frame that a client sent.
func DecodeClient(b []byte) (Frame, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty", ErrMalformed)
	}
	switch Type(b[0]) {
	case TypeHello:
		return decode[Hello](b)
	case TypePublish:
		return decode[Publish](b)
	case TypeAsk:
		return decode[Ask](b)
	case TypeSend:
		return decode[Send](b)
	case TypeClose:
		return decode[Close](b)
	case TypeAck:
		return decode[Ack](b)
	case TypeKeepalive:
		return decode[Keepalive](b)
	}
	return nil, ErrUnknownType
}

// DecodeServer decodes a frame that the relay sent.
func DecodeServer(b []byte) (Frame, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty", ErrMalformed)
	}
	switch Type(b[0]) {
	case TypeWelcome:
		return decode[Welcome](b)
	case TypePublished:
		return decode[Published](b)
	case TypeKnock:
		return decode[Knock](b)
	case TypeMessage:
		return decode[Message](b)
	case TypeCircuitOpen:
		return decode[CircuitOpen](b)
	case TypeCircuitClosed:
		return decode[CircuitClosed](b)
	case TypeMessageAck:
		return decode[MessageAck](b)
	case TypeRateLimited:
		return decode[RateLimited](b)
	case TypeError:
		return decode[Error](b)
	}
	return nil, ErrUnknownType
}

// decode decodes b, whose first byte is F's type, into an F.
func decode[F any, P interface {
	*F
	Decode([]byte) error
}](b []byte) (Frame, error) {
	f := new(F)
	if err := P(f).Decode(b); err != nil {
		return nil, err
	}
	return any(*f).(Frame), nil
}
