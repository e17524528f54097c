package policy

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"relayedge/internal/policyfile"
)

const exampleFile = "../../../config.example.yaml"

func readExample(t *testing.T) string {
	t.Helper()
	src, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(src)
}

func TestExampleServesBothCommands(t *testing.T) {
	p, err := Load(exampleFile)
	if err != nil {
		t.Fatalf("config.example.yaml does not pass its own check:\n%v", err)
	}
	if err := p.NeedEdge(); err != nil {
		t.Error(err)
	}
	if err := p.NeedRelay(); err != nil {
		t.Error(err)
	}
	if p.Relay.Limits.MaxConnectionsPerIP != 0 || p.Relay.Limits.MaxConnectionsPerIPv648 != 0 {
		t.Error("spec/003: behind a front end the relay's own per-address caps are 0")
	}
}

func TestExampleDocumentsEveryKey(t *testing.T) {
	for _, complaint := range heldAgainst(readExample(t), Keys()) {
		t.Errorf("config.example.yaml: %s", complaint)
	}
}

// The test above is worth as much as what it notices.
func TestExampleDriftIsNoticed(t *testing.T) {
	src := readExample(t)
	for _, row := range []struct{ name, old, new, want string }{
		{"wrong default", "# default 64, 0 to max_connections, 0 = off", "# default 65, 0 to max_connections, 0 = off", "limits.max_connections_per_ip"},
		{"wrong range", "# default 5 seconds, 1 to 60: time for a trusted", "# default 5 seconds, 1 to 61: time for a trusted", "limits.proxy_header_timeout_secs"},
		{"wrong enum", "terminate | passthrough | none:", "terminate | plain:", "listeners[].tls"},
		{"no unit", "# default 30 seconds, 1 to 3600:", "# default 30, 1 to 3600:", "limits.writer_stall_secs"},
		{"no doc", ": networks refused at accept", ": ", "limits.deny"},
		{"no comment", "  # default client, client | both: whose bytes are progress for connection_timeout_secs\n", "", "limits.idle_counts"},
		{"missing key", "  drain_secs: 30\n", "", "limits.drain_secs"},
		{"missing key of a list's element", "    tls_min_version: \"1.2\"\n", "", "listeners[].tls_min_version"},
		{"stale key", "engine: auto\n", "engine: auto\n# default 3, 1 to 5: threads that move bytes\nthreads: 3\n", "threads"},
		{"stale comment", "engine: auto\n", "engine: auto\n\n# default 3, 1 to 5: threads that move bytes\n", "belongs to no key"},
		{"comment of another key", "# default [127.0.0.1:7777]: the relay's address", "# default 127.0.0.1:7777: the relay's address", "upstreams.*.addresses"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if !strings.Contains(src, row.old) {
				t.Fatalf("the example does not contain %q", row.old)
			}
			complaints := heldAgainst(strings.Replace(src, row.old, row.new, 1), Keys())
			if !slices.ContainsFunc(complaints, func(c string) bool { return strings.Contains(c, row.want) }) {
				t.Errorf("no complaint about %s, but %q", row.want, complaints)
			}
		})
	}
}

// heldAgainst compares the keys and comments of an example file with the
// program's keys. Above the first occurrence of each key stands a comment with
// the line `# facts: text`, the facts being those of the code.
func heldAgainst(src string, keys []policyfile.Key) (complaints []string) {
	complain := func(format string, args ...any) {
		complaints = append(complaints, fmt.Sprintf(format, args...))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(src), &doc); err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(src, "\n")
	used := map[int]bool{}
	first := firstLines(doc.Content[0])
	for _, key := range keys {
		want := fmt.Sprintf("# %s: %s", key.Facts(), key.Doc)
		line, ok := first[key.Path]
		if !ok {
			complain("the key %s is missing; above it should stand\n%s", key.Path, want)
			continue
		}
		delete(first, key.Path)
		found := false
		for i := line - 2; i >= 0 && comment(lines[i]) != ""; i-- {
			if text, ok := strings.CutPrefix(comment(lines[i]), key.Facts()+": "); ok && strings.TrimSpace(text) != "" {
				used[i], found = true, true
				break
			}
		}
		if !found {
			complain("line %d: %s: the comment above should have the line\n%s", line, key.Path, want)
		}
	}
	for path, line := range first {
		complain("line %d: the program knows no key %s", line, path)
	}
	for i, text := range lines {
		c := comment(text)
		if word, _, _ := strings.Cut(c, " "); slices.Contains([]string{"default", "required", "required:", "section", "section:"}, word) && !used[i] {
			complain("line %d: %q belongs to no key", i+1, c)
		}
	}
	return complaints
}

// comment returns the text of a line that is a comment only, or "".
func comment(line string) string {
	text, ok := strings.CutPrefix(strings.TrimSpace(line), "# ")
	if !ok {
		return ""
	}
	return text
}

// firstLines gives the line in which each key stands first, by the paths of policyfile.Key.
func firstLines(root *yaml.Node) map[string]int {
	known := map[string]bool{}
	for _, key := range Keys() {
		known[key.Path] = true
	}
	first := map[string]int{}
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		for i, c := range n.Content {
			switch {
			case n.Kind == yaml.SequenceNode:
				walk(c, path+"[]")
			case i%2 == 1:
				key := n.Content[i-1]
				at := strings.TrimPrefix(path+"."+key.Value, ".")
				if !known[at] && isMap(path) {
					walk(c, path+".*")
					continue
				}
				if _, ok := first[at]; !ok {
					first[at] = key.Line
				}
				walk(c, at)
			}
		}
	}
	walk(root, "")
	return first
}

// isMap reports whether the operator names the keys of path.
func isMap(path string) bool {
	return slices.ContainsFunc(Keys(), func(k policyfile.Key) bool {
		return k.Path == path && strings.HasPrefix(k.Type, "map of ")
	})
}
