package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"relayedge/cmd/internal/policy"
	"relayedge/internal/telemetry"
	"relayedge/relaycore"
)

func runCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "run",
		Short: "Run the relay of a policy file until SIGTERM, then drain; a second SIGTERM ends at once",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := policy.Load(file)
			if err != nil {
				return err
			}
			if err := p.NeedRelay(); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			return run(c.Context(), p, c.ErrOrStderr())
		},
	}
	policyFlag(c, &file)
	return c
}

func policyFlag(c *cobra.Command, file *string) {
	c.Flags().StringVarP(file, "config", "c", "", "policy file")
	c.MarkFlagRequired("config")
}

// run builds everything, then starts everything, and returns when the relay has
// drained or a second signal came.
func run(ctx context.Context, p *policy.Policy, stderr io.Writer) error {
	log := logger(p.Log, stderr)
	relay, err := relaycore.NewServer(p.Relay, log)
	if err != nil {
		return err
	}
	m := telemetry.Config(p.Relay.Metrics)
	metrics, err := telemetry.NewServer(telemetry.Options{
		Groups:  []telemetry.Group{{Namespace: m.Namespace, Families: relay.Families()}},
		Process: true,
		Ready:   relay.Ready,
		Log:     log,
	})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", p.Relay.Bind)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	log.Info("relay listening", "addr", ln.Addr().String(), "proxy_protocol", p.Relay.ProxyProtocol)

	stopped, stop := context.WithCancel(context.Background())
	defer stop()
	if m.Enabled {
		go serveMetrics(stopped, metrics, m.BindAddr, log)
	}
	served := make(chan error, 1)
	go func() { served <- relay.Serve(ctx, ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	select {
	case err := <-served:
		return err
	case <-again:
		return nil
	}
}

// serveMetrics serves until ctx ends. The relay goes on without it.
func serveMetrics(ctx context.Context, s *telemetry.Server, bind string, log *slog.Logger) {
	ln, err := net.Listen("tcp", bind)
	if err == nil {
		log.Info("metrics listening", "addr", ln.Addr().String())
		err = s.Serve(ctx, ln)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Error(fmt.Sprintf("Metrics endpoint failed on %s", bind), "error", err)
	}
}

func logger(l policy.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func checkCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "check",
		Short: "Judge a policy file: exit 0 if the relay can run from it, else 1 with every fault",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := policy.Load(file)
			if err != nil {
				return err
			}
			if err := p.NeedRelay(); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: good\n", file)
			return nil
		},
	}
	policyFlag(c, &file)
	return c
}
