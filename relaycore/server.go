package relaycore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"relayedge/admission"
	"relayedge/admission/httpguard"
	"relayedge/relaycore/api"
	"relayedge/relaycore/push"
)

// Server is a relay. Make it with NewServer.
type Server struct {
	// Static.
	start   Config // that of NewServer: its keys that a reload leaves hold
	log     *slog.Logger
	gate    *admission.Gate
	dir     *directory
	mail    *mail
	bound   bool // a proof must be bound to the TLS session
	count   counters
	sources sources
	lingers slots

	// Of the HTTP API.
	api      *api.Handler
	limits   MessageLimits
	throttle *admission.Throttle
	guard    *httpguard.Guard
	routes   http.Handler // behind the guard
	handover *handover
	push     *push.Waker
	budget   PushBudget
	http     *http.Server

	inForce atomic.Pointer[settings] // swapped by a reload

	// Bytes on their way to clients, and bytes of messages that have not come wholly.
	outboundBudget, bufferBudget *budget

	running sync.WaitGroup // every goroutine of a connection

	// Guarded by mu.
	mu       sync.Mutex
	draining bool
	conns    map[net.Conn]*session // open; nil before the upgrade
}

// maxLingers is how many ended sessions wait for their clients to close.
const maxLingers = 256

// MessageLimits are the message limits, wherever they are kept.
type MessageLimits interface {
	admission.Messages
	// SetLimits changes the limits. What was counted stays.
	SetLimits(admission.MessageLimitsConfig) error
}

// PushBudget is how many wake-ups the push registrations have, wherever that is kept.
type PushBudget interface {
	admission.Windows
	// SetLimit changes the limit and the length of all windows. What was counted stays.
	SetLimit(limit int64, window time.Duration)
}

// Options are what a relay is given beside its config. The zero Options are for
// one that stands alone.
type Options struct {
	// RequestLimits are what every request to the HTTP API is held to before anything
	// else of it is looked at; nil: the defaults.
	RequestLimits *httpguard.Config
	// RequestWindows counts for them; nil: it is done in memory.
	RequestWindows admission.Windows
	// Messages keeps the message limits; nil: they are kept in memory.
	Messages MessageLimits
	// PushBudget keeps the budgets of push registrations; nil: they are kept in memory.
	PushBudget PushBudget
	// Keys makes the keys by which all that is kept; nil: its secret is the process's own.
	Keys *admission.KeyMaker
	// MailboxLater has Serve open the mailbox file, when the process that has it open
	// has closed it: one whose place this relay takes.
	MailboxLater bool
}

// NewServer returns a relay with the settings cfg. It opens the mailbox file, if
// cfg names one. The error is cfg.Validate's, or says what is wrong with that file
// or its key.
func NewServer(cfg Config, log *slog.Logger) (*Server, error) {
	return NewServerWith(cfg, Options{}, log)
}

