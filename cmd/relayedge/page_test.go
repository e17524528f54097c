package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	document "relayedge/internal/status"
	"relayedge/internal/testbrowser"
)

// page is where the edge's page stands.
func (e *edge) page() string { return strings.TrimSuffix(e.metrics, "metrics") }

// samples are the metrics, by their names with labels.
func (e *edge) samples() (map[string]string, error) {
	_, body, err := get(e.metrics)
	all := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^(relayedge_\S+) (\S+)$`).FindAllStringSubmatch(body, -1) {
		all[m[1]] = m[2]
	}
	return all, err
}

// onPage are the figures that a browser shows, without the commas between thousands.
type onPage struct {
	State, Open, InFlight, BytesIn, BytesOut, Capped string
	Refused, Used, InForce                           map[string]string
	Quiet                                            []string
	Upstreams, Certificates, Listeners               [][]string
}

const readPage = `(() => {
	const text = id => document.getElementById(id).textContent.trim().replaceAll(",", "");
	const rows = id => [...document.getElementById(id).rows].map(r => [...r.cells].map(c => c.textContent.trim().replaceAll(",", "")));
	const by = (list, n) => Object.fromEntries(list.map(r => [r[0], r[n]]));
	return JSON.stringify({
		State: text("state"), Open: text("open"), InFlight: text("in-flight"),
		Refused: by(rows("rejections"), 3), Quiet: document.getElementById("quiet").textContent.split(", "),
		Used: by(rows("used"), 1), InForce: {...by(rows("used"), 2), ...by(rows("others"), 1)},
		Upstreams: rows("upstreams"), Certificates: rows("certificates"), Listeners: rows("listeners"),
		BytesIn: text("in-hour"), BytesOut: text("out-hour"), Capped: text("capped"),
	});
})()`

func seen(t *testing.T, b *testbrowser.Tab) (p onPage) {
	t.Helper()
	if err := json.Unmarshal([]byte(testbrowser.Eval[string](b, readPage)), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// What the browser shows is what the metrics say; a refusal is there within three
// seconds; nothing is asked for elsewhere, and the console is empty.
func TestPageShowsTheMetrics(t *testing.T) {
	t.Parallel()
	b := testbrowser.Open(t)
	e := runEdge(t, `
listeners: [{name: public, bind: "127.0.0.1:0"}]
relay: {in_process: true, bind: "127.0.0.1:0"}
limits: {max_connections: 2000, max_connections_per_ip: 3}
`)
	b.Go(e.page())
	var open []net.Conn
	for range 3 {
		conn, err := dial(t.Context(), "127.0.0.77", e.listeners["public"], "localhost")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		open = append(open, conn)
	}
	plain, err := dial(t.Context(), "127.0.0.78", e.listeners["public"], "")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(plain, "EHLO a\r\n")
	io.Copy(io.Discard, plain)
	plain.Close()

	wrong := func(p onPage) error {
		m, err := e.samples()
		if err != nil {
			return err
		}
		same := func(name, shown, sample string) {
			if shown != sample && err == nil {
				err = fmt.Errorf("%s: the page shows %q, the metrics %q", name, shown, sample)
			}
		}
		same("open connections", p.Open, m[`relayedge_connections{listener="public"}`])
		same("handshakes", p.InFlight, m["relayedge_handshakes_in_flight"])
		for name, value := range m {
			if reason, ok := label(name, "relayedge_rejections_total"); ok && value == "0" {
				same(reason, strconv.FormatBool(slices.Contains(p.Quiet, reason)), "true")
			} else if ok {
				same(reason, p.Refused[reason], value)
			}
			if limit, ok := label(name, "relayedge_limit"); ok {
				n, _ := strconv.ParseFloat(value, 64)
				if value = strconv.FormatFloat(n, 'f', -1, 64); value == "0" {
					value = "off"
				}
				same(limit, p.InForce[limit], value)
			}
		}
		for name, shown := range map[string]string{"in": p.BytesIn, "out": p.BytesOut} {
			n, _ := strconv.ParseFloat(m[`relayedge_bytes_total{direction="`+name+`"}`], 64)
			want := fmt.Sprintf("%d B", int(n))
			if n >= 1024 {
				want = fmt.Sprintf("%d.%d KiB", int(n)/1024, int(n)%1024*10/1024)
			}
			same("bytes "+name, shown, want)
		}
		same("the connections of the limits", p.Used["max_connections"], m[`relayedge_connections{listener="public"}`])
		same("the connections of the fullest host", p.Used["max_connections_per_ip"], "3")
		same("who is at the cap", p.Capped, "1 host and 0 sites have as many connections as they may.")
		if up := m[`relayedge_upstream_up{upstream="relay"}`]; up != "1" || len(p.Upstreams) != 1 || p.Upstreams[0][2] != "up" || p.Upstreams[0][3] != "3" {
			err = fmt.Errorf("upstreams: %q, up %s", p.Upstreams, up)
		}
		expires, _ := strconv.ParseFloat(m["relayedge_tls_cert_not_after_seconds"], 64)
		if date := time.Unix(int64(expires), 0).UTC().Format("2006-01-02"); len(p.Certificates) != 1 || !strings.HasSuffix(p.Certificates[0][2], date) {
			err = fmt.Errorf("certificates: %q, want the end at %s", p.Certificates, date)
		}
		if want := [][]string{{"public", e.listeners["public"], "tcp tls: terminate", "3"}}; !slices.EqualFunc(p.Listeners, want, slices.Equal) {
			err = fmt.Errorf("listeners: %q", p.Listeners)
		}
		same("state", p.State, "ready")
		return err
	}
	b.Eventually(func() string {
		if err := wrong(seen(t, b)); err != nil {
			return err.Error()
		}
		return ""
	})

	// The page looks every two seconds; on a machine that is busy it may be held up.
	const within, tries = 3 * time.Second, 5
	soon := false
	for i := 1; i <= tries && !soon; i++ {
		refused, err := dial(t.Context(), "127.0.0.77", e.listeners["public"], "")
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		io.Copy(io.Discard, refused)
		refused.Close()
		b.Eventually(func() string {
			if got := seen(t, b).Refused["per_ip_cap"]; got != strconv.Itoa(i) {
				return "per_ip_cap is " + got
			}
			return ""
		})
		soon = time.Since(at) <= within
		t.Logf("the refusal was shown after %v", time.Since(at).Round(time.Millisecond))
	}
	if !soon {
		t.Errorf("of %d refusals none was shown within %v", tries, within)
	}
	for _, conn := range open {
		conn.Close()
	}
	b.Eventually(func() string {
		if got := seen(t, b).Open; got != "0" {
			return "open: " + got
		}
		return ""
	})
	if c := b.Complaints(); len(c) > 0 {
		t.Errorf("the browser complains: %q", c)
	}
	if asked := b.AskedElsewhere(strings.TrimSuffix(e.page(), "/")); len(asked) > 0 {
		t.Errorf("the page asks for %q", asked)
	}
}

// label is the value of a metric's only label.
func label(sample, name string) (string, bool) {
	rest, ok := strings.CutPrefix(sample, name+"{")
	if !ok {
		return "", false
	}
	parts := strings.Split(rest, `"`)
	return parts[1], true
}

