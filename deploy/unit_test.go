package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

var exposure = regexp.MustCompile(`Overall exposure level for \S+: (\d+\.\d+)`)

// exposed is systemd's own judgement of a unit: 0 is shut, 10 is open.
func exposed(t *testing.T, unit string) float64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), peer(t, "systemd-analyze"), "security", "--offline=true", "--no-pager", unit).CombinedOutput()
	m := exposure.FindSubmatch(out)
	if m == nil {
		t.Fatalf("%s: %v\n%s", unit, err, out)
	}
	level, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return level
}

func TestUnitsAreShut(t *testing.T) {
	for _, unit := range []string{"relayedge.service", "relaycore.service"} {
		if level := exposed(t, unit); level >= 2 {
			t.Errorf("%s: %.1f", unit, level)
		}
	}
	open := filepath.Join(t.TempDir(), "open.service")
	if err := os.WriteFile(open, []byte("[Service]\nExecStart=/bin/true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if level := exposed(t, open); level < 9 {
		t.Errorf("a unit without anything: %.1f", level)
	}
}

// systemd knows every key of the units, and every value.
func TestUnitsAreUnderstood(t *testing.T) {
	analyze := peer(t, "systemd-analyze")
	program := regexp.MustCompile(`/usr/bin/relay(edge|core)\b`)
	manual := regexp.MustCompile(`(?m)^Documentation=.*\n`) // of pages that are not installed
	folder := t.TempDir()
	verify := func(name, text string) string {
		t.Helper()
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", file).CombinedOutput()
		if err != nil && len(out) == 0 {
			return err.Error()
		}
		return string(out)
	}
	for _, name := range []string{"relayedge.service", "relaycore.service", "relayedge.socket"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if says := verify(name, manual.ReplaceAllString(program.ReplaceAllString(string(text), "/bin/true"), "")); says != "" {
			t.Errorf("%s: %s", name, says)
		}
	}
	if verify("wrong.service", "[Service]\nExecStart=/bin/true\nProtectSystems=strict\n") == "" {
		t.Error("a key that there is not passes")
	}
}
