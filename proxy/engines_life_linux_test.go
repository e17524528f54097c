package proxy

import (
	"io"
	"net"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/proxy/upstream"
)

func talk(t *testing.T, client, relay party) {
	t.Helper()
	mustWrite(t, client, []byte("to the relay"))
	wantRead(t, relay, []byte("to the relay"))
	mustWrite(t, relay, []byte("to the client"))
	wantRead(t, client, []byte("to the client"))
}

// A drain closes the listener and who has no relay yet, lets the others go on,
// and closes what is left when its time is over.
func TestDrainOverKernelSockets(t *testing.T) {
	const grace = 2 * time.Second
	onWays(t, among(ways[1], ways[3], ways[4], ways[11]), func(t *testing.T, w way) {
		e := newKernelEdge(t, w, func(c *kernelConfig) { c.limits.DrainSecs = int(grace / time.Second) })
		stays, staysRelay := e.pair()
		leaves, leavesRelay := e.pair()
		var waits net.Conn
		if w.in != "" || w.tls != "none" {
			waits = e.dial()
			waitFor(t, "three are open", func() bool { return e.server.openByListener()["public"] == 3 })
		}
		began := time.Now()
		e.stop()
		if waits != nil {
			if n, err := io.ReadAll(waits); err != nil {
				t.Errorf("who has no relay yet: %d bytes, %v", len(n), err)
			}
			waitFor(t, "one has ended", func() bool { return e.ended(Drain) == 1 })
		}
		<-e.server.Draining()
		if c, err := net.Dial(e.front.Addr().Network(), e.front.Addr().String()); err == nil {
			t.Error("a newcomer gets in")
			c.Close()
		}
		talk(t, stays, staysRelay)
		talk(t, leaves, leavesRelay)
		leaves.CloseWrite()
		leavesRelay.wantStreamEnd(t)
		leavesRelay.CloseWrite()
		waitFor(t, "one has ended by itself", func() bool { return e.ended(ClientClosed) == 1 })
		talk(t, stays, staysRelay)
		if w.tls == "passthrough" {
			stays.Conn = stays.raw // that close_notify is the relay's
			staysRelay.Conn = staysRelay.raw
		}
		wantEOF(t, stays)
		wantEOF(t, staysRelay)
		if err := <-e.served; err != nil {
			t.Error(err)
		}
		e.served <- nil
		if took := time.Since(began); took < grace {
			t.Errorf("the drain took %v, want %v at least", took, grace)
		}
		closed := 1
		if waits != nil {
			closed = 2
		}
		if got := e.ends(); len(got) != 2 || got[Drain] != closed || got[ClientClosed] != 1 {
			t.Errorf("ended: %v", got)
		}
	})
}

// A reload closes nobody, and binds newcomers: to another upstream, to other
// limits, and to the listeners that are left.
func TestReloadOverKernelSockets(t *testing.T) {
	onWays(t, nil, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		client, relay := e.pair()
		old := e.relay
		e.relay = listenKernel(t, w.relay)
		e.reload(func(c *Config) {
			up := c.Upstreams["relay"]
			up.Addresses = []string{address(e.relay)}
			c.Upstreams = map[string]upstream.Config{"relay": up}
		})
		old.Close()
		second, secondRelay := e.pair() // at the relay of the reload
		talk(t, client, relay)
		talk(t, second, secondRelay)

		e.reload(func(c *Config) { c.Limits.MaxConnections, c.Limits.MaxHandshakes = 1, 1 })
		raw := e.dial()
		raw.Write(w.introduction())
		io.Copy(io.Discard, raw)
		e.wantEnds(1, admission.MaxConnections)
		talk(t, client, relay)

		front := e.front
		e.front = listenKernel(t, w.front)
		e.reload(func(c *Config) {
			c.Limits.MaxConnections = 100
			c.Listeners[0].Socket = e.front
		})
		if c, err := net.Dial(front.Addr().Network(), front.Addr().String()); err == nil {
			t.Error("the listener that was taken away takes connections")
			c.Close()
		}
		third, thirdRelay := e.pair()
		talk(t, third, thirdRelay)
		talk(t, second, secondRelay)
		talk(t, client, relay)
		client.CloseWrite()
		relay.wantStreamEnd(t)
		relay.CloseWrite()
		waitFor(t, "the first has ended", func() bool { return e.ended(ClientClosed) == 1 })
	})
}