// NewServerWith is NewServer for a relay that is given more than its config.
func NewServerWith(cfg Config, o Options, log *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := cfg.Limits
	caps := gateLimits(l)
	gate, err := admission.NewGate(caps)
	if err != nil {
		return nil, err
	}
	limits := o.Messages
	if limits == nil {
		if limits, err = admission.NewMessageLimits(cfg.MessageLimits, admission.MessageLengths{}); err != nil {
			return nil, err
		}
	}
	s := &Server{
		start:  cfg,
		log:    log,
		gate:   gate,
		limits: limits,
		bound:  cfg.ProxyProtocol && cfg.RequireChannelBinding,
		sources: sources{
			known:    cfg.ProxyProtocol || l.MaxConnectionsPerIP > 0,
			key:      maphash.MakeSeed(),
			embedded: caps.EmbeddedIPv4,
		},
		lingers:        slots{most: maxLingers},
		outboundBudget: newBudget(l.OutboundBudgetBytes, endOutboundShed),
		bufferBudget:   newBudget(l.BufferBudgetBytes, endBufferShed),
		conns:          make(map[net.Conn]*session),
	}
	s.inForce.Store(newSettings(cfg))
	s.count.init()
	now := time.Now()
	s.dir = newDirectory(cfg, s.sources.known, &s.count, now)
	if s.mail, err = newMail(cfg, s.sources.known, log); err != nil {
		return nil, err
	}
	if !o.MailboxLater {
		if err := s.mail.open(now); err != nil {
			return nil, err
		}
	}
	s.handover = newHandover()
	s.http = s.newHTTPServer()
	s.throttle = admission.NewThrottle(int64(cfg.MessageLimits.UnprovenPerHostMinute))
	keys := cmp.Or(o.Keys, admission.NewKeyMaker(nil))
	if s.budget = o.PushBudget; s.budget == nil {
		s.budget = admission.NewFixedWindows(int64(cfg.Push.BudgetPerHour), push.BudgetWindow)
	}
	s.push = push.New(cfg.Push, push.Options{Budget: s.budget, Keys: keys, Embedded: s.sources.embedded, Panicked: func(fault any) {
		s.log.Error("a wake-up panicked; it alone ends", slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
		s.count.reject(ReasonTaskPanic)
	}})
	s.api = api.New(api.Options{Relay: apiRelay{s}, Messages: s.limits, Throttle: s.throttle, Keys: keys, Push: s.push})
	if s.guard, err = s.newGuard(o, keys); err != nil {
		s.mail.close()
		return nil, err
	}
	s.routes = s.guard.Handler(http.HandlerFunc(s.serveRoute))
	return s, nil
}

// Close gives back what NewServer has opened. Serve does so at its end; Close is
// for a relay that was never served, and does no harm to another that has ended.
func (s *Server) Close() {
	s.push.Close()
	s.dir.close()
	s.mail.close()
}

// Serve takes connections from ln until ctx ends, then drains: it closes every
// session with code 1001, spread over at most half of drain_secs, and cuts what
// is left at the end of drain_secs. It closes ln, returns after the last
// connection's end, and returns nil unless accepting failed. It is called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	l := s.start.Limits
	s.log.Info(fmt.Sprintf("Limits: max_connections=%d, max_connections_per_ip=%d, rate_limit_bps=%d, max_message_bytes=%d, connection_timeout_secs=%d",
		l.MaxConnections, l.MaxConnectionsPerIP, l.RateLimitBPS, l.MaxMessageBytes, l.ConnectionTimeoutSecs))
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	s.running.Go(func() { s.http.Serve(s.handover) }) // until the drain closes it
	var err error
	if !s.mail.opened.Load() {
		err = s.mail.await(ctx)
	}
	if s.mail.opened.Load() {
		err = s.accept(ctx, ln)
	}
	ln.Close()
	s.drain()
	s.Close()
	return err
}

// accept is the accept loop. What it refuses costs no goroutine and no log line.
func (s *Server) accept(ctx context.Context, ln net.Listener) error {
	var backoff admission.AcceptBackoff
	for {
		nc, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return nil
		}
		if err != nil {
			if !backoff.Wait(err, ctx.Done()) {
				return fmt.Errorf("relay: accept: %w", err)
			}
			continue
		}
		backoff.Reset()
		now := time.Now()
		lease, reason := s.admit(nc, now)
		if reason != "" {
			s.count.reject(reason)
			nc.Close()
			continue
		}
		s.count.connections.Add(1)
		s.count.open.Add(1)
		s.mu.Lock()
		s.conns[nc] = nil
		s.mu.Unlock()
		s.running.Go(func() { s.connection(nc, lease, now) })
	}
}

// admit decides about a connection from what accept says of it. Behind a front
// end that is the global cap alone: the PROXY header names the client later.
func (s *Server) admit(nc net.Conn, now time.Time) (*admission.Lease, Reason) {
	addr := peerAddr(nc)
	if s.start.ProxyProtocol {
		if addr.IsValid() && !s.inForce.Load().trust.Contains(addr) {
			return nil, ReasonProxyNotLoopback
		}
		addr = netip.Addr{}
	}
	return s.gate.Admit(addr, now)
}

// peerAddr is the address of the socket's other end; a unix socket has none.
func peerAddr(nc net.Conn) netip.Addr {
	return admission.AddrOf(nc.RemoteAddr()).Unmap().WithZone("")
}

// enter notes that nc has become a session, and reports false while draining.
func (s *Server) enter(nc net.Conn, c *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.conns[nc] = c
	return true
}

// leave forgets an open connection.
func (s *Server) leave(nc net.Conn) {
	s.mu.Lock()
	delete(s.conns, nc)
	s.mu.Unlock()
	s.count.open.Add(-1)
}

// panicked reports a fault of one connection, which alone it ends.
func (s *Server) panicked(fault any, who *about) {
	s.tell(slog.LevelError, who, "a connection's task panicked; only this connection ends", slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
}

// Ready returns nil while the relay takes connections, for a readiness check.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return errors.New("draining")
	}
	return nil
}

// slots is a counted resource without a queue.
type slots struct {
	most  int64 // static
	taken atomic.Int64
}

func (s *slots) take() bool {
	if s.taken.Add(1) > s.most {
		s.taken.Add(-1)
		return false
	}
	return true
}

func (s *slots) give() { s.taken.Add(-1) }
