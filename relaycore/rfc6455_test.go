package relaycore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// The RFC 6455 suite: raw bytes from a client that has an identity and a circuit,
// and what becomes of them on both ends of the circuit.

// talk makes what a client of the suite sends.
type talk struct{ circuit uint64 }

// message is the content of a WebSocket message of n bytes, at least
// wire.SendHead: a SEND on the circuit, whose payload has every byte value.
func (k talk) message(n int) []byte {
	return wire.Send{Circuit: k.circuit, ID: messageID(n), Payload: filler[wire.SendHead:n]}.Append(nil)
}

// filler is what messages are filled with.
var filler = func() []byte {
	b := make([]byte, suiteLimit+1)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}()

// whole is a message of n bytes in one frame.
func (k talk) whole(n int) []byte { return frameOf(0x82, k.message(n)) }

// cut is a message of n bytes in frames of the sizes, and one more for the rest.
// Between its frames stands what between is.
func (k talk) cut(n int, between []byte, sizes ...int) []byte {
	m := k.message(n)
	out := frameOf(0x02, m[:sizes[0]])
	m = m[sizes[0]:]
	for _, size := range sizes[1:] {
		out = append(append(out, between...), frameOf(0x00, m[:size])...)
		m = m[size:]
	}
	return append(append(out, between...), frameOf(0x80, m)...)
}

// each is a message of n bytes in frames of one size.
func (k talk) each(n, size int) []byte {
	var sizes []int
	for rest := n - size; rest > 0; rest -= size {
		sizes = append(sizes, size)
	}
	if sizes == nil {
		return k.whole(n)
	}
	return k.cut(n, nil, sizes...)
}

// frameOf is a client's frame with the given first byte.
func frameOf(first byte, payload []byte) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	const mask = 0x5c1fe782
	b = binary.LittleEndian.AppendUint32(b, mask)
	at := len(b)
	b = append(b, payload...)
	// Eight bytes at a time, for the race detector's sake.
	for rest := b[at:]; len(rest) > 0; rest = rest[min(8, len(rest)):] {
		var word [8]byte
		copy(word[:], rest)
		binary.LittleEndian.PutUint64(word[:], binary.LittleEndian.Uint64(word[:])^(mask<<32|mask))
		copy(rest, word[:])
	}
	return b
}

func ping(payload string) []byte { return frameOf(0x89, []byte(payload)) }
func pong(payload string) []byte { return frameOf(0x8a, []byte(payload)) }

// closing is a close frame.
func closing(code int, reason string) []byte {
	return frameOf(0x88, append([]byte{byte(code >> 8), byte(code)}, reason...))
}

