package policy

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"relayedge/internal/policyfile"
	"relayedge/proxy/upstream"
)

// judgement collects what the sections do to each other. Its faults reach the
// document at the end, so that one of them does not keep a section from being
// looked at for the next.
type judgement struct {
	*Policy
	doc    *policyfile.Document
	faults []finding
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
	names := slices.Sorted(maps.Keys(j.Upstreams))
	for i, l := range j.Listeners {
		if _, ok := j.Upstreams[l.Upstream]; ok || !j.clean(i, "upstream") {
			continue
		}
		meant := ""
		if near := policyfile.Nearest(l.Upstream, names); near != "" {
			meant = fmt.Sprintf("; did you mean %s?", near)
		}
		j.fault(fmt.Sprintf("listeners[%d].upstream", i), "there is no upstream %q%s; written under upstreams: %s",
			l.Upstream, meant, strings.Join(names, ", "))
	}
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
	if len(j.Certificates.Files) > 0 || len(j.Certificates.SelfIssued) > 0 {
		return
	}
	for i, l := range j.Listeners {
		if l.TLS == "terminate" && j.clean(i, "tls") {
			j.fault(fmt.Sprintf("listeners[%d].tls", i),
				"terminate needs a certificate; write certificates.files, or certificates.self_issued for development, or tls: none here")
		}
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
	if j.Metrics.Enabled && len(j.Listeners) > 0 {
		add("metrics.bind_addr", j.Metrics.BindAddr)
	}
	if j.relayWritten {
		add("relay.bind", j.Relay.Bind)
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

// overlap reports whether two sockets cannot both listen: the same address, or
// the same port where one takes all addresses. Port 0 is a free one each time.
func overlap(a, b string) bool {
	hostA, portA, okA := splitAddress(a)
	hostB, portB, okB := splitAddress(b)
	if !okA || !okB {
		return a == b
	}
	if portA != portB || portA == 0 {
		return false
	}
	all, all4 := netip.IPv6Unspecified(), netip.IPv4Unspecified()
	covers := func(x, y netip.Addr) bool { return x == y || x == all || x == all4 && y.Is4() }
	return covers(hostA, hostB) || covers(hostB, hostA)
}

// splitAddress reads host:port; no host is every address, as [::] is.
func splitAddress(address string) (host netip.Addr, port uint16, ok bool) {
	name, number, err := net.SplitHostPort(address)
	if err != nil {
		return netip.Addr{}, 0, false
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return netip.Addr{}, 0, false
	}
	switch name {
	case "":
		return netip.IPv6Unspecified(), uint16(n), true
	case "localhost":
		name = "127.0.0.1"
	}
	host, err = netip.ParseAddr(name)
	return host.Unmap(), uint16(n), err == nil
}

// relayPath holds the upstreams that lead from a listener to this file's relay
// against what that relay expects.
func (j *judgement) relayPath() {
	leading := map[string]bool{}
	for i, l := range j.Listeners {
		u, ok := j.Upstreams[l.Upstream]
		if !ok || !j.leadsToRelay(u) {
			continue
		}
		if !leading[l.Upstream] {
			leading[l.Upstream] = true
			j.pair(l.Upstream, u)
		}
		if l.TLS == "none" && j.Relay.ProxyProtocol && j.Relay.RequireChannelBinding {
			j.fault(fmt.Sprintf("listeners[%d].tls", i),
				"without TLS there is no session to bind a proof of identity to, which the relay behind it requires; write tls: terminate, or relay.require_channel_binding: false")
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
	host, _, ok := splitAddress(j.Relay.Bind)
	if !ok || !host.IsLoopback() {
		return
	}
	if !slices.ContainsFunc(j.Relay.TrustProxyFrom, func(n netip.Prefix) bool { return n.Contains(host) }) {
		j.fault("relay.trust_proxy_from", "does not contain %s, from where this process's edge connects; add it, or leave the key out", host)
	}
}
