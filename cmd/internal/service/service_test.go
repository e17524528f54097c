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

	"github.com/spf13/cobra"

	"relayedge/cmd/internal/policy"
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

// A command line that cannot be meant is answered with what can be written.
func TestCommandLinesThatCannotBeMeant(t *testing.T) {
	for _, row := range []struct{ line, says string }{
		{"start", `edge has no command "start"; there are: check, `},
		{"chek x.yaml", `edge has no command "chek"; did you mean check?; there are: check, `},
		{"check --confg x.yaml", "unknown flag: --confg; edge check --help lists the flags\n"},
		{"check -c", "edge check --help lists the flags\n"},
		{"check -c x.yaml --machine --effective", "edge check: --effective and --machine exclude each other; give one of them\n"},
		{"check", "check needs a policy file: edge check -c FILE\n"},
		{"check x.yaml", "a policy file is named by -c FILE\n"},
	} {
		root := &cobra.Command{Use: "edge"}
		root.AddCommand(CheckCommand((*policy.Policy).NeedEdge, func(*Machine) {}), VersionCommand("edge"))
		var out, errs bytes.Buffer
		if status := Execute(t.Context(), root, strings.Fields(row.line), &out, &errs); status != 1 || out.Len() != 0 || !strings.Contains(errs.String(), row.says) {
			t.Errorf("%s: status %d, %q, %q", row.line, status, out.String(), errs.String())
		}
	}
	var lines []string
	for _, line := range []string{"version", "--version"} {
		root := &cobra.Command{Use: "edge"}
		root.AddCommand(VersionCommand("edge"))
		var out, errs bytes.Buffer
		if status := Execute(t.Context(), root, []string{line}, &out, &errs); status != 0 || errs.Len() != 0 {
			t.Errorf("%s: status %d, %q", line, status, errs.String())
		}
		lines = append(lines, out.String())
	}
	if lines[0] != lines[1] || !strings.HasPrefix(lines[0], "edge ") {
		t.Errorf("%q", lines)
	}
}

// What is no address of a metrics endpoint is told as that, and nothing is looked up.
func TestAddressOfTheMetrics(t *testing.T) {
	for _, address := range []string{"foo", "http://127.0.0.1:9090", "9090"} {
		a := NewAsker(programNamed("relayedge"))
		a.address = address
		if err := a.Get(t.Context(), "/status", nil); err == nil || !strings.Contains(err.Error(), "write host:port, as in 127.0.0.1:9090") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
