package relaycore_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"relayedge/relaycore"
	"relayedge/relaycore/client"
)

// serve runs a relay on loopback until the test's end and returns its address.
func serve(t testing.TB, cfg relaycore.Config) (*relaycore.Server, string) {
	t.Helper()
	s, err := relaycore.NewServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, ln.Addr().String()
}

func TestTryOnLoopback(t *testing.T) {
	_, addr := serve(t, relaycore.DefaultConfig())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := client.Try(ctx, "ws://"+addr+"/relay", nil, t.Output()); err != nil {
		t.Fatal(err)
	}
	_ = io.Discard
}
