package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"relayedge/internal/control"
)

// askTime is how long a command waits for what the process knows.
const askTime = 10 * time.Second

// maxAnswer is how much of an answer of the metrics address is read.
const maxAnswer = 16 << 20

// Asker asks the running process for what it says of itself, by the flags of a
// command.
type Asker struct {
	*meant
	address string // a flag
}

// NewAsker returns an asker of a program's process.
func NewAsker(p Program) *Asker {
	a := &Asker{meant: newMeant(p)}
	a.instead, a.bare = "ask it at its metrics address, as in --address 127.0.0.1:9090", ": --address 127.0.0.1:9090 asks it at its metrics address"
	return a
}

// Flags adds the flags that say which process is meant.
func (a *Asker) Flags(c *cobra.Command) {
	a.flags(c)
	c.Flags().StringVar(&a.address, "address", "", "metrics address of the process, host:port, in place of its control socket")
	Exclude(c, "config", "socket", "address")
}

// Get asks for what stands at a path, which is the same at the control socket and at
// the metrics address.
func (a *Asker) Get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if a.address != "" {
		return a.getAt(ctx, path, into)
	}
	err := a.getBySocket(ctx, path, into)
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		err = refusal.Cause // nothing was to be changed
	}
	return err
}

func (a *Asker) getBySocket(ctx context.Context, path string, into any) error {
	at, err := a.find(ctx)
	if err != nil {
		return err
	}
	return control.Ask(ctx, at, "GET", path, into)
}

func (a *Asker) getAt(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.address+path, nil)
	if _, _, split := net.SplitHostPort(a.address); err != nil || split != nil {
		return fmt.Errorf("--address %q: write host:port, as in 127.0.0.1:9090", a.address)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("nothing answers at the metrics address %s: %w; is %s running, with metrics.enabled and this metrics.bind_addr?", a.address, err, a.Name)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("the process at %s broke off in its answer: %w", a.address, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the process at %s answers with the status %s: %s", a.address, response.Status, firstLine(body))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the process at %s answers with something else than %s does: %w", a.address, a.Name, err)
	}
	return nil
}

// firstLine is the beginning of a text that somebody else wrote, for an error.
func firstLine(body []byte) string {
	const most = 200
	line, _, _ := strings.Cut(string(body[:min(len(body), most)]), "\n")
	return fmt.Sprintf("%q", line)
}
