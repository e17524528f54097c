// Command relaycore runs the relay, and tries whatever relay stands at a URL.
package main

import (
	"github.com/spf13/cobra"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
)

func main() { service.Main(command()) }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "relaycore",
		Short: "A relay that stands behind relayedge",
	}
	root.AddCommand(
		runCommand(),
		service.CheckCommand((*policy.Policy).NeedRelay, lookAtMachine),
		service.ReloadCommand(service.Program{
			Name:   "relaycore",
			Need:   (*policy.Policy).NeedRelay,
			Socket: func(p *policy.Policy) string { return p.Relay.Control.Socket },
		}),
		tryCommand(),
		service.VersionCommand("relaycore"),
		service.ManCommand([][2]string{
			{"/etc/relayedge/config.yaml", "The policy that the unit of the package runs with."},
			{"/usr/share/doc/relayedge/config.example.yaml", "Every key of the policy, with default and range."},
			{"/run/relaycore/control.sock", "The control socket, unless relay.control.socket says another."},
			{"/var/lib/relaycore", "The place for a mailbox file, if the policy wants one."},
		}, "relayedge(1)", "systemd.service(5)"),
	)
	return root
}
