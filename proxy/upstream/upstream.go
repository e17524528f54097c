// Package upstream knows the relays behind the edge: their addresses, whether
// they take connections, which one is next, and how to reach it within a
// deadline. Its Config also carries what an upstream is told of its clients;
// that is read by proxy, and this package knows nothing of clients or limits.
//
// # Choice
//
// A dial takes the address with the fewest connections, dials in flight
// included; of several, each in turn. One that is down comes last, and is tried
// only once all that are up have failed. An address that fails is passed over
// for the next at once, and each is tried at most once a dial. An attempt may
// take its part of what is left of connect_timeout_secs, divided by the
// addresses that are left, but at least a second of it: an address that does not
// answer leaves time for those behind it.
//
// # Health
//
// An address is down after a dial or a check that failed, until one succeeds.
// Where checks are off it is down for ten seconds at most, because an edge that
// reports itself as not ready gets no connections, and so would never find out.
// Exhausted local ports or descriptors are our own trouble and say nothing about
// an address: they change no state, neither of a dial nor of a check.
//
// A check says whether the address takes connections, and no more: it connects,
// says who it is where the relay expects a header (LOCAL, or UNKNOWN in version
// 1), and closes.
package upstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"relayedge/internal/proxyheader"
	"relayedge/internal/sockopt"
)

// The ways in which a dial fails. The causes are wrapped beside them.
var (
	ErrUnavailable = errors.New("the relay does not take connections")
	ErrTimeout     = errors.New("the relay did not answer in time")
	ErrLocalPorts  = errors.New("no local port is left towards the relay")
	ErrDescriptors = errors.New("no descriptor is left")
)

// DialFunc is net.Dialer's DialContext, or a stand-in for it.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Upstream is a named set of relay addresses. It is safe for concurrent use.
type Upstream struct {
	Name string

	log      *slog.Logger
	standIn  DialFunc // nil: the network
	settings atomic.Pointer[settings]

	mu          sync.Mutex
	addresses   []*address // in the order of the config
	turn        int        // where the search for the least connections begins
	localToldAt time.Time  // when the log last told of exhausted ports or descriptors
	endRound    func()     // has Run begin again with the settings in force; nil: it does not run
}

// settings are what a config makes; they do not change.
type settings struct {
	config  Config
	custom  []proxyheader.TLV
	sources *sources
	sockets sockopt.Options
}

// New returns the upstream of a valid config. A nil dial is the network.
func New(name string, cfg Config, log *slog.Logger, dial DialFunc) *Upstream {
	u := &Upstream{Name: name, log: log, standIn: dial}
	u.SetConfig(cfg)
	return u
}

// Config is the config in force. What it holds must not be changed.
func (u *Upstream) Config() Config { return u.settings.Load().config }

// CustomTLVs are the custom TLVs of the config in force, in the order of their
// types. They must not be changed.
func (u *Upstream) CustomTLVs() []proxyheader.TLV { return u.settings.Load().custom }

// SetConfig puts a valid config in the place of the one in force. Addresses
// that stay keep their connections, counts and health. Connections to those that
// go are kept or ended as the new config's when_down says.
func (u *Upstream) SetConfig(cfg Config) {
	next := &settings{config: cfg, custom: cfg.customTLVs()}
	if len(cfg.SourceAddresses) > 0 {
		next.sources, _ = newSources(cfg.SourceAddresses) // Validate has refused what fails
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if before := u.settings.Load(); before != nil {
		next.sockets = before.sockets
	}
	u.settings.Store(next)
	stay := make([]*address, 0, len(cfg.Addresses))
	for _, text := range cfg.Addresses {
		i := slices.IndexFunc(u.addresses, func(a *address) bool { return a.text == text })
		if i >= 0 {
			stay = append(stay, u.addresses[i])
		} else {
			stay = append(stay, newAddress(text))
		}
	}
	for _, a := range u.addresses {
		if !slices.Contains(stay, a) {
			a.remove()
			u.closeLost(a)
		}
	}
	u.addresses = stay
	if u.endRound != nil {
		u.endRound()
	}
}

// Retire takes the upstream out of service for good: its connections are kept or
// ended as when_down says, and no dial succeeds any longer.
func (u *Upstream) Retire() {
	cfg := u.Config()
	cfg.Addresses = nil
	u.SetConfig(cfg)
}

// Retired reports whether the upstream is out of service.
func (u *Upstream) Retired() bool { return len(u.Config().Addresses) == 0 }

// SetSockets gives the options of the sockets that dial from now on.
func (u *Upstream) SetSockets(o sockopt.Options) {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := *u.settings.Load()
	next.sockets = o
	u.settings.Store(&next)
}

// Up reports whether at least one address takes connections, as far as dials
// and checks have told.
func (u *Upstream) Up() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.ContainsFunc(u.addresses, u.up)
}

// up requires mu.
func (u *Upstream) up(a *address) bool {
	if a.failedAt.IsZero() {
		return true
	}
	return u.Config().HealthCheckSecs == 0 && time.Since(a.failedAt) >= downFor
}

// Status is what is known of one address.
type Status struct {
	Address     string
	Up          bool
	Connections int // dials in flight included
}

// Status tells of every address, in the order of the config.
func (u *Upstream) Status() []Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]Status, len(u.addresses))
	for i, a := range u.addresses {
		all[i] = Status{a.text, u.up(a), a.held()}
	}
	return all
}

// classify names the way in which an attempt failed.
func classify(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return ErrLocalPorts
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return ErrDescriptors
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return ErrTimeout
	default:
		return ErrUnavailable
	}
}

// local reports whether a failure is our own trouble and not the relay's.
func local(kind error) bool { return kind == ErrLocalPorts || kind == ErrDescriptors }
