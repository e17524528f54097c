package policy

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"relayedge/admission"
)

func guide(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// blocks returns the fenced blocks of a page that are of a kind.
func blocks(page, kind string) (all []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+kind+"\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		all = append(all, m[1])
	}
	return all
}

// whole is a policy of a page with what the page leaves out because it is the same
// everywhere: the certificates, and a listener where the policy is of limits alone.
func whole(t *testing.T, text string) string {
	t.Helper()
	certificates := blocks(guide(t, "relays.md"), "certificates")
	if len(certificates) != 1 {
		t.Fatalf("docs/relays.md has %d blocks of certificates, want 1", len(certificates))
	}
	if !regexp.MustCompile(`(?m)^listeners:`).MatchString(text) {
		text += "listeners: [{name: public, bind: \"[::]:443\"}]\n"
	}
	return text + certificates[0]
}

// Each policy of the guides is a good one.
func TestPoliciesOfTheGuides(t *testing.T) {
	for page, least := range map[string]int{"relays.md": 8, "caps.md": 5, "under-attack.md": 4, "privacy.md": 1} {
		all := blocks(guide(t, page), "yaml")
		if len(all) < least {
			t.Errorf("docs/%s has %d policies, want at least %d", page, len(all), least)
		}
		for i, text := range all {
			t.Run(fmt.Sprint(page, i), func(t *testing.T) {
				p, err := LoadBytes(page, []byte(whole(t, text)))
				if err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
				if err := p.NeedEdge(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// tableBelow reads the rows of the table that begins with the heading.
func tableBelow(t *testing.T, page, heading string) (rows [][]string) {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("the page has no table %q", heading)
	}
	for line := range strings.Lines(rest) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 3 {
			break
		}
		if strings.Contains(line, "---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells[1:len(cells)-1])
	}
	if len(rows) < 3 {
		t.Fatalf("the table %q has %d rows", heading, len(rows))
	}
	return rows
}

// comeIn returns how many connections of an address get in of those that try in
// each step of a time, and when the last of want did.
func comeIn(t *testing.T, l admission.Limits, addr string, want int, within, step time.Duration) (n int, last time.Duration) {
	t.Helper()
	gate, err := admission.NewGate(l)
	if err != nil {
		t.Fatal(err)
	}
	begun, a := time.Now(), netip.MustParseAddr(addr)
	for at := time.Duration(0); at <= within && n < want; at += step {
		for n < want {
			if _, reason := gate.Admit(a, begun.Add(at)); reason != "" {
				break
			}
			n, last = n+1, at
		}
	}
	return n, last
}

// What docs/caps.md says comes in under its classes, and how long a crowd takes, is
// what the gate does.
func TestCapsGuide(t *testing.T) {
	page := guide(t, "caps.md")
	number := func(cell string) int {
		n, err := strconv.Atoi(cell)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, row := range tableBelow(t, page, "| connections | rate and burst | the last one is in after |") {
		n := number(row[0])
		l := Default().Limits.Limits
		l.MaxConnectionsPerIP = 0
		if _, err := fmt.Sscanf(row[1], "%d, %d", &l.ConnectionRatePerIP, &l.ConnectionBurstPerIP); err != nil {
			t.Fatal(err)
		}
		want, err := time.ParseDuration(strings.ReplaceAll(row[2], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		const step = 50 * time.Millisecond
		if in, last := comeIn(t, l, "192.0.2.1", n, time.Hour, step); in != n || (last-want).Abs() > step {
			t.Errorf("%v: %d come in, the last after %v", row, in, last)
		}
	}

	var classes []string
	for _, text := range blocks(page, "yaml") {
		if strings.Contains(text, "classes:") {
			classes = append(classes, text)
		}
	}
	if len(classes) != 1 {
		t.Fatalf("the page has %d policies with classes", len(classes))
	}
	l := load(t, whole(t, classes[0])).Limits.Limits
	rows := tableBelow(t, page, "| from | class | at once | within an hour |")
	for _, row := range rows {
		const more = 10_000
		if n, _ := comeIn(t, l, row[0], more, 0, time.Second); n != number(row[2]) {
			t.Errorf("%v: %d come in at once", row, n)
		}
		if n, _ := comeIn(t, l, row[0], more, time.Hour, time.Second); n != number(row[3]) {
			t.Errorf("%v: %d come in within an hour", row, n)
		}
	}
	for _, c := range l.Classes {
		if !strings.Contains(page, "| "+c.Name+" |") {
			t.Errorf("the table has no address of the class %s", c.Name)
		}
	}

	// The defaults that the page tells of.
	for _, row := range tableBelow(t, page, "| key | counts | default |") {
		keys := regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(row[0], -1)
		defaults := strings.Split(row[2], ", after ")
		if len(keys) != len(defaults) {
			t.Errorf("%v", row)
			continue
		}
		for i, key := range keys {
			if got := defaultOf(t, "limits."+key[1]); got != defaults[i] {
				t.Errorf("limits.%s is %s by default, the page says %s", key[1], got, defaults[i])
			}
		}
	}
}

func defaultOf(t *testing.T, key string) string {
	t.Helper()
	for _, k := range Keys() {
		if k.Path == key {
			return k.Default
		}
	}
	t.Fatalf("there is no key %s", key)
	return ""
}
