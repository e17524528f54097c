package main_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/internal/proxyheader"
	"relayedge/internal/testca"
	"relayedge/internal/testport"
)

// acmePolicy is the acme section for a test's CA.
func acmePolicy(ca *testca.CA, storage, bind, challenges string, domains ...string) string {
	return fmt.Sprintf("certificates: {acme: {domains: [%s], agree_to_terms: true, directory_url: %q, ca_root_file: %q, challenges: [%s], http_bind: %q, storage: %q}}\nmetrics: {bind_addr: \"127.0.0.1:0\"}\ncontrol: {socket: \"\"}\n",
		strings.Join(domains, ", "), ca.Directory, ca.RootFile, challenges, bind, storage)
}

// usedStorage is one that has been used: the first order of a new one waits.
func usedStorage(t testing.TB) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "storage")
	if err := os.MkdirAll(filepath.Join(folder, "orders"), 0o700); err != nil {
		t.Fatal(err)
	}
	return folder
}

// startEdge runs relayedge with a whole policy and waits until it has said where it serves.
func startEdge(t testing.TB, policy string) *edge {
	t.Helper()
	return startEdgeBy(t, policy)
}

// startEdgeBy is startEdge by a command that runs the command line behind it.
func startEdgeBy(t testing.TB, policy string, by ...string) *edge {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	line := append(by, binary(t, "relayedge"), "run", "-c", file)
	e := &edge{process: launch(t, exec.Command(line[0], line[1:]...), "relayedge")}
	metrics, err := e.await(&e.stdout, regexp.MustCompile(`(?m)^metrics: (\S+)$`))
	if err != nil {
		t.Fatal(err)
	}
	e.metrics = metrics[1]
	return e
}

