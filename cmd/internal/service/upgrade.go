package service

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"relayedge/internal/control"
)

// UpgradePath is where the control socket is asked to upgrade.
const UpgradePath = "/upgrade"

// upgradeTime is how long the command waits: as long as the process does, and a little.
const upgradeTime = 3 * time.Minute

// Upgraded is what an upgrade has done.
type Upgraded struct {
	PID  int           `json:"pid"`  // of the process that serves
	Old  int           `json:"old"`  // of the one before
	Open int           `json:"open"` // connections that the old one has left
	Gap  time.Duration `json:"gap"`  // for which nobody accepted; who came meanwhile waited in the kernel's queue
}

// String tells it to an operator.
func (u Upgraded) String() string {
	return fmt.Sprintf("process %d serves; %d has %d connections left, and ends with them or behind limits.drain_secs. Nobody accepted for %v: who came meanwhile has waited",
		u.PID, u.Old, u.Open, u.Gap.Round(10*time.Microsecond))
}

// UpgradeCommand has the running process hand over to a new one.
func UpgradeCommand(p Program) *cobra.Command {
	meant := newMeant(p)
	meant.instead, meant.bare = "send SIGUSR2 to the process in place of this", ": send it SIGUSR2 in place of this"
	c := &cobra.Command{
		Use:   "upgrade [-c FILE | --socket PATH]",
		Short: "Have a new process take over from the running one, without a refused connection",
		Long: `Have the running ` + p.Name + ` start its program again, as it stands on the disk by now,
with the same arguments. The new process reads the policy file anew, gets the
listening sockets and the counts, and serves; the old one serves what it has open
to its end, and closes what is left behind limits.drain_secs.

If the new process cannot start, whatever the reason, the old one serves on as if
nothing had been, the reason is printed, and the exit status is 1.

The process is found by its control socket: that of the policy FILE, or PATH, or
` + meant.usual + `. SIGUSR2 does the same without an answer.`,
		Args: NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), upgradeTime)
			defer cancel()
			at, err := meant.find(ctx)
			if err != nil {
				return err
			}
			var done Upgraded
			if err := control.Ask(ctx, at, "POST", UpgradePath, &done); err != nil {
				return fmt.Errorf("%w\nThe running process serves on", meant.advise(err))
			}
			fmt.Fprintln(c.OutOrStdout(), done)
			return nil
		},
	}
	meant.flags(c)
	Exclude(c, "config", "socket")
	return c
}
