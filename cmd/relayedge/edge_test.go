package main_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// edge is a running relayedge.
type edge struct {
	*process
	metrics   string            // URL
	listeners map[string]string // address by name
}

var announced = regexp.MustCompile(`(?m)^listener (\S+): .* on (\S+)$`)

// runEdge runs relayedge with a policy, to which it adds a certificate of our
// own making, the metrics' address and, unless it has one, no control socket, until the test's end.
func runEdge(t testing.TB, policy string) *edge {
	t.Helper()
	return runEdgeBy(t, policy)
}

// runEdgeBy is runEdge by a command that runs the command line behind it.
func runEdgeBy(t testing.TB, policy string, by ...string) *edge {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	policy += "\ncertificates: {self_issued: [localhost, 127.0.0.1, \"::1\"]}\nmetrics: {bind_addr: \"127.0.0.1:0\"}\n"
	if !strings.Contains(policy, "control:") {
		policy += "control: {socket: \"\"}\n"
	}
	if err := os.WriteFile(file, []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	line := append(by, binary(t, "relayedge"), "run", "-c", file)
	e := &edge{
		process:   launch(t, exec.Command(line[0], line[1:]...), "relayedge"),
		listeners: make(map[string]string),
	}
	metrics, err := e.await(&e.stdout, regexp.MustCompile(`(?m)^metrics: (\S+)$`))
	if err != nil {
		t.Fatal(err)
	}
	e.metrics = metrics[1]
	for _, m := range announced.FindAllStringSubmatch(e.stdout.String(), -1) {
		e.listeners[m[1]] = m[2]
	}
	return e
}

// policy is the file that the edge runs with.
func (e *edge) policy() string { return e.cmd.Args[len(e.cmd.Args)-1] }

// shows waits until the metrics hold each of the lines.
func (e *edge) shows(t testing.TB, lines ...string) {
	t.Helper()
	if err := eventually(func() error {
		_, body, err := get(e.metrics)
		if err != nil {
			return err
		}
		for _, line := range lines {
			if !strings.Contains("\n"+body, "\n"+line+"\n") {
				name, _, _ := strings.Cut(line, "{")
				name, _, _ = strings.Cut(name, " ")
				err = fmt.Errorf("the metrics do not show %s but\n%s", line, strings.Join(regexp.MustCompile(`(?m)^`+name+`.* [^0]\S*$`).FindAllString(body, -1), "\n"))
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// dial connects to address from a local address, which may be empty, with TLS
// for the server name, if one is given.
func dial(ctx context.Context, from, address, serverName string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: patience}
	if from != "" {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(patience))
	if serverName == "" {
		return conn, nil
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: serverName, NextProtos: []string{"http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// request sends a request on a connection and returns the answer's status and body.
func request(conn net.Conn) (int, string, error) {
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n"); err != nil {
		return 0, "", err
	}
	return answer(conn)
}

func answer(conn net.Conn) (int, string, error) {
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return response.StatusCode, string(body), err
}

// relayBehind is the policy of an edge with a relay in its own process.
const relayBehind = `
listeners: [{name: public, bind: "127.0.0.1:0"}]
relay: {in_process: true, bind: "127.0.0.1:0"}
`
