//go:build linux

package main_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// namespaceVar tells a test that it runs within a network namespace of its own.
const namespaceVar = "RELAYEDGE_TEST_NAMESPACE"

// inNamespace runs the calling test once more in a network namespace of its
// own, with loopback up, and reports whether this is that run.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(namespaceVar) == t.Name() {
		if out, err := exec.Command(peer(t, "ip"), "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("ip link set lo up: %v\n%s", err, out)
		}
		return true
	}
	unshare := peer(t, "unshare")
	peer(t, "ip")
	if err := exec.Command(unshare, "-n", "true").Run(); err != nil {
		missing(t, "leave to make a network namespace (root)")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-n", self, "-test.run=^" + t.Name() + "$", "-test.v", "-test.timeout=8m"}
	run := exec.CommandContext(t.Context(), unshare, args...)
	run.Env = append(os.Environ(), namespaceVar+"="+t.Name(), binariesVar+"="+binFolder(t))
	out, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in the namespace: %v\n%s", err, out)
	}
	return false
}

// leaveHundredPorts has this namespace connect from a hundred ports, none of
// which anybody has listened on before.
func leaveHundredPorts(t *testing.T) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("61000 61099"), 0); err != nil {
		t.Fatal(err)
	}
}

// cpuTime is what a process has used so far.
func (p *process) cpuTime(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 everywhere
}

// echoed reports whether an echo service answers on the connection.
func echoed(conn net.Conn) bool {
	if _, err := conn.Write([]byte("?")); err != nil {
		return false
	}
	b := make([]byte, 1)
	_, err := io.ReadFull(conn, b)
	return err == nil && b[0] == '?'
}

// echoAt is an echo service at a port that no connection is made from.
func echoAt(t *testing.T) string {
	t.Helper()
	s, err := serve(loopback4(t), echo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s.Addr().String()
}

const withoutCaps = "limits: {max_connections_per_ip: 0, connection_rate_per_ip: 0, drain_secs: 0}\n"

// clients opens connections from addresses of their own, so that only the edge
// can want for ports, and returns those that reach the relay.
func clients(t *testing.T, e *edge, n, clientPort int) (through []net.Conn, refused int, slowest time.Duration) {
	t.Helper()
	for i := range n {
		began := time.Now()
		// A port that is bound beforehand is none that others can connect from.
		dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i/200), byte(i%200+1)), Port: clientPort}}
		conn, err := dialer.DialContext(t.Context(), "tcp", e.listeners["public"])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(patience))
		if echoed(conn) {
			through = append(through, conn)
			continue
		}
		refused++
		slowest = max(slowest, time.Since(began))
	}
	return through, refused, slowest
}

// With a hundred ports and one relay address, the 101st client is refused at
// once and by name; the relay is not blamed, nothing spins, and a port that is
// given back serves the next.
func TestLocalPorts(t *testing.T) {
	t.Parallel()
	if !inNamespace(t) {
		return
	}
	relay := echoAt(t)
	e := runEdge(t, "listeners: [{name: public, bind: "+strconv.Quote(loopback4(t))+", tls: none}]\n"+withoutCaps+
		"upstreams: {relay: {addresses: ["+strconv.Quote(relay)+"], health_check_secs: 1, connect_timeout_secs: 60, client_address: none}}\n")
	leaveHundredPorts(t)
	before := e.cpuTime(t)
	began := time.Now()
	through, refused, slowest := clients(t, e, 200, 11000)
	// Checks hold some of the ports, each for the second or two that the kernel keeps it.
	if len(through) < 95 || len(through) > 100 || refused != 200-len(through) {
		t.Errorf("%d came through, %d were refused", len(through), refused)
	}
	// At once, not at the end of some waiting, of which connect_timeout_secs is the least.
	if slowest > 20*time.Second {
		t.Errorf("a refusal took %v", slowest)
	}
	state := func(open, failed int) {
		t.Helper()
		e.shows(t,
			fmt.Sprintf(`relayedge_connections{listener="public"} %d`, open),
			fmt.Sprintf(`relayedge_rejections_total{reason="local_ports"} %d`, failed),
			`relayedge_rejections_total{reason="upstream_unavailable"} 0`,
			`relayedge_upstream_up{upstream="relay"} 1`)
	}
	state(len(through), refused)
	time.Sleep(3 * time.Second) // checks that find no port, and nothing that spins
	state(len(through), refused)
	if used, wall := e.cpuTime(t)-before, time.Since(began); used > wall/3 {
		t.Errorf("%v of CPU time in %v", used, wall)
	}
	if lines := strings.Count(e.stderr.String(), "level=WARN") + strings.Count(e.stderr.String(), "level=ERROR"); lines > 10 {
		t.Errorf("%d log lines:\n%s", lines, e.stderr.String())
	}
	t.Logf("%d through, %d refused in at most %v each, %v of CPU time in %v", len(through), refused, slowest, e.cpuTime(t)-before, time.Since(began))

	// A port is free at once after a reset, and after the second that the kernel
	// keeps one of loopback in TIME_WAIT for where our end closed first.
	for _, conn := range through[:40] {
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	state(len(through)-40, refused)
	if again, _, _ := clients(t, e, 35, 11001); len(again) != 35 {
		t.Errorf("%d of 35 came through after 40 had left", len(again))
	}
	for _, conn := range through[40:80] {
		conn.Close()
	}
	port := 11001
	if err := eventually(func() error {
		port++
		conns, _, _ := clients(t, e, 1, port)
		if len(conns) == 0 {
			return errors.New("nobody comes through after 40 had left")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// With two addresses to connect from there are ports for all.
func TestSourceAddresses(t *testing.T) {
	t.Parallel()
	if !inNamespace(t) {
		return
	}
	relay := echoAt(t)
	e := runEdge(t, "listeners: [{name: public, bind: "+strconv.Quote(loopback4(t))+", tls: none}]\n"+withoutCaps+
		"upstreams: {relay: {addresses: ["+strconv.Quote(relay)+"], health_check_secs: 0, client_address: none, source_addresses: [127.2.0.0/30]}}\n")
	leaveHundredPorts(t)
	if through, _, _ := clients(t, e, 200, 11000); len(through) != 200 {
		t.Errorf("%d of 200 came through", len(through))
	}
	through, refused, _ := clients(t, e, 5, 11001)
	e.shows(t, fmt.Sprintf(`relayedge_rejections_total{reason="local_ports"} %d`, refused))
	if len(through) != 0 {
		t.Errorf("%d more came through than there are ports", len(through))
	}
}
