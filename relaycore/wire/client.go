package wire

import "encoding/binary"

// Hello opens the talk. It proves nothing.
type Hello struct {
	Version uint16
}

func (Hello) Type() Type { return TypeHello }

func (f Hello) Append(dst []byte) []byte {
	return binary.BigEndian.AppendUint16(append(dst, byte(TypeHello)), f.Version)
}

func (f *Hello) Decode(b []byte) error {
	if len(b) != 3 {
		return malformed(TypeHello, "length")
	}
	f.Version = binary.BigEndian.Uint16(b[1:])
	return nil
}

// Publish makes the connection the identity's.
type Publish struct {
	Identity        Identity
	Bundle          []byte   // opaque, at most MaxBundle
	BundleSignature [64]byte // over BundleText
	Proof           [64]byte // over ProofText
}

func (Publish) Type() Type { return TypePublish }

func (f Publish) Append(dst []byte) []byte {
	dst = append(append(dst, byte(TypePublish)), f.Identity[:]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(f.Bundle)))
	dst = append(append(dst, f.Bundle...), f.BundleSignature[:]...)
	return append(dst, f.Proof[:]...)
}

func (f *Publish) Decode(b []byte) error {
	const fixed = 1 + 32 + 2 + 64 + 64
	if len(b) < fixed {
		return malformed(TypePublish, "length")
	}
	n := int(binary.BigEndian.Uint16(b[33:]))
	if n > MaxBundle {
		return malformed(TypePublish, "bundle longer than 16 KiB")
	}
	if len(b) != fixed+n {
		return malformed(TypePublish, "length")
	}
	f.Identity = Identity(b[1:33])
	f.Bundle = b[35 : 35+n : 35+n]
	f.BundleSignature = [64]byte(b[35+n:])
	f.Proof = [64]byte(b[99+n:])
	return nil
}

// Mode says what an Ask's key is.
type Mode byte

const (
	Named   Mode = 1 // the key is the target's identity, the content its knock
	Blinded Mode = 2 // the key is a token that both sides derive, the content filler
)

// Ask is a conversation request. Both modes have the same length.
type Ask struct {
	RequestID uint64
	Mode      Mode
	Key       [32]byte
	Content   []byte // AskSize bytes
}

func (Ask) Type() Type { return TypeAsk }

func (f Ask) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, byte(TypeAsk)), f.RequestID)
	dst = append(append(dst, byte(f.Mode)), f.Key[:]...)
	return append(dst, f.Content...)
}

func (f *Ask) Decode(b []byte) error {
	if len(b) != 42+AskSize {
		return malformed(TypeAsk, "length")
	}
	f.RequestID = binary.BigEndian.Uint64(b[1:])
	f.Mode = Mode(b[9])
	if f.Mode != Named && f.Mode != Blinded {
		return malformed(TypeAsk, "mode")
	}
	f.Key = [32]byte(b[10:])
	f.Content = b[42:]
	return nil
}

// Send is a message on an open circuit.
type Send struct {
	Circuit uint64
	ID      MessageID
	Payload []byte
}

func (Send) Type() Type { return TypeSend }

func (f Send) Append(dst []byte) []byte {
	dst = append(dst, byte(TypeSend), 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, f.Circuit)
	return append(append(dst, f.ID[:]...), f.Payload...)
}

func (f *Send) Decode(b []byte) error {
	if len(b) < SendHead {
		return malformed(TypeSend, "length")
	}
	if b[1] != 0 || b[2] != 0 {
		return malformed(TypeSend, "flags")
	}
	f.Circuit = binary.BigEndian.Uint64(b[3:])
	f.ID = MessageID(b[11:])
	f.Payload = b[SendHead:]
	return nil
}

// Close leaves a circuit.
type Close struct {
	Circuit uint64
}

func (Close) Type() Type { return TypeClose }

func (f Close) Append(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(append(dst, byte(TypeClose)), f.Circuit)
}

func (f *Close) Decode(b []byte) error {
	if len(b) != 9 {
		return malformed(TypeClose, "length")
	}
	f.Circuit = binary.BigEndian.Uint64(b[1:])
	return nil
}

// Ack says which messages were delivered: between one and MaxAckIDs.
type Ack struct {
	IDs []MessageID
}

func (Ack) Type() Type { return TypeAck }

func (f Ack) Append(dst []byte) []byte {
	dst = append(dst, byte(TypeAck))
	for _, id := range f.IDs {
		dst = append(dst, id[:]...)
	}
	return dst
}

func (f *Ack) Decode(b []byte) error {
	n := (len(b) - 1) / 32
	if (len(b)-1)%32 != 0 || n < 1 || n > MaxAckIDs {
		return malformed(TypeAck, "length")
	}
	f.IDs = make([]MessageID, n)
	for i := range f.IDs {
		f.IDs[i] = MessageID(b[1+32*i:])
	}
	return nil
}

// Keepalive counts as activity, nothing else.
type Keepalive struct{}

func (Keepalive) Type() Type { return TypeKeepalive }

func (Keepalive) Append(dst []byte) []byte { return append(dst, byte(TypeKeepalive)) }

func (*Keepalive) Decode(b []byte) error {
	if len(b) != 1 {
		return malformed(TypeKeepalive, "length")
	}
	return nil
}
