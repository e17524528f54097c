package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"relayedge/cmd/internal/service"
	"relayedge/internal/hostport"
	"relayedge/proxy/upstream/probe"
)

// maxProbeText bounds --send, in bytes.
const maxProbeText = 4096

func probeCommand() *cobra.Command {
	var send, clientAddress string
	var wait int
	c := &cobra.Command{
		Use:   "probe ADDR",
		Short: "Find out whether a relay takes the PROXY header",
		Long: `Find out whether the relay at ADDR (host:port or unix:/path) takes the PROXY
header that an edge would send, by connecting to it with and without one.

Relays that speak first show it by themselves. To others an HTTP request is
sent; if that says nothing to yours, send the first bytes of its protocol. The
headers name documentation addresses (192.0.2.1), which the relay may log.

It ends with 0 if the relay takes what --client-address says, else with 1.`,
		Example: `  relayedge probe 127.0.0.1:7777
  relayedge probe unix:/run/relay.sock
  relayedge probe --send 'NICK probe\r\nUSER p 0 * p\r\n' 127.0.0.1:6667`,
		Args: service.OneArg("the address of a relay, host:port or unix:/path, as in 127.0.0.1:7777"),
		RunE: func(c *cobra.Command, args []string) error {
			target, err := hostport.ParseTarget(args[0])
			if err != nil {
				return err
			}
			text, err := unescape(send)
			switch {
			case err != nil:
				return fmt.Errorf("--send: %w", err)
			case !slices.Contains([]string{"proxy-v2", "proxy-v1", "none"}, clientAddress):
				return fmt.Errorf("--client-address: %q is not allowed; allowed: proxy-v2, proxy-v1, none", clientAddress)
			case wait < 1 || wait > 60:
				return fmt.Errorf("--timeout-secs: %d is not allowed; allowed: 1 to 60", wait)
			}
			report, err := probe.Run(c.Context(), target, text, time.Duration(wait)*time.Second)
			if err != nil {
				return fmt.Errorf("the relay cannot be reached: %w", err)
			}
			out := c.OutOrStdout()
			report.Print(out)
			result := report.Judge(clientAddress)
			for _, finding := range result.Findings {
				fmt.Fprintln(out, finding)
			}
			if !result.OK {
				return fmt.Errorf("%s is not known to take client_address: %s", args[0], clientAddress)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&send, "send", "", `what to send behind the header; \r, \n, \x00 and the like are understood`)
	f.StringVar(&clientAddress, "client-address", "proxy-v2", "what the relay is to take: proxy-v2, proxy-v1 or none")
	f.IntVar(&wait, "timeout-secs", 2, "time for each connection's connect and for its answer")
	return c
}

// unescape reads a text with Go's escapes, in which quotes stand for themselves.
func unescape(s string) ([]byte, error) {
	var b strings.Builder
	for s != "" {
		r, multibyte, rest, err := strconv.UnquoteChar(s, 0)
		if err != nil {
			return nil, errors.New(`has a \ that begins no escape; write \\ for a backslash`)
		}
		if r < 0x80 || multibyte {
			b.WriteRune(r)
		} else {
			b.WriteByte(byte(r))
		}
		s = rest
	}
	if b.Len() > maxProbeText {
		return nil, fmt.Errorf("has %d bytes; allowed are %d", b.Len(), maxProbeText)
	}
	return []byte(b.String()), nil
}
