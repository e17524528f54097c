package proxy

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// After another process has taken over, what is in its handshake goes on too, and the
// wait ends with the last session.
func TestOutlive(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			terminating(c)
			c.limits.DrainSecs = 3600
		})
		<-e.server.Serving()
		open, _, _ := e.tlsPair(clientTLS("relay.example.org"))
		late := e.dial(netip.MustParseAddrPort("192.0.2.99:5000")) // nothing of its handshake has come
		synctest.Wait()
		outlived := make(chan bool, 1)
		go func() { outlived <- e.server.Outlive(t.Context()) }()
		synctest.Wait()
		if n := e.server.Open(); n != 2 {
			t.Errorf("%d sessions are open", n)
		}
		secure := e.handshake(late, clientTLS("relay.example.org"))
		relay, _, _ := e.accept()
		mustWrite(t, secure, []byte("hi"))
		wantRead(t, relay, []byte("hi"))
		open.Close()
		time.Sleep(time.Second)
		select {
		case <-outlived:
			t.Error("it ends before the last session")
		default:
		}
		secure.Close()
		relay.Close()
		if !<-outlived {
			t.Error("it was given up")
		}
		if n := e.server.Open(); n != 0 {
			t.Errorf("%d sessions are open", n)
		}
	})
}

// What does not end by itself ends behind drain_secs; and a process that is to accept
// again closes nobody.
func TestOutliveIsBounded(t *testing.T) {
	for _, row := range []struct {
		back time.Duration // when the other process has ended; 0: it does not
		want bool
		took time.Duration
	}{{0, true, 30 * time.Second}, {29 * time.Second, false, 29 * time.Second}} {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, func(c *edgeConfig) { c.limits.DrainSecs = 30 })
			client, relay := e.pair()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if row.back > 0 {
				time.AfterFunc(row.back, cancel)
			}
			began := time.Now()
			if got := e.server.Outlive(ctx); got != row.want || time.Since(began) != row.took {
				t.Errorf("%v after %v, want %v after %v", got, time.Since(began), row.want, row.took)
			}
			if row.want {
				e.wantEnd(Drain)
				return
			}
			mustWrite(t, client, []byte("on"))
			wantRead(t, relay, []byte("on"))
			other, _ := e.pair() // it accepts as before
			other.Close()
			client.Close()
		})
	}
}
