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
		service.ReloadCommand("relaycore", (*policy.Policy).NeedRelay, func(p *policy.Policy) string { return p.Relay.Control.Socket }),
		tryCommand(),
		service.VersionCommand("relaycore"),
	)
	return root
}
