package policy

import (
	"fmt"
	"net"
	"slices"
	"strconv"

	"relayedge/internal/hostport"
	"relayedge/internal/policyfile"
	"relayedge/proxy/upstream"
)

const (
	proxyV1        = "proxy-v1"
	proxyV2        = "proxy-v2"
	channelBinding = "channel_binding"
)

// adapt gives keys that are not written the value that what is written calls
// for. What is written stays as it is, for judge to hold against the rest.
func (p *Policy) adapt(doc *policyfile.Document) {
	if !doc.Clean("upstreams") {
		return
	}
	if len(p.Upstreams) == 0 {
		var u upstream.Config
		policyfile.Defaults(&u)
		p.Upstreams = map[string]upstream.Config{DefaultUpstream: u}
	}
	if !doc.Clean("relay") {
		return
	}
	p.adaptDrain(doc)
	edgeOnly := p.Relay.InProcess
	for name, u := range p.Upstreams {
		if p.Relay.InProcess && !doc.Written(upstreamKey(name, "addresses")) {
			u.Addresses = []string{dialable(p.Relay.Bind)}
			p.adapted(upstreamKey(name, "addresses"))
		}
		if p.leadsToRelay(u) && u.ClientAddress == proxyV2 {
			p.adaptPair(doc, name, &u)
		}
		p.Upstreams[name] = u
		if _, inHeader := upstream.HeaderField(u.ClientAddress); p.leadsToRelay(u) && (inHeader || u.ClientAddress == "none") {
			edgeOnly = true
		}
	}
	if edgeOnly {
		// The edge has capped the clients already, or is the only one that is seen.
		if !doc.Written("relay.limits.max_connections_per_ip") {
			p.Relay.Limits.MaxConnectionsPerIP = 0
			p.adapted("relay.limits.max_connections_per_ip")
		}
		if !doc.Written("relay.limits.max_connections_per_ipv6_48") {
			p.Relay.Limits.MaxConnectionsPerIPv648 = 0
			p.adapted("relay.limits.max_connections_per_ipv6_48")
		}
	}
}

// adaptPair makes an upstream and the relay behind it speak alike.
func (p *Policy) adaptPair(doc *policyfile.Document, name string, u *upstream.Config) {
	if p.Relay.InProcess && !doc.Written("relay.proxy_protocol") {
		p.Relay.ProxyProtocol = true
		p.adapted("relay.proxy_protocol")
	}
	if !p.Relay.RequireChannelBinding {
		return
	}
	if !doc.Written(upstreamKey(name, "proxy_tlvs")) && !slices.Contains(u.ProxyTLVs, channelBinding) {
		u.ProxyTLVs = append(u.ProxyTLVs, channelBinding)
		p.adapted(upstreamKey(name, "proxy_tlvs"))
	}
	if !doc.Written(upstreamKey(name, "channel_binding_tlv")) {
		u.ChannelBindingTLV = p.Relay.ChannelBindingTLV
		p.adapted(upstreamKey(name, "channel_binding_tlv"))
	}
}

func upstreamKey(name, key string) string { return fmt.Sprintf("upstreams.%s.%s", name, key) }

// leadsToRelay reports whether the upstream's connections reach the relay of this very file.
func (p *Policy) leadsToRelay(u upstream.Config) bool {
	return p.relayWritten && slices.ContainsFunc(u.Addresses, func(a string) bool {
		return a == p.Relay.Bind || overlap(a, p.Relay.Bind)
	})
}

// dialable gives the address at which a bind is reached from its own machine.
// A bind of port 0 stays: its port is known only once it listens.
func dialable(bind string) string {
	b, err := hostport.ParseBind(bind)
	if err != nil || !b.Host.IsUnspecified() || b.Port == 0 {
		return bind
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(b.Port)))
}