func all(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// rfcCase is one case of the suite. Where it neither fails nor closes, the
// connection must be as good as before.
type rfcCase struct {
	name      string
	send      func(k talk) []byte
	delivered []int    // lengths of the messages that arrive at the other end
	pongs     []string // payloads of the pongs
	fails     int      // code with which the relay fails the connection
	closes    int      // code with which it answers the client's close frame
}

// sends is the stream that is the same on every circuit.
func sends(parts ...[]byte) func(talk) []byte {
	return func(talk) []byte { return all(parts...) }
}

// chops are how many bytes are written at a time; 0: all.
var chops = []int{0, 1, 997}

// maxPieces is how many pieces a stream is chopped into at most.
const maxPieces = 70000

// suiteLimit is max_message_bytes.
const suiteLimit = 1 << 20

// stage is a relay with a receiver on which the cases of a table are played.
type stage struct {
	*world
	receiver *peer
	seed     byte
}

// play plays the cases, each in every chop, on one relay: each with a sender of
// its own, and one receiver that none of them may harm.
func play(t *testing.T, cases []rfcCase) {
	names := make(map[string]bool)
	bubble(t, func(c *Config) {
		big(c)
		c.Limits.MaxConnectionsPerIP, c.Limits.MaxMessageBytes = 0, suiteLimit
	}, func(t *testing.T, w *world) {
		s := &stage{world: w, receiver: w.member(255)}
		for _, tc := range cases {
			if names[tc.name] {
				t.Errorf("two cases are named %q", tc.name)
			}
			names[tc.name] = true
			size := len(tc.send(talk{}))
			for _, chop := range chops {
				if chop > 0 && (chop >= size || size/chop > maxPieces) {
					continue
				}
				if fault := s.run(tc, chop); fault != "" {
					t.Errorf("%s, %d bytes at a time: %s", tc.name, chop, fault)
				}
			}
		}
		s.receiver.hello()
	})
	t.Logf("%d cases", len(cases))
}

// run plays a case and returns what is wrong with its outcome, or nothing.
func (s *stage) run(tc rfcCase, chop int) string {
	s.seed = s.seed%250 + 1
	sender := s.member(s.seed)
	defer sender.nc.Close()
	sender.pongs.Store(false)
	k := talk{s.pairUp(sender, s.receiver)}
	malformed, oversized := s.s.count.malformed.Load(), s.rejected(ReasonOversizedFrame)

	stream := tc.send(k)
	s.feed(sender, stream, cmp.Or(chop, len(stream)))
	if tc.fails == 0 && tc.closes == 0 {
		// The circuit's end must not meet a receiver whose queue is full.
		synctest.Wait()
		tail := all(ping("well"), closing(1000, ""))
		s.feed(sender, tail, cmp.Or(chop, len(tail)))
		tc.pongs, tc.closes = append(slices.Clone(tc.pongs), "well"), 1000
	}

	var pongs []string
	var acks, refusals, closes int
	var code websocket.Code
	for r := range sender.frames {
		switch r.op {
		case websocket.Ping:
		case websocket.Pong:
			pongs = append(pongs, string(r.payload))
		case websocket.Close:
			closes++
			code, _, _ = websocket.ParseClose(r.payload)
		case websocket.Binary:
			switch f, _ := wire.DecodeServer(r.payload); f.(type) {
			case wire.MessageAck:
				acks++
			default:
				refusals++
			}
		}
	}
	sender.nc.Close()

	var delivered []int
	for ended := false; !ended; {
		r := s.receiver.next()
		f, err := wire.DecodeServer(r.payload)
		if r.op != websocket.Binary || err != nil {
			return fmt.Sprintf("opcode %x with %.40x was passed on", byte(r.op), r.payload)
		}
		switch f := f.(type) {
		case wire.Message:
			if want := k.message(len(r.payload)); !bytes.Equal(r.payload[1:], want[1:]) {
				return fmt.Sprintf("a message of %d bytes arrived changed", len(r.payload))
			}
			delivered = append(delivered, len(r.payload))
		case wire.CircuitClosed:
			ended = f.Circuit == k.circuit
		}
	}
	switch {
	case closes != 1 || int(code) != max(tc.fails, tc.closes):
		return fmt.Sprintf("closed %d times, with %d; want %d", closes, code, max(tc.fails, tc.closes))
	case !slices.Equal(delivered, tc.delivered):
		return fmt.Sprintf("messages of %d bytes arrived, want %d", delivered, tc.delivered)
	case acks != len(delivered) || refusals != 0:
		return fmt.Sprintf("%d messages are acknowledged, %d refused", acks, refusals)
	case !slices.Equal(pongs, tc.pongs):
		return fmt.Sprintf("pongs %.200s, want %.200s", fmt.Sprintf("%q", pongs), fmt.Sprintf("%q", tc.pongs))
	}
	var wantMalformed uint64
	wantOversized := 0
	switch tc.fails {
	case 0:
	case 1009:
		wantOversized = 1
	default:
		wantMalformed = 1
	}
	if got := s.s.count.malformed.Load() - malformed; got != wantMalformed {
		return fmt.Sprintf("%d are counted as malformed", got)
	}
	if got := s.rejected(ReasonOversizedFrame) - oversized; got != wantOversized {
		return fmt.Sprintf("%d are counted as oversized", got)
	}
	return ""
}

// feed writes the stream, chop bytes at a time, until the relay takes no more.
// Each piece of a short one is taken before the next is written.
func (s *stage) feed(p *peer, stream []byte, chop int) {
	wait := len(stream)/chop < 400
	for len(stream) > 0 {
		n, err := p.nc.Write(stream[:min(chop, len(stream))])
		if err != nil {
			return
		}
		stream = stream[n:]
		if wait {
			synctest.Wait()
		}
	}
}
