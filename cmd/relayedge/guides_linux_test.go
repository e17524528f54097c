package main_test

import (
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The commands by which the guides find out who is connected, and what rises, do so.
func TestGuidesFindWhoItIs(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"ss", "awk", "sed", "sort", "uniq", "head", "grep", "curl"} {
		peer(t, program)
	}
	needIPv6(t)
	e := runEdge(t, echoBehind(t)+"listeners: [{name: public, bind: \"[::]:0\", tls: none}]\nlimits: {max_connections_per_ip: 5}\n")
	_, port, err := net.SplitHostPort(e.listeners["public"])
	if err != nil {
		t.Fatal(err)
	}
	for from, n := range map[string]int{"127.0.0.91": 5, "127.0.0.92": 2, "::1": 3} {
		host := "127.0.0.1"
		if from == "::1" {
			host = "::1"
		}
		for range n {
			conn, err := enter(t.Context(), from, net.JoinHostPort(host, port), "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
	}
	one, err := dial(t.Context(), "127.0.0.91", "127.0.0.1:"+port, "")
	if err == nil {
		one.Read(make([]byte, 1)) // one too many
		one.Close()
	}
	for page, kinds := range map[string]map[string]string{
		"caps.md":         {"ss": `^\s+5 \S*127\.0\.0\.91\]?\n\s+3 \[::1\]\n\s+2 \S*127\.0\.0\.92\]?\n$`},
		"under-attack.md": {"ss": `^\s+5 \S*127\.0\.0\.91\]?\n\s+3 \[::1\]\n\s+2 \S*127\.0\.0\.92\]?\n$`, "curl": `(?s)relayedge_connections\{listener="public"\} 10\n.*relayedge_rejections_total\{reason="per_ip_cap"\} 1\n`},
	} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for program, want := range kinds {
			command := regexp.MustCompile(`(?m)^ {4,}(` + program + ` -.* \| .*)$`).FindSubmatch(text)
			if command == nil {
				t.Errorf("docs/%s has no command that begins with %s", page, program)
				continue
			}
			line := strings.NewReplacer(":443 ", ":"+port+" ", "http://127.0.0.1:9090/metrics", e.metrics).Replace(string(command[1]))
			if line == string(command[1]) {
				t.Errorf("docs/%s: %q is not about this edge", page, line)
			}
			out, err := exec.Command("sh", "-c", line).Output()
			if err != nil || !regexp.MustCompile(want).Match(out) {
				t.Errorf("docs/%s: %s (%v) prints\n%s", page, line, err, out)
			}
		}
	}
}
