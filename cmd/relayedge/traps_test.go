package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What a policy file or the environment can have in it that is not what it looks
// like: the start fails for it at once, and names the key and its place, or it means
// what the documents say. Both programs read with the same eyes.
func TestTraps(t *testing.T) {
	t.Parallel()
	const head = "listeners: [{name: public, bind: \"127.0.0.1:0\"}]\ncertificates: {self_issued: [localhost]}\nrelay: {bind: \"127.0.0.1:0\", proxy_protocol: true, metrics: {enabled: false}, control: {socket: \"\"}}\nmetrics: {enabled: false}\ncontrol: {socket: \"\"}\n"
	line := func(text string) string { return head + text + "\n" } // the sixth
	var bomb strings.Builder
	bomb.WriteString("a: &a [x, x]\n")
	for i := range 8 {
		p, n := string(rune('a'+i)), string(rune('b'+i))
		bomb.WriteString(n + ": &" + n + " [*" + p + ", *" + p + ", *" + p + "]\n")
	}
	for _, row := range []struct {
		name, policy string
		env          string
		says         string // of stderr; empty: it starts
	}{
		{"a plain number", line("limits: {drain_secs: 30}"), "", ""},
		{"a quoted number", line(`limits: {drain_secs: "30"}`), "", `^p\.yaml:6:22: limits\.drain_secs: `},
		{"a unit", line("limits: {drain_secs: 30s}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: .*write plain seconds`},
		{"a unit in words", line("limits: {drain_secs: 5seconds}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"a negative duration", line("limits: {drain_secs: -1s}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"0s", line("limits: {drain_secs: 0s}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"hours without end", line("limits: {drain_secs: 9999999h}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"a leading zero", line("limits: {drain_secs: 0123}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"a separator", line("limits: {drain_secs: 1_000}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"a power", line("limits: {drain_secs: 1e3}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"hexadecimal", line("limits: {drain_secs: 0x10}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"nothing behind the colon", line("limits: {drain_secs: }"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"a 0 that is no off", line("limits: {max_connections: 0}"), "", `^p\.yaml:6:\d+: limits\.max_connections: `},
		{"an unknown key", line("limits: {drain_sec: 30}"), "", `^p\.yaml:6:\d+: limits\.drain_sec: unknown key; did you mean drain_secs`},
		{"a key twice", line("limits: {drain_secs: 30, drain_secs: 60}"), "", `^p\.yaml:6:\d+: limits\.drain_secs: `},
		{"yes", strings.Replace(line(""), "metrics: {enabled: false}\ncontrol", "metrics: {enabled: yes}\ncontrol", 1), "", `^p\.yaml:4:\d+: metrics\.enabled: `},
		{"off", strings.Replace(line(""), "metrics: {enabled: false}\ncontrol", "metrics: {enabled: off}\ncontrol", 1), "", `^p\.yaml:4:\d+: metrics\.enabled: `},
		{"a tab", line("limits:\n\tdrain_secs: 30"), "", `^p\.yaml:7:1: a tab in the indentation`},
		{"a byte order mark and CRLF", "\uFEFF" + strings.ReplaceAll(line("limits: {drain_secs: 30}"), "\n", "\r\n"), "", ""},
		{"aliases of aliases", line(bomb.String()), "", `^p\.yaml:6:\d+: the anchor &a; anchors are not allowed`},
		{"10 MiB", line(strings.Repeat("# green\n", 10<<20/8)), "", `^p\.yaml: larger than 1048576 bytes`},
		{"an empty file", "", "", `^p\.yaml: (listeners: none is written|relay: the section is not written)`},
		{"an empty variable", line(""), "RATE_LIMIT_HOUR=", `RATE_LIMIT_HOUR: "" is no plain integer`},
		{"a variable with a word", line(""), "GLOBAL_RATE_LIMIT_DAY=many", `GLOBAL_RATE_LIMIT_DAY: "many" is no plain integer`},
		{"a variable out of range", line(""), "RATE_LIMIT_MINUTE=-2", `RATE_LIMIT_MINUTE, which stands for relay\.message_limits\.sender\.minute: -2 is out of range`},
		{"a variable that is none of ours", line(""), "RATE_LIMIT_WEEK=x", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.WriteFile(filepath.Join(folder, "p.yaml"), []byte(row.policy), 0o600); err != nil {
				t.Fatal(err)
			}
			for program, serves := range map[string]string{"relayedge": "(?m)^listener public: ", "relaycore": "(?m)^relay: "} {
				if program == "relayedge" && row.env != "" && row.says != "" {
					continue // the variables are the relay's, which the edge does not run here
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				cmd := exec.CommandContext(ctx, binary(t, program), "run", "-c", "p.yaml")
				cmd.Dir = folder
				cmd.Env = os.Environ()
				if row.env != "" {
					cmd.Env = append(cmd.Env, row.env)
				}
				p := launch(t, cmd, program)
				if row.says == "" {
					if _, err := p.await(&p.stdout, regexp.MustCompile(serves)); err != nil {
						t.Error(err)
					}
					p.stop()
					continue
				}
				code, err := p.ended()
				if err != nil || code != 1 || p.stdout.String() != "" || !regexp.MustCompile(`(?m)`+row.says).MatchString(p.stderr.String()) {
					t.Errorf("%s ended with %d (%v) and wrote\n%s%.1000s\nwant %s", program, code, err, p.stdout.String(), p.stderr.String(), row.says)
				}
				// What it took of the processor, since this machine may be busy.
				if used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); used > time.Second && !raceDetector {
					t.Errorf("%s took %v to say so", program, used)
				}
			}
		})
	}
}
