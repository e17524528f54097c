package policy

import (
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"relayedge/internal/telemetry"
	"relayedge/proxy"
	"relayedge/relaycore"
)

// counted are the reasons and the names of all that edge and relay count.
func counted(t *testing.T) (edgeReasons, relayReasons, names []string) {
	t.Helper()
	edge, err := proxy.New(proxy.Config{Limits: Default().Limits, Engine: "auto", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	relay, err := relaycore.NewServer(relaycore.DefaultConfig(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	read := func(namespace string, families []telemetry.Family) (reasons []string) {
		for _, f := range families {
			names = append(names, namespace+f.Name)
			if f.Name == "rejections_total" {
				f.Read(func(reason string, _ float64) { reasons = append(reasons, reason) })
			}
		}
		return reasons
	}
	edgeReasons, relayReasons = read("relayedge_", edge.Families()), read("relaycore_", relay.Families())
	if len(edgeReasons) < 20 || len(relayReasons) < 20 {
		t.Fatalf("%d and %d reasons", len(edgeReasons), len(relayReasons))
	}
	return edgeReasons, relayReasons, names
}

// reasonsOf are the words in backquotes of the first cells of a table.
func reasonsOf(t *testing.T, page, heading string) (words []string) {
	t.Helper()
	for _, row := range tableBelow(t, page, heading) {
		for _, m := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(row[0], -1) {
			words = append(words, m[1])
		}
	}
	return words
}

// docs/under-attack.md tells of every reason, and of none that is not; and what it
// says to change takes effect by a reload.
func TestAttackGuide(t *testing.T) {
	page := guide(t, "under-attack.md")
	edge, relay, names := counted(t)
	told := reasonsOf(t, page, "| reason | means | under attack |")
	slices.Sort(told)
	slices.Sort(edge)
	if !slices.Equal(told, edge) {
		t.Errorf("the page tells of the reasons\n%v\nthe edge has\n%v", told, edge)
	}
	told = slices.DeleteFunc(reasonsOf(t, page, "| you see | it is | what holds |"), func(word string) bool {
		return slices.Contains(names, "relaycore_"+word)
	})
	slices.Sort(told)
	slices.Sort(relay)
	if !slices.Equal(told, relay) {
		t.Errorf("the page tells of the relay's reasons\n%v\nthe relay has\n%v", told, relay)
	}

	before := load(t, whole(t, "relay: {proxy_protocol: true}\n"))
	for _, text := range blocks(page, "yaml") {
		after, command := load(t, whole(t, text)), Edge
		if strings.HasPrefix(text, "relay:") {
			command = Relay
		} else {
			after = load(t, whole(t, text+"relay: {proxy_protocol: true}\n"))
		}
		if live, restart := command.Changes(before, after); len(live) == 0 || len(restart) > 0 {
			t.Errorf("a reload puts %d keys in force and leaves %v to a restart, of\n%s", len(live), restart, text)
		}
	}
}

// What the guides name of the metrics there is.
func TestGuidesNameMetrics(t *testing.T) {
	edge, relay, names := counted(t)
	metric := regexp.MustCompile("`(relay(?:edge|core)_[a-z0-9_]+)(?:\\{reason=\"([a-z_]+)\"\\}|\\{[a-z]+(?:=\"[a-z_]+\")?\\})?`")
	found := 0
	for _, name := range []string{"relays.md", "caps.md", "under-attack.md", "privacy.md"} {
		for _, m := range metric.FindAllStringSubmatch(guide(t, name), -1) {
			found++
			if !slices.Contains(names, m[1]) {
				t.Errorf("docs/%s names %s, which is no metric", name, m[1])
			}
			if m[2] != "" && !slices.Contains(edge, m[2]) && !slices.Contains(relay, m[2]) {
				t.Errorf("docs/%s names the reason %s", name, m[2])
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d metrics are named", found)
	}
}
