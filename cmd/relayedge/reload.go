package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
)

// reloads is where reloads come from.
type reloads struct {
	file    string // empty: nowhere
	hangups <-chan os.Signal
}

// openControl opens the control socket; nil: there is none. Without a file there
// is nothing to ask for.
func (r reloads) openControl(p *policy.Policy, log *slog.Logger) net.Listener {
	if r.file == "" {
		return nil
	}
	return service.OpenControl(p.Control, log)
}

func newReloader(p *policy.Policy, file string, log *slog.Logger) *service.Reloader {
	var r *service.Reloader
	r = service.NewReloader(service.ReloadOptions{
		Command: policy.Edge,
		File:    file,
		InForce: p,
		Need:    (*policy.Policy).NeedEdge,
		Prepare: func(next *policy.Policy) (apply func(), err error) { return prepare(r.Policy(), next) },
		Log:     log,
	})
	return r
}

// prepare builds what the next policy takes and changes nothing; apply puts it
// in force. log.level is put in force by the Reloader itself.
func prepare(inForce, next *policy.Policy) (apply func(), err error) {
	var errs []error
	live, _ := policy.Edge.Changes(inForce, next)
	for _, change := range live {
		if change.Key != "log.level" {
			errs = append(errs, fmt.Errorf("%s: cannot be changed without a restart", change.Key))
		}
	}
	return func() {}, errors.Join(errs...)
}
