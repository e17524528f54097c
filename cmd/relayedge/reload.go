package main

import (
	"log/slog"
	"net"
	"os"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/sdnotify"
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

func newReloader(p *policy.Policy, file string, edge *edge, manager *sdnotify.Manager, log *slog.Logger) *service.Reloader {
	return service.NewReloader(service.ReloadOptions{
		Command: policy.Edge,
		File:    file,
		InForce: p,
		Need:    (*policy.Policy).NeedEdge,
		Prepare: edge.prepare,
		Log:     log,
		Manager: manager,
	})
}
