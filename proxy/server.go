package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"relayedge/admission"
	"relayedge/admission/httpguard"
	"relayedge/proxy/upstream"
)

// Config is what a Server is made of.
type Config struct {
	Listeners []Listener
	Limits    Limits
	// Gate decides by Limits who comes in. It may be nil: then it is one of the
	// server's own. A reload does not change it.
	Gate *admission.Gate
	// Room is how many connections there are descriptors for, or 0 where that is
	// no matter: who comes beyond it is refused at accept (Descriptors), so that
	// the rest of the process keeps what it needs. A reload does not change it.
	Room int
	// Certificate picks the certificate for a hello; its errors are those of
	// certs.Store.Certificate. It may be nil if no listener ends TLS.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// OrderOpen reports whether a CA's validation may come, which then gets in
	// while the caps are full; nil is never. A reload does not change it.
	OrderOpen func() bool
	// Guard is asked before anything is made of a request to a listener with
	// protocol: http; nil lets all in.
	Guard *httpguard.Guard
	// Tickets is where the secrets behind session tickets are shared with other
	// edges; nil: they are this process's own. A reload does not change it.
	Tickets   TicketStore
	Upstreams map[string]upstream.Config
	Dial      upstream.DialFunc // nil: the network. A reload does not change it.
	Engine    string            // auto, loop or stream. A reload does not change it.
	Log       *slog.Logger      // A reload does not change it.
}

// Listener is a listening socket with its settings.
type Listener struct {
	ListenerConfig
	Socket net.Listener
}

// Server is the edge: it admits, secures and forwards the connections of its listeners.
type Server struct {
	// Static.
	gate    *admission.Gate
	places  *admission.Handshakes
	room    room
	lane    lane
	engine  engine
	dial    upstream.DialFunc
	tickets *tickets
	shared  TicketStore // of the secrets behind tickets; nil: they are not shared
	stats   *stats
	log     *slog.Logger

	limits    atomic.Pointer[Limits] // in force
	running   sync.WaitGroup         // the sessions
	draining  chan struct{}          // see Draining
	accepting chan struct{}          // see Serving

	mu        sync.Mutex
	emptied   chan struct{} // closed when no session is open; nil: nobody waits
	sessions  map[*session]struct{}
	listeners []*listener // in force
	leaving   []*listener // removed by a reload, with connections left
	upstreams map[string]*destination
	serving   *serving // nil: nothing is accepted
	ending    bool     // Serve accepts nothing any longer
}

// serving is what a Serve that accepts has started, and what a reload adds to it.
type serving struct {
	ctx      context.Context         // accepts and what belongs to them
	fail     context.CancelCauseFunc // ends ctx, for a listener that failed for good
	accepts  sync.WaitGroup
	checking context.Context // health checks, which go on in a drain
	checks   sync.WaitGroup
}

// destination is an upstream as the policy in force has it.
type destination struct {
	*upstream.Upstream
	config upstream.Config
}

// New builds the edge from a config in the ranges of its tags. It starts nothing;
// it fails as Prepare does, or on an engine that is unknown or not for this system.
func New(cfg Config) (*Server, error) {
	gate := cfg.Gate
	if gate == nil {
		var err error
		if gate, err = admission.NewGate(admission.DefaultLimits()); err != nil {
			return nil, err
		}
	}
	s := &Server{
		gate: gate, places: admission.NewHandshakes(1), dial: cfg.Dial,
		tickets: newTickets(), shared: cfg.Tickets, stats: newStats(), log: cfg.Log, sessions: make(map[*session]struct{}),
		draining: make(chan struct{}), accepting: make(chan struct{}),
	}
	s.room.most, s.lane = int64(cfg.Room), newLane(cfg.OrderOpen, cfg.Room)
	var err error
	if s.engine, err = newEngine(cfg.Engine); err != nil {
		return nil, err
	}
	first, err := s.Prepare(cfg)
	if err != nil {
		return nil, err
	}
	first.Apply()
	return s, nil
}

// Serve accepts connections until ctx ends, then drains: the listeners close at
// once, open connections get drain_secs, and what is left is closed, spread out. It
// returns nil after a drain, and the error of a listener that failed for good.
func (s *Server) Serve(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	checking, endChecks := context.WithCancel(context.Background())
	defer endChecks()
	run := &serving{ctx: ctx, fail: fail, checking: checking}
	if s.shared != nil {
		run.accepts.Go(func() { s.shareTickets(ctx) })
	} else {
		run.accepts.Go(func() { s.rotateTickets(ctx) })
	}
	run.accepts.Go(func() { s.watchBalancers(ctx) })
	s.mu.Lock()
	s.serving = run
	for _, l := range s.listeners {
		s.listen(l)
	}
	for _, d := range s.upstreams {
		s.check(d)
	}
	s.mu.Unlock()
	close(s.accepting)
	<-ctx.Done()
	s.mu.Lock()
	s.serving, s.ending = nil, true
	for _, l := range s.listeners {
		l.close()
	}
	s.mu.Unlock()
	run.accepts.Wait()
	s.drain()
	s.engine.close()
	endChecks()
	run.checks.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// listen requires mu. It has a listener accept, if the server does.
func (s *Server) listen(l *listener) {
	if s.serving == nil {
		return
	}
	run := s.serving
	ctx, stop := context.WithCancel(run.ctx)
	l.stop = stop
	run.accepts.Go(func() {
		defer l.over.Store(true)
		if err := s.engine.accept(ctx, l); err != nil {
			run.fail(fmt.Errorf("listener %s: %w", l.terms.Load().config.Name, err))
		}
	})
}

// check requires mu. It begins the health checks of an upstream, if the server
// serves. They end with it, or when the upstream is retired.
func (s *Server) check(d *destination) {
	if s.serving == nil {
		return
	}
	checking := s.serving.checking
	s.serving.checks.Go(func() { d.Run(checking) })
}

// Ready reports whether the edge can serve: nil, or why not.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving == nil {
		return errors.New("not accepting connections")
	}
	for _, up := range s.upstreams {
		if up.Up() {
			return nil
		}
	}
	return errors.New("no upstream takes connections")
}

// inForce returns the listeners in force.
func (s *Server) inForce() []*listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.listeners)
}

// upstreamsUp tells of every upstream in force whether it takes connections.
func (s *Server) upstreamsUp() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	up := make(map[string]bool, len(s.upstreams))
	for name, u := range s.upstreams {
		up[name] = u.Up()
	}
	return up
}

// openByListener counts the open connections of every listener in force, and of
// those removed that have any, by name.
func (s *Server) openByListener() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave()
	open := make(map[string]int64)
	for _, l := range slices.Concat(s.listeners, s.leaving) {
		open[l.terms.Load().config.Name] += l.open.Load()
	}
	return open
}

// leave requires mu. It forgets the removed listeners that have no connections
// left and can get none: one may have been accepted just before the removal.
func (s *Server) leave() {
	s.leaving = slices.DeleteFunc(s.leaving, func(l *listener) bool { return (l.stop == nil || l.over.Load()) && l.open.Load() == 0 })
}

func (s *Server) remember(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[session] = struct{}{}
	s.running.Add(1)
}

func (s *Server) forget(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, session)
	if len(s.sessions) == 0 && s.emptied != nil {
		close(s.emptied)
		s.emptied = nil
	}
}
