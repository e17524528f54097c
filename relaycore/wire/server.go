package wire

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Binding says what stands for the TLS session in a proof of identity.
type Binding byte

const (
	BindingNone     Binding = 0 // 32 zero bytes
	BindingExporter Binding = 1 // tls-exporter (RFC 9266)
)

// Welcome answers HELLO.
type Welcome struct {
	Version uint16
	Nonce   [32]byte
	Binding Binding
	// The limits in force that a client can feel.
	MaxMessageBytes           uint32 // of one frame from the client
	ConnectionTimeoutSecs     uint32 // time without a frame from the client
	IdentificationTimeoutSecs uint32 // time until PUBLISH, from the connection's start
	RateLimitBPS              uint64 // bytes a second from the client
	MaxPendingPerConnection   uint32 // named requests pending
	MaxCircuitsPerConnection  uint32 // circuits open

	MaxPendingBlindPerConnection uint32 // blinded requests pending
	BlindAskBurst                uint32 // blinded requests under new tokens at once
	BlindAskRefillPerSec         uint32 // and how many more each second
}

func (Welcome) Type() Type { return TypeWelcome }

const welcomeSize = 1 + 2 + 32 + 1 + 4*8 + 8

func (f Welcome) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint16(append(dst, byte(TypeWelcome)), f.Version)
	dst = append(append(dst, f.Nonce[:]...), byte(f.Binding))
	dst = binary.BigEndian.AppendUint32(dst, f.MaxMessageBytes)
	dst = binary.BigEndian.AppendUint32(dst, f.ConnectionTimeoutSecs)
	dst = binary.BigEndian.AppendUint32(dst, f.IdentificationTimeoutSecs)
	dst = binary.BigEndian.AppendUint64(dst, f.RateLimitBPS)
	dst = binary.BigEndian.AppendUint32(dst, f.MaxPendingPerConnection)
	dst = binary.BigEndian.AppendUint32(dst, f.MaxCircuitsPerConnection)
	dst = binary.BigEndian.AppendUint32(dst, f.MaxPendingBlindPerConnection)
	dst = binary.BigEndian.AppendUint32(dst, f.BlindAskBurst)
	return binary.BigEndian.AppendUint32(dst, f.BlindAskRefillPerSec)
}

func (f *Welcome) Decode(b []byte) error {
	if len(b) != welcomeSize {
		return malformed(TypeWelcome, "length")
	}
	f.Version = binary.BigEndian.Uint16(b[1:])
	f.Nonce = [32]byte(b[3:])
	if f.Binding = Binding(b[35]); f.Binding > BindingExporter {
		return malformed(TypeWelcome, "binding")
	}
	f.MaxMessageBytes = binary.BigEndian.Uint32(b[36:])
	f.ConnectionTimeoutSecs = binary.BigEndian.Uint32(b[40:])
	f.IdentificationTimeoutSecs = binary.BigEndian.Uint32(b[44:])
	f.RateLimitBPS = binary.BigEndian.Uint64(b[48:])
	f.MaxPendingPerConnection = binary.BigEndian.Uint32(b[56:])
	f.MaxCircuitsPerConnection = binary.BigEndian.Uint32(b[60:])
	f.MaxPendingBlindPerConnection = binary.BigEndian.Uint32(b[64:])
	f.BlindAskBurst = binary.BigEndian.Uint32(b[68:])
	f.BlindAskRefillPerSec = binary.BigEndian.Uint32(b[72:])
	return nil
}

// Published says that the connection is the identity's.
type Published struct {
	Identity Identity
}

func (Published) Type() Type { return TypePublished }

func (f Published) Append(dst []byte) []byte {
	return append(append(dst, byte(TypePublished)), f.Identity[:]...)
}

func (f *Published) Decode(b []byte) error {
	if len(b) != 33 {
		return malformed(TypePublished, "length")
	}
	f.Identity = Identity(b[1:])
	return nil
}

// Knock brings a named request to its target.
type Knock struct {
	Asker   Identity
	Content []byte // AskSize bytes
}

func (Knock) Type() Type { return TypeKnock }

func (f Knock) Append(dst []byte) []byte {
	dst = append(append(dst, byte(TypeKnock)), f.Asker[:]...)
	return append(dst, f.Content...)
}

func (f *Knock) Decode(b []byte) error {
	if len(b) != 33+AskSize {
		return malformed(TypeKnock, "length")
	}
	f.Asker = Identity(b[1:])
	f.Content = b[33:]
	return nil
}

// CircuitOpen says that both sides have asked.
type CircuitOpen struct {
	RequestID uint64 // of the receiver's own ASK
	Circuit   uint64
}

func (CircuitOpen) Type() Type { return TypeCircuitOpen }

func (f CircuitOpen) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, byte(TypeCircuitOpen)), f.RequestID)
	return binary.BigEndian.AppendUint64(dst, f.Circuit)
}

