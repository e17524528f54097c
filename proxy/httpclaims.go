package proxy

import (
	"net/http"
	"slices"
	"strings"
)

// claims are the header fields by which proxies tell a server of its client, in
// the form of spelling. What a client says in them of itself is for nobody: the
// edge takes them off each request, and sets those that it vouches for.
var claims = []string{
	// Who the client is.
	"forwarded", "via", "x-via", "x-forward", "x-forwarded", "x-forward-for", "x-forwarder-for", "x-forwared-for",
	"client-ip", "http-client-ip", "true-client-ip", "proxy-client-ip", "wl-proxy-client-ip",
	"x-ip", "x-client-ip", "x-clientip", "x-realip", "x-true-ip", "x-true-client-ip", "x-source-ip", "x-user-ip", "x-peer-ip",
	"x-end-user-ip", "x-proxy-user-ip", "x-custom-ip-authorization", "x-coming-from",
	"cf-connecting-ip", "cf-connecting-ipv6", "cf-pseudo-ipv4", "cf-ipcountry", "fastly-client", "fastly-client-ip", "fly-client-ip",
	"akamai-client-ip", "ali-cdn-real-ip", "cdn-src-ip", "x-cdn-src-ip", "incap-client-ip", "do-connecting-ip", "stackpath-client-ip",
	"x-vercel-forwarded-for", "x-nf-client-connection-ip",
	// How it came: its protocol, name and path, and its certificate.
	"cf-visitor", "fastly-ssl", "front-end-https", "wl-proxy-ssl", "x-host", "x-scheme", "x-proto", "x-url-scheme", "x-rewrite-url",
	"client-cert", "client-cert-chain", "x-client-cert", "x-client-verify", "x-client-dn", "x-client-s-dn",
	"x-request-id",
	// Servers that run CGI programs hand it them as HTTP_PROXY.
	"proxy",
}

// claimFamilies are claims too, whatever follows.
var claimFamilies = []string{
	"x-forwarded-", "x-real-", "x-original-", "x-originating-", "x-remote-", "remote-", "x-cluster-client-", "x-proxyuser-",
	"x-azure-client", "x-azure-socket", "x-appengine-", "x-envoy-", "x-arr-", "x-vercel-ip-", "fly-forwarded-",
	"x-ssl-", "ssl-client-", "x-tls-", "x-http-forwarded-", "http-x-", "http-forwarded", "http-via",
}

// isClaim reports whether a field name is one of them, however it is spelled:
// servers that hand fields on as variables make one character of - and _ and
// whatever else is neither letter nor digit.
func isClaim(name string) bool {
	name = spelling(name)
	return slices.Contains(claims, name) || slices.ContainsFunc(claimFamilies, func(family string) bool { return strings.HasPrefix(name, family) })
}

// spelling is a field name in lower case, with - for all that is neither letter
// nor digit.
func spelling(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + ('a' - 'A')
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, name)
}

// disclaim takes the claims off a header.
func disclaim(header http.Header) {
	for name := range header {
		if isClaim(name) {
			delete(header, name)
		}
	}
}
