package policy

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestRoutesByServerName(t *testing.T) {
	const certificate = "certificates: {self_issued: [localhost]}\n"
	const upstreams = "upstreams: {relay: {addresses: [\"127.0.0.1:1\"]}, irc: {addresses: [\"127.0.0.1:2\"], alpn: [irc]}, web: {addresses: [\"127.0.0.1:3\"], client_address: x-real-ip}}\n"
	listener := func(rest string) string {
		return certificate + upstreams + "listeners: [{name: a, bind: \":8443\", " + rest + "}]"
	}
	for _, row := range []struct{ name, src, want string }{
		{"exact and wildcard", listener(`alpn: [irc, http/1.1], server_names: {irc.example.org: irc, "*.example.org": relay}`), ""},
		{"only listed names", listener(`upstream: "", server_names: {relay.example.org: relay}`), ""},
		{"nobody at all", listener(`upstream: ""`), "listeners[0].upstream: is empty, so nobody is served"},
		{"no such upstream", listener(`server_names: {irc.example.org: icr}`), `listeners[0].server_names.irc.example.org: there is no upstream "icr"; did you mean irc?`},
		{"no TLS, no name", listener(`tls: none, server_names: {irc.example.org: relay}`), "listeners[0].server_names: without TLS"},
		{"one name twice", listener(`server_names: {irc.example.org: relay, IRC.example.org: relay}`), "listeners[0].server_names.irc.example.org: is the same name as IRC.example.org"},
		{"one wildcard twice", listener(`server_names: {"*.example.org": relay, "*.Example.org": relay}`), "is the same name as"},
		{"a name that is none", listener(`server_names: {irc_.-x: relay}`), "is no DNS name"},
		{"a dotted name", listener(`server_names: {irc.example.org.: relay}`), "ends in a dot"},
		{"an address", listener(`server_names: {192.0.2.1: relay}`), "is an address"},
		{"a star inside", listener(`server_names: {"a.*.example.org": relay}`), "stands alone as the left-most label"},
		{"an international name", listener(`server_names: {bücher.example.org: relay}`), "xn--"},
		{"no protocol in common", listener(`server_names: {irc.example.org: irc}`), "listeners[0].server_names.irc.example.org: the upstream irc speaks irc, of which this listener's alpn has none (http/1.1)"},
		{"no protocol in common with the listener's own", listener(`upstream: irc`), "listeners[0].upstream: the upstream irc speaks irc"},
		{"a listener that offers nothing", listener(`upstream: irc, alpn: []`), ""},
		{"passthrough has no offer", listener(`tls: passthrough, upstream: irc`), ""},
		{"passthrough needs no certificate", upstreams + `listeners: [{name: a, bind: ":8443", tls: passthrough}]`, ""},
		{"passthrough asks for no client certificate", listener(`tls: passthrough, client_ca_file: ca.pem`), "listeners[0].client_ca_file: "},
		{"no alert without TLS", listener(`tls: none, refuse_with: tls_alert`), "listeners[0].refuse_with: "},
		{"an alert before passthrough", listener(`tls: passthrough, refuse_with: tls_alert`), ""},
		{"passthrough to the relay of this file", "relay: {in_process: true}\n" + `listeners: [{name: a, bind: ":1", tls: passthrough}]`, "listeners[0].tls: passthrough leaves TLS to the relay"},
		{"a listed name leads to the relay", certificate + "relay: {in_process: true}\nupstreams: {relay: {}, irc: {addresses: [\"127.0.0.1:2\"]}}\n" +
			`listeners: [{name: a, bind: ":1", upstream: irc, server_names: {relay.example.org: relay}}]`, ""},
		{"a protocol without a name", certificate + `upstreams: {relay: {alpn: [""]}}` + "\nlisteners: [{name: a, bind: \":1\"}]", "upstreams.relay.alpn[0]: "},

		{"a header to tell the client in", listener(`protocol: http, upstream: web`) + "\n", ""},
		{"a header that nobody writes", certificate + "upstreams:\n  web: {client_address: x-real-ip}\nlisteners: [{name: a, bind: \":1\", upstream: web}, {name: b, bind: \":2\", upstream: web}]",
			"p.yaml:3:25: upstreams.web.client_address: X-Real-IP stands in the header of each request, and listeners[0] (a) leads here with protocol: tcp"},
		{"a header that one of two listeners does not write", certificate + "upstreams: {web: {client_address: x-forwarded-for}}\nlisteners: [{name: a, bind: \":1\", upstream: web, protocol: http}, {name: b, bind: \":2\", upstream: web}]",
			"X-Forwarded-For stands in the header of each request, and listeners[1] (b) leads here"},
		{"a header for a listed name", listener(`upstream: relay, server_names: {web.example.org: web}`), "upstreams.web.client_address: X-Real-IP"},
		{"requests in TLS that is the relay's", listener(`protocol: http, tls: passthrough`), "listeners[0].tls: passthrough leaves TLS to the relay, and requests"},
		{"h2", listener(`protocol: http, alpn: [h2, http/1.1]`), "listeners[0].alpn[0]: h2 is not offered with protocol: http"},
		{"another protocol's name", listener(`protocol: http, alpn: [irc], upstream: relay`), "listeners[0].alpn[0]: irc is not what protocol: http speaks"},
		{"requests without TLS", listener(`protocol: http, tls: none, upstream: web`), ""},
		{"requests to a relay that is told by PROXY", listener(`protocol: http`), ""},
		{"a relay of this file that is told by a header", certificate + "relay: {in_process: true}\nupstreams: {relay: {client_address: x-real-ip}}\nlisteners: [{name: a, bind: \":1\", protocol: http}]", ""},

		{"one unix socket twice", certificate + `listeners: [{name: a, bind: "unix:a.sock"}, {name: b, bind: "unix:./a.sock"}]`, "listeners[1].bind: "},
		{"two unix sockets", certificate + `listeners: [{name: a, bind: "unix:a.sock"}, {name: b, bind: "unix:b.sock"}]`, ""},
		{"one handed-over socket twice", certificate + `listeners: [{name: a, bind: "fd:a"}, {name: b, bind: "fd:a"}]`, "listeners[1].bind: "},
		{"an upstream that leads back by a unix socket", certificate + `upstreams: {relay: {addresses: ["unix:a.sock"]}}` + "\nlisteners: [{name: a, bind: \"unix:a.sock\"}]", "upstreams.relay.addresses: leads back"},
		{"metrics on a unix socket", "metrics: {bind_addr: \"unix:m.sock\"}", "metrics.bind_addr: "},
		{"the relay on a handed-over socket", "relay: {bind: \"fd:relay\"}", "relay.bind: "},
		{"the relay on a unix socket", "relay: {bind: \"unix:relay.sock\"}", ""},
		{"the relay in process on a unix socket", certificate + "relay: {in_process: true, bind: \"unix:relay.sock\"}\nlisteners: [{name: a, bind: \":1\"}]", ""},
		{"a path that is too long", certificate + `listeners: [{name: a, bind: "unix:/` + strings.Repeat("x", 200) + `"}]`, "listeners[0].bind: "},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := strings.Join(faultsOf(t, row.src), "\n")
			if row.want == "" && got != "" || !strings.Contains(got, row.want) || strings.Count(got, "\n") > 0 {
				t.Errorf("faults:\n%s\nwant:\n%s", got, row.want)
			}
		})
	}
}

// The path of a unix socket is relative to the file's folder, as all paths are.
func TestUnixBindsAreRelativeToTheFile(t *testing.T) {
	p, err := LoadBytes("/etc/relayedge/p.yaml", []byte("certificates: {self_issued: [localhost]}\nlisteners: [{name: a, bind: \"unix:a.sock\"}, {name: b, bind: \"fd:b\"}, {name: c, bind: \"unix:/run/c.sock\"}]"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"unix:" + filepath.FromSlash("/etc/relayedge/a.sock"), "fd:b", "unix:/run/c.sock"} {
		if got := p.Listeners[i].Bind; got != want {
			t.Errorf("listener %d: %q, want %q", i, got, want)
		}
	}
}