func (f *CircuitOpen) Decode(b []byte) error {
	if len(b) != 17 {
		return malformed(TypeCircuitOpen, "length")
	}
	f.RequestID = binary.BigEndian.Uint64(b[1:])
	f.Circuit = binary.BigEndian.Uint64(b[9:])
	return nil
}

// Ended says why a circuit is closed.
type Ended byte

const (
	EndedLeft    Ended = 1 // the other side's connection ended
	EndedClosed  Ended = 2 // the other side closed the circuit
	EndedEvicted Ended = 3 // the relay is full, and the circuit made room for a lighter source's
)

// CircuitClosed says that a circuit is no more. It is not sent to a side that closed or left it.
type CircuitClosed struct {
	Circuit uint64
	Reason  Ended
}

func (CircuitClosed) Type() Type { return TypeCircuitClosed }

func (f CircuitClosed) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, byte(TypeCircuitClosed)), f.Circuit)
	return append(dst, byte(f.Reason))
}

func (f *CircuitClosed) Decode(b []byte) error {
	if len(b) != 10 {
		return malformed(TypeCircuitClosed, "length")
	}
	f.Circuit = binary.BigEndian.Uint64(b[1:])
	f.Reason = Ended(b[9])
	return nil
}

// flagStored marks a Message that waited for its recipient and belongs to no circuit.
const flagStored = 1

// Message is a message for the receiver: on a circuit, or one that waited for
// it, which names its sender in place of a circuit.
type Message struct {
	Stored  bool
	Circuit uint64   // zero where Stored
	Sender  Identity // zero unless Stored
	ID      MessageID
	Payload []byte
}

func (Message) Type() Type { return TypeMessage }

func (f Message) Append(dst []byte) []byte {
	var flags byte
	if f.Stored {
		flags = flagStored
	}
	dst = append(dst, byte(TypeMessage), 0, flags)
	dst = binary.BigEndian.AppendUint64(dst, f.Circuit)
	dst = append(dst, f.ID[:]...)
	if f.Stored {
		dst = append(dst, f.Sender[:]...)
	}
	return append(dst, f.Payload...)
}

func (f *Message) Decode(b []byte) error {
	if len(b) < SendHead {
		return malformed(TypeMessage, "length")
	}
	if b[1] != 0 || b[2]&^flagStored != 0 {
		return malformed(TypeMessage, "flags")
	}
	*f = Message{Stored: b[2] == flagStored, Circuit: binary.BigEndian.Uint64(b[3:]), ID: MessageID(b[11:])}
	b = b[SendHead:]
	if f.Stored {
		if f.Circuit != 0 || len(b) < 32 {
			return malformed(TypeMessage, "sender")
		}
		f.Sender = Identity(b)
		b = b[32:]
	}
	f.Payload = b
	return nil
}

// MessageAck says that a message was accepted: queued for its connected
// recipient, or held for one that is away.
type MessageAck struct {
	ID MessageID
}

func (MessageAck) Type() Type { return TypeMessageAck }

func (f MessageAck) Append(dst []byte) []byte {
	return append(append(dst, byte(TypeMessageAck)), f.ID[:]...)
}

func (f *MessageAck) Decode(b []byte) error {
	if len(b) != 33 {
		return malformed(TypeMessageAck, "length")
	}
	f.ID = MessageID(b[1:])
	return nil
}

// Refused names the frame that a RATE_LIMITED or ERROR is about.
type Refused struct {
	Frame     Type
	RequestID uint64    // of a refused ASK
	MessageID MessageID // of a refused SEND
}

func (r Refused) append(dst []byte) []byte {
	dst = append(dst, byte(r.Frame))
	switch r.Frame {
	case TypeAsk:
		dst = binary.BigEndian.AppendUint64(dst, r.RequestID)
	case TypeSend:
		dst = append(dst, r.MessageID[:]...)
	}
	return dst
}

// decode reads r from the front of b and returns the rest; ok is false where b is too short.
func (r *Refused) decode(b []byte) (rest []byte, ok bool) {
	if len(b) < 1 {
		return nil, false
	}
	r.Frame, b = Type(b[0]), b[1:]
	switch r.Frame {
	case TypeAsk:
		if len(b) < 8 {
			return nil, false
		}
		r.RequestID, b = binary.BigEndian.Uint64(b), b[8:]
	case TypeSend:
		if len(b) < 32 {
			return nil, false
		}
		r.MessageID, b = MessageID(b), b[32:]
	}
	return b, true
}

// Limit names the limit of a RATE_LIMITED.
type Limit byte

