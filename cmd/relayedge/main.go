// Command relayedge is the edge: it takes the public port, ends TLS, refuses
// what is over the limits, and hands the rest to a relay that it tells who the
// client is.
package main

import (
	"github.com/spf13/cobra"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
)

func main() { service.Main(command()) }

// edgeProgram is whose process reload, upgrade, status and top ask.
var edgeProgram = service.Program{
	Name:   "relayedge",
	Need:   (*policy.Policy).NeedEdge,
	Socket: func(p *policy.Policy) string { return p.Control.Socket },
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "relayedge",
		Short: "A TLS edge in front of a relay: caps, handshake timeouts and byte rates before anything is spent",
	}
	root.AddCommand(
		runCommand(),
		service.CheckCommand((*policy.Policy).NeedEdge, lookAtMachine),
		service.ReloadCommand(edgeProgram),
		statusCommand(),
		topCommand(),
		service.UpgradeCommand(edgeProgram),
		probeCommand(),
		schemaCommand(),
		service.VersionCommand("relayedge"),
		service.ManCommand([][2]string{
			{"/etc/relayedge/config.yaml", "The policy that the unit of the package runs with."},
			{"/usr/share/doc/relayedge/config.example.yaml", "Every key of the policy, with default and range."},
			{"/run/relayedge/control.sock", "The control socket, unless control.socket says another."},
			{"/var/lib/relayedge", "Certificates that were ordered, unless certificates.acme.storage says another."},
		}, "relaycore(1)", "systemd.service(5)"),
	)
	return root
}

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the policy file, for editors",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(policy.Schema())
			return err
		},
	}
}
