package main

import (
	"log/slog"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/sdnotify"
	"relayedge/relaycore"
)

func newReloader(p *policy.Policy, file string, relay *relaycore.Server, manager *sdnotify.Manager, log *slog.Logger) *service.Reloader {
	return service.NewReloader(service.ReloadOptions{
		Command: policy.Relay,
		File:    file,
		InForce: p,
		Need:    (*policy.Policy).NeedRelay,
		Prepare: func(next *policy.Policy) (apply func() []string, err error) {
			reload, err := relay.Prepare(fit(next.Relay, descriptors(next)))
			if err != nil {
				return nil, err
			}
			return func() []string {
				reload.Apply()
				if err := relay.SetRequestLimits(next.RequestLimits); err != nil {
					panic("relaycore: request_limits that the policy let pass: " + err.Error())
				}
				return nil
			}, nil
		},
		Log:     log,
		Manager: manager,
	})
}
