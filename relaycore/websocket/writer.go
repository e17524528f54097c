package websocket

import (
	"encoding/binary"
	"unicode/utf8"
)

// HeaderSize is how many bytes AppendHeader appends for a payload of so many bytes.
func HeaderSize(length int) int {
	switch {
	case length < 126:
		return 2
	case length <= 0xffff:
		return 4
	default:
		return 10
	}
}

// AppendHeader appends the header of an unfragmented server frame whose payload has length bytes.
func AppendHeader(dst []byte, op Opcode, length int) []byte {
	dst = append(dst, 0x80|byte(op))
	switch {
	case length < 126:
		return append(dst, byte(length))
	case length <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, 126), uint16(length))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 127), uint64(length))
	}
}

// AppendFrame appends an unfragmented server frame.
func AppendFrame(dst []byte, op Opcode, payload []byte) []byte {
	return append(AppendHeader(dst, op, len(payload)), payload...)
}

// AppendClose appends a close frame. A code that may not be sent makes an empty
// body; a reason is cut at a character's border to fit a control frame.
func AppendClose(dst []byte, code Code, reason string) []byte {
	if !code.onWire() {
		return AppendHeader(dst, Close, 0)
	}
	if len(reason) > MaxControl-2 {
		reason = reason[:MaxControl-2]
		for len(reason) > 0 && !utf8.ValidString(reason) {
			reason = reason[:len(reason)-1]
		}
	}
	dst = AppendHeader(dst, Close, 2+len(reason))
	dst = binary.BigEndian.AppendUint16(dst, uint16(code))
	return append(dst, reason...)
}