// What stands on the page, in the document and in a terminal of a client is what may
// stand in the log, and never more than its network.
func TestClientsOnThePage(t *testing.T) {
	for _, row := range []struct {
		addresses string
		networks  []string
	}{
		{"none", nil},
		{"prefix", []string{"127.0.0.0/24", "203.0.113.0/24"}},
		{"full", []string{"127.0.0.0/24", "203.0.113.0/24"}},
	} {
		t.Run(row.addresses, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "c.sock")
			e := runEdge(t, `
listeners:
  - {name: direct, bind: "127.0.0.1:0"}
  - {name: behind, bind: "127.0.0.1:0", trust_proxy_from: [127.0.0.78/32]}
relay: {in_process: true, bind: "127.0.0.1:0"}
limits: {max_connections_per_ip: 1, tls_handshake_timeout_secs: 120}
control: {socket: `+socket+`}
log: {client_addresses: `+row.addresses+`}
`)
			direct, err := dial(t.Context(), "127.0.0.77", e.listeners["direct"], "localhost")
			if err != nil {
				t.Fatal(err)
			}
			defer direct.Close()
			behind, err := dial(t.Context(), "127.0.0.78", e.listeners["behind"], "")
			if err != nil {
				t.Fatal(err)
			}
			defer behind.Close()
			io.WriteString(behind, "PROXY TCP4 203.0.113.9 192.0.2.1 1 2\r\n")
			if _, err := dial(t.Context(), "127.0.0.79", e.listeners["direct"], "private.example"); err == nil {
				t.Fatal("a name without a certificate is served")
			}
			var s document.Status
			var text string
			if err := eventually(func() error {
				var err error
				if _, text, err = get(e.page() + "status"); err != nil {
					return err
				}
				s = document.Status{}
				if err := json.Unmarshal([]byte(text), &s); err != nil {
					return err
				}
				if s.Capped.Hosts != 2 || s.Capped.Sites != 0 {
					return fmt.Errorf("at their caps: %+v", s.Capped)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			var networks []string
			for _, n := range s.Capped.Networks {
				networks = append(networks, n.Network)
			}
			if !slices.Equal(networks, row.networks) || s.Capped.Shown != (row.addresses != "none") {
				t.Errorf("%+v, want %q", s.Capped, row.networks)
			}
			_, page, err := get(e.page())
			if err != nil {
				t.Fatal(err)
			}
			texts := map[string]string{"the document": text, "the page": page}
			for _, command := range [][]string{{"status"}, {"status", "--json"}, {"top"}} {
				out, err := exec.Command(binary(t, "relayedge"), append(command, "--socket", socket)...).CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				texts[strings.Join(command, " ")] = string(out)
			}
			for name, text := range texts {
				for _, secret := range []string{"127.0.0.77", "127.0.0.78", "203.0.113.9", "private.example"} {
					if strings.Contains(text, secret) {
						t.Errorf("%s tells %s:\n%s", name, secret, text)
					}
				}
				for _, network := range []string{"127.0.0.0/24", "203.0.113.0/24"} {
					if strings.Contains(text, network) != slices.Contains(row.networks, network) {
						t.Errorf("%s and %s:\n%s", name, network, text)
					}
				}
				if hidden := strings.Contains(text, "log.client_addresses is none"); name == "status" && hidden != (row.addresses == "none") {
					t.Errorf("%s does not say why:\n%s", name, text)
				}
			}
		})
	}
}

// The page, the document and the commands are of one make, and the rules of the
// address are kept by the real edge.
func TestStatusIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "c.sock")
	e := runEdge(t, relayBehind+"control: {socket: "+socket+"}\n")
	keys := func(text []byte) []string {
		var all map[string]any
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return slices.Sorted(maps.Keys(all))
	}
	_, served, err := get(e.page() + "status")
	if err != nil {
		t.Fatal(err)
	}
	want := keys([]byte(served))
	for _, from := range [][]string{{"--socket", socket}, {"-c", e.policy()}, {"--address", strings.TrimSuffix(strings.TrimPrefix(e.page(), "http://"), "/")}} {
		out, err := exec.Command(binary(t, "relayedge"), append([]string{"status", "--json"}, from...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", from, err, out)
		}
		if got := keys(out); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", from, got, want)
		}
	}
	for _, row := range []struct {
		method, path, host string
		status             int
	}{
		{"GET", "", "localhost", 200}, {"GET", "", "evil.example", 421}, {"GET", "status", "evil.example", 421},
		{"POST", "", "localhost", 405}, {"PUT", "status", "localhost", 405}, {"GET", "metrics", "evil.example", 200}, {"GET", "page.js", "localhost", 404},
	} {
		request, err := http.NewRequestWithContext(t.Context(), row.method, e.page()+row.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = row.host
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != row.status {
			t.Errorf("%+v: %s", row, response.Status)
		}
	}
}
