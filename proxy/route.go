package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"relayedge/proxy/certs"
	"relayedge/proxy/upstream"
)

// route is where a listener's connections of some server names go.
type route struct {
	upstream *upstream.Upstream
	speaks   []string    // the application protocols of the upstream; none: all
	tls      *tls.Config // offers what the upstream speaks; nil where TLS does not end here
}

// routes are a listener's routes by server name. They never change.
type routes struct {
	exact    map[string]*route
	wildcard map[string]*route // for names of one more label than the key
	fallback *route            // for all other names, and for none; nil: those are not served
	all      []*route          // each of them once
}

// newRoutes resolves a listener's upstreams; routes to one upstream are one.
func newRoutes(cfg ListenerConfig, upstreams map[string]*destination) (routes, error) {
	r := routes{exact: make(map[string]*route), wildcard: make(map[string]*route)}
	byUpstream := make(map[string]*route)
	to := func(name string) (*route, error) {
		up := upstreams[name]
		if up == nil {
			return nil, fmt.Errorf("no upstream is named %q", name)
		}
		if byUpstream[name] == nil {
			byUpstream[name] = &route{upstream: up.Upstream, speaks: up.config.ALPN}
		}
		return byUpstream[name], nil
	}
	var err error
	if cfg.Upstream != "" {
		if r.fallback, err = to(cfg.Upstream); err != nil {
			return routes{}, err
		}
	}
	for pattern, name := range cfg.ServerNames {
		canonical, err := canonicalPattern(pattern)
		if err != nil {
			return routes{}, err
		}
		index := r.exact
		if parent, ok := strings.CutPrefix(canonical, "*."); ok {
			index, canonical = r.wildcard, parent
		}
		if index[canonical], err = to(name); err != nil {
			return routes{}, err
		}
	}
	r.all = slices.Collect(maps.Values(byUpstream))
	return r, nil
}

// find returns the route of a server name as the client sent it, the most
// specific first, or nil if it is not served. The text of an IP address is no
// name (RFC 6066, section 3), as it is none to certs.
func (r *routes) find(serverName string) *route {
	if len(r.exact) == 0 && len(r.wildcard) == 0 || serverName == "" || certs.IsAddress(serverName) {
		return r.fallback
	}
	var buf [certs.MaxNameLen]byte
	name, ok := certs.AppendName(buf[:0], serverName)
	if !ok {
		return r.fallback
	}
	if route, ok := r.exact[string(name)]; ok {
		return route
	}
	if _, parent, ok := strings.Cut(string(name), "."); ok {
		if route, ok := r.wildcard[parent]; ok {
			return route
		}
	}
	return r.fallback
}

// canonicalPattern is the form in which a key of server_names is compared: a DNS
// name, or a wildcard in place of its first label.
func canonicalPattern(written string) (string, error) {
	parent, wildcard := strings.CutPrefix(written, "*.")
	switch {
	case strings.Contains(parent, "*"):
		return "", fmt.Errorf("%q: a * stands alone as the left-most label, as in *.example.org", written)
	case strings.HasSuffix(written, "."):
		return "", fmt.Errorf("%q ends in a dot; write the name without it", written)
	case strings.ContainsFunc(written, func(r rune) bool { return r > 0x7f }):
		return "", fmt.Errorf("%q is not ASCII; write an international name in its xn-- form", written)
	case certs.IsAddress(written):
		return "", fmt.Errorf("%q is an address, and clients name none; those that connect by address go to the listener's upstream", written)
	}
	name, ok := certs.AppendName(nil, parent)
	if !ok || wildcard && len(name)+2 > certs.MaxNameLen {
		return "", fmt.Errorf("%q is no DNS name; write one, as in irc.example.org or *.example.org", written)
	}
	if wildcard {
		return "*." + string(name), nil
	}
	return string(name), nil
}

// offer is what a listener offers by ALPN for an upstream: what both speak, in
// the listener's order. An upstream that names no protocol speaks them all.
func offer(listener, upstream []string) []string {
	if len(upstream) == 0 {
		return listener
	}
	var both []string
	for _, p := range listener {
		if slices.Contains(upstream, p) {
			both = append(both, p)
		}
	}
	return both
}

// warnOfUncovered tells of names that are routed and that no certificate covers.
// It is no fault: certificates come and change while the edge runs.
func (t *terms) warnOfUncovered(certificate chooseCertificate, log *slog.Logger) {
	if t.config.TLS != "terminate" {
		return
	}
	for _, pattern := range slices.Sorted(maps.Keys(t.config.ServerNames)) {
		name := pattern
		if parent, ok := strings.CutPrefix(pattern, "*."); ok {
			name = "any." + parent
		}
		if _, err := certificate(&tls.ClientHelloInfo{ServerName: name}); errors.Is(err, certs.ErrUnknownName) {
			log.Warn("no certificate covers a name of server_names: clients that ask for it are refused", "listener", t.config.Name, "server_name", pattern)
		}
	}
}
