package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"relayedge/admission"
	"relayedge/internal/control"
	"relayedge/internal/hostport"
	"relayedge/internal/policyfile"
	"relayedge/proxy"
	"relayedge/proxy/certs"
	"relayedge/proxy/upstream"
)

// judgement collects what the sections do to each other. Its faults reach the
// document at the end, so that one of them does not keep a section from being
// looked at for the next.
type judgement struct {
	*Policy
	doc    *policyfile.Document
	faults []finding
	told   map[string]bool // keys with a fault that several listeners would tell
}

type finding struct{ key, problem string }

func (j *judgement) fault(key, format string, args ...any) {
	j.faults = append(j.faults, finding{key, fmt.Sprintf(format, args...)})
}

// clean reports whether a key of a listener can be held against others.
func (j *judgement) clean(listener int, key string) bool {
	return j.doc.Clean(fmt.Sprintf("listeners[%d].%s", listener, key))
}

// judge holds the sections against each other. What has faults of its own is
// left out: what would follow from it is not known.
func (p *Policy) judge(doc *policyfile.Document) {
	j := &judgement{Policy: p, doc: doc}
	j.names()
	if len(p.Upstreams) > 0 { // their names are known, whatever is wrong inside
		j.routes()
	}
	if doc.Clean("certificates") {
		j.certificates()
	}
	j.loops()
	j.sockets()
	j.namespaces()
	j.drains()
	if doc.Clean("listeners") && doc.Clean("upstreams") && doc.Clean("relay") {
		j.relayPath()
	}
	for _, f := range j.faults {
		doc.Fault(f.key, "%s", f.problem)
	}
}

func (j *judgement) names() {
	first := map[string]int{}
	for i, l := range j.Listeners {
		if !j.clean(i, "name") {
			continue
		}
		at, twice := first[l.Name]
		if !twice {
			first[l.Name] = i
			continue
		}
		j.fault(fmt.Sprintf("listeners[%d].name", i), "%q is the name of listeners[%d] in line %d already; every listener has its own",
			l.Name, at, j.doc.Line(fmt.Sprintf("listeners[%d].name", at)))
	}
}

func (j *judgement) routes() {
	for i, l := range j.Listeners {
		key := fmt.Sprintf("listeners[%d].upstream", i)
		if l.Upstream != "" && j.clean(i, "upstream") {
			j.route(key, l.Upstream)
			j.protocols(i, key, l.Upstream)
			j.header(i, l.Upstream)
		}
		for _, name := range slices.Sorted(maps.Keys(l.ServerNames)) {
			if key := fmt.Sprintf("listeners[%d].server_names.%s", i, name); j.doc.Clean(key) {
				j.route(key, l.ServerNames[name])
				j.protocols(i, key, l.ServerNames[name])
				j.header(i, l.ServerNames[name])
			}
		}
	}
}

// route judges that an upstream exists.
func (j *judgement) route(key, upstream string) {
	if _, ok := j.Upstreams[upstream]; ok {
		return
	}
	names := slices.Sorted(maps.Keys(j.Upstreams))
	meant := ""
	if near := policyfile.Nearest(upstream, names); near != "" {
		meant = fmt.Sprintf("; did you mean %s?", near)
	}
	j.fault(key, "there is no upstream %q%s; written under upstreams: %s", upstream, meant, strings.Join(names, ", "))
}

// protocols judges that a listener has something to offer for an upstream. One
// that offers nothing to anybody agrees on nothing, which suits all.
func (j *judgement) protocols(listener int, key, upstream string) {
	l, speaks := j.Listeners[listener], j.Upstreams[upstream].ALPN
	if l.TLS != "terminate" || len(speaks) == 0 || len(l.ALPN) == 0 || !j.clean(listener, "alpn") || !j.clean(listener, "tls") || !j.doc.Clean(upstreamKey(upstream, "alpn")) {
		return
	}
	if !slices.ContainsFunc(l.ALPN, func(p string) bool { return slices.Contains(speaks, p) }) {
		j.fault(key, "the upstream %s speaks %s, of which this listener's alpn has none (%s); add one there", upstream, strings.Join(speaks, ", "), strings.Join(l.ALPN, ", "))
	}
}

// header judges that there are requests to tell an upstream of the client in.
func (j *judgement) header(listener int, upstreamName string) {
	key := upstreamKey(upstreamName, "client_address")
	u, l := j.Upstreams[upstreamName], j.Listeners[listener]
	field, inHeader := upstream.HeaderField(u.ClientAddress)
	if !inHeader || l.Protocol == "http" || !j.clean(listener, "protocol") || !j.doc.Clean(key) || j.told[key] {
		return
	}
	if j.told == nil {
		j.told = map[string]bool{}
	}
	j.told[key] = true
	j.fault(key, "%s stands in the header of each request, and listeners[%d] (%s) leads here with protocol: %s; write protocol: http there, or client_address: proxy-v2, proxy-v1 or none here",
		field, listener, l.Name, l.Protocol)
}