const (
	LimitPendingTargets            Limit = 1  // requests pending in the whole relay
	LimitPendingPerConnection      Limit = 2  // named requests pending from this connection
	LimitCircuits                  Limit = 3  // circuits in the whole relay
	LimitCircuitsPerMember         Limit = 4  // circuits of one of the two members
	LimitPendingPerSource          Limit = 5  // named requests pending from the asker's source
	LimitPendingBlindPerConnection Limit = 6  // blinded requests pending from this connection
	LimitPendingBlindPerSource     Limit = 7  // blinded requests pending from the asker's source
	LimitPendingReserve            Limit = 8  // blinded requests in the whole relay: the rest is kept for named ones
	LimitBlindAskRate              Limit = 9  // blinded requests under new tokens, too many at once
	LimitCircuitsPerSource         Limit = 10 // circuit sides of the source of one of the two members
	LimitMailboxMessages           Limit = 11 // messages that wait for the recipient
	LimitMailboxSteady             Limit = 12 // of them steady-size
	LimitMailboxBytes              Limit = 13 // bytes that wait for the recipient
	LimitMailboxStrangers          Limit = 14 // what strangers have in the recipient's mailbox
	LimitMailboxStrangerSource     Limit = 15 // what strangers of the sender's source have there
	LimitMailboxTotal              Limit = 16 // bytes that wait for all recipients
	LimitMailboxSource             Limit = 17 // what the sender's source has in all mailboxes
	LimitMailboxStorage            Limit = 18 // the relay cannot store anything at present
)

// limitKeys are the policy's names of the limits, or what they are where they have none.
var limitKeys = map[Limit]string{
	LimitPendingTargets: "max_pending_circuit_targets", LimitPendingPerConnection: "max_pending_per_connection",
	LimitCircuits: "max_circuits", LimitCircuitsPerMember: "max_circuits_per_connection",
	LimitPendingPerSource:          "max_pending_per_source",
	LimitPendingBlindPerConnection: "max_pending_blind_per_connection",
	LimitPendingBlindPerSource:     "max_pending_blind_per_source",
	LimitPendingReserve:            "pending_identity_reserve_percent", LimitBlindAskRate: "blind_ask_burst",
	LimitCircuitsPerSource: "max_circuits_per_source",
	LimitMailboxMessages:   "messages of a recipient", LimitMailboxSteady: "steady-size messages of a recipient",
	LimitMailboxBytes:     "offline_queue_max_bytes_per_recipient",
	LimitMailboxStrangers: "strangers' share of a mailbox", LimitMailboxStrangerSource: "a source's share of a mailbox",
	LimitMailboxTotal: "offline_queue_max_total_bytes", LimitMailboxSource: "a source's share of offline_queue_max_total_bytes",
	LimitMailboxStorage: "the relay's storage",
}

func (l Limit) String() string {
	if key, ok := limitKeys[l]; ok {
		return key
	}
	return fmt.Sprintf("limit %d", byte(l))
}

// RateLimited refuses a frame that may be taken later.
type RateLimited struct {
	Refused
	Limit          Limit
	RetryAfterSecs uint32 // at least 1
}

func (RateLimited) Type() Type { return TypeRateLimited }

func (f RateLimited) Append(dst []byte) []byte {
	dst = append(dst, byte(TypeRateLimited), byte(f.Limit))
	dst = binary.BigEndian.AppendUint32(dst, f.RetryAfterSecs)
	return f.Refused.append(dst)
}

func (f *RateLimited) Decode(b []byte) error {
	if len(b) < 6 {
		return malformed(TypeRateLimited, "length")
	}
	f.Limit = Limit(b[1])
	f.RetryAfterSecs = binary.BigEndian.Uint32(b[2:])
	if rest, ok := f.Refused.decode(b[6:]); !ok || len(rest) > 0 {
		return malformed(TypeRateLimited, "length")
	}
	return nil
}

// Fault says what was wrong with a frame, in an ERROR.
type Fault byte

const (
	FaultVersion       Fault = 1 // the protocol version is not spoken; the connection closes
	FaultOrder         Fault = 2 // the frame needs a HELLO, or a PUBLISH, before it
	FaultKeyAuth       Fault = 3 // the bundle's signature or the proof is wrong
	FaultBinding       Fault = 4 // the TLS session's channel binding is required and did not reach the relay
	FaultOtherIdentity Fault = 5 // the connection has another identity
	FaultTarget        Fault = 6 // the request's target is the asker
	FaultBusy          Fault = 7 // the blinded request's token has been used by two others
	FaultNoCircuit     Fault = 8 // no such circuit, or its other side has left: not accepted
	FaultTooLarge      Fault = 9 // longer than a client must take
)

// Error refuses a frame that will not be taken by sending it again as it is.
type Error struct {
	Refused
	Fault Fault
	Text  string // for people: UTF-8, at most MaxErrorText bytes
}

func (Error) Type() Type { return TypeError }

func (f Error) Append(dst []byte) []byte {
	dst = append(dst, byte(TypeError), byte(f.Fault))
	dst = f.Refused.append(dst)
	return append(dst, f.Text...)
}

func (f *Error) Decode(b []byte) error {
	if len(b) < 3 {
		return malformed(TypeError, "length")
	}
	f.Fault = Fault(b[1])
	text, ok := f.Refused.decode(b[2:])
	if !ok || len(text) > MaxErrorText {
		return malformed(TypeError, "length")
	}
	if !utf8.Valid(text) {
		return malformed(TypeError, "text")
	}
	f.Text = string(text)
	return nil
}
