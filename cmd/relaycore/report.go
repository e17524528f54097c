package main

import (
	"log/slog"

	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/internal/policyfile"
	"relayedge/internal/telemetry"
	"relayedge/relaycore"
)

// descriptors is what the relay's connections take: a socket each.
func descriptors(p *policy.Policy) service.Descriptors {
	return service.Descriptors{Limit: service.DescriptorLimit(), Connections: p.Relay.Limits.MaxConnections, Each: 1, Sockets: 1}
}

// fit lowers the caps to what the descriptor limit has room for: the relay
// refuses who comes beyond as it does at max_connections, and descriptors are
// left for its metrics.
func fit(cfg relaycore.Config, d service.Descriptors) relaycore.Config {
	if d.Short() {
		l := &cfg.Limits
		l.MaxConnections = d.Room()
		l.MaxConnectionsPerIP = min(l.MaxConnectionsPerIP, l.MaxConnections)
		l.MaxConnectionsPerIPv648 = min(l.MaxConnectionsPerIPv648, l.MaxConnections)
	}
	return cfg
}

// report logs the limits in force and where they come from, then what to beware of.
func report(log *slog.Logger, p *policy.Policy, inForce relaycore.Limits, d service.Descriptors) {
	written := map[string]string{}
	for _, v := range policyfile.Values(p.Relay.Limits) {
		written[v.Key] = v.Text
	}
	for _, v := range policyfile.Values(inForce) {
		from := p.Origin("relay.limits." + v.Key)
		if written[v.Key] != v.Text {
			from += ", held by the descriptor limit"
		}
		log.Info("limit", "limit", v.Key, "value", v.Text, "from", from)
	}
	service.ReportLimits(log, "request_limits.", p.RequestLimits, p.Origin)
	service.ReportLimits(log, "relay.message_limits.", p.Relay.MessageLimits, p.Origin)
	service.Warn(log, service.Warnings(p, d, "relay.limits.max_connections"))
}

// lookAtMachine is what check --machine looks at for the relay.
func lookAtMachine(m *service.Machine) {
	p := m.Policy
	m.Files("relay")
	m.Store()
	m.Mailbox()
	m.Bind("relay.bind", p.Relay.Bind)
	if metrics := telemetry.Config(p.Relay.Metrics); metrics.Enabled {
		m.Bind("relay.metrics.bind_addr", metrics.BindAddr)
	}
	m.Descriptors("relay.limits.max_connections", descriptors(p))
}
