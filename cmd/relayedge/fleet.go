package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/admission/redisstore"
	"relayedge/cmd/internal/policy"
	"relayedge/internal/telemetry"
)

// joinPatience is how long the start waits at most to be known to the other edges.
const joinPatience = 2 * time.Second

// fleet is what this edge shares with others over a store, or nothing.
type fleet struct {
	gate  *admission.Gate // nil: the edge's limits are its own
	store *redisstore.Store
	beats *redisstore.Fleet

	certificates *redisstore.Records
	tickets      *redisstore.Value
}

func openFleet(p *policy.Policy, log *slog.Logger) (*fleet, error) {
	if !p.Redis.Enabled() {
		return new(fleet), nil
	}
	secret, err := p.Redis.Secret()
	if err != nil {
		return nil, err
	}
	gate, side, err := admission.NewFleetGate(admission.DefaultLimits(), admission.FleetOptions{
		Secret: secret, Lease: redisstore.FleetLease, RefuseAlone: p.Redis.OnFailure.RefusesConnections(),
	})
	if err != nil {
		return nil, err
	}
	store, err := redisstore.Open(p.Redis, log)
	if err != nil {
		return nil, err
	}
	f := &fleet{gate: gate, store: store, beats: store.Fleet(side)}
	if err := f.openRecords(); err != nil {
		store.Close()
		return nil, err
	}
	return f, nil
}

// run keeps the edge in its fleet until ctx ends. It returns when the others know
// it, or the store does not answer.
func (f *fleet) run(ctx context.Context, tasks *sync.WaitGroup) {
	if f.store == nil {
		return
	}
	joining, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	f.beats.Join(joining)
	tasks.Go(func() { f.beats.Run(ctx) })
}

func (f *fleet) close() {
	if f.store != nil {
		f.store.Close()
	}
}

func (f *fleet) families() []telemetry.Family {
	if f.store == nil {
		return nil
	}
	gauge := func(name, help string, v func() int) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: telemetry.Gauge, Read: func(emit func(string, float64)) { emit("", float64(v())) }}
	}
	return []telemetry.Family{
		gauge("fleet_edges", "Edges over which connections are limited; 0: this one alone, the store is away.", f.beats.Edges),
		gauge("fleet_claims", "Hosts and sites of which this edge has told the others, because it holds a part of their cap.", f.beats.Claims),
	}
}
