package main_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// step is a command that docs/relays.md shows, and what it prints.
type step struct {
	command string
	prints  []string
}

// console reads the commands of a section: each behind a $, its output below it.
func console(t testing.TB, section string, replace ...string) (steps []step) {
	t.Helper()
	for line := range strings.Lines(recipe(t, section, "console", replace...)) {
		line = strings.TrimSuffix(line, "\n")
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case isCommand:
			steps = append(steps, step{command: command})
		case line != "" && len(steps) > 0:
			last := &steps[len(steps)-1]
			last.prints = append(last.prints, line)
		}
	}
	for _, s := range steps {
		if len(s.prints) == 0 {
			t.Fatalf("the command %q of %s prints nothing: what should a reader look at?", s.command, section)
		}
	}
	return steps
}

// printed is a line of the page as it looks here: the reader's address is the
// client's, ports are any, and … is anything.
func printed(line string) *regexp.Regexp {
	line = regexp.QuoteMeta(line)
	for written, here := range map[string]string{
		`203\.0\.113\.9`: regexp.QuoteMeta(clientAddress()), ":51000": `:\d+`, "…": ".*",
	} {
		line = strings.ReplaceAll(line, written, here)
	}
	return regexp.MustCompile(strings.ReplaceAll(line, " ", `[ \t]+`))
}

// showsOnConsole has a reader of a section run its commands, on the machine of the
// edge's listener, and see what the page shows. What is looked up in a log is looked
// for in what the relay has written.
func (e *edge) showsOnConsole(t *testing.T, section, listener string, log *transcript, replace ...string) {
	t.Helper()
	public := e.listeners[listener]
	if _, port, found := strings.Cut(public, "]:"); found {
		public = "127.0.0.1:" + port
	}
	for _, s := range console(t, section, replace...) {
		program, _, _ := strings.Cut(s.command, " ")
		if program == "grep" || program == "tail" {
			for _, line := range s.prints {
				if _, err := (&process{name: "the relay", exited: make(chan struct{})}).await(log, printed(line)); err != nil {
					t.Errorf("%s: %v", s.command, err)
				}
			}
			continue
		}
		command := s.command
		for _, r := range [][2]string{
			{"wss://relay.example.org", "wss://" + public}, {"https://relay.example.org", "https://" + public},
			{"openssl s_client", "openssl s_client -bind " + clientAddress() + ":0"},
			{"curl ", "curl -k --noproxy '*' --interface " + clientAddress() + " "}, {"relaycore try", "relaycore try --insecure"},
			{"--max-time 5", "--max-time 10"}, {"timeout 5", "timeout 10"}, // a slow machine
		} {
			command = strings.ReplaceAll(command, r[0], r[1])
		}
		command = regexp.MustCompile(`relay\.example\.org:\d+`).ReplaceAllString(command, public)
		for _, program := range []string{"openssl", "curl"} {
			if strings.Contains(command, program+" ") {
				peer(t, program)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Env = append(cmd.Environ(), fmt.Sprintf("PATH=%s%c/usr/bin:/bin:/usr/sbin", binFolder(t), filepath.ListSeparator))
		out, err := cmd.CombinedOutput()
		cancel()
		for _, line := range s.prints {
			if !printed(line).Match(out) {
				t.Errorf("$ %s\n%s(%v)\nprints nothing like %q", command, out, err, line)
			}
		}
	}
}

// The page's words for what a command prints are held against what it prints.
func TestPrinted(t *testing.T) {
	for _, row := range []struct {
		line, output string
		want         bool
	}{
		{"200", "200\n", true},
		{"200", "502\n", false},
		{"from 203.0.113.9", "from " + clientAddress(), true},
		{"from 203.0.113.9", "from 203.0.113.9", false},
		{"[203.0.113.9]:51000", "x[" + clientAddress() + "]:4711", true},
		{"[203.0.113.9]:51000", "x[" + clientAddress() + "]", false},
		{"220 … ESMTP", "220 mail.example.org ESMTP", true},
		{"220 … ESMTP", "220 mail.example.org\nESMTP", false},
		{"a.b", "axb", false},
		{"r e l", "r   e   l", true},
	} {
		if got := printed(row.line).MatchString(row.output); got != row.want {
			t.Errorf("%q in %q: %v", row.line, row.output, got)
		}
	}
}
