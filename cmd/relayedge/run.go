package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"relayedge/admission/succession"
	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/control"
	"relayedge/internal/hostport"
	"relayedge/internal/logging"
	"relayedge/internal/sdnotify"
	"relayedge/internal/status"
	"relayedge/internal/telemetry"
	"relayedge/proxy/certs"
	"relayedge/relaycore"
	"relayedge/relaycore/wire"
)

func runCommand() *cobra.Command {
	var file string
	var quick quickFlags
	c := &cobra.Command{
		Use:   "run [-c FILE]",
		Short: "Serve until SIGTERM, then drain; a second SIGTERM ends at once",
		Long: `Serve until SIGTERM, then drain; a second SIGTERM ends at once.

Without a file it is a working edge on this machine: TLS on 127.0.0.1:8443 with
a certificate of its own making, a relay inside the same process behind a real
PROXY v2 hop, metrics on 127.0.0.1:9090.`,
		Example: `  relayedge run
  relayedge run -c config.yaml
  relayedge run --listen 0.0.0.0:443 --upstream 127.0.0.1:7777 --cert fullchain.pem --key privkey.pem
  relayedge run --domain relay.example.org --upstream 127.0.0.1:7777
  relayedge run --listen 127.0.0.1:9443 --upstream 127.0.0.1:7777 --client-address none`,
		Args: service.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			upgrades, hangups := catchUpgrades(), service.CatchHangups()
			before, err := inherit()
			if err != nil {
				return err
			}
			p, err := choosePolicy(c, file, &quick)
			if err != nil {
				before.fail(err)
				return err
			}
			log, finish := logging.New(p.Log, c.ErrOrStderr())
			defer finish()
			return service.UntilSignal(c.Context(), log, func(ctx context.Context) error {
				err := run(ctx, p, reloads{file, hangups}, before.in(log), upgrades, log, c.OutOrStdout())
				before.fail(err)
				return err
			})
		},
	}
	service.PolicyFlag(c, &file)
	quick.register(c)
	return c
}

func choosePolicy(c *cobra.Command, file string, quick *quickFlags) (*policy.Policy, error) {
	if file == "" {
		return quick.policy(c.Flags().Changed)
	}
	for _, name := range quickNames {
		if c.Flags().Changed(name) {
			return nil, fmt.Errorf("--%s is for running without a file; with -c, write it in %s", name, file)
		}
	}
	return service.LoadPolicy(file, (*policy.Policy).NeedEdge)
}

