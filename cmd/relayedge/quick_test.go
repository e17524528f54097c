package main

import (
	"strings"
	"testing"
)

func TestDomainFlag(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flags quickFlags
		bind  string
		fault string
	}{
		{"a name", quickFlags{listen: "127.0.0.1:8443", domains: []string{"relay.example.org"}}, "[::]:443", ""},
		{"two, elsewhere", quickFlags{listen: "0.0.0.0:8443", domains: []string{"a.example.org", "b.example.org"}}, "0.0.0.0:8443", ""},
		{"a relay that is there", quickFlags{listen: "127.0.0.1:8443", upstream: "127.0.0.1:7777", domains: []string{"a.example.org"}}, "[::]:443", ""},
		{"a wildcard", quickFlags{listen: "127.0.0.1:8443", domains: []string{"a.example.org", "*.example.org"}}, "", `--domain: "*.example.org": CAs give`},
		{"no public name", quickFlags{listen: "127.0.0.1:8443", domains: []string{"localhost"}}, "", `--domain: "localhost" is no public name`},
		{"beside files", quickFlags{listen: "127.0.0.1:8443", cert: "c", key: "k", domains: []string{"a.example.org"}}, "", "--domain orders a certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.flags.clientAddress = "proxy-v2"
			p, err := tt.flags.policy(func(flag string) bool { return flag == "listen" && tt.flags.listen != "127.0.0.1:8443" })
			if tt.fault != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fault) {
					t.Errorf("%v, want %q", err, tt.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			acme := p.Certificates.ACME
			if p.Listeners[0].Bind != tt.bind || strings.Join(acme.Domains, " ") != strings.Join(tt.flags.domains, " ") ||
				!acme.AgreeToTerms || acme.DirectoryURL != "" || !acme.UsesHTTP() || !acme.UsesTLS() || len(p.Certificates.SelfIssued) != 0 {
				t.Errorf("on %s: %+v", p.Listeners[0].Bind, p.Certificates)
			}
		})
	}
}

// A fault is said of the flag, as whoever wrote it knows no policy file.
func TestFaultsOfFlags(t *testing.T) {
	for _, tt := range []struct {
		flags quickFlags
		says  string
	}{
		{quickFlags{listen: "127.0.0.1:8443", upstream: "127.0.0.1:7777", clientAddress: "bogus"},
			`--client-address: "bogus" is not allowed; allowed: proxy-v2, proxy-v1, x-forwarded-for, x-real-ip, none`},
		{quickFlags{listen: "127.0.0.1:8443", upstream: "127.0.0.1:7777", clientAddress: "bogus", domains: []string{"a.example.org", "192.0.2.1"}},
			"--domain: \"192.0.2.1\" is an IP address; only DNS names are ordered\n--client-address: \"bogus\" is not allowed; allowed: proxy-v2, proxy-v1, x-forwarded-for, x-real-ip, none"},
	} {
		if _, err := tt.flags.policy(func(string) bool { return true }); err == nil || err.Error() != tt.says {
			t.Errorf("%+v: %v\nwant %s", tt.flags, err, tt.says)
		}
	}
}
