package certs

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"relayedge/internal/hostport"
	"relayedge/internal/keyfault"
)

// The challenges that the edge answers, in the words of RFC 8737 and RFC 8555.
const (
	challengeALPN = "tls-alpn-01"
	challengeHTTP = "http-01"
)

const (
	// letsEncrypt is the directory where none is written.
	letsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"
	// maxDomains keeps what a start may ask of a CA in proportion: Let's Encrypt
	// takes 300 orders in three hours from one account.
	maxDomains    = 100
	maxEmailLen   = 254
	maxEABKeyID   = 256
	maxSecretFile = 4 << 10
)

// ACME is the acme section of certificates: names whose certificates come from
// a certificate authority, over RFC 8555. Without domains it is off.
type ACME struct {
	Domains      []string `key:"domains" default:"[]" doc:"names whose certificates are ordered from a CA, each its own; no other name is ever ordered"`
	Email        string   `key:"email" default:"" doc:"where the CA may write to; empty: it gets no address"`
	AgreeToTerms bool     `key:"agree_to_terms" default:"false" doc:"you agree to the CA's terms of service; nothing is ordered without"`
	DirectoryURL string   `key:"directory_url" default:"" doc:"the CA's ACME directory, https; empty: Let's Encrypt"`
	CARootFile   string   `key:"ca_root_file" default:"" path:"true" doc:"PEM file of the roots trusted for the CA's own server, for a private CA; empty: those of the system"`
	EABKeyID     string   `key:"eab_key_id" default:"" doc:"key identifier of the external account binding, where the CA asks for one"`
	EABKeyFile   string   `key:"eab_key_file" default:"" path:"true" doc:"file with the key of the external account binding, in base64url as the CA gives it"`
	Challenges   []string `key:"challenges" default:"[tls-alpn-01, http-01]" enum:"tls-alpn-01|http-01" doc:"how the CA is shown that the names are ours, in this order"`
	HTTPBind     string   `key:"http_bind" default:"[::]:80" doc:"where http-01 is answered, host:port; everything else there is redirected to https"`
	Storage      string   `key:"storage" default:"/var/lib/relayedge" path:"true" word:"redis" doc:"folder for certificates, their keys and the account, which must outlast restarts; or redis: the store of the redis section, which all edges of a fleet share"`
}

// Enabled reports whether any name is to be ordered.
func (c ACME) Enabled() bool { return len(c.Domains) > 0 }

// storageRedis is the storage that is no folder.
const storageRedis = "redis"

// InRedis reports whether what is ordered is kept in the store that edges share.
func (c ACME) InRedis() bool { return c.Storage == storageRedis }

// directory is the CA's, written or not.
func (c ACME) directory() string { return cmp.Or(c.DirectoryURL, letsEncrypt) }

// UsesHTTP reports whether http_bind is to be served.
func (c ACME) UsesHTTP() bool { return c.Enabled() && slices.Contains(c.Challenges, challengeHTTP) }

// UsesTLS reports whether a TLS listener is to answer challenges.
func (c ACME) UsesTLS() bool { return c.Enabled() && slices.Contains(c.Challenges, challengeALPN) }

// Validate judges the section alone, without opening a file. Without domains
// there is nothing to judge.
func (c ACME) Validate() error {
	if !c.Enabled() {
		return nil
	}
	var faults []error
	fault := func(key, format string, args ...any) {
		faults = append(faults, keyfault.New(key, format, args...))
	}
	if n := len(c.Domains); n > maxDomains {
		fault("domains", "has %d names, allowed are %d", n, maxDomains)
	}
	first := make(map[string]int)
	for i, written := range c.Domains {
		key := fmt.Sprintf("domains[%d]", i)
		name, err := orderableName(written)
		if err != nil {
			fault(key, "%v", err)
			continue
		}
		if c.DirectoryURL == "" && !public(name) {
			fault(key, "%q is no public name, and Let's Encrypt gives none other a certificate; write a name that the whole internet resolves, or the private CA's directory_url", written)
			continue
		}
		if at, twice := first[name]; twice {
			fault(key, "%q is domains[%d] already", written, at)
			continue
		}
		first[name] = i
	}
	if !c.AgreeToTerms {
		fault("agree_to_terms", "is false; read the CA's terms of service and write true, or take acme out")
	}
	if c.Email != "" && !plausibleEmail(c.Email) {
		fault("email", "%q is no e-mail address; write one, as in ops@example.org, or leave the key out", c.Email)
	}
	if u, err := url.Parse(c.DirectoryURL); c.DirectoryURL != "" && (err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil) {
		fault("directory_url", "%q is no https URL; write the CA's ACME directory, as in %s", c.DirectoryURL, letsEncrypt)
	}
	switch {
	case c.EABKeyID == "" && c.EABKeyFile != "":
		fault("eab_key_id", "is missing; it belongs to eab_key_file")
	case c.EABKeyID != "" && c.EABKeyFile == "":
		fault("eab_key_file", "is missing; it belongs to eab_key_id")
	case len(c.EABKeyID) > maxEABKeyID || strings.ContainsFunc(c.EABKeyID, func(r rune) bool { return r <= ' ' || r > '~' }):
		fault("eab_key_id", "is no key identifier; it is ASCII without spaces, up to %d bytes", maxEABKeyID)
	}
	if len(c.Challenges) == 0 {
		fault("challenges", "is empty; allowed are %s and %s", challengeALPN, challengeHTTP)
	}
	for i, name := range c.Challenges {
		if slices.Index(c.Challenges, name) < i {
			fault(fmt.Sprintf("challenges[%d]", i), "%s stands there already", name)
		}
	}
	if c.UsesHTTP() {
		if _, err := hostport.ParseBind(c.HTTPBind); err != nil {
			fault("http_bind", "%w", err)
		}
	}
	if c.Storage == "" {
		fault("storage", "is empty; name a folder that outlasts restarts, or write redis")
	}
	return errors.Join(faults...)
}

// orderableName returns the form in which a name of domains is ordered.
func orderableName(written string) (string, error) {
	if strings.HasPrefix(written, "*") {
		return "", fmt.Errorf("%q: CAs give wildcards for the dns-01 challenge alone, which is not answered here; write the names, or bring the certificate by files", written)
	}
	if _, err := netip.ParseAddr(strings.Trim(written, "[]")); err == nil {
		return "", fmt.Errorf("%q is an IP address; only DNS names are ordered", written)
	}
	name, err := issuableName(written)
	if err != nil {
		return "", err
	}
	return name, nil
}

// private are the top-level domains that no public CA certifies: those of RFC 6761
// and the special-use names of RFC 6762, 7686, 8375 and 9476, and ICANN's internal.
var private = []string{"alt", "example", "internal", "invalid", "local", "localhost", "onion", "test", "home.arpa"}

// public reports whether a name can be of the public DNS.
func public(name string) bool {
	return strings.Contains(name, ".") && !slices.ContainsFunc(private, func(domain string) bool { return strings.HasSuffix(name, "."+domain) })
}

// plausibleEmail takes what can stand in a mailto URL of one address.
func plausibleEmail(s string) bool {
	local, domain, ok := strings.Cut(s, "@")
	if !ok || local == "" || len(s) > maxEmailLen {
		return false
	}
	if strings.ContainsFunc(local, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`,?&%"<>()`, r) }) {
		return false
	}
	_, ok = canonicalName(domain)
	return ok
}