// run builds everything, then starts everything, and returns when it has
// drained. It prints on out where it serves.
func run(ctx context.Context, p *policy.Policy, from reloads, before *heritage, signals <-chan os.Signal, log *slog.Logger, out io.Writer) error {
	fleet, err := openFleet(p, log)
	if err != nil {
		return err
	}
	defer fleet.close()
	gate, err := before.gate(fleet.gate)
	if err != nil {
		return err
	}
	store, err := certs.OpenShared(p.Certificates, fleet.shared(), log)
	if err != nil {
		return err
	}
	relay, err := openRelay(p, fleet.store, before != nil, log)
	if err != nil {
		return err
	}
	defer relay.close()
	d := descriptors(p)
	secret := before.requestSecret()
	edge, err := openEdge(p, store, relay, fleet, gate, secret, d.Room(), log)
	if err != nil {
		return err
	}
	defer edge.close()
	for _, name := range hostport.Unclaimed() {
		log.Warn("a socket was handed over that no listener takes; it is closed", "name", name)
	}

	background, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	challenges := openChallenges(p.Certificates.ACME, store, log)
	if challenges != nil {
		tasks.Go(func() {
			if err := store.ServeHTTP01(background, challenges); err != nil {
				store.WithoutHTTP01()
				log.Error("certificates.acme.http_bind: http-01 is not answered any longer, the other challenge is used alone", "error", err)
			}
		})
	}
	tasks.Go(func() { store.Watch(background) })
	if before == nil {
		fleet.run(background, &tasks)
	}

	manager := sdnotify.FromEnvironment()
	if before != nil {
		manager.Retire() // until this process has taken over
	}
	reloader := newReloader(p, from.file, edge, manager, log)
	teller := newTeller(edge.server, store, reloader.Policy)
	reloader.Answers = control.Answers{"GET " + status.DocumentPath: func(context.Context) (any, error) { return teller.Status(), nil }}
	tasks.Go(func() { teller.recorder.Run(background, teller.figures) })
	metrics, err := service.ServeMetrics(background, p.Metrics, telemetry.Options{
		Groups:    append([]telemetry.Group{{Namespace: p.Metrics.Namespace, Families: append(append(edge.server.Families(), expiry(store), reloader.Family()), slices.Concat(store.Families(), fleet.families())...)}}, relay.groups(p)...),
		Process:   true,
		GoRuntime: true,
		Ready:     edge.server.Ready,
		Pages:     status.Pages(teller.Status),
		Log:       log,
	})
	if err != nil {
		return err
	}
	successor := succession.NewSuccessor(gate, edge.guard.requests())
	signalled := ctx
	ctx, finish := context.WithCancel(ctx)
	defer finish()
	upgrades := newUpgrades(ctx, gate, fleet, secret, edge, reloader, manager, successor, finish, log)
	defer upgrades.close()
	defer context.AfterFunc(signalled, upgrades.farewell)()
	upgrades.answer(reloader)
	socket := from.openControl(p, log)
	report(log, p, edge, d)
	announce(out, p, edge, relay, metrics)
	if challenges != nil {
		fmt.Fprintf(out, "http-01 and redirects to https: http://%s\n", challenges.Addr())
	}

	tasks.Go(func() { reloader.Control(background, socket, from.hangups) })
	context.AfterFunc(ctx, func() {
		upgrades.close()
		reloader.Stop()
		manager.Stopping("draining")
	})

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	// The relay's goodbyes go through the edge, which has stopped for newcomers before.
	relayRuns, drainRelay := context.WithCancel(context.Background())
	tasks.Go(func() {
		// One that was drained on purpose is no reason for the edge to end.
		if err := relay.serve(relayRuns); err != nil || relayRuns.Err() == nil {
			fail(err)
		}
	})
	tasks.Go(func() {
		select {
		case <-edge.server.Draining():
		case <-upgrades.done:
		}
		drainRelay()
	})
	tasks.Go(func() {
		if !before.takeOver(ctx, successor, manager, edge.server.Serving(), func(handed []byte) error { return fleet.inherit(background, handed, &tasks) }, fail) {
			return
		}
		if before == nil {
			service.Told(manager.Ready("serving"), log)
		}
		tasks.Go(func() { service.Supervise(background, manager, edge.vitals(), log) })
		upgrades.run(signals)
	})
	err = edge.server.Serve(ctx)
	if signalled.Err() != nil {
		upgrades.outlast()
	}
	fail(nil)
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// openChallenges opens http_bind, if http-01 is to be answered. Where it cannot,
// the edge goes on with the other challenge.
func openChallenges(acme certs.ACME, store *certs.Store, log *slog.Logger) net.Listener {
	if !acme.UsesHTTP() {
		return nil
	}
	ln, err := service.Listen(acme.HTTPBind)
	if err != nil {
		store.WithoutHTTP01()
		log.Error("certificates.acme.http_bind: http-01 cannot be answered, the other challenge is used alone", "error", err)
		return nil
	}
	return ln
}

// inProcess is the relay in this process, or none.
type inProcess struct {
	server *relaycore.Server
	socket net.Listener
}

// openRelay opens the relay that the policy asks for. follows says that the process
// before this one may have its mailbox open still.
func openRelay(p *policy.Policy, store *service.Store, follows bool, log *slog.Logger) (*inProcess, error) {
	if !p.Relay.InProcess {
		return new(inProcess), nil
	}
	options, err := store.Relay(p)
	if err != nil {
		return nil, err
	}
	options.MailboxLater = follows
	server, err := relaycore.NewServerWith(p.Relay, options, log.With("part", "relay"))
	if err != nil {
		return nil, err
	}
	socket, err := service.Listen(p.Relay.Bind)
	if err != nil {
		server.Close()
		return nil, fmt.Errorf("relay.bind: %w", err)
	}
	return &inProcess{server, socket}, nil
}

func (r *inProcess) addr() string {
	if r.server == nil {
		return ""
	}
	return hostport.Text(r.socket.Addr())
}

func (r *inProcess) close() {
	if r.server != nil {
		r.socket.Close()
		r.server.Close()
	}
}

// serve runs the relay until ctx ends; without one it returns at ctx's end.
func (r *inProcess) serve(ctx context.Context) error {
	if r.server == nil {
		<-ctx.Done()
		return nil
	}
	return r.server.Serve(ctx, r.socket)
}

// prepare makes the relay ready for another policy.
func (r *inProcess) prepare(p *policy.Policy) (apply func(), err error) {
	if r.server == nil {
		return func() {}, nil
	}
	next, err := r.server.Prepare(p.Relay)
	if err != nil {
		return nil, err
	}
	return func() {
		next.Apply()
		if err := r.server.SetRequestLimits(p.RequestLimits); err != nil {
			panic("relayedge: request_limits that the policy let pass: " + err.Error())
		}
	}, nil
}

func (r *inProcess) groups(p *policy.Policy) []telemetry.Group {
	if r.server == nil {
		return nil
	}
	return []telemetry.Group{{Namespace: p.Relay.Metrics.Namespace, Families: r.server.Families()}}
}

// expiry is the family of the certificates' earliest expiry.
func expiry(store *certs.Store) telemetry.Family {
	return telemetry.Family{
		Name: "tls_cert_not_after_seconds", Help: "When the first of the served certificates expires, in Unix time; 0 without one.", Kind: telemetry.Gauge,
		Read: func(emit func(string, float64)) {
			if at := store.NotAfter(); at.IsZero() {
				emit("", 0)
			} else {
				emit("", float64(at.Unix()))
			}
		},
	}
}

// announce says where the edge serves, and what to try.
func announce(out io.Writer, p *policy.Policy, edge *edge, relay *inProcess, metrics string) {
	for _, l := range edge.listeners {
		kind := map[string]string{"terminate": "TLS", "passthrough": "TLS that ends at the relay", "none": "TCP without TLS"}[l.TLS]
		if l.Protocol == "http" {
			kind = map[string]string{"terminate": "HTTP over TLS", "none": "HTTP without TLS"}[l.TLS]
		}
		fmt.Fprintf(out, "listener %s: %s on %s\n", l.Name, kind, hostport.Text(l.Socket.Addr()))
	}
	if acme := p.Certificates.ACME; acme.Enabled() {
		fmt.Fprintf(out, "certificates ordered from a CA, kept in %s: %s\n", acme.Storage, strings.Join(acme.Domains, ", "))
	}
	if names := p.Certificates.SelfIssued; len(names) > 0 {
		fmt.Fprintf(out, "certificate of our own making, which no client trusts by itself: %s\n", strings.Join(names, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Upstreams)) {
		u := edge.upstreams[name]
		told := u.Told()
		if slices.Contains(u.Addresses, relay.addr()) {
			told += ", in this process"
		}
		fmt.Fprintf(out, "upstream %s: %s, %s\n", name, strings.Join(u.Addresses, ", "), told)
	}
	if metrics != "" {
		fmt.Fprintf(out, "metrics: http://%s/metrics\n", metrics)
		fmt.Fprintf(out, "page: http://%s/\n", metrics)
	}
	if url := relayURL(edge, relay); url != "" {
		insecure := ""
		if len(p.Certificates.SelfIssued) > 0 {
			insecure = "--insecure "
		}
		fmt.Fprintf(out, "try: relaycore try %s%s\n", insecure, url)
	}
}

// relayURL is where the relay in this process is reached through the edge by
// TLS, or nothing where no listener leads there.
func relayURL(edge *edge, relay *inProcess) string {
	for _, l := range edge.listeners {
		tcp, ok := l.Socket.Addr().(*net.TCPAddr)
		if relay.server == nil || l.TLS != "terminate" || !slices.Contains(edge.upstreams[l.Upstream].Addresses, relay.addr()) || !ok {
			continue
		}
		addr := tcp.AddrPort()
		host := addr.Addr().Unmap().String()
		if addr.Addr().Unmap().IsUnspecified() {
			host = "localhost"
		}
		return "wss://" + net.JoinHostPort(host, strconv.Itoa(int(addr.Port()))) + wire.Path
	}
	return ""
}
