package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"relayedge/internal/plainfile"
)

// Use is what a decision is for; on_failure is written per use.
type Use int

const (
	RequestLimits Use = iota
	MessageLimits
	Budgets
	uses
)

// Uses are all there are.
func Uses() []Use { return []Use{RequestLimits, MessageLimits, Budgets} }

func (u Use) String() string { return [uses]string{"request_limits", "message_limits", "budgets"}[u] }

// refuses reports whether a use refuses while the store is away.
func (f OnFailure) refuses(u Use) bool {
	return [uses]string{f.RequestLimits, f.MessageLimits, f.Budgets}[u] == refuse
}

// Store is a connection to Redis or Valkey, and what is decided there. It is safe
// for concurrent use.
type Store struct {
	cfg    Config
	option rueidis.ClientOption
	log    *slog.Logger
	budget time.Duration

	window, messages *script

	client  atomic.Pointer[rueidis.Client] // nil until the store was reached for the first time
	breaker *breaker
	places  chan struct{} // one for each decision that waits for the store

	degraded [uses]struct{ local, refused atomic.Uint64 }

	done chan struct{}
	work sync.WaitGroup
	once sync.Once
}

// inFlight is how many decisions wait for the store at once; the others wait for
// their turn, within their budget. It keeps what a store that does not answer
// makes us hold bounded, and the client's queues from being full, where a wait has no end.
const inFlight = 512

const (
	// dialTimeout bounds connecting, TLS included.
	dialTimeout = 2 * time.Second
	// silence is how long a connection may be without an answer before it is given
	// up for a new one.
	silence = time.Second
)

// Open returns the store of an enabled, valid cfg. It fails only for what does
// not pass by itself: a file that cannot be read, a URL that says nothing. A
// store that cannot be reached is away, and found when it is there.
func Open(cfg Config, log *slog.Logger) (*Store, error) {
	return open(cfg, log, tuning{clock: serverClock, budget: budget})
}

// tuning is what tests change.
type tuning struct {
	clock  string        // of the scripts
	budget time.Duration // of a decision
}

func open(cfg Config, log *slog.Logger, tune tuning) (*Store, error) {
	s, err := newStore(cfg, log, tune)
	if err != nil {
		return nil, err
	}
	if err := s.connect(); err != nil {
		s.fellAway(err)
	}
	s.work.Go(s.watch)
	return s, nil
}

// newStore returns a store that is not connected.
func newStore(cfg Config, log *slog.Logger, tune tuning) (*Store, error) {
	option, err := cfg.option()
	if err != nil {
		return nil, err
	}
	return &Store{
		cfg: cfg, option: option, log: log, budget: tune.budget,
		window: newScript(tune.clock, windowScript), messages: newScript(tune.clock, messagesScript),
		breaker: newBreaker(),
		places:  make(chan struct{}, inFlight),
		done:    make(chan struct{}),
	}, nil
}

// Probe tries the store of an enabled, valid cfg once, as a decision does, and says
// what is wrong. The key that it writes there ends in a second.
func Probe(cfg Config) error {
	s, err := newStore(cfg, slog.New(slog.DiscardHandler), tuning{clock: serverClock, budget: budget})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.connect(); err != nil {
		return fmt.Errorf("it cannot be reached: %w", err)
	}
	for range probeTries {
		if err = s.probe(); !errors.Is(err, errOverdue) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("it decides nothing: %w", err)
	}
	return nil
}

// probeTries are how many answers in a row must be late for Probe to say so: one
// may be by chance.
const probeTries = 10

// Close gives up the connection. Decisions are those of a store that is away from
// then on.
func (s *Store) Close() {
	s.once.Do(func() {
		close(s.done)
		s.work.Wait()
		s.breaker.away.Store(true)
		if client := s.client.Load(); client != nil {
			(*client).Close()
		}
	})
}

// Away reports whether the store is away, without asking it.
func (s *Store) Away() bool { return s.breaker.away.Load() }

// Degraded is how many decisions of a use the store did not make.
type Degraded struct {
	Local   uint64 // by this process alone
	Refused uint64
}

// Stats are for metrics.
type Stats struct {
	Away     bool
	Degraded map[Use]Degraded // every use, from the start
}

// Stats returns what the store has come to since it was opened.
func (s *Store) Stats() Stats {
	stats := Stats{Away: s.Away(), Degraded: make(map[Use]Degraded, uses)}
	for _, use := range Uses() {
		d := &s.degraded[use]
		stats.Degraded[use] = Degraded{d.local.Load(), d.refused.Load()}
	}
	return stats
}

