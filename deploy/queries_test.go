package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

type rulesFile struct {
	Groups []struct {
		Name  string
		Rules []struct{ Alert, Expr string }
	}
}

type ruleTests struct {
	Tests []struct {
		Name           string
		AlertRuleTests []struct {
			Alertname string
			ExpAlerts []any `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	}
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// dashboard is what the tests look at.
type dashboard struct {
	Title      string
	UID        string
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

type panel struct {
	ID      int
	Type    string
	Title   string
	GridPos struct{ H, W, X, Y int }
	Targets []struct{ Expr string }
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("grafana/relayedge.json")
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// asPrometheus gives the variables of Grafana values.
func asPrometheus(query string) string {
	for _, v := range [][2]string{{"$__rate_interval", "5m"}, {"$relay_job", ".*"}, {"$relay_instance", ".*"}, {"$job", ".*"}, {"$instance", ".*"}} {
		query = strings.ReplaceAll(query, v[0], v[1])
	}
	return query
}

// queries are all there are, by where they stand.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	var rules rulesFile
	readYAML(t, "prometheus/relayedge.rules.yml", &rules)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = r.Expr
		}
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for i, target := range p.Targets {
			all[fmt.Sprintf("panel %q, query %d", p.Title, i)] = asPrometheus(target.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := regexp.MustCompile(`^label_values\((.*), (?:job|instance)\)$`).FindStringSubmatch(v.Definition)
		if m == nil {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
			continue
		}
		all["variable "+v.Name] = asPrometheus(m[1])
	}
	if len(all) < 60 {
		t.Fatalf("only %d queries were found", len(all))
	}
	return all
}

var (
	quoted     = regexp.MustCompile(`"[^"]*"`)
	selector   = regexp.MustCompile(`\b([a-z][a-z0-9]*_[a-z0-9_]+)(\{[^}]*\})?`)
	matcher    = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"([^"]*)"`)
	identifier = regexp.MustCompile(`\b[a-zA-Z_][a-zA-Z0-9_]*\b`)
	grouping   = regexp.MustCompile(`\b(?:by|without|on|ignoring) *\(([^)]*)\)`)
	duration   = regexp.MustCompile(`\[[^\]]*\]|\boffset \w+`)
)

// language is what the queries use of PromQL's words.
var language = strings.Fields("sum min max count rate increase time vector histogram_quantile and or unless by without on ignoring")

// wrong tells what of a query is nothing that the programs export.
func (s series) wrong(query string) (faults []string) {
	labels := map[string]bool{"job": true, "instance": true}
	metrics := 0
	for _, m := range selector.FindAllStringSubmatch(quoted.ReplaceAllString(query, `""`), -1) {
		if slices.Contains(language, m[1]) {
			continue
		}
		metrics++
		if s[m[1]] == nil {
			faults = append(faults, "no metric "+m[1])
			continue
		}
		for l := range s[m[1]] {
			labels[l] = true
		}
	}
	if metrics == 0 {
		faults = append(faults, "no metric at all")
	}
	for _, m := range regexp.MustCompile(`([a-z][a-z0-9_]*)\{([^}]*)\}`).FindAllStringSubmatch(query, -1) {
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if l[1] == "job" || l[1] == "instance" {
				continue
			}
			for value := range strings.SplitSeq(l[3], "|") {
				if !s[m[1]][l[1]+"="+value] {
					faults = append(faults, fmt.Sprintf("no %s{%s=%q}", m[1], l[1], value))
				}
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(query, -1) {
		for name := range strings.SplitSeq(m[1], ",") {
			if name = strings.TrimSpace(name); !labels[name] {
				faults = append(faults, "no label "+name)
			}
		}
	}
	// Whatever else there is must be a word of the language: a name that was cut short
	// would be no selector.
	rest := quoted.ReplaceAllString(query, "")
	rest = regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(rest, "")
	rest = duration.ReplaceAllString(grouping.ReplaceAllString(rest, ""), "")
	for _, word := range identifier.FindAllString(rest, -1) {
		if s[word] == nil && !slices.Contains(language, word) {
			faults = append(faults, "unknown word "+word)
		}
	}
	return faults
}

func TestQueriesAskForWhatThereIs(t *testing.T) {
	s := exported(t)
	for at, query := range queries(t) {
		for _, fault := range s.wrong(query) {
			t.Errorf("%s: %s", at, fault)
		}
	}
	// And the test finds what is not there.
	for _, query := range []string{
		"relayedge_connection > 0", "relayedge_connections_totals > 0", `rate(relayedge_rejections_total{reason="per_ip_caps"}[5m])`,
		`relayedge_limit{limits="max_connections"}`, "sum by (reasons) (relayedge_ended_total)", "vector(1)", "connections",
	} {
		if len(s.wrong(query)) == 0 {
			t.Errorf("%s passes", query)
		}
	}
}

// Every alert has a case in which it fires and one in which it does not, and
// Prometheus' own tool finds them so.
func TestAlerts(t *testing.T) {
	var rules rulesFile
	readYAML(t, "prometheus/relayedge.rules.yml", &rules)
	var tests ruleTests
	readYAML(t, "prometheus/relayedge.rules.test.yml", &tests)
	type cases struct{ fires, rests bool }
	seen := make(map[string]cases)
	for _, test := range tests.Tests {
		for _, c := range test.AlertRuleTests {
			of := seen[c.Alertname]
			of.fires = of.fires || len(c.ExpAlerts) > 0
			of.rests = of.rests || len(c.ExpAlerts) == 0
			seen[c.Alertname] = of
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if seen[r.Alert] != (cases{true, true}) {
				t.Errorf("%s: cases %+v", r.Alert, seen[r.Alert])
			}
			delete(seen, r.Alert)
		}
	}
	for name := range seen {
		t.Errorf("%s: a case, and no alert", name)
	}
	told, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if !regexp.MustCompile(`\|[^|]*\b` + r.Alert + `\b[^|]*\|`).Match(told) {
				t.Errorf("docs/install.md does not tell of %s", r.Alert)
			}
		}
	}
	promtool := peer(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "relayedge.rules.yml"}, {"test", "rules", "relayedge.rules.test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Every query of the dashboard is one that Prometheus reads.
func TestDashboardQueriesAreRead(t *testing.T) {
	promtool := peer(t, "promtool")
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	check := func(queries map[string]string) ([]byte, error) {
		var rules []rule
		for _, at := range slices.Sorted(maps.Keys(queries)) {
			rules = append(rules, rule{fmt.Sprintf("panel:%d", len(rules)), queries[at]})
		}
		text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rules.yml")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=none", file).CombinedOutput()
	}
	if out, err := check(queries(t)); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := check(map[string]string{"a fault": "sum by (x) (relayedge_connections"}); err == nil {
		t.Errorf("what cannot be read passes: %s", out)
	}
}

// The dashboard is laid out without panels over one another, and each says something.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.Title != "relayedge" || d.UID != "relayedge" {
		t.Errorf("title %q, uid %q", d.Title, d.UID)
	}
	ids := make(map[int]bool)
	for i, p := range d.Panels {
		g := p.GridPos
		if ids[p.ID] || p.Title == "" || g.X+g.W > 24 || g.W <= 0 || g.H <= 0 || (p.Type != "row") != (len(p.Targets) > 0) {
			t.Errorf("panel %d %q: %+v", p.ID, p.Title, g)
		}
		ids[p.ID] = true
		for _, q := range d.Panels[:i] {
			if o := q.GridPos; g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
				t.Errorf("panels %q and %q lie over one another", p.Title, q.Title)
			}
		}
	}
}
