package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/control"
	"relayedge/internal/hostport"
	"relayedge/internal/logging"
	"relayedge/internal/sdnotify"
	"relayedge/internal/telemetry"
	"relayedge/relaycore"
)

func runCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "run -c FILE",
		Short: "Run the relay of a policy file until SIGTERM, then drain; a second SIGTERM ends at once",
		Args:  service.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			hangups := service.CatchHangups()
			p, err := service.LoadPolicy(file, (*policy.Policy).NeedRelay)
			if err != nil {
				return err
			}
			log, finish := logging.New(p.Log, c.ErrOrStderr())
			defer finish()
			return service.UntilSignal(c.Context(), log, func(ctx context.Context) error {
				return run(ctx, p, file, hangups, log, c.OutOrStdout())
			})
		},
	}
	service.RequirePolicyFlag(c, &file)
	return c
}

// run builds everything, then starts everything, and returns when the relay has
// drained. It prints on out where it serves.
func run(ctx context.Context, p *policy.Policy, file string, hangups <-chan os.Signal, log *slog.Logger, out io.Writer) error {
	d := descriptors(p)
	cfg := fit(p.Relay, d)
	store, err := service.OpenStore(p.Redis, log)
	if err != nil {
		return err
	}
	defer store.Close()
	options, err := store.Relay(p)
	if err != nil {
		return err
	}
	relay, err := relaycore.NewServerWith(cfg, options, log)
	if err != nil {
		return err
	}
	defer relay.Close()
	socket, err := service.Listen(p.Relay.Bind)
	if err != nil {
		return fmt.Errorf("relay.bind: %w", err)
	}
	defer socket.Close()
	background, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	m := telemetry.Config(p.Relay.Metrics)
	metrics, err := service.ServeMetrics(background, m, telemetry.Options{
		Groups:  []telemetry.Group{{Namespace: m.Namespace, Families: append(relay.Families(), store.Families()...)}},
		Process: true,
		Ready:   relay.Ready,
		Log:     log,
	})
	if err != nil {
		return err
	}
	asked := service.OpenControl(control.Config(p.Relay.Control), log)
	expects := "expecting no PROXY header"
	if p.Relay.ProxyProtocol {
		expects = "behind a PROXY v2 header"
	}
	report(log, p, cfg.Limits, d)
	fmt.Fprintf(out, "relay: %s, %s\n", hostport.Text(socket.Addr()), expects)
	if metrics != "" {
		fmt.Fprintf(out, "metrics: http://%s/metrics\n", metrics)
	}
	manager := sdnotify.FromEnvironment()
	reloader := newReloader(p, file, relay, manager, log)
	tasks.Go(func() { reloader.Control(background, asked, hangups) })
	context.AfterFunc(ctx, func() {
		reloader.Stop()
		manager.Stopping("draining")
	})
	vitals := &service.Vitals{Families: relay.Families(), Sockets: func() []net.Listener { return []net.Listener{socket} }, Ready: relay.Ready}
	tasks.Go(func() {
		service.Told(manager.Ready("serving"), log)
		service.Supervise(background, manager, vitals, log)
	})
	return relay.Serve(ctx, socket)
}
