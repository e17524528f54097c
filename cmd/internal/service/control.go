package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"relayedge/cmd/internal/policy"
	"relayedge/internal/control"
)

// Where the control socket is asked to reload, and which process it is.
const (
	reloadPath  = "/reload"
	processPath = "/process"
)

// process is what a process says of itself.
type process struct {
	Program string `json:"program"`
	Policy  string `json:"policy"` // the file that it reads, from the root
}

// CatchHangups has SIGHUP no longer end the process, and returns the signal for
// Control. However many come while it is not looked at, one is kept. Call it
// before the policy is read: who changes the file after that is not forgotten.
func CatchHangups() <-chan os.Signal {
	hangups := make(chan os.Signal, 1)
	// Until the very end: one that comes late must not end a process that drains.
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups
}

// OpenControl opens the control socket, if the policy has one. One that cannot
// be had is logged, and nil is returned.
func OpenControl(cfg control.Config, log *slog.Logger) net.Listener {
	if cfg.Socket == "" {
		return nil
	}
	ln, err := control.Listen(cfg)
	if err != nil {
		log.Warn("there is no control socket; the service goes on without, and reloads at SIGHUP", "error", err)
		return nil
	}
	return ln
}

// Control reloads at each hangup, and when it is asked to on the control socket
// ln, which may be nil, until ctx ends. It closes ln. A reload that runs at the end
// gets lastReload, and is left to itself then: one that waits for a file which a
// file server does not give must not keep the process from its end.
func (r *Reloader) Control(ctx context.Context, ln net.Listener, hangups <-chan os.Signal) {
	var serving sync.WaitGroup
	defer serving.Wait()
	if ln != nil {
		serving.Go(func() {
			answers := control.Answers{
				"POST " + reloadPath: func(ctx context.Context) (any, error) { return r.Reload(ctx) },
				"GET " + processPath: func(context.Context) (any, error) { return process{r.Command.String(), r.path}, nil },
			}
			maps.Copy(answers, r.Answers)
			err := control.Serve(ctx, ln, answers, r.Log)
			if err != nil {
				r.Log.Error("the control socket is not answered any longer", "error", err)
			}
		})
	}
	for ctx.Err() == nil {
		select {
		case <-hangups:
			reloaded := make(chan struct{})
			go func() {
				defer close(reloaded)
				r.Reload(ctx) // which logs what becomes of it
			}()
			select {
			case <-reloaded:
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
	}
	select {
	case r.turn <- struct{}{}:
		<-r.turn
	case <-time.After(lastReload):
		r.Log.Warn("a reload that does not come to its end is given up")
	}
}

// lastReload is how long the end of the process waits for a reload that runs.
const lastReload = 2 * time.Second

// reloadTime is how long a reload may take for the command that waits for it.
const reloadTime = time.Minute

// ReloadCommand asks the running process to reload.
func ReloadCommand(p Program) *cobra.Command {
	meant := newMeant(p)
	meant.instead = "send SIGHUP to the process in place of this"
	if p.Name != "relaycore" { // which does not run without a policy
		meant.bare = ", and nothing to read again"
	}
	c := &cobra.Command{
		Use:   "reload [-c FILE | --socket PATH]",
		Short: "Have the running process put its changed policy file in force, or say why not",
		Long: `Have the running ` + p.Name + ` read its policy file again and put it in force.

It prints one line for each key that has changed, and which of them take a
restart. If anything is wrong, with the file or with what it names, it prints all
of it, everything stays as it was, and the exit status is 1. Open connections are
kept either way.

The process is found by its control socket: that of the policy FILE, or PATH, or
` + meant.usual + `. SIGHUP does the same without an answer.`,
		Args: NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), reloadTime)
			defer cancel()
			at, err := meant.find(ctx)
			if err != nil {
				return err
			}
			var o Outcome
			if err := control.Ask(ctx, at, "POST", reloadPath, &o); err != nil {
				return meant.advise(err)
			}
			for _, line := range o.Lines() {
				fmt.Fprintln(c.OutOrStdout(), line)
			}
			return nil
		},
	}
	meant.flags(c)
	Exclude(c, "config", "socket")
	return c
}

