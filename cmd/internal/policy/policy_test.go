package policy

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"relayedge/internal/policyfile"
	"relayedge/proxy"
)

// faultsOf returns the faults of src, as they are printed.
func faultsOf(t *testing.T, src string) []string {
	t.Helper()
	p, err := LoadBytes("p.yaml", []byte(src))
	if err == nil {
		return nil
	}
	if p != nil {
		t.Error("a faulty policy was handed out")
	}
	if _, ok := errors.AsType[policyfile.Faults](err); !ok {
		t.Fatalf("%T is no list of faults", err)
	}
	return strings.Split(err.Error(), "\n")
}

func mustLoad(t *testing.T, src string) *Policy {
	t.Helper()
	p, err := LoadBytes("p.yaml", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const edge = "certificates: {self_issued: [localhost]}\nlisteners: [{name: a, bind: \"127.0.0.1:8443\"}]\n"

func TestSectionsTogether(t *testing.T) {
	const plain = "{name: a, bind: \"127.0.0.1:8443\", tls: none}"
	for _, row := range []struct {
		name, src string
		want      []string // beginnings of the faults; none: the policy is good
	}{
		{"nothing at all", "", nil},
		{"an edge", edge, nil},
		{"a relay alone", "relay: {}", nil},
		{"no such upstream, near miss", "upstreams: {relay: {}}\nlisteners: [{name: a, bind: \":1\", tls: none, upstream: relais}]",
			[]string{`p.yaml:2:56: listeners[0].upstream: there is no upstream "relais"; did you mean relay?; written under upstreams: relay`}},
		{"the default upstream is gone once others are written", "upstreams: {irc: {}}\nlisteners: [" + plain + "]",
			[]string{`p.yaml:2:13: listeners[0].upstream: there is no upstream "relay"; written under upstreams: irc`}},
		{"a misspelt section is one fault, not two", "upsteams: {irc: {}}\nlisteners: [{name: a, bind: \":1\", tls: none, upstream: irc}]",
			[]string{"p.yaml:1:1: upsteams: unknown key; did you mean upstreams?"}},
		{"a faulty relay section leaves the default upstream", "relay: {bnid: x}\nlisteners: [" + plain + "]",
			[]string{"p.yaml:1:9: relay.bnid: unknown key; did you mean bind?"}},
		{"equal names", "listeners:\n  - {name: a, bind: \":1\", tls: none}\n  - {name: a, bind: \":2\", tls: none}",
			[]string{`p.yaml:3:12: listeners[1].name: "a" is the name of listeners[0] in line 2 already`}},
		{"an upstream that leads back", "listeners: [{name: a, bind: \"[::]:7\", tls: none}]\nupstreams: {relay: {addresses: [\"127.0.0.1:7\"]}}",
			[]string{"p.yaml:2:21: upstreams.relay.addresses: leads back to listeners[0] ([::]:7)"}},
		{"equal binds", "listeners: [{name: a, bind: \"[::1]:7\", tls: none}, {name: b, bind: \"[0:0::1]:7\", tls: none}]",
			[]string{`p.yaml:1:68: listeners[1].bind: "[0:0::1]:7" is taken by listeners[0].bind ([::1]:7)`}},
		{"all addresses take each one's port", "listeners: [{name: a, bind: \"[::]:7\", tls: none}, {name: b, bind: \"192.0.2.1:7\", tls: none}]",
			[]string{`p.yaml:1:67: listeners[1].bind: "192.0.2.1:7" is taken by listeners[0].bind ([::]:7)`}},
		{"all of IPv4 leaves IPv6 alone", "listeners: [{name: a, bind: \"0.0.0.0:7\", tls: none}, {name: b, bind: \"[::1]:7\", tls: none}]", nil},
		{"port 0 is another one each time", "listeners: [{name: a, bind: \"127.0.0.1:0\", tls: none}, {name: b, bind: \"127.0.0.1:0\", tls: none}]", nil},
		{"metrics on a listener's port", "listeners: [{name: a, bind: \":9090\", tls: none}]",
			[]string{`p.yaml:1:29: listeners[0].bind: ":9090" is taken by metrics.bind_addr (127.0.0.1:9090)`}},
		{"metrics that are off take no port", "metrics: {enabled: false}\nlisteners: [{name: a, bind: \":9090\", tls: none}]", nil},
		{"the relay on a listener's port", "relay: {}\nlisteners: [{name: a, bind: \"127.0.0.1:7777\", tls: none}]\nupstreams: {relay: {addresses: [\"127.0.0.1:1\"]}}",
			[]string{`p.yaml:2:29: listeners[0].bind: "127.0.0.1:7777" is taken by relay.bind (127.0.0.1:7777)`}},
		{"one endpoint, one namespace", edge + "metrics: {namespace: rchat}\nrelay: {in_process: true, metrics: {namespace: rchat}}",
			[]string{"p.yaml:4:48: relay.metrics.namespace: \"rchat\" is the edge's namespace too"}},
		{"two endpoints, one namespace", edge + "metrics: {namespace: rchat}\nrelay: {proxy_protocol: true, metrics: {namespace: rchat}}", nil},
		{"relay metrics in process are not bound", "relay: {in_process: true, require_channel_binding: false}\nlisteners: [{name: a, bind: \"127.0.0.1:9091\", tls: none}]", nil},
		{"relay metrics of its own process are", "relay: {proxy_protocol: true, require_channel_binding: false}\nlisteners: [{name: a, bind: \"127.0.0.1:9091\", tls: none}]",
			[]string{`p.yaml:2:29: listeners[0].bind: "127.0.0.1:9091" is taken by relay.metrics.bind_addr (127.0.0.1:9091)`}},
		{"TLS without a certificate", "listeners: [{name: a, bind: \":1\"}]",
			[]string{"p.yaml:1:13: listeners[0].tls: terminate needs a certificate"}},
		{"a certificate from files", "certificates: {files: [{certificate: a, key: b}]}\nlisteners: [{name: a, bind: \":1\"}]", nil},
		{"in process, all by itself", edge + "relay: {in_process: true}", nil},
		{"in process, binding not sent", edge + "relay: {in_process: true}\nupstreams: {relay: {proxy_tlvs: [ssl]}}",
			[]string{"p.yaml:4:21: upstreams.relay.proxy_tlvs: channel_binding is missing"}},
		{"in process, binding not asked for", edge + "relay: {in_process: true, require_channel_binding: false}\nupstreams: {relay: {proxy_tlvs: [ssl]}}", nil},
		{"in process, another type of TLV", edge + "relay: {in_process: true}\nupstreams: {relay: {channel_binding_tlv: 230}}",
			[]string{"p.yaml:4:42: upstreams.relay.channel_binding_tlv: 230 is not the type that the relay reads"}},
		{"in process, no header either way", edge + "relay: {in_process: true}\nupstreams: {relay: {client_address: none}}", nil},
		{"in process, header refused", edge + "relay: {in_process: true, proxy_protocol: false}",
			[]string{"p.yaml:3:43: relay.proxy_protocol: the upstream relay sends a PROXY v2 header that this relay does not expect"}},
		{"in process, header missing", edge + "relay: {in_process: true, proxy_protocol: true}\nupstreams: {relay: {client_address: none}}",
			[]string{"p.yaml:4:37: upstreams.relay.client_address: the upstream relay sends no PROXY v2 header, which this relay requires"}},
		{"in process, header of version 1", edge + "relay: {in_process: true}\nupstreams: {relay: {client_address: proxy-v1}}",
			[]string{"p.yaml:4:37: upstreams.relay.client_address: this relay reads PROXY v2 headers alone"}},
		{"in process, nobody leads there", edge + "relay: {in_process: true}\nupstreams: {relay: {addresses: [\"127.0.0.1:1\"]}}",
			[]string{"p.yaml:3:21: relay.in_process: no listener leads to this relay"}},
		{"in process, the edge is not believed", edge + "relay: {in_process: true, trust_proxy_from: [192.0.2.0/24]}",
			[]string{"p.yaml:3:27: relay.trust_proxy_from: does not contain 127.0.0.1"}},
		{"in process, no TLS to bind a proof to", "relay: {in_process: true}\nlisteners: [" + plain + "]",
			[]string{"p.yaml:2:52: listeners[0].tls: without TLS there is no session"}},
		{"in process, no TLS and no binding", "relay: {in_process: true, require_channel_binding: false}\nlisteners: [" + plain + "]", nil},
		{"in process, a drain longer than the edge's", edge + "relay: {in_process: true, drain_secs: 31}",
			[]string{"p.yaml:3:39: relay.drain_secs: 31 is longer than limits.drain_secs (30)"}},
		{"in process, a drain as long as the edge's", edge + "limits: {drain_secs: 40}\nrelay: {in_process: true, drain_secs: 40}", nil},
		{"in process, a drain that the edge's may not have", edge + "limits: {drain_secs: -1}\nrelay: {in_process: true, drain_secs: 40}",
			[]string{"p.yaml:3:22: limits.drain_secs: "}},
		{"its own process, a drain longer than the edge's", edge + "relay: {proxy_protocol: true, drain_secs: 31}", nil},
		{"its own process, header refused by default", edge + "relay: {}",
			[]string{"p.yaml:3:1: relay.proxy_protocol: the upstream relay sends a PROXY v2 header that this relay does not expect"}},
		{"its own process, another upstream", edge + "relay: {}\nupstreams: {relay: {addresses: [\"127.0.0.1:1\"]}}", nil},
		{"an upstream that no listener uses", edge + "relay: {}\nupstreams: {relay: {addresses: [\"127.0.0.1:1\"]}, spare: {}}", nil},
		{"faults within one listener and between all", "listeners: [{name: a, bind: \":1\", tls: non}, {name: a, bind: \":1\", tls: none, upstream: realy}]\nupstreams: {relay: {client_address: x, addresses: [a, b]}}",
			[]string{"p.yaml:1:40: listeners[0].tls: ", "p.yaml:1:53: listeners[1].name: ", "p.yaml:1:62: listeners[1].bind: ", "p.yaml:1:89: listeners[1].upstream: ",
				"p.yaml:2:37: upstreams.relay.client_address: ", "p.yaml:2:52: upstreams.relay.addresses[0]: ", "p.yaml:2:55: upstreams.relay.addresses[1]: "}},
		{"faults of sections and between them together", "engine: fast\nlisteners: [{name: a, bind: \":1\", tls: none}, {name: a, bind: \":1\", tls: none}]",
			[]string{"p.yaml:1:9: engine: ", "p.yaml:2:54: listeners[1].name: ", "p.yaml:2:63: listeners[1].bind: "}},
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

func TestUnwrittenKeysFollowTheRelay(t *testing.T) {
	p := mustLoad(t, edge+"relay: {in_process: true, bind: \"127.0.0.1:7000\", channel_binding_tlv: 230}\nupstreams: {relay: {}, other: {addresses: [\"127.0.0.1:1\"]}}")
	u := p.Upstreams["relay"]
	if want := []string{"127.0.0.1:7000"}; !slices.Equal(u.Addresses, want) {
		t.Errorf("addresses %q, want the relay's own bind %q", u.Addresses, want)
	}
	if !slices.Contains(u.ProxyTLVs, "channel_binding") || u.ChannelBindingTLV != 230 {
		t.Errorf("the upstream sends %q with type %d, which does not bind the relay's proofs", u.ProxyTLVs, u.ChannelBindingTLV)
	}
	if !p.Relay.ProxyProtocol || p.Relay.Limits.MaxConnectionsPerIP != 0 || p.Relay.Limits.MaxConnectionsPerIPv648 != 0 {
		t.Error("the relay in process expects no header, or caps the edge's address")
	}
	if o := p.Upstreams["other"]; slices.Contains(o.ProxyTLVs, "channel_binding") || o.ChannelBindingTLV != 228 {
		t.Error("an upstream that leads elsewhere was changed")
	}

	for written, want := range map[string]int{"": 30, "limits: {drain_secs: 7}\n": 7, "limits: {drain_secs: 0}\n": 0, "limits: {drain_secs: 3600}\n": 30} {
		if p := mustLoad(t, edge+written+"relay: {in_process: true}"); p.Relay.DrainSecs != want || (p.Origin("relay.drain_secs") == "default, adapted") != (want != 30) {
			t.Errorf("%s: the relay drains for %d s, %s", written, p.Relay.DrainSecs, p.Origin("relay.drain_secs"))
		}
	}
	if p := mustLoad(t, edge+"limits: {drain_secs: 7}\nrelay: {proxy_protocol: true}"); p.Relay.DrainSecs != 30 {
		t.Errorf("the drain of a relay in its own process became %d s", p.Relay.DrainSecs)
	}

	p = mustLoad(t, edge+"relay: {in_process: true, limits: {max_connections_per_ip: 3, max_connections_per_ipv6_48: 4}}")
	if p.Relay.Limits.MaxConnectionsPerIP != 3 || p.Relay.Limits.MaxConnectionsPerIPv648 != 4 {
		t.Error("written caps were changed")
	}
	p = mustLoad(t, edge+"relay: {}\nupstreams: {relay: {client_address: none}}")
	if p.Relay.Limits.MaxConnectionsPerIP != 0 || p.Relay.Limits.MaxConnectionsPerIPv648 != 0 {
		t.Error("a relay that is not told who the client is caps the edge's address")
	}
	if p = mustLoad(t, "relay: {}"); p.Relay.ProxyProtocol || p.Relay.Limits.MaxConnectionsPerIP != 64 {
		t.Error("a relay of its own process lost its defaults")
	}
}

func TestRelayOnAllAddressesIsReachedOnLoopback(t *testing.T) {
	for bind, want := range map[string]string{"[::]:7": "127.0.0.1:7", "0.0.0.0:7": "127.0.0.1:7", ":7": "127.0.0.1:7", "127.0.0.1:0": "127.0.0.1:0", "[::1]:7": "[::1]:7"} {
		if got := dialable(bind); got != want {
			t.Errorf("%s is reached at %s, want %s", bind, got, want)
		}
	}
}

func TestEachCommandNeedsItsSection(t *testing.T) {
	for _, row := range []struct {
		src         string
		edge, relay string
	}{
		{"", "listeners: ", "relay: "},
		{edge, "", "relay: "},
		{"relay:", "listeners: ", ""},
		{edge + "relay: {in_process: true}", "", "relay.in_process: "},
	} {
		p := mustLoad(t, row.src)
		for _, need := range []struct {
			err  error
			want string
		}{{p.NeedEdge(), row.edge}, {p.NeedRelay(), row.relay}} {
			if (need.err == nil) != (need.want == "") || need.err != nil && !strings.HasPrefix(need.err.Error(), need.want) {
				t.Errorf("%q: %v, want %q", row.src, need.err, need.want)
			}
		}
	}
}

func TestFiveFaultsInOneGo(t *testing.T) {
	got := faultsOf(t, `listeners:
  - name: public
    bind: "127.0.0.1:8443"
    upsteam: relay
limits:
  max_connections: 0
  connection_timeout_secs: 30s
  idle_counts: server
metrics:
  enabled: yes
certificates: {self_issued: [localhost]}
`)
	want := []string{
		"p.yaml:4:5: listeners[0].upsteam: unknown key; did you mean upstream?",
		"p.yaml:6:20: limits.max_connections: 0 is out of range; allowed: at least 1",
		`p.yaml:7:28: limits.connection_timeout_secs: "30s" has a unit; write plain seconds: 30; allowed: 60 to 86400`,
		`p.yaml:8:16: limits.idle_counts: "server" is not allowed; allowed: client, both`,
		"p.yaml:10:12: metrics.enabled: yes is not a bool here; write true (allowed: true, false)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("faults:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// same reports whether two policies say the same, wherever they have it from.
func same(p, q *Policy) bool {
	a, b := *p, *q
	a.origins, b.origins = origins{}, origins{}
	return reflect.DeepEqual(a, b)
}

func TestEffectivePolicyReadsBackTheSame(t *testing.T) {
	for name, src := range map[string]string{
		"example":    readExample(t),
		"in process": edge + "relay: {in_process: true}",
		"moved":      "limits: {max_connections: 60}\nrelay: {limits: {max_connections: 20}}",
		"empty":      "",
	} {
		p := mustLoad(t, src)
		again, err := LoadBytes("p.yaml", Effective(p))
		if err != nil {
			t.Errorf("%s: its effective policy is refused: %v", name, err)
			continue
		}
		// What is effective is written, and nothing else differs.
		again.relayWritten = p.relayWritten
		if !same(p, again) {
			t.Errorf("%s: its effective policy is another one:\n%s\n%s", name, Effective(p), Effective(again))
		}
	}
}

func TestUnwrittenCapsMoveWithTheirRange(t *testing.T) {
	p := mustLoad(t, "limits: {max_connections: 60}")
	if p.Limits.MaxConnectionsPerIP != 60 || p.Limits.MaxConnectionsPerIPv648 != 60 {
		t.Errorf("per-address caps %d and %d of 60 connections", p.Limits.MaxConnectionsPerIP, p.Limits.MaxConnectionsPerIPv648)
	}
	if got := faultsOf(t, "limits: {max_connections: 60, max_connections_per_ip: 61}"); len(got) != 1 || !strings.Contains(got[0], "0 to max_connections (60)") {
		t.Errorf("a written cap beyond its range: %q", got)
	}
}

func TestDefaultsAreThoseOfAnEmptyFile(t *testing.T) {
	if !same(Default(), mustLoad(t, "")) {
		t.Error("they differ")
	}
	if u, ok := Default().Upstreams[DefaultUpstream]; !ok || u.ClientAddress != "proxy-v2" {
		t.Error("no default upstream")
	}
}

func TestPathsAreRelativeToTheFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "p.yaml")
	src := "certificates: {files: [{certificate: tls/a.pem, key: /b.pem}]}\nlisteners: [{name: a, bind: \":1\"}]"
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if pair := p.Certificates.Files[0]; pair.Certificate != filepath.Join(dir, "tls/a.pem") || pair.Key != "/b.pem" {
		t.Errorf("paths %q and %q", pair.Certificate, pair.Key)
	}
	if p.Listeners[0].ClientCAFile != "" {
		t.Error("no file became a folder")
	}
	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestSchemaIsThatOfTheKeys(t *testing.T) {
	var schema struct {
		Properties map[string]json.RawMessage
	}
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	for _, k := range Keys() {
		if _, ok := schema.Properties[k.Path]; !ok && !strings.ContainsAny(k.Path, ".[") {
			t.Errorf("the schema lacks %s", k.Path)
		}
	}
}

// What --effective prints is the same policy.
func TestEffectiveReadsBack(t *testing.T) {
	for _, src := range []string{edge, edge + "relay: {in_process: true}", edge + "relay: {proxy_protocol: true}", "relay: {}", ""} {
		p := mustLoad(t, src)
		printed := Effective(p)
		again, err := LoadBytes("p.yaml", printed)
		if err != nil {
			t.Errorf("%q is printed as\n%s\nwhich is refused: %v", src, printed, err)
			continue
		}
		if !same(p, again) {
			t.Errorf("%q is printed as another policy:\n%s", src, printed)
		}
	}
}

// Every limit of the edge that is a number stands in relayedge_limit, with the
// value in force; what a class has in its place does not.
func TestEveryLimitIsAMetric(t *testing.T) {
	limits := Default().Limits
	server, err := proxy.New(proxy.Config{Limits: limits, Engine: "auto", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range server.Families() {
		if f.Name == "limit" {
			f.Read(func(limit string, value float64) { got[limit] = value })
		}
	}
	want := map[string]float64{}
	for _, k := range policyfile.Describe(limits) {
		if k.Type == "integer" && !strings.HasPrefix(k.Path, "classes[].") {
			number, _, _ := strings.Cut(k.Default, " ") // its unit stands behind it
			value, err := strconv.ParseFloat(number, 64)
			if err != nil {
				t.Fatal(err)
			}
			want[k.Path] = value
		}
	}
	if len(want) < 10 || !maps.Equal(got, want) {
		t.Errorf("relayedge_limit has %v, the policy %v", got, want)
	}
}
