package policy

import (
	"os"
	"slices"
	"strings"
	"testing"

	"relayedge/internal/policyfile"
)

const reloadFile = "../../../docs/reload.md"

// Every key of the file has its effect, and every row its key.
func TestEffectsHoldEveryKey(t *testing.T) {
	keys := map[string]bool{}
	rows := map[string]int{}
	for i, row := range effects {
		if _, twice := rows[row.key]; twice {
			t.Errorf("%s stands twice", row.key)
		}
		rows[row.key] = i
	}
	for _, key := range Keys() {
		keys[key.Path] = true
		if !slices.ContainsFunc(effects, func(row struct {
			key         string
			edge, relay Effect
		}) bool {
			return policyfile.Below(key.Path, row.key)
		}) {
			t.Errorf("%s has no row: say what a reload makes of it", key.Path)
		}
		// In a section where the answers differ, nothing is taken for granted.
		at := strings.LastIndexByte(key.Path, '.')
		if at < 0 {
			continue
		}
		if _, has := rows[key.Path]; !has && mixed(key.Path[:at]) {
			t.Errorf("%s has no row of its own, in a section whose keys differ", key.Path)
		}
	}
	for _, row := range effects {
		if !keys[row.key] {
			t.Errorf("there is no key %s", row.key)
		}
	}
}

// mixed reports whether the rows at or below a section differ.
func mixed(section string) bool {
	var of []struct{ edge, relay Effect }
	for _, row := range effects {
		if policyfile.Below(row.key, section) {
			of = append(of, struct{ edge, relay Effect }{row.edge, row.relay})
		}
	}
	return len(slices.Compact(of)) > 1
}

