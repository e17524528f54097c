package client

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"relayedge/internal/memconn"
	"relayedge/relaycore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spec/003: clients send a keepalive every 22 to 38 seconds. A session that
// says nothing else lives by it, and ends without it.
func TestKeepAlive(t *testing.T) {
	for _, keeps := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			cfg := relaycore.DefaultConfig()
			s, err := relaycore.NewServer(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ln := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777"))
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- s.Serve(ctx, ln) }()
			c, err := Dial(t.Context(), "ws://127.0.0.1:7777/relay", Options{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return ln.Dial(ctx, netip.MustParseAddrPort("192.0.2.1:1000"))
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Publish(t.Context(), ed25519.NewKeyFromSeed(make([]byte, 32)), nil); err != nil {
				t.Fatal(err)
			}
			received := make(chan error, 1)
			go func() {
				_, err := c.Receive(context.Background())
				received <- err
			}()
			kept := make(chan error, 1)
			if keeps {
				go func() { kept <- c.KeepAlive(ctx) }()
			}
			select {
			case err := <-received:
				if keeps {
					t.Fatal(err)
				}
			case <-time.After(time.Hour):
				if !keeps {
					t.Fatal("a silent session lives")
				}
			}
			stop()
			if keeps {
				if err := <-kept; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				<-received
			}
			c.Close()
			if err := <-served; err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestKeepAliveInterval(t *testing.T) {
	low, high := time.Hour, time.Duration(0)
	for range 10000 {
		d := keepAliveDelay()
		low, high = min(low, d), max(high, d)
	}
	if low < 22*time.Second || low > 23*time.Second || high > 38*time.Second || high < 37*time.Second {
		t.Fatal(low, high)
	}
}
