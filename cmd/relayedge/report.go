package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"

	"relayedge/admission"
	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/hostport"
	"relayedge/proxy/certs"
)

// descriptors is what the policy's connections take: the client's and the
// relay's socket, and the relay's own end where it runs in this process.
func descriptors(p *policy.Policy) service.Descriptors {
	d := service.Descriptors{Limit: service.DescriptorLimit(), Connections: p.Limits.MaxConnections, Each: 2, Sockets: len(p.Listeners)}
	if p.Relay.InProcess {
		d.Each, d.Sockets = 3, d.Sockets+1
	}
	return d
}

// report logs what is in force and where it comes from, then what to beware of.
func report(log *slog.Logger, p *policy.Policy, edge *edge, d service.Descriptors) {
	for i, l := range edge.listeners {
		log.Info("listener", "listener", l.Name, "on", hostport.Text(l.Socket.Addr()), "protocol", l.Protocol, "tls", l.TLS, "upstream", l.Upstream,
			"from", p.Origin(fmt.Sprintf("listeners[%d].bind", i)))
	}
	for _, name := range slices.Sorted(maps.Keys(edge.upstreams)) {
		cfg := edge.upstreams[name]
		log.Info("upstream", "upstream", name, "addresses", strings.Join(cfg.Addresses, " "), "client_address", cfg.ClientAddress,
			"from", p.Origin("upstreams."+name+".addresses"))
	}
	service.ReportLimits(log, "limits.", p.Limits, p.Origin)
	service.ReportLimits(log, "request_limits.", p.RequestLimits, p.Origin)
	if p.Relay.InProcess {
		service.ReportLimits(log.With("part", "relay"), "relay.limits.", p.Relay.Limits, p.Origin)
		service.ReportLimits(log.With("part", "relay"), "relay.message_limits.", p.Relay.MessageLimits, p.Origin)
	}
	edge.warn(p, d)
}

// warn logs what to beware of in the policy that has come in force, unless it was
// so in the one of before.
func (e *edge) warn(p *policy.Policy, d service.Descriptors) {
	var binds []net.Addr
	for _, l := range e.listeners {
		binds = append(binds, l.Socket.Addr())
	}
	all := warnings(p, binds, d)
	service.Warn(e.log, slices.DeleteFunc(slices.Clone(all), func(w service.Warning) bool {
		return slices.ContainsFunc(e.warned, func(before service.Warning) bool { return reflect.DeepEqual(w, before) })
	}))
	e.warned = all
}

// warnings are what an operator should know of the policy, each with what to
// do. binds are where the listeners really are.
func warnings(p *policy.Policy, binds []net.Addr, d service.Descriptors) []service.Warning {
	warnings := service.Warnings(p, d, "limits.max_connections")
	for i, l := range p.Listeners {
		if !public(binds[i]) {
			continue
		}
		if p.Limits.MaxConnectionsPerIP == 0 && p.Limits.ConnectionRatePerIP == 0 {
			warnings = append(warnings, service.Warning{
				Text:  "a public listener has neither a cap nor a rate for one client, who can take every connection; write limits.max_connections_per_ip or limits.connection_rate_per_ip",
				Attrs: []any{"listener", l.Name},
			})
		}
		if len(p.Limits.Observe) > 0 {
			warnings = append(warnings, service.Warning{
				Text:  "limits that are observed refuse nobody on a public listener, they only count; take them out of limits.observe when the counts are known",
				Attrs: []any{"listener", l.Name, "observe", strings.Join(p.Limits.Observe, " ")},
			})
		}
	}
	return warnings
}

// public reports whether others than this machine and its network may reach a
// listener there. All addresses may be public ones.
func public(bind net.Addr) bool {
	addr := admission.AddrOf(bind).Unmap()
	return addr.IsValid() && !hostport.Private(addr)
}

// lookAtMachine is what check --machine looks at for the edge.
func lookAtMachine(m *service.Machine) {
	p := m.Policy
	files := p.Certificates
	files.ACME = certs.ACME{} // opening it would make its folder
	if _, err := certs.Open(files, m.Log()); err != nil {
		for line := range strings.Lines(err.Error()) {
			m.Fault("certificates", "%s", strings.TrimSpace(line))
		}
	}
	stored := m.Store()
	if acme := p.Certificates.ACME; acme.Enabled() {
		probe := acme.ProbeStorage
		if acme.InRedis() {
			probe = func() error {
				if !stored {
					return nil // what is wrong is said
				}
				return probeShared(p, m.Log())
			}
		}
		if err := probe(); err != nil {
			m.Fault("certificates.acme.storage", "%v", err)
		}
		if acme.UsesHTTP() {
			m.Bind("certificates.acme.http_bind", acme.HTTPBind)
		}
	}
	m.Files("listeners", "upstreams", "certificates.acme.ca_root_file", "certificates.acme.eab_key_file")
	if _, err := p.Limits.GateLimits(); err != nil {
		m.Fault("limits.deny_file", "%v", errors.Unwrap(err))
	}
	for i, l := range p.Listeners {
		m.Bind(fmt.Sprintf("listeners[%d].bind", i), l.Bind)
	}
	if p.Metrics.Enabled {
		m.Bind("metrics.bind_addr", p.Metrics.BindAddr)
	}
	if p.Relay.InProcess {
		m.Files("relay")
		m.Mailbox()
		m.Bind("relay.bind", p.Relay.Bind)
	}
	m.Descriptors("limits.max_connections", descriptors(p))
}
