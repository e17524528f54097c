package proxy

import (
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/proxy/upstream"
)

// many makes clients, each a host of its own.
func (e *testEdge) many(n int) []*memconn.Conn {
	e.t.Helper()
	clients := make([]*memconn.Conn, n)
	for i := range clients {
		clients[i] = e.dial(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 51000))
	}
	return clients
}

// What a relay does to those who dial it, and what becomes of many clients.
func TestFailedDials(t *testing.T) {
	const clients = 2000
	refuse := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	tests := []struct {
		name   string
		dial   upstream.DialFunc // nil: the relay answers
		relay  func(*memconn.Conn)
		within time.Duration
		ends   map[Reason]int // 0: any number
	}{
		{"a closed port", refuse, nil, 0, map[Reason]int{UpstreamUnavailable: clients}},
		{"a relay that does not answer", hang, nil, 5 * time.Second, map[Reason]int{UpstreamTimeout: clients}},
		{"one that accepts and resets", nil, (*memconn.Conn).Reset, 0, map[Reason]int{Reset: 0, UpstreamUnavailable: 0}},
		{"one that accepts and never reads", nil, func(*memconn.Conn) {}, 5 * time.Minute, map[Reason]int{IdleTimeout: clients}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					if tt.dial != nil {
						c.dial = tt.dial
					}
				})
				var open []*memconn.Conn
				go func() {
					for {
						c, err := e.relay.Accept()
						if err != nil {
							return
						}
						open = append(open, c.(*memconn.Conn))
						tt.relay(c.(*memconn.Conn))
					}
				}()
				began := time.Now()
				for _, client := range e.many(clients) {
					io.Copy(io.Discard, client) // its end is told, by a close or a reset
					client.Close()
				}
				if took := time.Since(began); took > tt.within {
					t.Errorf("the last was told after %v, want %v", took, tt.within)
				}
				synctest.Wait()
				total := 0
				for reason, want := range tt.ends {
					n := e.ended(reason)
					total += n
					if want != 0 && n != want {
						t.Errorf("%d ended as %s, want %d", n, reason, want)
					}
				}
				if total != clients {
					t.Errorf("%d of %d ended as they should: %v", total, clients, tt.ends)
				}
				if s := e.server.upstreams["relay"].Status()[0]; s.Connections != 0 || s.Up != (tt.dial == nil) {
					t.Errorf("the upstream is left as %+v", s)
				}
				e.wantNothingHeld()
				for _, c := range open {
					if _, err := c.Write([]byte("x")); err == nil {
						t.Fatal("the relay's side is still open")
					}
					c.Close()
				}
			})
		})
	}
}

// A relay that does not answer comes to hold sixteen clients, whatever comes for
// it, and so leaves the edge to those of others.
func TestSilentRelayDoesNotFillTheEdge(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			c.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
			}
		})
		first := e.dial(aliceAddr)
		io.Copy(io.Discard, first) // five seconds: from here the relay is known to be silent
		first.Close()
		for range 3 {
			clients := e.many(1000)
			synctest.Wait()
			if n := e.server.gate.Stats(time.Now()).Connections; n != 16 {
				t.Errorf("%d connections are held for a relay that does not answer", n)
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
			e.wantNothingHeld()
			closeAll(clients)
		}
		if n := e.ended(UpstreamUnavailable); n != 3*(1000-16) {
			t.Errorf("%d were turned away at once", n)
		}
	})
}
