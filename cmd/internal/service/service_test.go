package service

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"relayedge/internal/telemetry"
)

// The first signal ends serve's context and waits for it, the second does not wait.
func TestUntilSignal(t *testing.T) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	failed := errors.New("failed")

	if err := UntilSignal(t.Context(), log, func(context.Context) error { return failed }); err != failed {
		t.Errorf("without a signal: %v", err)
	}
	err = UntilSignal(t.Context(), log, func(ctx context.Context) error {
		self.Signal(syscall.SIGTERM)
		<-ctx.Done()
		return failed
	})
	if err != failed {
		t.Errorf("after one signal: %v", err)
	}
	hang := make(chan struct{})
	defer close(hang)
	err = UntilSignal(t.Context(), log, func(ctx context.Context) error {
		self.Signal(syscall.SIGTERM)
		<-ctx.Done()
		self.Signal(syscall.SIGINT)
		<-hang
		return failed
	})
	if err != nil {
		t.Errorf("after two signals: %v", err)
	}
}

// A taken metrics port is logged with what to do, and does not stop the service.
func TestServeMetricsGoesOnWithout(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var out bytes.Buffer
	cfg := telemetry.Config{Enabled: true, BindAddr: taken.Addr().String(), Namespace: "relayedge"}
	options := telemetry.Options{Log: slog.New(slog.NewTextHandler(&out, nil))}
	addr, err := ServeMetrics(t.Context(), cfg, options)
	if addr != "" || err != nil || !strings.Contains(out.String(), "metrics.bind_addr") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%q, %v; log: %s", addr, err, out.String())
	}
	out.Reset()
	cfg.Enabled = false
	if addr, err := ServeMetrics(t.Context(), cfg, options); addr != "" || err != nil || out.Len() != 0 {
		t.Errorf("disabled: %q, %v; log: %s", addr, err, out.String())
	}
}
