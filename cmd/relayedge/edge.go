package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"relayedge/admission"
	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/hostport"
	"relayedge/proxy"
	"relayedge/proxy/certs"
	"relayedge/proxy/upstream"
)

// edge is the running edge with what it is made of by the policy in force.
type edge struct {
	server    *proxy.Server
	listeners []proxy.Listener               // in the order of the policy
	bound     atomic.Pointer[[]net.Listener] // their sockets, for who looks while a reload runs
	upstreams map[string]upstream.Config     // with the relay's real address

	store  *certs.Store
	relay  *inProcess
	guard  *requestGuard
	warned []service.Warning // of that policy
	log    *slog.Logger
}

// openEdge opens the sockets of a policy and builds the edge on them.
func openEdge(p *policy.Policy, store *certs.Store, relay *inProcess, fleet *fleet, gate *admission.Gate, requestSecret []byte, room int, log *slog.Logger) (*edge, error) {
	guard, err := newRequestGuard(p, fleet.store, requestSecret)
	if err != nil {
		return nil, err
	}
	e := &edge{store: store, relay: relay, guard: guard, log: log}
	o, err := e.open(p)
	if err != nil {
		o.abandon()
		return nil, err
	}
	cfg := e.config(p, o)
	cfg.Gate, cfg.Tickets, cfg.Room, cfg.OrderOpen, cfg.Engine, cfg.Log = gate, fleet.ticketStore(), room, store.OrderOpen, p.Engine, log
	if e.server, err = proxy.New(cfg); err != nil {
		o.abandon()
		return nil, err
	}
	e.takes(o)
	return e, nil
}

func (e *edge) takes(o *opened) {
	e.listeners, e.upstreams = o.listeners, o.upstreams
	var sockets []net.Listener
	for _, l := range o.listeners {
		sockets = append(sockets, l.Socket)
	}
	e.bound.Store(&sockets)
}

// vitals are what the edge is found alive by.
func (e *edge) vitals() *service.Vitals {
	return &service.Vitals{Families: e.server.Families(), Sockets: func() []net.Listener { return *e.bound.Load() }, Ready: e.server.Ready}
}

// close closes what Serve has not closed.
func (e *edge) close() {
	for _, l := range e.listeners {
		l.Socket.Close()
	}
}

// sockets are those by which connections come that the gate counts.
func (e *edge) sockets() (all []net.Listener) {
	for _, l := range e.listeners {
		all = append(all, l.Socket)
	}
	if e.relay.socket != nil {
		all = append(all, e.relay.socket)
	}
	return all
}

// prepare makes everything ready for another policy, or says all that is in its
// way and leaves everything as it is. Which sockets it opens and closes is decided
// by the binds: whatever else changes, a listener whose bind is as it was never
// closes.
func (e *edge) prepare(p *policy.Policy) (apply func() (warnings []string), err error) {
	certificates, certErr := e.store.Prepare(p.Certificates)
	relay, relayErr := e.relay.prepare(p)
	o, openErr := e.open(p)
	next, serverErr := e.server.Prepare(e.config(p, o)) // whatever else fails: all faults are told in one go
	if err := errors.Join(certErr, relayErr, openErr, serverErr); err != nil {
		o.abandon()
		return nil, err
	}
	return func() (warnings []string) {
		warnings = certificates.Apply() // first: listeners that come may serve names that come
		relay()
		e.guard.apply(p)
		next.Apply()
		e.takes(o)
		e.warn(p, descriptors(p))
		return warnings
	}, nil
}

func (e *edge) config(p *policy.Policy, o *opened) proxy.Config {
	return proxy.Config{Listeners: o.listeners, Limits: p.Limits, Certificate: e.store.Certificate, Guard: e.guard.Guard, Upstreams: o.upstreams}
}

// opened is what a policy needs of the machine.
type opened struct {
	listeners []proxy.Listener
	upstreams map[string]upstream.Config
	came      []net.Listener // the sockets that were not open before
}

// open opens the sockets of a policy that are not open yet. Its error tells of
// every socket that could not be had; the others are open all the same.
func (e *edge) open(p *policy.Policy) (*opened, error) {
	o := &opened{upstreams: e.resolve(p)}
	left := slices.Clone(e.listeners)
	var faults []error
	for i, l := range p.Listeners {
		socket := take(&left, l)
		if socket == nil {
			var err error
			if socket, err = service.Listen(l.Bind); err != nil {
				if other := e.inTheWay(l, err); other != nil {
					err = fmt.Errorf("cannot listen on %s beside listener %s in force (%s), which keeps its address until all else is ready; take that one out, reload, and then add this one, or restart", l.Bind, other.Name, other.Bind)
				}
				faults = append(faults, fmt.Errorf("%slistener %s: %w", place(p, fmt.Sprintf("listeners[%d].bind", i)), l.Name, err))
				continue
			}
			o.came = append(o.came, socket)
		}
		o.listeners = append(o.listeners, proxy.Listener{ListenerConfig: l, Socket: socket})
	}
	return o, errors.Join(faults...)
}

// place is where the file writes a key, as the beginning of an error, or nothing.
func place(p *policy.Policy, key string) string {
	if at := p.Origin(key); strings.Contains(at, ":") {
		return at + ": "
	}
	return ""
}

// take takes the socket of a listener's bind from those that are left, or none:
// port 0 may be bound many times, so that of the same name comes first.
func take(left *[]proxy.Listener, l proxy.ListenerConfig) net.Listener {
	i := slices.IndexFunc(*left, func(other proxy.Listener) bool { return other.Bind == l.Bind && other.Name == l.Name })
	if i < 0 {
		i = slices.IndexFunc(*left, func(other proxy.Listener) bool { return other.Bind == l.Bind })
	}
	if i < 0 {
		return nil
	}
	socket := (*left)[i].Socket
	*left = slices.Delete(*left, i, i+1)
	return socket
}

// inTheWay returns the listener in force that has the address which could not be
// had, or nil.
func (e *edge) inTheWay(l proxy.ListenerConfig, err error) *proxy.Listener {
	bind, parseErr := hostport.ParseBind(l.Bind)
	if parseErr != nil || !errors.Is(err, syscall.EADDRINUSE) {
		return nil
	}
	for _, other := range e.listeners {
		if b, err := hostport.ParseBind(other.Bind); err == nil && bind.Overlaps(b) {
			return &other
		}
	}
	return nil
}

// abandon closes what was opened for a policy that does not come in force.
func (o *opened) abandon() {
	for _, socket := range o.came {
		socket.Close()
	}
}

// resolve gives a policy's upstreams, with the real address of the relay in this
// process: its port may have been 0.
func (e *edge) resolve(p *policy.Policy) map[string]upstream.Config {
	upstreams := maps.Clone(p.Upstreams)
	for name, cfg := range upstreams {
		if i := slices.Index(cfg.Addresses, p.Relay.Bind); e.relay.addr() != "" && i >= 0 {
			cfg.Addresses = slices.Clone(cfg.Addresses)
			cfg.Addresses[i] = e.relay.addr()
			upstreams[name] = cfg
		}
	}
	return upstreams
}
