package main_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"relayedge/internal/testport"
)

// A peer is a program that is not ours. A test that needs one is skipped where
// it is not installed, and fails instead with RELAYEDGE_REQUIRE_PEERS=1.

// missing skips or fails a test for want of a peer.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("RELAYEDGE_REQUIRE_PEERS") == "1" {
		t.Fatalf("%s is missing, and RELAYEDGE_REQUIRE_PEERS=1 asks for it", what)
	}
	t.Skipf("%s is missing", what)
}

// peer returns the path of a program by the first of its names that is there.
func peer(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
		// Servers are often beyond the PATH of an ordinary user.
		for _, folder := range []string{"/usr/sbin", "/usr/local/sbin", "/sbin"} {
			if path, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
				return path
			}
		}
	}
	missing(t, names[0])
	panic("unreachable")
}

// needIPv6 skips a test on a machine without IPv6, whatever is required.
func needIPv6(t testing.TB) {
	t.Helper()
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this machine has no IPv6")
	}
	ln.Close()
}

func loopback4(t testing.TB) string { return fmt.Sprintf("127.0.0.1:%d", testport.Free(t)) }
func loopback6(t testing.TB) string { return fmt.Sprintf("[::1]:%d", testport.Free(t)) }

// awaitListening waits until each address takes connections.
func (p *process) awaitListening(t testing.TB, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		if err := eventually(func() error {
			select {
			case <-p.exited:
				t.Fatalf("%s ended (%v):\n%s%s", p.name, p.err, p.stdout.String(), p.stderr.String())
			default:
			}
			conn, err := net.DialTimeout("tcp", address, time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		}); err != nil {
			t.Fatalf("%s does not listen: %v", p.name, err)
		}
	}
}

// haproxy runs HAProxy with the sections given, until the test's end, and waits
// for the addresses.
func haproxy(t testing.TB, sections string, addresses ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	config := `global
  maxconn 100
defaults
  retries 0
  timeout connect 5m
  timeout client 5m
  timeout server 5m
` + sections
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, exec.Command(peer(t, "haproxy"), "-db", "-f", file), "haproxy")
	p.awaitListening(t, addresses...)
}

// nginx runs nginx as one process with the blocks given, until the test's end,
// and waits for the addresses.
func nginx(t testing.TB, blocks string, addresses ...string) *process {
	t.Helper()
	program, folder := peer(t, "nginx"), t.TempDir()
	config := streamModule(t, program) + `
daemon off;
master_process off;
pid nginx.pid;
error_log stderr notice;
events {}
` + blocks
	file := filepath.Join(folder, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, exec.Command(program, "-p", folder, "-c", file), "nginx")
	p.awaitListening(t, addresses...)
	return p
}

// httpPaths keeps nginx's http block within its folder, whoever runs it.
const httpPaths = `
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
`

var modulesPath = regexp.MustCompile(`--modules-path=(\S+)`)

// streamModule is the line that loads nginx's stream module, where it is not
// built in.
func streamModule(t testing.TB, program string) string {
	t.Helper()
	out, err := exec.Command(program, "-V").CombinedOutput()
	if err != nil {
		t.Fatalf("nginx -V: %v\n%s", err, out)
	}
	switch {
	case strings.Contains(string(out), "--with-stream=dynamic"):
		folder := "/usr/lib/nginx/modules"
		if m := modulesPath.FindSubmatch(out); m != nil {
			folder = string(m[1])
		}
		module := filepath.Join(folder, "ngx_stream_module.so")
		if !exists(module) {
			missing(t, "nginx's stream module")
		}
		return "load_module " + module + ";"
	case strings.Contains(string(out), "--with-stream"):
		return ""
	}
	missing(t, "nginx's stream module")
	panic("unreachable")
}

// The receivers answer every request with what the PROXY header told them, in
// this form.
var told = regexp.MustCompile(`^source=(\S*) port=(\d+) destination=(\S*) port=(\d+)(?: authority=(\S*) unique_id=(\S*))?\n$`)

type report struct {
	source, destination netip.AddrPort
	authority, uniqueID string // "" or "-" where the header had none
}

func readReport(body string) (report, error) {
	m := told.FindStringSubmatch(body)
	if m == nil {
		return report{}, fmt.Errorf("the receiver answered %q", body)
	}
	source, err1 := netip.ParseAddrPort(net.JoinHostPort(m[1], m[2]))
	destination, err2 := netip.ParseAddrPort(net.JoinHostPort(m[3], m[4]))
	if err1 != nil || err2 != nil {
		return report{}, fmt.Errorf("the receiver answered %q", body)
	}
	return report{source, destination, m[5], m[6]}, nil
}

// haproxyReceiver is the section of an HAProxy that requires a PROXY header on
// its address.
func haproxyReceiver(address string) string {
	return fmt.Sprintf(`
frontend receiver
  mode http
  bind %s accept-proxy
  http-request return status 200 content-type text/plain lf-string "source=%%[src] port=%%[src_port] destination=%%[dst] port=%%[dst_port] authority=%%[fc_pp_authority] unique_id=%%[fc_pp_unique_id]\n"
`, address)
}

// nginxReceiver is the block of an nginx that requires a PROXY header on its address.
func nginxReceiver(address string) string {
	return fmt.Sprintf(`
http {%s
  server {
    listen %s proxy_protocol;
    default_type text/plain;
    return 200 "source=$proxy_protocol_addr port=$proxy_protocol_port destination=$proxy_protocol_server_addr port=$proxy_protocol_server_port\n";
  }
}
`, httpPaths, address)
}
