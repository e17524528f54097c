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

// openssl s_client as a client: versions, ALPN, names and their alerts,
// resumption, half-close.
func TestOpenSSLHandshakes(t *testing.T) {
	t.Parallel()
	program := peer(t, "openssl")
	web := answering(t)
	e := runEdge(t, fmt.Sprintf(`
listeners:
  - {name: public, bind: "127.0.0.1:0", alpn: [http/1.1, mqtt]}
  - {name: modern, bind: "127.0.0.1:0", tls_min_version: "1.3"}
upstreams: {relay: {addresses: [%q], client_address: none}}
`, web))

	// The request goes out at once, and the answer's end is what s_client ends with.
	sClient := func(t *testing.T, listener string, args ...string) (string, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, append([]string{"s_client", "-connect", e.listeners[listener], "-ign_eof"}, args...)...)
		cmd.Stdin = strings.NewReader("GET / HTTP/1.0\r\n\r\n")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}

	for _, row := range []struct {
		name     string
		listener string
		args     []string
		wants    []string // patterns
	}{
		{"TLS 1.2", "public", []string{"-tls1_2"}, []string{`New, TLSv1\.2, Cipher is ECDHE-ECDSA-`, `Extended master secret: yes`}},
		{"TLS 1.3", "public", []string{"-tls1_3"}, []string{`New, TLSv1\.3, Cipher is TLS_`, `CN = relayedge self-issued`}},
		{"TLS 1.3 alone", "modern", nil, []string{`New, TLSv1\.3, Cipher is TLS_`}},
		{"ALPN", "public", []string{"-alpn", "h2,http/1.1"}, []string{`ALPN protocol: http/1\.1`}},
		{"another ALPN", "public", []string{"-alpn", "mqtt"}, []string{`ALPN protocol: mqtt`}},
		{"no ALPN", "public", nil, []string{`No ALPN negotiated`}},
		{"a name", "public", []string{"-servername", "localhost"}, []string{`Verification error: self-signed certificate`}},
		{"a name in capitals", "public", []string{"-servername", "LOCALHOST"}, []string{`New, TLS`}},
		{"no name", "public", []string{"-noservername"}, []string{`New, TLS`}},
		{"records of a few bytes", "public", []string{"-split_send_frag", "512", "-max_send_frag", "512"}, []string{`New, TLS`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			out, err := sClient(t, row.listener, row.args...)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range append(row.wants, `(?m)^HTTP/1\.0 200 OK`, `(?m)^the service answers`) {
				if !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("openssl does not say %s:\n%s", want, out)
				}
			}
		})
	}
	e.shows(t, `relayedge_ended_total{reason="tls_handshake_failed"} 0`, `relayedge_ended_total{reason="unknown_server_name"} 0`)

	refused := map[string]int{}
	for _, row := range []struct {
		name     string
		listener string
		args     []string
		alert    int // of RFC 8446, section 6
		reason   string
	}{
		{"unknown name over TLS 1.2", "public", []string{"-tls1_2", "-servername", "other.example"}, 112, "unknown_server_name"},
		{"unknown name over TLS 1.3", "public", []string{"-tls1_3", "-servername", "other.example"}, 112, "unknown_server_name"},
		{"no common ALPN over TLS 1.2", "public", []string{"-tls1_2", "-alpn", "h2"}, 120, "tls_handshake_failed"},
		{"no common ALPN over TLS 1.3", "public", []string{"-tls1_3", "-alpn", "h2"}, 120, "tls_handshake_failed"},
		{"TLS 1.2 where 1.3 is asked for", "modern", []string{"-tls1_2"}, 70, "tls_handshake_failed"},
		{"TLS 1.1", "public", []string{"-tls1_1", "-cipher", "ALL:@SECLEVEL=0"}, 70, "tls_handshake_failed"},
	} {
		t.Run(row.name, func(t *testing.T) {
			refused[row.reason]++
			out, err := sClient(t, row.listener, row.args...)
			if err == nil || !strings.Contains(out, fmt.Sprintf("SSL alert number %d\n", row.alert)) {
				t.Errorf("%v, without the alert %d:\n%s", err, row.alert, out)
			}
			e.shows(t, fmt.Sprintf(`relayedge_rejections_total{reason=%q} %d`, row.reason, refused[row.reason]))
		})
	}

	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		t.Run("resumption "+version, func(t *testing.T) {
			ticket := filepath.Join(t.TempDir(), "ticket")
			if out, err := sClient(t, "public", version, "-servername", "localhost", "-sess_out", ticket); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := sClient(t, "public", version, "-servername", "localhost", "-sess_in", ticket)
			if err != nil || !strings.Contains(out, "Reused, TLSv1.") || !strings.Contains(out, "the service answers") {
				t.Errorf("%v, not reused:\n%s", err, out)
			}
		})
	}
}

// A TLS 1.2 session without extended master secret has no channel binding to
// tell the relay. It is served all the same.
func TestOpenSSLWithoutExtendedMasterSecret(t *testing.T) {
	t.Parallel()
	program := peer(t, "openssl")
	config := filepath.Join(t.TempDir(), "openssl.cnf")
	if err := os.WriteFile(config, []byte("openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = default\n[default]\nOptions = -ExtendedMasterSecret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := runEdge(t, relayBehind)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "s_client", "-connect", e.listeners["public"], "-ign_eof", "-tls1_2")
	cmd.Env = append(os.Environ(), "OPENSSL_CONF="+config)
	cmd.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Extended master secret: no") || !strings.Contains(string(out), "HTTP/1.1 404 Not Found") {
		t.Errorf("%v, no answer of the relay without extended master secret:\n%s", err, out)
	}
	e.shows(t, `relaycore_rejections_total{reason="proxy_header"} 0`)
}
