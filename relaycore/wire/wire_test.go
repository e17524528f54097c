package wire

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func filled(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

// clientFrames has each frame of a client once or more; fixed says that the
// frame's length is one number.
var clientFrames = []struct {
	frame Frame
	size  int
	fixed bool
}{
	{Hello{Version: 0x0102}, 3, true},
	{Publish{Identity: Identity(filled(1, 32)), Bundle: []byte{}, BundleSignature: [64]byte(filled(2, 64)), Proof: [64]byte(filled(3, 64))}, 163, true},
	{Publish{Identity: Identity(filled(1, 32)), Bundle: filled(9, MaxBundle)}, 163 + MaxBundle, true},
	{Ask{RequestID: 1 << 63, Mode: Named, Key: [32]byte(filled(4, 32)), Content: filled(5, AskSize)}, 5162, true},
	{Ask{RequestID: 7, Mode: Blinded, Key: [32]byte(filled(4, 32)), Content: filled(6, AskSize)}, 5162, true},
	{Send{Circuit: 0x0102030405060708, ID: MessageID(filled(7, 32)), Payload: []byte{}}, 43, false},
	{Send{Circuit: 1, ID: MessageID(filled(7, 32)), Payload: filled(8, 1226)}, 1269, false},
	{Close{Circuit: 0xfffefdfcfbfaf9f8}, 9, true},
	{Ack{IDs: []MessageID{MessageID(filled(1, 32))}}, 33, true},
	{Ack{IDs: make([]MessageID, MaxAckIDs)}, 1 + 32*MaxAckIDs, true},
	{Keepalive{}, 1, true},
}

var serverFrames = []struct {
	frame Frame
	size  int
	fixed bool
}{
	{Welcome{Version: 1, Nonce: [32]byte(filled(1, 32)), Binding: BindingExporter, MaxMessageBytes: 2, ConnectionTimeoutSecs: 3,
		IdentificationTimeoutSecs: 4, RateLimitBPS: 1 << 40, MaxPendingPerConnection: 5, MaxCircuitsPerConnection: 6,
		MaxPendingBlindPerConnection: 7, BlindAskBurst: 8, BlindAskRefillPerSec: 9}, 76, true},
	{Published{Identity: Identity(filled(2, 32))}, 33, true},
	{Knock{Asker: Identity(filled(3, 32)), Content: filled(4, AskSize)}, 5153, true},
	{CircuitOpen{RequestID: 5, Circuit: 6}, 17, true},
	{CircuitClosed{Circuit: 7, Reason: EndedLeft}, 10, true},
	{Message{Circuit: 8, ID: MessageID(filled(9, 32)), Payload: filled(1, 10)}, 53, false},
	{Message{Stored: true, Sender: Identity(filled(8, 32)), ID: MessageID(filled(9, 32)), Payload: []byte{}}, 75, false},
	{MessageAck{ID: MessageID(filled(2, 32))}, 33, true},
	{RateLimited{Refused: Refused{Frame: TypeAsk, RequestID: 3}, Limit: LimitCircuits, RetryAfterSecs: 30}, 15, true},
	{RateLimited{Refused: Refused{Frame: TypeSend, MessageID: MessageID(filled(4, 32))}, Limit: LimitCircuits, RetryAfterSecs: 1 << 31}, 39, true},
	{Error{Refused: Refused{Frame: TypePublish}, Fault: FaultKeyAuth, Text: ""}, 3, false},
	{Error{Refused: Refused{Frame: TypeAsk, RequestID: 9}, Fault: FaultTarget, Text: strings.Repeat("é", 100)}, 211, false},
	{Error{Refused: Refused{Frame: TypeSend, MessageID: MessageID(filled(5, 32))}, Fault: FaultNoCircuit, Text: "gone"}, 39, false},
}

func TestRoundTrip(t *testing.T) {
	for _, dir := range []struct {
		decode func([]byte) (Frame, error)
		frames []struct {
			frame Frame
			size  int
			fixed bool
		}
	}{{DecodeClient, clientFrames}, {DecodeServer, serverFrames}} {
		for _, tc := range dir.frames {
			b := tc.frame.Append([]byte("before"))[6:]
			if len(b) != tc.size {
				t.Errorf("%v is %d bytes long, want %d", tc.frame.Type(), len(b), tc.size)
			}
			if Type(b[0]) != tc.frame.Type() {
				t.Errorf("%v begins with %#x", tc.frame.Type(), b[0])
			}
			got, err := dir.decode(b)
			if err != nil || !reflect.DeepEqual(got, tc.frame) {
				t.Errorf("%v came back as %.200v, %v", tc.frame.Type(), got, err)
			}
			// A byte less or more is another frame or none.
			if tc.fixed {
				if _, err := dir.decode(append(bytes.Clone(b), 0)); !errors.Is(err, ErrMalformed) {
					t.Errorf("%v with a byte more: %v", tc.frame.Type(), err)
				}
			}
			for n := range min(len(b), 200) {
				cut, err := dir.decode(b[:n])
				_, ack := tc.frame.(Ack)
				if err == nil && (tc.fixed && !ack || !bytes.Equal(cut.Append(nil), b[:n])) {
					t.Errorf("%v cut at %d was taken", tc.frame.Type(), n)
				}
			}
		}
	}
}

func TestRefused(t *testing.T) {
	change := func(f Frame, at int, b byte) []byte {
		x := f.Append(nil)
		x[at] = b
		return x
	}
	for _, tc := range []struct {
		name   string
		decode func([]byte) (Frame, error)
		b      []byte
		err    error
	}{
		{"media is reserved", DecodeClient, []byte{0x05}, ErrUnknownType},
		{"0x85 too", DecodeServer, []byte{0x85}, ErrUnknownType},
		{"the relay's frame from a client", DecodeClient, MessageAck{}.Append(nil), ErrUnknownType},
		{"a client's frame from the relay", DecodeServer, Keepalive{}.Append(nil), ErrUnknownType},
		{"empty", DecodeClient, nil, ErrMalformed},
		{"empty", DecodeServer, nil, ErrMalformed},
		{"mode 0", DecodeClient, change(clientFrames[3].frame, 9, 0), ErrMalformed},
		{"mode 3", DecodeClient, change(clientFrames[3].frame, 9, 3), ErrMalformed},
		{"flags of SEND, high", DecodeClient, change(Send{}, 1, 1), ErrMalformed},
		{"flags of SEND, low", DecodeClient, change(Send{}, 2, 1), ErrMalformed},
		{"bundle too long", DecodeClient, Publish{Bundle: make([]byte, MaxBundle+1)}.Append(nil), ErrMalformed},
		{"bundle of another length", DecodeClient, change(Publish{}, 34, 1), ErrMalformed},
		{"ACK of nothing", DecodeClient, Ack{}.Append(nil), ErrMalformed},
		{"ACK of too much", DecodeClient, Ack{IDs: make([]MessageID, MaxAckIDs+1)}.Append(nil), ErrMalformed},
		{"flags of MESSAGE, high", DecodeServer, change(Message{}, 1, 1), ErrMalformed},
		{"flags of MESSAGE, unknown", DecodeServer, change(Message{}, 2, 2), ErrMalformed},
		{"stored without a sender", DecodeServer, change(Message{}, 2, 1), ErrMalformed},
		{"stored with a circuit", DecodeServer, change(Message{Circuit: 1, Payload: make([]byte, 40)}, 2, 1), ErrMalformed},
		{"binding 2", DecodeServer, change(Welcome{}, 35, 2), ErrMalformed},
		{"error text too long", DecodeServer, Error{Text: strings.Repeat("a", MaxErrorText+1)}.Append(nil), ErrMalformed},
		{"error text not UTF-8", DecodeServer, Error{Text: "\xff"}.Append(nil), ErrMalformed},
	} {
		if f, err := tc.decode(tc.b); !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, %v", tc.name, f, err)
		}
	}
}