// The table of docs/reload.md is what the code says.
func TestReloadDocument(t *testing.T) {
	src, err := os.ReadFile(reloadFile)
	if err != nil {
		t.Fatal(err)
	}
	const mark = "-update -->\n"
	head, _, found := strings.Cut(string(src), mark)
	if !found {
		t.Fatal("the mark of the table is not there")
	}
	var b strings.Builder
	b.WriteString(head + mark + "\n| key | relayedge | relaycore |\n| --- | --- | --- |\n")
	says := map[Effect]string{Unread: "", Live: "live", Restart: "restart"}
	for _, row := range effects {
		if (row.edge == Restart || row.relay == Restart) && !mixed(row.key) {
			b.WriteString(strings.TrimRight("| `"+row.key+"` | "+says[row.edge], " ") + strings.TrimRight(" | "+says[row.relay], " ") + " |\n")
		}
	}
	if *update {
		if err := os.WriteFile(reloadFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if b.String() != string(src) {
		t.Error("docs/reload.md is not what the code says: go test ./cmd/internal/policy -update")
	}
}

func load(t *testing.T, src string) *Policy {
	t.Helper()
	p, err := LoadBytes("p.yaml", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	edgeAlone = "listeners: [{name: a, bind: \"127.0.0.1:1\"}]\ncertificates: {self_issued: [localhost]}\n"
	inProcess = edgeAlone + "relay: {in_process: true, bind: \"127.0.0.1:7\""
)

func TestChangesOfACommand(t *testing.T) {
	for _, row := range []struct {
		name     string
		command  Command
		from, to string
		live     []string
		restart  []string
	}{
		{"none", Edge, edgeAlone, edgeAlone, nil, nil},
		{"live and not", Edge, edgeAlone, edgeAlone + "limits: {max_connections: 60}\nengine: stream\nlog: {level: debug, format: json}",
			[]string{"limits.max_connections: 10000 → 60", "limits.max_connections_per_ip: 64 → 60", "limits.max_connections_per_ipv6_48: 256 → 60",
				"limits.max_handshakes: 1024 → 60", "log.level: info → debug"},
			[]string{"engine: auto → stream", "log.format: text → json"}},
		{"the relay of another process", Edge, edgeAlone + "relay: {bind: \"127.0.0.1:9\"}", edgeAlone + "relay: {bind: \"127.0.0.1:8\", limits: {max_circuits: 9}}", nil, nil},
		{"the relay in this one", Edge, inProcess + "}", inProcess + ", limits: {max_pending_per_connection: 9}, metrics: {enabled: false, namespace: x}}",
			[]string{"relay.limits.max_pending_per_connection: 32 → 9"}, []string{"relay.metrics.namespace: relaycore → x"}},
		{"the relay's own", Relay, "relay: {}", "relay: {limits: {max_pending_per_connection: 9}, control: {socket: \"\"}}",
			[]string{"relay.limits.max_pending_per_connection: 32 → 9"}, []string{`relay.control.socket: /run/relaycore/control.sock → ""`}},
		{"the edge's, for the relay", Relay, "relay: {}", "relay: {}\nlimits: {max_connections: 7}\nengine: stream\ncontrol: {socket: \"\"}\n", nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			live, restart := row.command.Changes(load(t, row.from), load(t, row.to))
			got := [2][]string{}
			for _, c := range live {
				got[0] = append(got[0], c.String())
			}
			for _, c := range restart {
				got[1] = append(got[1], c.String())
			}
			if !slices.Equal(got[0], row.live) || !slices.Equal(got[1], row.restart) {
				t.Errorf("live %q, restart %q", got[0], got[1])
			}
		})
	}
}

// Keys that take a restart keep their values, and what results is judged again.
func TestNext(t *testing.T) {
	was := load(t, edgeAlone+"metrics: {bind_addr: \"127.0.0.1:5\"}")
	read := load(t, edgeAlone+"metrics: {bind_addr: \"127.0.0.1:6\"}\nlimits: {max_connections: 60}\nengine: stream")
	next, err := Edge.Next(was, read)
	if err != nil || next.Metrics.BindAddr != "127.0.0.1:5" || next.Engine != "auto" || next.Limits.MaxConnections != 60 {
		t.Errorf("%+v, %v", next, err)
	}
	if read.Metrics.BindAddr != "127.0.0.1:6" {
		t.Error("the policy that was read has changed")
	}
	if live, restart := Edge.Changes(next, read); live != nil || len(restart) != 2 {
		t.Errorf("what waits is not told again: %v, %v", live, restart)
	}
	if origin := next.Origin("limits.max_connections"); origin != "p.yaml:4" {
		t.Errorf("the origin is %s", origin)
	}
	if same, err := Edge.Next(was, was); same != was || err != nil {
		t.Errorf("without a change: %v, %v", same, err)
	}
}

// A URL that does not show all of itself cannot be read again from what it shows. It
// is kept as it is, for every other change.
func TestNextKeepsTheStoresURL(t *testing.T) {
	for _, url := range []string{
		"redis://10.0.0.5", "redis://:s3cret@10.0.0.5", "rediss+cluster://me:s3cret@a,b",
		"redis+sentinel://a/m?sentinel_password=s3cret", "redis+sentinel://me:s3cret@a/m?sentinel_user=u&sentinel_password=s3cret",
	} {
		t.Run(url, func(t *testing.T) {
			with := func(url, rest string) *Policy {
				return load(t, "listeners: [{name: a, bind: \"127.0.0.1:1\"}]\ncertificates: {acme: {domains: [a.example.org], agree_to_terms: true, storage: redis}}\n"+
					"redis: {url: \""+url+"\", secret_file: /s}\n"+rest)
			}
			was := with(url, "")
			next, err := Edge.Next(was, with(url, "limits: {max_connections: 60}\nengine: stream\n"))
			if err != nil || next.Redis.URL != was.Redis.URL || next.Limits.MaxConnections != 60 {
				t.Errorf("%+v, %v", next, err)
			}
			next, err = Edge.Next(was, with("redis://:another@10.0.0.6", ""))
			if err != nil || next.Redis.URL != was.Redis.URL {
				t.Errorf("%+v, %v", next, err)
			}
		})
	}
}

func TestNextThatDoesNotFit(t *testing.T) {
	for _, row := range []struct{ name, from, to, says string }{
		{"a port that the old metrics hold", edgeAlone + "metrics: {bind_addr: \"127.0.0.1:5\"}",
			"listeners: [{name: a, bind: \"127.0.0.1:5\"}]\ncertificates: {self_issued: [localhost]}\nmetrics: {bind_addr: \"127.0.0.1:6\"}",
			"p.yaml:3: metrics.bind_addr: "},
		{"a header that the relay expects", inProcess + "}",
			inProcess + ", proxy_protocol: false}\nupstreams: {relay: {client_address: none}}", "relay.proxy_protocol"},
		{"a relay at another place", inProcess + "}", strings.Replace(inProcess, ":7", ":8", 1) + "}", "relay.bind"},
		{"a relay that comes into the process", edgeAlone, inProcess + "}", "relay.in_process: takes a restart"},
		{"a relay that leaves the process", inProcess + "}", edgeAlone, "relay.in_process: takes a restart"},
	} {
		t.Run(row.name, func(t *testing.T) {
			next, err := Edge.Next(load(t, row.from), load(t, row.to))
			if err == nil || next != nil || !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), "restart") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestFilesThatAreReadAgain(t *testing.T) {
	p := load(t, "listeners: [{name: a, bind: \"127.0.0.1:1\"}]\ncertificates: {files: [{certificate: /c, key: /k}]}\nlimits: {deny_file: /d}\n")
	var got []string
	for _, f := range Edge.Files(p) {
		got = append(got, f.Key+"="+f.Text)
	}
	if want := []string{"certificates.acme.storage=/var/lib/relayedge", "certificates.files[0].certificate=/c", "certificates.files[0].key=/k", "limits.deny_file=/d"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := Relay.Files(p); len(got) != 0 {
		t.Errorf("the relay reads %v", got)
	}
}
