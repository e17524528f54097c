// Package service is what both commands do around what they run: logging,
// signals, the metrics endpoint, reloads (reload.go) and the control socket that
// asks for them (control.go), what the service manager is told (supervise.go),
// memory after a burst (memory.go), how many processors it takes (processors.go),
// check --machine, the subcommands that only differ by name.
package service

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"relayedge/cmd/internal/manual"
	"relayedge/cmd/internal/policy"
	"relayedge/internal/hostport"
	"relayedge/internal/telemetry"
)

// Main runs the command line of the process and exits.
func Main(root *cobra.Command) {
	// Libraries write there past our log and its bounds: net/http whatever a relay or a
	// push service sends that nobody asked for.
	log.SetOutput(io.Discard)
	os.Exit(Execute(context.Background(), root, os.Args[1:], os.Stdout, os.Stderr))
}

// Execute runs one command line and returns its exit status: 0, or 1 with the
// error on stderr.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	say(root)
	if err := root.ExecuteContext(ctx); err != nil {
		if _, rest, unknown := root.Find(args); unknown != nil {
			err = noCommand(root, rest)
		}
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// say has a command line that cannot be meant answered with what to write, and
// --version with the line that version prints.
func say(root *cobra.Command) {
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w; %s --help lists the flags", err, c.CommandPath())
	})
	if root.HasSubCommands() {
		root.Version = Version()
		root.SetVersionTemplate(versionLine(root.Name()) + "\n")
	}
}

// noCommand says what commands there are in place of one that there is not.
func noCommand(root *cobra.Command, args []string) error {
	name := args[max(0, slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") }))]
	text := fmt.Sprintf("%s has no command %q", root.Name(), name)
	if near := root.SuggestionsFor(name); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	var names []string
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("%s; there are: %s", text, strings.Join(names, ", "))
}

// Exclude has a command refuse more than one of its flags of these names.
func Exclude(c *cobra.Command, names ...string) {
	c.MarkFlagsMutuallyExclusive(names...) // for completions
	before := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		var given []string
		for _, name := range names {
			if c.Flags().Changed(name) {
				given = append(given, "--"+name)
			}
		}
		if len(given) > 1 {
			return fmt.Errorf("%s: %s exclude each other; give one of them", c.CommandPath(), strings.Join(given, " and "))
		}
		if before != nil {
			return before(c, args)
		}
		return nil
	}
}

// UntilSignal runs serve with a context that SIGTERM or SIGINT ends, and
// returns what it returns. A second signal does not wait for it: it ends the
// wait with nil. Meanwhile the memory keeps within its cgroup's, what a burst has
// left of it is given back, and processors are taken as they are needed.
func UntilSignal(ctx context.Context, log *slog.Logger, serve func(context.Context) error) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	LimitMemory(log)
	go GiveBackMemory(ctx)
	go ProcessorsAsNeeded(ctx)
	served := make(chan error, 1)
	go func() { served <- serve(ctx) }()
	for first := true; ; first = false {
		select {
		case err := <-served:
			return err
		case s := <-signals:
			if !first {
				log.Info("ending at once", "signal", s.String())
				return nil
			}
			log.Info("draining: no new connections; a second signal ends at once", "signal", s.String())
			cancel()
		}
	}
}

// ServeMetrics starts the metrics endpoint, if it is enabled, until ctx ends,
// and returns its address or "". A bind that fails is logged, and the service
// goes on without.
func ServeMetrics(ctx context.Context, cfg telemetry.Config, options telemetry.Options) (addr string, err error) {
	if !cfg.Enabled {
		return "", nil
	}
	options.Names = cfg.Names()
	server, err := telemetry.NewServer(options)
	if err != nil {
		return "", err
	}
	ln, err := telemetry.Listen(cfg)
	if err != nil {
		options.Log.Error(err.Error() + "; the service goes on without metrics: free the address, or write another metrics.bind_addr")
		return "", nil
	}
	go func() {
		if err := server.Serve(ctx, ln); err != nil {
			options.Log.Error("the metrics endpoint has ended", "error", err)
		}
	}()
	return ln.Addr().String(), nil
}

// Listen listens on a bind of the policy.
func Listen(bind string) (net.Listener, error) {
	b, err := hostport.ParseBind(bind)
	if err != nil {
		return nil, err
	}
	return b.Listen()
}

// PolicyFlag adds the flag that names the policy file.
func PolicyFlag(c *cobra.Command, file *string) {
	c.Flags().StringVarP(file, "config", "c", "", "policy file")
}

// RequirePolicyFlag is PolicyFlag for a command that does nothing without a file.
func RequirePolicyFlag(c *cobra.Command, file *string) {
	PolicyFlag(c, file)
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		if *file == "" {
			return fmt.Errorf("%s needs a policy file: %s -c FILE", c.Name(), c.CommandPath())
		}
		return nil
	}
}

// OneArg asks for one argument and says what it is.
func OneArg(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one argument: %s", c.CommandPath(), what)
		}
		return nil
	}
}

// NoArgs refuses arguments where a file was meant, too.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument %q; a policy file is named by -c FILE", c.CommandPath(), args[0])
	}
	return nil
}

// LoadPolicy reads the policy and the environment, and asks for what the command
// needs of them.
func LoadPolicy(file string, need func(*policy.Policy) error) (*policy.Policy, error) {
	p, err := policy.Load(file)
	if err != nil {
		return nil, err
	}
	if err := need(p); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := p.TakeEnvironment(os.LookupEnv); err != nil {
		return nil, err
	}
	return p, nil
}

// CheckCommand judges the file alone and opens nothing that the policy names,
// unless --machine asks for it: then look says what there is to look at.
func CheckCommand(need func(*policy.Policy) error, look func(*Machine)) *cobra.Command {
	var file string
	var effective, machine bool
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Judge a policy file: exit 0, or 1 with every fault and its place",
		Args:  NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := LoadPolicy(file, need)
			if err != nil {
				return err
			}
			if effective {
				_, err = c.OutOrStdout().Write(policy.Effective(p))
				return err
			}
			if machine {
				m := &Machine{Policy: p, file: file, limit: DescriptorLimit(), warnings: c.ErrOrStderr()}
				look(m)
				if err := m.err(); err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%s: ok (the file, and what it names on this machine)\n", file)
				return nil
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: ok (the file alone: what it names was not opened)\n", file)
			return nil
		},
	}
	RequirePolicyFlag(c, &file)
	c.Flags().BoolVar(&effective, "effective", false, "print the policy with every default")
	c.Flags().BoolVar(&machine, "machine", false, "also look at the machine: open the files, bind the ports, compare the descriptor limit with the caps; nothing is changed")
	Exclude(c, "effective", "machine")
	return c
}

// version is set by whoever builds a package: -ldflags "-X …/service.version=1.2.3".
var version string

// Version is that of the build.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// VersionCommand prints the version of the build.
func VersionCommand(name string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintln(c.OutOrStdout(), versionLine(name))
		},
	}
}

func versionLine(name string) string {
	return fmt.Sprintf("%s %s %s/%s, %s", name, Version(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// ManCommand prints the manual page of the whole command line.
func ManCommand(files [][2]string, seeAlso ...string) *cobra.Command {
	return &cobra.Command{
		Use:    "man",
		Hidden: true, // packages want it
		Short:  "Print the manual page, for packages and man -l -",
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return manual.Write(c.OutOrStdout(), c.Root(), manual.Page{Version: Version(), Files: files, SeeAlso: seeAlso})
		},
	}
}