// leads are the upstreams that a listener's connections may go to.
func leads(l proxy.ListenerConfig) []string {
	to := slices.Collect(maps.Values(l.ServerNames))
	if l.Upstream != "" {
		to = append(to, l.Upstream)
	}
	slices.Sort(to)
	return slices.Compact(to)
}

// loops finds upstreams that lead back to a listener: a connection would go
// round until the descriptors are gone.
func (j *judgement) loops() {
	for _, name := range slices.Sorted(maps.Keys(j.Upstreams)) {
		key := upstreamKey(name, "addresses")
		if !j.doc.Clean(key) {
			continue
		}
		for i, l := range j.Listeners {
			if j.clean(i, "bind") && slices.ContainsFunc(j.Upstreams[name].Addresses, func(a string) bool { return overlap(a, l.Bind) }) {
				j.fault(key, "leads back to listeners[%d] (%s); write the relay's own address", i, l.Bind)
				break
			}
		}
	}
}

func (j *judgement) certificates() {
	j.acme()
	if len(j.Certificates.Files) > 0 || len(j.Certificates.SelfIssued) > 0 || j.Certificates.ACME.Enabled() {
		return
	}
	for i, l := range j.Listeners {
		if l.TLS == "terminate" && j.clean(i, "tls") {
			j.fault(fmt.Sprintf("listeners[%d].tls", i),
				"terminate needs a certificate; write certificates.files or certificates.acme, or certificates.self_issued for development, or tls: none here")
		}
	}
}

// acme holds the names that are ordered against the listeners that answer the CA.
func (j *judgement) acme() {
	const section = "certificates.acme"
	acme := j.Certificates.ACME
	if !acme.Enabled() {
		if acme.AgreeToTerms {
			j.fault(section+".domains", "is empty, so nothing is ordered; name at least one, or take acme out")
		}
		return
	}
	if acme.InRedis() && !j.Redis.Enabled() && j.doc.Clean("redis") {
		j.fault(section+".storage", "is redis, and the section redis has no url; write it, as in redis: {url: redis://127.0.0.1:6379, secret_file: /etc/relayedge/redis.secret}, or name a folder (./redis is one)")
	}
	answers := false
	for i, l := range j.Listeners {
		if l.TLS != "terminate" || !j.clean(i, "tls") {
			continue
		}
		answers = true
		if slices.Contains(l.ALPN, certs.ValidationProtocol) {
			j.fault(fmt.Sprintf("listeners[%d].alpn", i), "%s is answered by certificates.acme and never reaches a relay; take it out", certs.ValidationProtocol)
		}
	}
	if len(j.Listeners) > 0 && !answers && acme.UsesTLS() && !acme.UsesHTTP() {
		j.fault(section+".challenges", "tls-alpn-01 is answered by a listener with tls: terminate, and there is none; write one, or add http-01")
	}
}

// socket is an address that a process of this policy listens on.
type socket struct{ key, bind string }

// sockets finds addresses that two sockets of this policy would fight for.
func (j *judgement) sockets() {
	var sockets []socket
	add := func(key, bind string) {
		if j.doc.Clean(key) {
			sockets = append(sockets, socket{key, bind})
		}
	}
	for i, l := range j.Listeners {
		add(fmt.Sprintf("listeners[%d].bind", i), l.Bind)
	}
	if len(j.Listeners) > 0 && j.Certificates.ACME.UsesHTTP() {
		add("certificates.acme.http_bind", j.Certificates.ACME.HTTPBind)
	}
	if j.Metrics.Enabled && len(j.Listeners) > 0 {
		add("metrics.bind_addr", j.Metrics.BindAddr)
	}
	if j.Control.Socket != "" && len(j.Listeners) > 0 {
		add("control.socket", j.Control.Bind())
	}
	if j.relayWritten {
		add("relay.bind", j.Relay.Bind)
		if relay := control.Config(j.Relay.Control); relay.Socket != "" && !j.Relay.InProcess {
			add("relay.control.socket", relay.Bind())
		}
		if j.Relay.Metrics.Enabled && !j.Relay.InProcess {
			add("relay.metrics.bind_addr", j.Relay.Metrics.BindAddr)
		}
	}
	for i, s := range sockets {
		for _, before := range sockets[:i] {
			if overlap(s.bind, before.bind) {
				at, taker := s, before
				if !j.doc.Written(at.key) && j.doc.Written(taker.key) {
					at, taker = taker, at
				}
				j.fault(at.key, "%q is taken by %s (%s); every socket has its own address", at.bind, taker.key, taker.bind)
				break
			}
		}
	}
}