// The validation comes through a load balancer with a PROXY header, meets other
// protocols than its own, and ends at the edge: no relay hears of it. Beside the
// sockets of the policy nothing listens.
func TestCertificatesFromACA(t *testing.T) {
	t.Parallel()
	balancer, plain := testport.Free(t), testport.Free(t)
	behind := loopback4(t)
	ca := testca.Start(t, testca.Options{TLSPort: balancer, HTTPPort: plain})
	forwardWithHeader(t, fmt.Sprintf("127.0.0.1:%d", balancer), behind)
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	var reached atomic.Int32
	go func() {
		for {
			conn, err := relay.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			conn.Close()
		}
	}()
	for _, challenge := range []string{"tls-alpn-01", "http-01"} {
		storage := usedStorage(t)
		e := startEdge(t, fmt.Sprintf("listeners: [{name: public, bind: %q, alpn: [irc], trust_proxy_from: [127.0.0.1/32]}]\nupstreams: {relay: {addresses: [%q], health_check_secs: 0}}\n", behind, relay.Addr())+
			acmePolicy(ca, storage, fmt.Sprintf("127.0.0.1:%d", plain), challenge, "a.example.org", "b.example.org"))
		want := 2 // the listener and the metrics
		if challenge == "http-01" {
			want = 3
		}
		if err := eventually(func() error {
			if n, err := listeningSockets(e.cmd.Process.Pid); err == nil && n > want {
				t.Fatalf("%d sockets listen, the policy has %d", n, want)
			}
			_, body, err := get(e.metrics)
			if err == nil && !strings.Contains(body, "\nrelayedge_acme_orders_total{result=\"obtained\"} 2\n") {
				err = fmt.Errorf("no certificates yet:\n%s", e.stderr.String())
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if reached.Load() != 0 {
			t.Errorf("%s: a validation reached the relay", challenge)
		}
		// A client is served by the certificate, and reaches the relay.
		if err := eventually(func() error {
			conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", fmt.Sprintf("127.0.0.1:%d", balancer),
				&tls.Config{ServerName: "b.example.org", InsecureSkipVerify: true, NextProtos: []string{"irc"}})
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.ConnectionState().PeerCertificates[0].VerifyHostname("b.example.org"); err != nil {
				t.Error(err)
			}
			io.Copy(io.Discard, conn)
			if reached.Load() == 0 {
				return errors.New("the client did not reach the relay")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if challenge == "http-01" {
			redirected(t, fmt.Sprintf("http://127.0.0.1:%d/path", plain))
		}
		e.shows(t, `relayedge_acme_orders_total{result="failed"} 0`, `relayedge_acme_retry_seconds{domain="a.example.org"} 0`)
		e.terminate(t)
		if code, err := e.ended(); code != 0 || err != nil {
			t.Errorf("ended with %d, %v", code, err)
		}
		reached.Store(0)
	}
	if n := ca.Orders(); n != 4 {
		t.Errorf("%d orders for two names, twice", n)
	}
}

func redirected(t testing.TB, url string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "a.example.org"
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if got := response.Header.Get("Location"); got != "https://a.example.org/path" {
		t.Errorf("%d to %q", response.StatusCode, got)
	}
}

// Whatever starts again and again, and is killed, comes to one order at most.
func TestTwentyKilledStarts(t *testing.T) {
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("storage kept %v", kept), func(t *testing.T) {
			t.Parallel()
			ca := testca.Start(t, testca.Options{TLSPort: testport.Free(t), HTTPPort: testport.Free(t)}) // nobody answers there
			storage := usedStorage(t)
			policy := "listeners: [{name: public, bind: \"127.0.0.1:0\"}]\n" + acmePolicy(ca, storage, "127.0.0.1:0", "tls-alpn-01", "a.example.org")
			began := time.Now()
			for i := range 20 {
				if !kept {
					if err := os.RemoveAll(storage); err != nil {
						t.Fatal(err)
					}
				}
				e := startEdge(t, policy)
				if kept && i == 0 {
					if err := eventually(func() error {
						if ca.Requests() == 0 {
							return errors.New("it does not come as far as the CA")
						}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(100 * time.Millisecond) // its life
				e.stop()
			}
			most := 0
			if kept {
				most = 1
				if time.Since(began) > 54*time.Second { // the pause after an order that failed: a minute, less a tenth
					most = 2
				}
			}
			if orders := ca.Orders(); orders > most {
				t.Errorf("%d orders by 20 starts in %v", orders, time.Since(began))
			}
		})
	}
}

// Where http_bind is taken, the other challenge is used, and the log says so.
func TestHTTPBindIsTaken(t *testing.T) {
	t.Parallel()
	public := loopback4(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ca := testca.Start(t, testca.Options{TLSPort: portOf(t, public), HTTPPort: portOf(t, taken.Addr().String())})
	e := startEdge(t, fmt.Sprintf("listeners: [{name: public, bind: %q}]\n", public)+
		acmePolicy(ca, usedStorage(t), taken.Addr().String(), "http-01, tls-alpn-01", "a.example.org"))
	if _, err := e.await(&e.stderr, regexp.MustCompile(`http_bind: http-01 cannot be answered, .*`+regexp.QuoteMeta(taken.Addr().String())+`.*address already in use`)); err != nil {
		t.Error(err)
	}
	e.shows(t, `relayedge_acme_orders_total{result="obtained"} 1`)
	if n := ca.Orders(); n != 1 {
		t.Errorf("%d orders", n)
	}
}

func portOf(t testing.TB, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// forwardWithHeader is a load balancer: it takes connections at one address and
// passes them on to the other behind a PROXY v2 header.
func forwardWithHeader(t testing.TB, from, to string) {
	t.Helper()
	ln, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		ln.Close()
	})
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				server, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				header, err := proxyheader.AppendV2(nil, proxyheader.Header{
					Version: 2, Source: conn.RemoteAddr().(*net.TCPAddr).AddrPort(), Destination: conn.LocalAddr().(*net.TCPAddr).AddrPort(),
				}, true)
				if err != nil {
					t.Error(err)
					return
				}
				server.Write(header)
				go func() {
					io.Copy(server, conn)
					server.(*net.TCPConn).CloseWrite()
				}()
				io.Copy(conn, server)
			}()
		}
	}()
}

// listeningSockets counts the TCP sockets on which a process listens. Where the
// system does not tell, it is -1 with an error.
func listeningSockets(pid int) (int, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			return -1, err
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 9 && fields[3] == "0A" {
				inodes[fields[9]] = true
			}
		}
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return -1, err
	}
	n := 0
	for _, file := range files {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, file.Name()))
		if inode, ok := strings.CutPrefix(target, "socket:["); ok && err == nil && inodes[strings.TrimSuffix(inode, "]")] {
			n++
		}
	}
	return n, nil
}
