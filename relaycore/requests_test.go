package relaycore

import (
	"crypto/ed25519"
	"encoding/binary"
	"testing/synctest"

	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// pendingAtMost sets how many requests are pending at most, and what that bounds.
func pendingAtMost(l *Limits, n int) {
	l.MaxPendingCircuitTargets = n
	for _, each := range []*int{&l.MaxPendingPerConnection, &l.MaxPendingBlindPerConnection, &l.MaxPendingPerSource, &l.MaxPendingBlindPerSource} {
		*each = min(*each, n)
	}
}

// circuitsAtMost sets how many circuit entries there are at most, and what that bounds.
func circuitsAtMost(l *Limits, n int) {
	l.MaxCircuits, l.MaxCircuitsPerSource = n, min(l.MaxCircuitsPerSource, n)
}

// fronted puts the relay behind a front end that ends no TLS, and leaves the byte
// bucket out.
func fronted(c *Config) {
	proxied(c)
	big(c)
	c.RequireChannelBinding = false
}

// keyOf makes the key number n.
func keyOf(n int) ed25519.PrivateKey {
	var seed [ed25519.SeedSize]byte
	binary.BigEndian.PutUint64(seed[:], uint64(n)+1)
	return ed25519.NewKeyFromSeed(seed[:])
}

// as is a client at an address that has proved the identity number n.
func (w *world) as(client string, n int) *peer {
	w.t.Helper()
	p := w.come(client)
	p.publishAs(keyOf(n), []byte("bundle"))
	return p
}

func (p *peer) publishAs(key ed25519.PrivateKey, bundle []byte) {
	p.w.t.Helper()
	p.key = key
	p.send(wire.NewPublish(key, bundle, p.nonce, p.binding))
	want[wire.Published](p)
}

// refusedPublish has the relay refuse a proof for the TLS session that p names.
func (p *peer) refusedPublish() {
	p.w.t.Helper()
	p.send(wire.NewPublish(keyOf(1), nil, p.nonce, p.binding))
	if got := want[wire.Error](p); got.Frame != wire.TypePublish || got.Fault != wire.FaultKeyAuth {
		p.w.t.Fatalf("%+v", got)
	}
}

// idOf is the identity number n; tokenOf a token.
func idOf(n int) wire.Identity { return identity(keyOf(n)) }

func tokenOf(n int) (key [32]byte) {
	binary.BigEndian.PutUint64(key[:], uint64(n))
	return key
}

// answer is what came back at once for a request.
type answer struct {
	limit   wire.Limit // it was refused for
	retry   uint32
	fault   wire.Fault // it was refused with
	circuit uint64     // it opened
}

// request sends a request and returns the answer to it; the zero answer says
// that it waits. What else has come is thrown away.
func (p *peer) request(mode wire.Mode, id uint64, key [32]byte) answer {
	p.w.t.Helper()
	// Without a mask: there are many, and masking takes long under the race detector.
	b := wire.Ask{RequestID: id, Mode: mode, Key: key, Content: make([]byte, wire.AskSize)}.Append(nil)
	p.write(append(binary.BigEndian.AppendUint16([]byte{0x82, 0x80 | 126}, uint16(len(b))), append(make([]byte, 4), b...)...))
	return p.answered(id)
}

// answered looks through what has come for the answer to a request.
func (p *peer) answered(id uint64) (a answer) {
	p.w.t.Helper()
	synctest.Wait()
	for {
		select {
		case r, ok := <-p.frames:
			if !ok {
				p.w.t.Fatal("the relay closed the connection")
			}
			if r.op != websocket.Binary {
				continue
			}
			f, err := wire.DecodeServer(r.payload)
			if err != nil {
				p.w.t.Fatal(err)
			}
			switch f := f.(type) {
			case wire.RateLimited:
				if f.RequestID == id {
					a.limit, a.retry = f.Limit, f.RetryAfterSecs
				}
			case wire.Error:
				if f.RequestID == id {
					a.fault = f.Fault
				}
			case wire.CircuitOpen:
				if f.RequestID == id {
					a.circuit = f.Circuit
				}
			}
			continue
		default:
		}
		return a
	}
}
