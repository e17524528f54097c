package proxy

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"relayedge/admission"
	"relayedge/internal/sockopt"
	"relayedge/proxy/upstream"
)

// Reload is a config made ready to take the place of the one in force.
type Reload struct {
	server    *Server
	config    Config
	limits    admission.Limits // the gate's, with what deny_file says
	sockets   sockopt.Options
	upstreams map[string]*destination // by name; those that stay have their Upstream
	listeners []*listener             // those that stay are the ones in force
	terms     []*terms                // of the listeners
}

// Prepare makes a config ready that is in the ranges of its tags, and does all
// of it that can fail: it fails on limits that the gate refuses, a listener whose
// upstream is unknown, a file that cannot be read, and once the edge drains. It
// changes nothing but options of the sockets that are new.
//
// A listener whose Socket is in force stays, under the terms of the config. One
// reload is prepared and applied before the next.
func (s *Server) Prepare(cfg Config) (*Reload, error) {
	r := &Reload{server: s, config: cfg, upstreams: make(map[string]*destination, len(cfg.Upstreams))}
	limits, err := cfg.Limits.GateLimits()
	if err == nil {
		err = limits.Validate()
	}
	r.limits = limits
	faults := []error{err}
	r.sockets = sockopt.Options{BufferBytes: cfg.Limits.SocketBufferBytes, Patience: cfg.Limits.times().writerStall}
	// The lock is not held while files are read: newcomers wait for it. Apply alone
	// changes what is in force.
	s.mu.Lock()
	ending, upstreams, listeners := s.ending, s.upstreams, s.listeners // each replaced as a whole
	s.mu.Unlock()
	if ending {
		return nil, errors.New("the edge is ending: it takes no other policy")
	}
	for name, c := range cfg.Upstreams {
		d := &destination{config: c}
		if before := upstreams[name]; before != nil {
			d.Upstream = before.Upstream
		} else {
			d.Upstream = upstream.New(name, c, s.log, s.dial)
		}
		r.upstreams[name] = d
	}
	for _, l := range cfg.Listeners {
		t, err := newTerms(l.ListenerConfig, cfg.Limits, r.upstreams, cfg.Certificate)
		if err != nil {
			faults = append(faults, fmt.Errorf("listener %s: %w", l.Name, err))
			continue
		}
		t.guard = cfg.Guard
		var next *listener
		if i := slices.IndexFunc(listeners, func(held *listener) bool { return held.socket == l.Socket }); i >= 0 {
			next = listeners[i]
		} else if err := r.sockets.Apply(l.Socket); err != nil {
			faults = append(faults, fmt.Errorf("listener %s: %w", l.Name, err))
			continue
		} else {
			next = newListener(s, l.Socket)
		}
		r.listeners, r.terms = append(r.listeners, next), append(r.terms, t)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return r, nil
}

// Apply puts the config in force. Connections, their leases and all counts stay:
// a connection lives by the terms that it came in under, and whoever comes next
// is bound by those of the config. Listeners that are not in it close their
// sockets, and their connections stay. Upstreams that are not in it keep or end
// theirs, as their when_down says.
func (r *Reload) Apply() {
	s := r.server
	// A long list takes its time, so before the lock that newcomers wait for.
	if err := s.gate.SetLimits(r.limits); err != nil {
		panic("proxy: limits that Prepare let pass: " + err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places.SetMost(r.config.Limits.MaxHandshakes)
	s.limits.Store(&r.config.Limits)

	before := s.upstreams
	s.upstreams = r.upstreams
	for name, d := range s.upstreams {
		d.SetSockets(r.sockets)
		old := before[name]
		if old == nil {
			s.check(d)
			continue
		}
		if !reflect.DeepEqual(old.config, d.config) { // its checks would begin anew
			d.SetConfig(d.config)
		}
	}
	stay := s.listeners
	s.listeners = r.listeners
	for i, l := range s.listeners {
		s.keyTickets(r.terms[i])
		l.terms.Store(r.terms[i])
		if !slices.Contains(stay, l) {
			s.listen(l)
		} else if err := r.sockets.Apply(l.socket); err != nil {
			s.log.Warn("limits.socket_buffer_bytes could not be changed for a listener's connections", "listener", r.terms[i].config.Name, "error", err)
		}
		r.terms[i].warnOfUncovered(r.config.Certificate, s.log)
	}
	s.leave() // whether or not anybody reads the metrics
	for _, l := range stay {
		if !slices.Contains(s.listeners, l) {
			l.close()
			s.leaving = append(s.leaving, l)
		}
	}
	// Last, so that who came under the terms of before finds those in force when
	// its upstream is gone.
	for name, d := range before {
		if s.upstreams[name] == nil {
			d.Retire()
		}
	}
	if s.ending { // it began after Prepare
		for _, l := range s.listeners {
			l.close()
		}
	}
}
