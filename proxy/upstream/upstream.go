// Package upstream knows the relays behind the edge: their addresses, whether
// they take connections, and how to reach them within a deadline. Its Config
// also carries what an upstream is told of its clients; that is read by proxy,
// and this package knows nothing of clients, headers or limits.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// The ways in which a dial fails. The cause is wrapped beside them.
var (
	ErrUnavailable = errors.New("the relay does not take connections")
	ErrTimeout     = errors.New("the relay did not answer in time")
	ErrLocalPorts  = errors.New("no local port is left towards the relay")
	ErrDescriptors = errors.New("no descriptor is left")
)

// downFor is how long a failed dial counts as "down" unless a later one
// succeeds. It ends by itself, because an edge that reports itself as not ready
// gets no connections, and so would never find out.
const downFor = 10 * time.Second

// tellEvery is the least time between two lines about one upstream: dials are
// what clients make them, and so is the number of changes.
const tellEvery = 10 * time.Second

// DialFunc is net.Dialer's DialContext, or a stand-in for it.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Upstream is a named set of relay addresses. It is safe for concurrent use.
type Upstream struct {
	Name   string
	Config Config

	dial DialFunc
	log  *slog.Logger

	mu         sync.Mutex
	failedAt   time.Time // of the last failed dial since the last good one
	failure    error     // of the last dial
	toldDown   bool      // what the log says
	lastToldAt time.Time
	telling    *time.Timer // tells what came too soon after the last line; nil: nothing did
}

// New returns the upstream of a valid config. A nil dial is the network.
func New(name string, cfg Config, log *slog.Logger, dial DialFunc) *Upstream {
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 45 * time.Second}).DialContext
	}
	return &Upstream{Name: name, Config: cfg, dial: dial, log: log}
}

// Dial connects to the relay. Its error is one of the package's, with the cause.
// Exhausted local ports or descriptors say nothing about the relay and leave Up as it was.
func (u *Upstream) Dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(u.Config.ConnectTimeoutSecs)*time.Second)
	defer cancel()
	conn, err := u.dial(ctx, "tcp", u.Config.Addresses[0])
	if err == nil {
		u.note(nil)
		return conn, nil
	}
	kind := classify(err)
	switch {
	case kind == ErrLocalPorts || kind == ErrDescriptors:
	case context.Cause(ctx) == context.Canceled: // the edge is going away
	default:
		u.note(err)
	}
	return nil, fmt.Errorf("%w: %w", kind, err)
}

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

// note keeps what a dial said about the relay, and has the log say what has
// changed since it spoke of it last: at most every ten seconds, but in the end
// always.
func (u *Upstream) note(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failedAt, u.failure = time.Time{}, err
	if err != nil {
		u.failedAt = time.Now()
	}
	if wait := tellEvery - time.Since(u.lastToldAt); u.lastToldAt.IsZero() || wait <= 0 {
		u.tell()
	} else if (err != nil) != u.toldDown && u.telling == nil {
		u.telling = time.AfterFunc(wait, func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.telling = nil
			u.tell()
		})
	}
}

// tell requires mu. It logs how the relay is, if the log says otherwise.
func (u *Upstream) tell() {
	down := u.failure != nil
	if down == u.toldDown {
		return
	}
	u.toldDown, u.lastToldAt = down, time.Now()
	if down {
		u.log.Warn("the relay cannot be reached: clients are turned away until it answers", "upstream", u.Name, "error", u.failure)
	} else {
		u.log.Info("the relay answers again", "upstream", u.Name)
	}
}

// Up reports whether the relay takes connections, as far as dials have told:
// false for ten seconds after a dial that failed, unless a later one succeeds.
func (u *Upstream) Up() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failedAt.IsZero() || time.Since(u.failedAt) >= downFor
}
