package policy

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// What is wrong with a class is told at its line and column.
func TestClassFaultsHaveTheirPlace(t *testing.T) {
	got := faultsOf(t, `limits:
  max_connections: 1000
  embedded_ipv4: ["64:ff9b::/96"]
  classes:
    - name: carrier
      networks: [198.51.100.0/24, 2001:db8::/32]
      max_connections_per_ip: 1000
    - name: carrier
      networks:
        - 198.51.100.1/24
        - "::ffff:198.51.100.0/120"
        - fe80::1%eth0
        - 10.0.0.0/33
        - 64:ff9b::/100
      max_connections_per_ip: 1001
      max_connections_per_ipv6_48: 1001
      connection_rate_per_ip: 100001
      connection_burst_per_ip: 0
    - networks: []
      connection_rate_per_ipv6_48: -1
      connection_burst_per_ipv6_48: many
    - name: ""
      max_connections: 5
    - name: exits
      networks:
    - name: last
      networks: [10.0.0.0/8, 11.0.0.0/8, 10.0.0.0/8]
      rate: 5
`)
	want := []string{
		`p.yaml:8:13: limits.classes[1].name: "carrier" is the name of classes[0] already`,
		"p.yaml:10:11: limits.classes[1].networks[0]: \"198.51.100.1/24\": has bits set behind its length; write 198.51.100.0/24",
		"p.yaml:11:11: limits.classes[1].networks[1]: 198.51.100.0/24 stands at classes[0].networks[0] already",
		`p.yaml:12:11: limits.classes[1].networks[2]: "fe80::1%eth0": not a network`,
		`p.yaml:13:11: limits.classes[1].networks[3]: "10.0.0.0/33": not a network`,
		"p.yaml:14:11: limits.classes[1].networks[4]: 64:ff9b::/100 lies in 64:ff9b::/96 of embedded_ipv4",
		"p.yaml:15:31: limits.classes[1].max_connections_per_ip: 1001 is out of range, allowed is 0 to max_connections (1000)",
		"p.yaml:16:36: limits.classes[1].max_connections_per_ipv6_48: 1001 is out of range, allowed is 0 to max_connections (1000)",
		"p.yaml:17:31: limits.classes[1].connection_rate_per_ip: 100001 is out of range; allowed: 0 to 100000, 0 = off",
		"p.yaml:18:32: limits.classes[1].connection_burst_per_ip: 0 is out of range; allowed: 1 to 1000000",
		"p.yaml:19:7: limits.classes[2].name: is missing",
		"p.yaml:19:7: limits.classes[2].networks: is empty, a class has at least one network",
		"p.yaml:20:36: limits.classes[2].connection_rate_per_ipv6_48: -1 is out of range; allowed: 0 to 100000, 0 = off",
		`p.yaml:21:37: limits.classes[2].connection_burst_per_ipv6_48: "many" is not a plain whole number; allowed: 1 to 1000000`,
		"p.yaml:22:7: limits.classes[3].networks: is missing",
		"p.yaml:22:13: limits.classes[3].name: is empty, every class has a name",
		"p.yaml:23:7: limits.classes[3].max_connections: unknown key here; max_connections stands under limits: or relay.limits:",
		"p.yaml:25:7: limits.classes[4].networks: is empty, a class has at least one network",
		"p.yaml:27:42: limits.classes[5].networks[2]: 10.0.0.0/8 stands at classes[5].networks[0] already",
		"p.yaml:28:7: limits.classes[5].rate: unknown key",
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("faults:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A class is not measured by a max_connections that is not good.
func TestOneFaultMakesNoOthersInClasses(t *testing.T) {
	got := faultsOf(t, "limits: {max_connections: 1e6, max_connections_per_ip: 20000, classes: [{name: a, networks: [10.0.0.0/8], max_connections_per_ip: 20000}]}")
	if len(got) != 1 || !strings.Contains(got[0], "limits.max_connections: ") {
		t.Errorf("%q", got)
	}
}

func TestClassesAreRead(t *testing.T) {
	p := mustLoad(t, "limits: {max_connections: 60, classes: [{name: a, networks: [\"::ffff:10.0.0.0/104\"], max_connections_per_ip: 0}, {name: b, networks: [2001:db8::1]}]}")
	a, b := p.Limits.Classes[0], p.Limits.Classes[1]
	if a.Networks[0].String() != "10.0.0.0/8" || b.Networks[0].String() != "2001:db8::1/128" {
		t.Errorf("networks %v and %v", a.Networks, b.Networks)
	}
	if v := a.MaxConnectionsPerIP; v == nil || *v != 0 || a.MaxConnectionsPerIPv648 != nil || b.MaxConnectionsPerIP != nil {
		t.Errorf("values %+v and %+v", a, b)
	}
	again, err := LoadBytes("p.yaml", Effective(p))
	if err != nil || !reflect.DeepEqual(again.Limits, p.Limits) {
		t.Errorf("read back: %v\n%s", err, Effective(p))
	}
	if printed := string(Effective(p)); strings.Count(printed, "max_connections_per_ip: 0\n") != 1 || strings.Contains(printed, "null") {
		t.Errorf("printed:\n%s", printed)
	}
}

func TestMaxHandshakesFollows(t *testing.T) {
	for src, want := range map[string]int{"": 1024, "limits: {max_connections: 60}": 60, "limits: {max_handshakes: 1}": 1, "limits: {max_handshakes: 10000}": 10_000} {
		if got := mustLoad(t, src).Limits.MaxHandshakes; got != want {
			t.Errorf("%q: %d places, want %d", src, got, want)
		}
	}
	for src, want := range map[string]string{
		"limits: {max_handshakes: 0}":                       "p.yaml:1:26: limits.max_handshakes: 0 is out of range; allowed: 1 to max_connections (10000)",
		"limits: {max_connections: 60, max_handshakes: 61}": "p.yaml:1:47: limits.max_handshakes: 61 is out of range; allowed: 1 to max_connections (60)",
		"limits: {observe: [max_handshakes]}":               `p.yaml:1:20: limits.observe[0]: "max_handshakes" is not allowed`,
	} {
		if got := faultsOf(t, src); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%q: %q, want %s", src, got, want)
		}
	}
}

// deny_file stands in the folder of the policy; check judges the policy alone
// and does not open it.
func TestDenyFileIsRelativeToTheFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "p.yaml")
	if err := os.WriteFile(file, []byte("limits: {deny: [10.0.0.0/8], deny_file: lists/deny.txt}"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Load(file)
	if err != nil || p.Limits.DenyFile != filepath.Join(dir, "lists/deny.txt") {
		t.Fatalf("%v, %+v", err, p)
	}
	if _, err := p.Limits.GateLimits(); err == nil || !strings.HasPrefix(err.Error(), "limits.deny_file: "+p.Limits.DenyFile+": no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
	if Default().Limits.DenyFile != "" {
		t.Error("a file where none is written")
	}
}
