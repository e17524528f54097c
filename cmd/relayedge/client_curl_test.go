package main_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestCurlThroughTheEdge(t *testing.T) {
	t.Parallel()
	program := peer(t, "curl")
	certificate, key, err := writeCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	web := runEdge(t, fmt.Sprintf(`
listeners: [{name: public, bind: "127.0.0.1:0"}]
upstreams: {relay: {addresses: [%q], client_address: none}}
`, answering(t)))
	relay := runEdge(t, relayBehind)
	named := launch(t, exec.Command(binary(t, "relayedge"), "run", "--listen", "127.0.0.1:0",
		"--upstream", answering(t), "--client-address", "none", "--cert", certificate, "--key", key), "relayedge")
	listener, err := named.await(&named.stdout, announced)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(listener[2], ":")

	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 3_000_000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name  string
		args  []string
		want  string // in the headers or the body
		fails int    // curl's exit code
	}{
		{"HTTPS", []string{"-k", "https://" + web.listeners["public"] + "/"}, "the service answers", 0},
		{"HTTP/2 is not spoken, and falls back", []string{"-k", "--http2", "https://" + web.listeners["public"] + "/"}, "HTTP/1.0 200", 0},
		{"TLS 1.2", []string{"-k", "--tls-max", "1.2", "https://" + web.listeners["public"] + "/"}, "the service answers", 0},
		{"TLS 1.3", []string{"-k", "--tlsv1.3", "https://" + web.listeners["public"] + "/"}, "the service answers", 0},
		{"a large body", []string{"-k", "-H", "Expect:", "--data-binary", "@" + large, "https://" + web.listeners["public"] + "/"}, "the service answers a body of 3000000 bytes", 0},
		{"a certificate that is not trusted", []string{"https://" + web.listeners["public"] + "/"}, "", 60},
		{"a certificate that is", []string{"--cacert", certificate, "https://localhost:" + port + "/"}, "the service answers", 0},
		{"plain HTTP on the TLS port", []string{"http://" + web.listeners["public"] + "/"}, "This port speaks TLS.", 0},
		{"the relay's other paths", []string{"-k", "https://" + relay.listeners["public"] + "/"}, "404 Not Found", 0},
		{"the relay's path without an upgrade", []string{"-k", "https://" + relay.listeners["public"] + "/relay"}, "404 Not Found", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, append([]string{"-sS", "-i", "--noproxy", "*"}, row.args...)...)
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != row.fails || !strings.Contains(string(out), row.want) {
				t.Errorf("exit code %d (%v), want %d with %q:\n%s", code, err, row.fails, row.want, out)
			}
		})
	}
	t.Run("an upgrade", func(t *testing.T) {
		// The key and its answer are RFC 6455's own example. Afterwards the relay waits for a frame, and curl for the relay.
		waits := launch(t, exec.Command(program, "-sS", "-v", "-k", "--noproxy", "*", "-H", "Connection: Upgrade", "-H", "Upgrade: websocket",
			"-H", "Sec-WebSocket-Version: 13", "-H", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "--http1.1", "https://"+relay.listeners["public"]+"/relay"), "curl")
		if _, err := waits.await(&waits.stderr, regexp.MustCompile(`\n< HTTP/1\.1 101 (?s:.*)\n< Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK\+xOo=\r\n`)); err != nil {
			t.Error(err)
		}
	})
	web.shows(t, `relayedge_rejections_total{reason="not_tls"} 1`, `relayedge_connections{listener="public"} 0`)
}
