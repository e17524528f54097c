package main

import (
	"net/http"
	"net/netip"
	"sync/atomic"

	"relayedge/admission"
	"relayedge/admission/httpguard"
	"relayedge/admission/succession"
	"relayedge/cmd/internal/policy"
	"relayedge/cmd/internal/service"
	"relayedge/proxy"
)

// requestGuard is the request limit of the edge's HTTP mode. Its counts survive
// a reload.
type requestGuard struct {
	*httpguard.Guard
	windows  *admission.FixedWindows        // that count in this process; nil: a store does
	embedded atomic.Pointer[[]netip.Prefix] // limits.embedded_ipv4 in force
}

// newRequestGuard returns the guard of a policy. secret is that of its keys, unless a
// store has one.
func newRequestGuard(p *policy.Policy, store *service.Store, secret []byte) (*requestGuard, error) {
	g := new(requestGuard)
	g.embedded.Store(&p.Limits.EmbeddedIPv4)
	options := httpguard.Options{
		Addr:      g.host,
		RequestID: func(r *http.Request) string { return r.Header.Get(proxy.RequestID) },
	}
	if !store.Shared() {
		g.windows = admission.NewFixedWindows(int64(p.RequestLimits.Limit), p.RequestLimits.Window())
		options.Windows, options.Keys = g.windows, admission.NewKeyMaker(secret)
	}
	store.Guard(policy.Edge.String(), p.RequestLimits, &options)
	var err error
	g.Guard, err = httpguard.New(p.RequestLimits, options)
	return g, err
}

// host is an address of the host that a request comes from: the edge has made the
// request's peer the client, whatever stands between them.
func (g *requestGuard) host(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr) // a peer on a unix socket has none
	host, _ := admission.Keys(peer.Addr(), *g.embedded.Load())
	return host.Addr()
}

// apply puts the limits of a policy in force that has been judged.
func (g *requestGuard) apply(p *policy.Policy) {
	g.embedded.Store(&p.Limits.EmbeddedIPv4)
	if err := g.SetConfig(p.RequestLimits); err != nil {
		panic("relayedge: request_limits that the policy let pass: " + err.Error())
	}
}

// requests is what of it is handed to the next process.
func (g *requestGuard) requests() succession.Requests {
	return succession.Requests{Windows: g.windows, Credentials: g.Credentials()}
}
