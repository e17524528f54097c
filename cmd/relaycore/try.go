package main

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/spf13/cobra"

	"relayedge/cmd/internal/service"
	"relayedge/relaycore/client"
)

func tryCommand() *cobra.Command {
	var insecure bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "try URL",
		Short: "Hold two sessions that publish, pair and exchange a message through the relay at a URL",
		Example: "  relaycore try wss://relay.example.org/relay\n" +
			"  relaycore try --insecure wss://127.0.0.1:8443/relay",
		Args: service.OneArg("the URL of a relay, as in wss://relay.example.org/relay"),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			return client.Try(ctx, args[0], &tls.Config{InsecureSkipVerify: insecure}, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&insecure, "insecure", false, "accept any certificate, such as one of the edge's own making")
	c.Flags().DurationVar(&timeout, "timeout", 15*time.Second, "time for everything")
	return c
}
