package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"relayedge/cmd/internal/policy"
	"relayedge/internal/hostport"
	"relayedge/internal/policyfile"
	"relayedge/proxy/upstream"
)

// quickFlags are the common case without a policy file.
type quickFlags struct {
	listen, upstream, clientAddress, cert, key string
	domains                                    []string
}

// quickNames are the flags that stand in for a file.
var quickNames = []string{"listen", "upstream", "client-address", "cert", "key", "domain"}

func (q *quickFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&q.listen, "listen", "127.0.0.1:8443", "where TLS is served, host:port, unix:/path or fd:NAME")
	f.StringVar(&q.upstream, "upstream", "", "the relay, host:port or unix:/path; without it a relay runs inside this process")
	f.StringVar(&q.clientAddress, "client-address", "proxy-v2", "how the relay learns the client's address: proxy-v2, proxy-v1 or none; or x-forwarded-for or x-real-ip, for which requests are parsed (HTTP)")
	f.StringVar(&q.cert, "cert", "", "PEM file of the certificate and its intermediates; without it one is made for localhost")
	f.StringArrayVar(&q.domains, "domain", nil, "a public name of this machine, whose certificate is ordered from Let's Encrypt: by this flag you agree to its terms of service; TLS is then served on [::]:443, and [::]:80 redirects; may be repeated")
	f.StringVar(&q.key, "key", "", "PEM file of the certificate's private key")
}

// policy is the policy file that the flags stand for, read as one: the same
// defaults, ranges and judgements. given tells which flags stand on the command line.
func (q *quickFlags) policy(given func(flag string) bool) (*policy.Policy, error) {
	if len(q.domains) > 0 && !given("listen") {
		q.listen = "[::]:443" // where the CA looks
	}
	if _, err := hostport.ParseBind(q.listen); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if q.upstream != "" {
		if err := hostport.CheckTarget(q.upstream); err != nil {
			return nil, fmt.Errorf("--upstream: %w", err)
		}
	}
	if (q.cert == "") != (q.key == "") {
		return nil, errors.New("--cert and --key go together: the certificate with its intermediates, and its private key")
	}
	if q.cert != "" && len(q.domains) > 0 {
		return nil, errors.New("--domain orders a certificate, and --cert brings one; a policy file can have both")
	}
	if q.upstream == "" && q.clientAddress != "proxy-v2" {
		return nil, errors.New("--client-address is for an existing relay; name it with --upstream host:port or unix:/path")
	}
	type m = map[string]any
	certificates := m{"self_issued": selfIssuedNames(q.listen)}
	if q.cert != "" {
		cert, err := filepath.Abs(q.cert)
		if err != nil {
			return nil, err
		}
		key, err := filepath.Abs(q.key)
		if err != nil {
			return nil, err
		}
		certificates = m{"files": []m{{"certificate": cert, "key": key}}}
	}
	if len(q.domains) > 0 {
		certificates = m{"acme": m{"domains": q.domains, "agree_to_terms": true}}
	}
	listener := m{"name": "public", "bind": q.listen}
	if _, inHeader := upstream.HeaderField(q.clientAddress); inHeader {
		listener["protocol"] = "http"
	}
	file := m{
		"listeners":    []m{listener},
		"certificates": certificates,
	}
	if q.upstream == "" {
		file["relay"] = m{"in_process": true, "bind": "127.0.0.1:0"}
	} else {
		relay, err := hostport.AbsTarget(q.upstream)
		if err != nil {
			return nil, err
		}
		file["upstreams"] = m{policy.DefaultUpstream: m{
			"addresses": []string{relay}, "client_address": q.clientAddress,
			// relaycore asks for the channel binding; others skip what they do not know.
			"proxy_tlvs": []string{"alpn", "authority", "ssl", "unique_id", "crc32c", "channel_binding"},
		}}
	}
	src, err := yaml.Marshal(file)
	if err != nil {
		return nil, err
	}
	p, err := policy.LoadBytes("command line", src)
	if err != nil {
		return nil, ofFlags(err)
	}
	flags := map[string]string{}
	for flag, key := range flagKeys {
		if given(flag) {
			flags[key] = "--" + flag
		}
	}
	p.FromFlags(flags)
	return p, p.TakeEnvironment(os.LookupEnv)
}

// flagKeys are the policy's keys that the flags stand for.
var flagKeys = map[string]string{
	"listen": "listeners[0].bind", "upstream": "upstreams.relay.addresses",
	"client-address": "upstreams.relay.client_address", "cert": "certificates.files", "key": "certificates.files[0].key", "domain": "certificates.acme.domains",
}

// ofFlags gives the faults of the policy that flags stand for the place that its
// writer knows: the flag.
func ofFlags(err error) error {
	faults, ok := errors.AsType[policyfile.Faults](err)
	if !ok {
		return err
	}
	for i := range faults {
		f := &faults[i]
		f.Line, f.Column = 0, 0
		for flag, key := range flagKeys {
			if rest, of := strings.CutPrefix(f.Key, key); of && (rest == "" || rest[0] == '[') {
				f.File, f.Key = "--"+flag, ""
				break
			}
		}
	}
	return faults
}

// selfIssuedNames are the names under which this machine reaches the listener.
func selfIssuedNames(listen string) []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	host, _, _ := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() && !ip.IsLoopback() {
		names = append(names, ip.String())
	}
	return names
}
