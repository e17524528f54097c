package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"relayedge/admission"
	"relayedge/internal/sockopt"
	"relayedge/proxy/upstream"
)

// Config is what a Server is made of.
type Config struct {
	Listeners []Listener
	Limits    Limits
	// Room is how many connections there are descriptors for, or 0 where that is
	// no matter: who comes beyond it is refused at accept (Descriptors), so that
	// the rest of the process keeps what it needs.
	Room int
	// Certificate picks the certificate for a hello; its errors are those of
	// certs.Store.Certificate. It may be nil if no listener ends TLS.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Upstreams   map[string]*upstream.Upstream
	Engine      string // auto or stream
	Log         *slog.Logger
}

// engines move the bytes of a session from accept to its end; each is a
// function that finishes the session it is given.
var engines = map[string]func(*session){
	"auto":   serveStream,
	"stream": serveStream,
}

// Listener is a listening socket with its settings.
type Listener struct {
	ListenerConfig
	Socket net.Listener
}

// Server is the edge: it admits, secures and forwards the connections of its listeners.
type Server struct {
	gate      *admission.Gate
	places    *admission.Handshakes
	limits    Limits
	room      room
	times     *times
	serve     func(*session)
	listeners []*listener
	upstreams map[string]*upstream.Upstream
	tickets   *tickets
	stats     *stats
	log       *slog.Logger

	mu        sync.Mutex
	sessions  map[*session]struct{}
	running   sync.WaitGroup // the sessions
	accepting bool
	draining  chan struct{} // static; see Draining
}

// New builds the edge from a config in the ranges of its tags. It starts nothing;
// it fails on limits that the gate refuses, a listener whose upstream or an
// engine that is unknown, or a file that cannot be read.
func New(cfg Config) (*Server, error) {
	limits, err := cfg.Limits.GateLimits()
	if err != nil {
		return nil, err
	}
	gate, err := admission.NewGate(limits)
	if err != nil {
		return nil, err
	}
	s := &Server{
		gate: gate, places: admission.NewHandshakes(cfg.Limits.MaxHandshakes), limits: cfg.Limits, times: cfg.Limits.times(),
		serve: engines[cfg.Engine], upstreams: cfg.Upstreams, tickets: newTickets(), stats: newStats(), log: cfg.Log,
		sessions: make(map[*session]struct{}), draining: make(chan struct{}),
	}
	s.room.most = int64(cfg.Room)
	if s.serve == nil {
		return nil, fmt.Errorf("no engine is named %q; there are auto and stream", cfg.Engine)
	}
	sockets := sockopt.Options{BufferBytes: cfg.Limits.SocketBufferBytes, Patience: s.times.writerStall}
	for _, up := range s.upstreams {
		up.SetSockets(sockets)
	}
	for _, l := range cfg.Listeners {
		if err := sockets.Apply(l.Socket); err != nil {
			return nil, fmt.Errorf("listener %s: %w", l.Name, err)
		}
		built, err := newListener(s, l, cfg.Certificate)
		if err != nil {
			return nil, fmt.Errorf("listener %s: %w", l.Name, err)
		}
		s.listeners = append(s.listeners, built)
	}
	return s, nil
}

// Serve accepts connections until ctx ends, then drains: the listeners close at
// once, open connections get drain_secs, and what is left is closed, spread out. It returns
// nil after a drain, and the error of a listener that failed for good.
func (s *Server) Serve(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.setAccepting(true)
	var accepts sync.WaitGroup
	accepts.Go(func() { s.rotateTickets(ctx) })
	accepts.Go(func() { s.watchBalancers(ctx) })
	for _, l := range s.listeners {
		context.AfterFunc(ctx, func() { l.socket.Close() })
		accepts.Go(func() {
			if err := l.accept(ctx); err != nil {
				fail(fmt.Errorf("listener %s: %w", l.config.Name, err))
			}
		})
	}
	checking, endChecks := context.WithCancel(context.Background())
	var checks sync.WaitGroup
	for _, up := range s.upstreams {
		checks.Go(func() { up.Run(checking) })
	}
	<-ctx.Done()
	s.setAccepting(false)
	accepts.Wait()
	s.drain()
	endChecks()
	checks.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Ready reports whether the edge can serve: nil, or why not.
func (s *Server) Ready() error {
	s.mu.Lock()
	accepting := s.accepting
	s.mu.Unlock()
	if !accepting {
		return errors.New("not accepting connections")
	}
	for _, up := range s.upstreams {
		if up.Up() {
			return nil
		}
	}
	return errors.New("no upstream takes connections")
}

func (s *Server) setAccepting(v bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepting = v
}

func (s *Server) remember(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[session] = struct{}{}
}

func (s *Server) forget(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, session)
}
