package policy

import (
	"strings"
	"testing"
)

// What certificates.acme asks of the rest of the file.
func TestACMEWithTheRest(t *testing.T) {
	section := func(more string) string {
		return "certificates: {acme: {domains: [a.example.org], agree_to_terms: true" + more + "}}\n"
	}
	for _, row := range []struct {
		name, src string
		want      []string // beginnings of the faults; none: the policy is good
	}{
		{"alone", section("") + `listeners: [{name: a, bind: "[::]:443"}]`, nil},
		{"for a relay alone", section("") + "relay: {}", nil},
		{"no consent", "certificates: {acme: {domains: [a.example.org]}}\nlisteners: [{name: a, bind: \":1\"}]",
			[]string{"p.yaml:1:16: certificates.acme.agree_to_terms: is false"}},
		{"wildcard", "certificates: {acme: {domains: [\"*.example.org\"], agree_to_terms: true}}\nlisteners: [{name: a, bind: \":1\"}]",
			[]string{`p.yaml:1:33: certificates.acme.domains[0]: "*.example.org": CAs give wildcards`}},
		{"consent to nothing", "certificates: {acme: {agree_to_terms: true}, self_issued: [a]}\nlisteners: [{name: a, bind: \":1\"}]",
			[]string{"p.yaml:1:16: certificates.acme.domains: is empty, so nothing is ordered"}},
		{"http_bind on a listener's port", section("") + `listeners: [{name: a, bind: ":80"}]`,
			[]string{`p.yaml:2:29: listeners[0].bind: ":80" is taken by certificates.acme.http_bind ([::]:80)`}},
		{"http_bind that is not used", section(", challenges: [tls-alpn-01]") + `listeners: [{name: a, bind: ":80"}]`, nil},
		{"nobody to answer tls-alpn-01", section(", challenges: [tls-alpn-01]") + `listeners: [{name: a, bind: ":1", tls: none}]`,
			[]string{"p.yaml:1:71: certificates.acme.challenges: tls-alpn-01 is answered by a listener with tls: terminate"}},
		{"nobody to answer tls-alpn-01, but http-01", section("") + `listeners: [{name: a, bind: ":1", tls: none}]`, nil},
		{"the CA's own protocol", section("") + `listeners: [{name: a, bind: ":1", alpn: [irc, acme-tls/1]}]`,
			[]string{"p.yaml:2:35: listeners[0].alpn: acme-tls/1 is answered by certificates.acme"}},
		{"redis without a store", section(", storage: redis") + `listeners: [{name: a, bind: ":1"}]`,
			[]string{"p.yaml:1:80: certificates.acme.storage: is redis, and the section redis has no url"}},
		{"redis", section(", storage: redis") + `listeners: [{name: a, bind: ":1"}]` + "\nredis: {url: \"redis://127.0.0.1\", secret_file: /s}", nil},
		{"a folder of that name", section(", storage: ./redis") + `listeners: [{name: a, bind: ":1"}]`, nil},
		{"unknown challenge", section(", challenges: [dns-01]") + `listeners: [{name: a, bind: ":1"}]`,
			[]string{"p.yaml:1:84: certificates.acme.challenges[0]: "}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := faultsOf(t, row.src)
			ok := len(got) == len(row.want)
			for i := range min(len(got), len(row.want)) {
				ok = ok && strings.HasPrefix(got[i], row.want[i])
			}
			if !ok {
				t.Errorf("faults:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(row.want, "\n"))
			}
		})
	}
}