// spec/003: a steady message of 1,226 bytes is 1,299 on the TLS stream.
func TestSteadySize(t *testing.T) {
	const webSocket, tls13 = 2 + 2 + 4, 22
	if got := len(Send{Payload: make([]byte, 1226)}.Append(nil)) + webSocket + tls13; got != 1299 {
		t.Fatal(got)
	}
}

func TestProof(t *testing.T) {
	key := ed25519.NewKeyFromSeed(filled(1, 32))
	nonce, binding := [32]byte{1}, [32]byte{2}
	good := NewPublish(key, []byte("bundle"), nonce, binding)
	if !good.Verify(nonce, binding) {
		t.Fatal("a good proof is refused")
	}
	// The two signatures are for two purposes.
	swapped := good
	swapped.Proof, swapped.BundleSignature = good.BundleSignature, good.Proof
	if good.Verify(binding, binding) || good.Verify(nonce, nonce) || swapped.Verify(nonce, binding) {
		t.Fatal("a bad proof is taken")
	}
}

func FuzzDecode(f *testing.F) {
	for _, tc := range clientFrames {
		f.Add(tc.frame.Append(nil))
	}
	for _, tc := range serverFrames {
		f.Add(tc.frame.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, decode := range []func([]byte) (Frame, error){DecodeClient, DecodeServer} {
			got, err := decode(b)
			if err != nil {
				if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownType) {
					t.Fatal(err)
				}
				continue
			}
			if again := got.Append(nil); !bytes.Equal(again, b) {
				t.Fatalf("%x came back as %x", b, again)
			}
		}
	})
}