// option returns how the client connects.
func (c Config) option() (rueidis.ClientOption, error) {
	a, err := c.address()
	if err != nil {
		return rueidis.ClientOption{}, err
	}
	o := rueidis.ClientOption{
		InitAddress: a.servers,
		Username:    a.user, Password: a.password,
		SelectDB:   a.db,
		ClientName: "relayedge",
		Sentinel:   rueidis.SentinelOption{MasterSet: a.master, Username: a.sentinelUser, Password: a.sentinelPassword},

		// A cluster is what the policy says is one, not what a server says of itself.
		ForceSingleClient: !a.cluster && a.master == "",
		// Nothing is kept in this process: what counts is what the store says.
		DisableCache: true,
		// A decision in doubt is not made again: it would charge twice.
		DisableRetry: true,
		// Else a decision whose budget is over would take the connection with it.
		AlwaysPipelining: true,
		// Answers are short: 64 KiB hold the ones of all who wait.
		ReadBufferEachConn: 64 << 10, WriteBufferEachConn: 64 << 10,
		Dialer:           net.Dialer{Timeout: dialTimeout, KeepAlive: silence},
		ConnWriteTimeout: silence,
	}
	network := "tcp"
	if a.socket {
		network = "unix"
	}
	// A sentinel's messages are no answers.
	counted := a.master == ""
	o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, cfg *tls.Config) (net.Conn, error) {
		dial := d.DialContext
		if cfg != nil {
			dial = (&tls.Dialer{NetDialer: d, Config: cfg}).DialContext
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &checkedConn{Conn: conn, counted: counted}, nil
	}
	if a.tls {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.CAFile != "" {
		if !a.tls {
			return o, errors.New("redis.ca_file: the url is none of TLS; write rediss://, or take ca_file out")
		}
		pem, err := plainfile.Read(c.CAFile, maxCAFile)
		if err != nil {
			return o, fmt.Errorf("redis.ca_file: %w", err)
		}
		o.TLSConfig.RootCAs = x509.NewCertPool()
		if !o.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
			return o, fmt.Errorf("redis.ca_file: %s holds no certificate in PEM", c.CAFile)
		}
	}
	o.Sentinel.Dialer, o.Sentinel.TLSConfig = o.Dialer, o.TLSConfig
	return o, nil
}

const maxCAFile = 1 << 20

// connect makes the client, at most once.
func (s *Store) connect() error {
	if s.client.Load() != nil {
		return nil
	}
	client, err := rueidis.NewClient(s.option)
	if errors.Is(err, context.DeadlineExceeded) {
		return errSilent
	} else if err != nil {
		return err
	}
	s.client.Store(&client)
	return nil
}

var (
	errAway     = errors.New("the store is away")
	errSilent   = errors.New("no connection within 2 s")
	errOverdue  = errors.New("no answer within 50 ms")
	errTooMany  = errors.New("too many decisions wait for an answer")
	errNoAnswer = errors.New("the answer is none")
)

// decide runs a script for a use, and returns the numbers that it answers. Where
// it fails, the decision is not the store's to make.
func (s *Store) decide(ctx context.Context, sc *script, keys, args []string, want int) ([]int64, error) {
	if s.breaker.away.Load() {
		return nil, errAway
	}
	within, cancel := context.WithTimeout(ctx, s.budget)
	defer cancel()
	answer, err := s.ask(within, sc, keys, args, want)
	switch {
	case err == nil:
		s.breaker.succeeded()
		return answer, nil
	case ctx.Err() != nil:
		return nil, err // who asked has gone; that says nothing of the store
	case within.Err() != nil && !errors.Is(err, errTooMany):
		err = errOverdue
	}
	if s.breaker.failed() {
		s.report(err)
	}
	return nil, err
}

func (s *Store) ask(ctx context.Context, sc *script, keys, args []string, want int) ([]int64, error) {
	select {
	case s.places <- struct{}{}:
	default:
		select {
		case s.places <- struct{}{}:
		case <-ctx.Done():
			return nil, errTooMany
		}
	}
	defer func() { <-s.places }()
	answer, err := sc.lua.Exec(ctx, *s.client.Load(), keys, args).AsIntSlice()
	if err == nil && len(answer) != want {
		err = errNoAnswer
	}
	return answer, err
}

func (s *Store) fellAway(err error) {
	if s.breaker.open() {
		s.report(err)
	}
}

func (s *Store) report(err error) {
	s.log.Warn("the store of shared limits is away; until it is back, each use decides as redis.on_failure says", "error", err)
}

// watch tries the store while it is away.
func (s *Store) watch() {
	for {
		select {
		case <-s.done:
			return
		case <-s.breaker.opened:
		}
		tick := time.NewTicker(probeEvery)
		for good := 0; good < probesGood; {
			select {
			case <-s.done:
				tick.Stop()
				return
			case <-tick.C:
			}
			if s.probe() == nil {
				good++
			} else {
				good = 0
			}
		}
		tick.Stop()
		// Before it can be away again, so that the log tells of both in their order.
		s.log.Info("the store of shared limits is back")
		s.breaker.close()
	}
}

// probe makes a decision of its own, which nobody waits for: a server that
// answers but cannot be written to is no use.
func (s *Store) probe() error {
	if err := s.connect(); err != nil {
		return err
	}
	// Connecting may take longer than a decision may. But who is back only to be
	// late with every decision is away.
	ctx, cancel := context.WithTimeout(context.Background(), max(dialTimeout, s.budget))
	defer cancel()
	asked := time.Now()
	if _, err := s.ask(ctx, s.window, []string{s.cfg.Prefix + ":probe"}, []string{"1", "1000"}, 4); err != nil {
		return err
	}
	if time.Since(asked) > s.budget {
		return errOverdue
	}
	return nil
}
