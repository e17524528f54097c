package service

import (
	"log/slog"
	"time"

	"relayedge/admission"
	"relayedge/admission/httpguard"
	"relayedge/admission/redisstore"
	"relayedge/cmd/internal/policy"
	"relayedge/internal/telemetry"
	"relayedge/relaycore"
	"relayedge/relaycore/push"
)

// Store is what a process shares with others: the store of the redis section, or
// nothing.
type Store struct {
	*redisstore.Store // nil: everything stays in this process

	Secret []byte // of all that share the store
	// Alone reports that the store is away for what Store.Away does not know of; nil: there is nothing else.
	Alone func() bool
	keys  *admission.KeyMaker
}

// OpenStore opens the store of a policy, if it has one. It fails for a file or a URL
// that is no good, and not for a store that is away.
func OpenStore(cfg redisstore.Config, log *slog.Logger) (*Store, error) {
	if !cfg.Enabled() {
		return new(Store), nil
	}
	secret, err := cfg.Secret()
	if err != nil {
		return nil, err
	}
	store, err := redisstore.Open(cfg, log)
	if err != nil {
		return nil, err
	}
	return &Store{Store: store, Secret: secret, keys: admission.NewKeyMaker(secret)}, nil
}

// Close gives up the store. It may be none.
func (s *Store) Close() {
	if s.Store != nil {
		s.Store.Close()
	}
}

// Shared reports whether there is a store.
func (s *Store) Shared() bool { return s.Store != nil }

// Guard has the request limits count in the store, if there is one. Edges count
// together, and so do relays: a request that passes both counts at each.
func (s *Store) Guard(program string, c httpguard.Config, o *httpguard.Options) {
	if s.Store == nil {
		return
	}
	o.Keys = s.keys
	o.Windows = s.windows(redisstore.RequestLimits, program+"-requests", int64(c.Limit), c.Window())
}

func (s *Store) windows(use redisstore.Use, name string, limit int64, length time.Duration) *redisstore.Windows {
	return s.Windows(use, name, limit, length, admission.NewFixedWindows(limit, length))
}

// Relay returns what the relay of a policy is given beside its config.
func (s *Store) Relay(p *policy.Policy) (relaycore.Options, error) {
	o := relaycore.Options{RequestLimits: &p.RequestLimits}
	if s.Store == nil {
		return o, nil
	}
	var guard httpguard.Options
	s.Guard(policy.Relay.String(), p.RequestLimits, &guard)
	local, err := admission.NewMessageLimits(p.Relay.MessageLimits, admission.MessageLengths{})
	if err != nil {
		return o, err
	}
	o.Keys, o.RequestWindows = s.keys, guard.Windows
	o.Messages = s.Messages(p.Relay.MessageLimits, admission.MessageLengths{}, local)
	o.PushBudget = s.windows(redisstore.Budgets, "budgets", int64(p.Relay.Push.BudgetPerHour), push.BudgetWindow)
	return o, nil
}

// Families describes how it stands with the store.
func (s *Store) Families() []telemetry.Family {
	if s.Store == nil {
		return nil
	}
	decisions := func(name, help string, of func(redisstore.Degraded) uint64) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: telemetry.Counter, Label: "use", Read: func(emit func(string, float64)) {
			degraded := s.Stats().Degraded
			for _, use := range redisstore.Uses() {
				emit(use.String(), float64(of(degraded[use])))
			}
		}}
	}
	return []telemetry.Family{
		{Name: "store_away", Help: "1 while the store of the redis section is away.", Kind: telemetry.Gauge, Read: func(emit func(string, float64)) {
			away := 0.0
			if s.Away() || s.Alone != nil && s.Alone() {
				away = 1
			}
			emit("", away)
		}},
		decisions("store_local_total", "Decisions that this process made alone while the store was away.", func(d redisstore.Degraded) uint64 { return d.Local }),
		decisions("store_refused_total", "Decisions that were refusals because the store was away.", func(d redisstore.Degraded) uint64 { return d.Refused }),
	}
}
