package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/admission/redisstore"
	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/telemetry"
)

// joinPatience is how long the start waits at most to be known to the other edges.
const joinPatience = 2 * time.Second

// fleet is what this edge shares with others over a store, or nothing.
type fleet struct {
	gate  *admission.Gate // nil: the edge's limits are its own
	store *service.Store
	beats *redisstore.Fleet

	certificates *redisstore.Records
	tickets      *redisstore.Value
}

func openFleet(p *policy.Policy, log *slog.Logger) (*fleet, error) {
	store, err := service.OpenStore(p.Redis, log)
	if err != nil {
		return nil, err
	}
	f := &fleet{store: store}
	if !store.Shared() {
		return f, nil
	}
	if err := f.open(p); err != nil {
		store.Close()
		return nil, err
	}
	return f, nil
}

// open opens all that the edges of a fleet share.
func (f *fleet) open(p *policy.Policy) error {
	gate, side, err := admission.NewFleetGate(admission.DefaultLimits(), admission.FleetOptions{
		Secret: f.store.Secret, Lease: redisstore.FleetLease, RefuseAlone: p.Redis.OnFailure.RefusesConnections(),
	})
	if err != nil {
		return err
	}
	f.gate, f.beats = gate, f.store.Fleet(side)
	f.store.Alone = func() bool { return f.beats.Edges() == 0 }
	return f.openRecords()
}

// run keeps the edge in its fleet until ctx ends. It returns when the others know
// it, or the store does not answer.
func (f *fleet) run(ctx context.Context, tasks *sync.WaitGroup) {
	if !f.store.Shared() {
		return
	}
	joining, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	f.beats.Join(joining)
	tasks.Go(func() { f.beats.Run(ctx) })
}

// hand stops this process's part in the fleet, and returns what the next one goes on
// with; nil: there is no fleet.
func (f *fleet) hand() []byte {
	if !f.store.Shared() {
		return nil
	}
	return f.beats.Hand()
}

// takeBack goes on with it: the next process has ended.
func (f *fleet) takeBack() {
	if f.store.Shared() {
		f.beats.TakeBack()
	}
}

// inherit goes on where the process before has stopped, and beats from here on. What
// was handed over is nothing where that process had ended before: then this edge is a
// new one.
func (f *fleet) inherit(ctx context.Context, handed []byte, tasks *sync.WaitGroup) error {
	if len(handed) > 0 && f.store.Shared() {
		if err := f.beats.Inherit(handed); err != nil {
			return err
		}
	}
	f.run(ctx, tasks)
	return nil
}

func (f *fleet) close() {
	f.store.Close()
}

func (f *fleet) families() []telemetry.Family {
	if !f.store.Shared() {
		return nil
	}
	gauge := func(name, help string, v func() int) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: telemetry.Gauge, Read: func(emit func(string, float64)) { emit("", float64(v())) }}
	}
	return append([]telemetry.Family{
		gauge("fleet_edges", "Edges over which connections are limited; 0: this one alone, the store is away.", f.beats.Edges),
		gauge("fleet_claims", "Hosts and sites of which this edge has told the others, because it holds a part of their cap.", f.beats.Claims),
	}, f.store.Families()...)
}