// Program is what a command has to know of the program whose process it asks.
type Program struct {
	Name   string
	Need   func(*policy.Policy) error  // whether a policy has what the program needs
	Socket func(*policy.Policy) string // its control socket by a policy; empty: it has none
}

// meant is the process that a command is for, by its flags.
type meant struct {
	Program
	usual    string // the control socket, unless a policy says another
	file, at string // flags

	instead string // what to do where a policy has no control socket
	bare    string // the rest of a sentence: "One that runs without a policy file has no control socket"; empty: there is none such
}

func newMeant(p Program) *meant {
	return &meant{Program: p, usual: p.Socket(policy.Default())}
}

// flags adds the flags that say which process it is.
func (m *meant) flags(c *cobra.Command) {
	PolicyFlag(c, &m.file)
	c.Flags().StringVar(&m.at, "socket", "", "control socket of the process")
}

// find returns its control socket, once the process there has said that it is the one.
func (m *meant) find(ctx context.Context) (at string, err error) {
	at, err = m.controlSocket()
	if err != nil {
		return "", err
	}
	var there process
	if err := control.Ask(ctx, at, "GET", processPath, &there); err != nil {
		return "", m.advise(err)
	}
	if err := there.is(m.Name, m.file, at); err != nil {
		return "", &Refusal{Cause: err}
	}
	return at, nil
}

// is says why the process at a socket is not the one that is meant: the program of
// that name which reads the file, or any of its files if none is named.
func (p process) is(name, file, socket string) error {
	if p.Program != name {
		return fmt.Errorf("the process at %s is %s, and not %s; --socket names another one", socket, p.Program, name)
	}
	if file == "" {
		return nil
	}
	mine, err := os.Stat(file)
	if err != nil {
		return err
	}
	if its, err := os.Stat(p.Policy); err != nil || !os.SameFile(mine, its) {
		return fmt.Errorf("the process at %s reads %s and not %s; each process needs a control.socket of its own, and --socket asks the one at a socket whatever it reads", socket, p.Policy, file)
	}
	return nil
}

// controlSocket finds the socket of the process that is meant.
func (m *meant) controlSocket() (string, error) {
	if m.file == "" {
		return cmp.Or(m.at, m.usual), nil
	}
	p, err := LoadPolicy(m.file, m.Need)
	if err != nil {
		// The process would say the same of it.
		return "", &Refusal{Cause: err}
	}
	at := m.Socket(p)
	if at == "" {
		return "", &Refusal{Cause: fmt.Errorf("%s: has no control socket; %s, and write one for the next start", m.file, m.instead)}
	}
	return at, nil
}

// advise says what to do where no process has answered.
func (m *meant) advise(err error) error {
	unreachable, ok := errors.AsType[*control.Unreachable](err)
	if !ok {
		return err
	}
	advice := "is " + m.Name + " running, and has its log a line about the control socket?"
	switch {
	case errors.Is(unreachable, fs.ErrPermission):
		advice = "only the user of the process and root may connect; is this another user?"
	case errors.Is(unreachable, fs.ErrNotExist):
		advice = "is " + m.Name + " running, with this socket? -c FILE takes that of a policy as it is written at the moment, --socket PATH another one: that of the start, if control.socket has changed since"
	case errors.Is(unreachable, syscall.ECONNREFUSED):
		advice = "the process that had this socket has ended; start " + m.Name
		if m.file == "" {
			advice += ", or say which one is meant by -c FILE or --socket PATH"
		}
	}
	if m.file == "" && m.bare != "" {
		advice += ". One that runs without a policy file has no control socket" + m.bare
	}
	return &Refusal{Cause: fmt.Errorf("%w; %s", err, advice)}
}
