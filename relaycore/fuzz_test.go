package relaycore

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// FuzzSession sends bytes to a session, in pieces of the given sizes: whatever
// they are, no task fails, nothing is left, and another client is served. What
// is sent in frames of the relay gets to what reads them, for the bytes are
// masked with zeros.
func FuzzSession(f *testing.F) {
	zeros := func(first byte, payload []byte) []byte {
		b := websocket.AppendHeader(nil, 0, len(payload))
		b[0], b[1] = first, b[1]|0x80
		return append(append(b, 0, 0, 0, 0), payload...)
	}
	add := func(pieces []byte, parts ...[]byte) { f.Add(bytes.Join(parts, nil), pieces) }
	app := func(m wire.Frame) []byte { return zeros(0x82, m.Append(nil)) }
	add(nil, app(wire.Hello{Version: wire.Version}), app(wire.Keepalive{}))
	add([]byte{0}, app(wire.Hello{Version: 2}))
	add([]byte{3, 1}, app(wire.Send{Circuit: 1, Payload: []byte("hello")}), zeros(0x89, []byte("ping")), zeros(0x88, []byte("\x03\xe8bye")))
	add([]byte{9}, zeros(0x02, []byte{4, 0, 0}), zeros(0x8a, nil), zeros(0x80, make([]byte, 40)))
	add(nil, app(wire.Ask{RequestID: 1, Mode: wire.Blinded, Content: make([]byte, wire.AskSize)}))
	add(nil, app(wire.Ack{IDs: make([]wire.MessageID, 3)}), app(wire.Close{Circuit: 7}), zeros(0x82, []byte{5}))
	add([]byte{1}, zeros(0x81, []byte("text")), zeros(0x83, nil))
	add(nil, []byte{0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, stream, pieces []byte) {
		if len(stream) > 64<<10 {
			return
		}
		bubble(t, big, func(t *testing.T, w *world) {
			honest, p := w.member(1), w.member(2)
			rest := stream
			for i := 0; len(rest) > 0; i++ {
				n := len(rest)
				if len(pieces) > 0 {
					n = min(int(pieces[i%len(pieces)])+1, n)
				}
				if _, err := p.nc.Write(rest[:n]); err != nil {
					break
				}
				rest = rest[n:]
				if i < 100 {
					synctest.Wait()
				}
			}
			synctest.Wait()
			p.nc.Close()
			time.Sleep(lastWords)
			synctest.Wait()
			if w.rejected(ReasonTaskPanic) != 0 {
				t.Fatalf("a task failed: %s", w.log)
			}
			if n := w.s.count.open.Load(); n != 1 {
				t.Fatalf("%d connections are open", n)
			}
			honest.hello()
		})
	})
}