// namespaces finds metrics of the edge and of its relay under one name: in
// process they stand on one endpoint.
func (j *judgement) namespaces() {
	const key = "relay.metrics.namespace"
	if j.Relay.InProcess && j.Metrics.Enabled && j.Metrics.Namespace == j.Relay.Metrics.Namespace && j.doc.Clean(key) && j.doc.Clean("metrics.namespace") {
		j.fault(key, "%q is the edge's namespace too, and both stand on one endpoint; write another", j.Relay.Metrics.Namespace)
	}
}

// overlap reports whether two addresses of the policy are one socket's, as
// hostport says. What is no bind (the name of another machine) overlaps nothing.
func overlap(a, b string) bool {
	x, errX := hostport.ParseBind(a)
	y, errY := hostport.ParseBind(b)
	if errX != nil || errY != nil {
		return a == b
	}
	return x.Overlaps(y)
}

// relayPath holds the upstreams that lead from a listener to this file's relay
// against what that relay expects.
func (j *judgement) relayPath() {
	leading := map[string]bool{}
	for i, l := range j.Listeners {
		toRelay := false
		for _, name := range leads(l) {
			u, ok := j.Upstreams[name]
			if !ok || !j.leadsToRelay(u) {
				continue
			}
			toRelay = true
			if !leading[name] {
				leading[name] = true
				j.pair(name, u)
			}
		}
		tls := fmt.Sprintf("listeners[%d].tls", i)
		switch {
		case toRelay && l.TLS == "passthrough":
			j.fault(tls, "passthrough leaves TLS to the relay, and relaycore ends none; write tls: terminate for the listener that leads to it")
		case toRelay && l.TLS == "none" && j.Relay.ProxyProtocol && j.Relay.RequireChannelBinding:
			j.fault(tls, "without TLS there is no session to bind a proof of identity to, which the relay behind it requires; write tls: terminate, or relay.require_channel_binding: false")
		}
	}
	if !j.Relay.InProcess || len(j.Listeners) == 0 {
		return
	}
	if len(leading) == 0 {
		j.fault("relay.in_process", "no listener leads to this relay; take the addresses of its upstream out, or write %s there", j.Relay.Bind)
	}
	if j.Relay.ProxyProtocol {
		j.trust()
	}
}

func (j *judgement) pair(name string, u upstream.Config) {
	if u.ClientAddress == proxyV1 {
		j.fault(upstreamKey(name, "client_address"), "this relay reads PROXY v2 headers alone; write proxy-v2, and relay.proxy_protocol: true")
		return
	}
	if sends := u.ClientAddress == proxyV2; sends != j.Relay.ProxyProtocol {
		key := upstreamKey(name, "client_address")
		if !j.doc.Written(key) {
			key = "relay.proxy_protocol"
		}
		if sends {
			j.fault(key, "the upstream %s sends a PROXY v2 header that this relay does not expect; write relay.proxy_protocol: true, or client_address: none for the upstream", name)
		} else {
			j.fault(key, "the upstream %s sends no PROXY v2 header, which this relay requires; write client_address: proxy-v2 for the upstream, or relay.proxy_protocol: false", name)
		}
		return
	}
	if u.ClientAddress != proxyV2 || !j.Relay.RequireChannelBinding {
		return
	}
	if !slices.Contains(u.ProxyTLVs, channelBinding) {
		j.fault(upstreamKey(name, "proxy_tlvs"), "channel_binding is missing, which the relay requires behind this upstream; add it, or write relay.require_channel_binding: false")
	} else if u.ChannelBindingTLV != j.Relay.ChannelBindingTLV {
		j.fault(upstreamKey(name, "channel_binding_tlv"), "%d is not the type that the relay reads; write relay.channel_binding_tlv (%d) here too", u.ChannelBindingTLV, j.Relay.ChannelBindingTLV)
	}
}

// trust looks whether the relay would believe the edge in its own process.
func (j *judgement) trust() {
	bind, err := hostport.ParseBind(j.Relay.Bind)
	if err != nil || !bind.Host.IsLoopback() { // who connects to a unix socket is believed for its permissions
		return
	}
	if !admission.NewNetworks(j.Relay.TrustProxyFrom).Contains(bind.Host) {
		j.fault("relay.trust_proxy_from", "does not contain %s, from where this process's edge connects; add it, or leave the key out", bind.Host)
	}
}
