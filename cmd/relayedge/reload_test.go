package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"relayedge/relaycore/wire"
)

// reloading is an edge whose policy a test changes.
type reloading struct {
	*edge
	t            testing.TB
	file, socket string
}

// runReloading runs an edge with a policy that begins as the given one; changes
// replace words of it.
func runReloading(t testing.TB, policy string) *reloading {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "control")
	e := runEdge(t, policy+"\ncontrol: {socket: "+socket+"}\n")
	return &reloading{e, t, e.policy(), socket}
}

// write replaces words of the policy file.
func (r *reloading) write(replace ...string) {
	r.t.Helper()
	text, err := os.ReadFile(r.file)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(text), replace[i]) {
			r.t.Fatalf("the policy does not say %q:\n%s", replace[i], text)
		}
	}
	if err := os.WriteFile(r.file, []byte(strings.NewReplacer(replace...).Replace(string(text))), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// reload asks for a reload and returns what it says.
func (r *reloading) reload() (said string, err error) {
	out, err := exec.Command(binary(r.t, "relayedge"), "reload", "--socket", r.socket).CombinedOutput()
	return string(out), err
}

// gauge is the value of a metric, which a text of the endpoint's names.
func (e *edge) gauge(t testing.TB, name string) float64 {
	t.Helper()
	_, body, err := get(e.metrics)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(body)
	if m == nil {
		t.Fatalf("no metric %s", name)
	}
	value, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// upgradeThrough connects to the relay behind the edge by TLS and upgrades.
func upgradeThrough(ctx context.Context, address string) (net.Conn, *bufio.Reader, error) {
	conn, err := dial(ctx, "", address, "localhost")
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n\r\n", wire.Path)
	in := bufio.NewReaderSize(conn, 512)
	response, err := http.ReadResponse(in, nil)
	if err == nil && response.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("the upgrade is answered by %s", response.Status)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	conn.SetDeadline(time.Time{})
	return conn, in, nil
}

// webSocket is a client that answers the relay's pings and takes nothing else in.
type webSocket struct {
	net.Conn
	pong chan struct{} // a pong of the relay's
	gone chan struct{} // closed at the end of its stream, of which err says why
	err  error
}

func openWebSocket(ctx context.Context, address string) (*webSocket, error) {
	conn, in, err := upgradeThrough(ctx, address)
	if err != nil {
		return nil, err
	}
	w := &webSocket{Conn: conn, pong: make(chan struct{}, 1), gone: make(chan struct{})}
	go func() {
		defer close(w.gone)
		w.err = w.live(in)
	}()
	return w, nil
}

func (w *webSocket) live(in *bufio.Reader) error {
	for {
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		length := int(head[1])
		if length == 126 {
			var long [2]byte
			if _, err := io.ReadFull(in, long[:]); err != nil {
				return err
			}
			length = int(long[0])<<8 | int(long[1])
		}
		payload := make([]byte, length)
		if _, err := io.ReadFull(in, payload); err != nil {
			return err
		}
		switch head[0] & 0x0f {
		case 0x08:
			return fmt.Errorf("a close frame, %x", payload)
		case 0x09:
			if _, err := w.Write(append([]byte{0x8a, 0x80 | byte(length), 0, 0, 0, 0}, payload...)); err != nil {
				return err
			}
		case 0x0a:
			w.pong <- struct{}{}
		}
	}
}

// pinged sends a ping and waits for the pong that answers it.
func (w *webSocket) pinged() error {
	if _, err := w.Write([]byte{0x89, 0x81, 0, 0, 0, 0, '!'}); err != nil {
		return err
	}
	select {
	case <-w.pong:
		return nil
	case <-w.gone:
		return w.err
	case <-time.After(patience):
		return errors.New("no pong")
	}
}

// 300 reloads, in which limits, a listener and an upstream change, disturb none
// of 1,000 open WebSockets, refuse nobody who comes at the same time, and leave
// nothing behind.
func TestReloadsDisturbNobody(t *testing.T) {
	webSockets, reloads := 1000, 300
	if testing.Short() {
		webSockets, reloads = 100, 40
	}
	r := runReloading(t, `
listeners:
  - {name: public, bind: "127.0.0.1:0"}
relay: {in_process: true, bind: "127.0.0.1:0", limits: {identification_timeout_secs: 300, connection_timeout_secs: 3600}}
limits: {max_connections_per_ip: 0, connection_rate_per_ip: 0, max_connections: 5000, connection_timeout_secs: 3600, tls_handshake_timeout_secs: 60}
`)
	clients := make([]*webSocket, webSockets)
	var opening sync.WaitGroup
	var next atomic.Int64
	for range 8 {
		opening.Go(func() {
			for i := int(next.Add(1)) - 1; i < webSockets; i = int(next.Add(1)) - 1 {
				var err error
				if clients[i], err = openWebSocket(t.Context(), r.listeners["public"]); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	opening.Wait()
	if t.Failed() {
		return
	}

	// The probe: 200 connections a second, as far as the machine is up to it.
	probing, stop := context.WithCancel(t.Context())
	var probes atomic.Int64
	var inFlight sync.WaitGroup
	inFlight.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		slots := make(chan struct{}, 64)
		for {
			select {
			case <-probing.Done():
				return
			case <-tick.C:
			}
			slots <- struct{}{}
			inFlight.Go(func() {
				defer func() { <-slots }()
				conn, err := dial(context.WithoutCancel(probing), "", r.listeners["public"], "localhost")
				if err == nil {
					var status int
					if status, _, err = request(conn); err == nil && status == 0 {
						err = fmt.Errorf("no answer")
					}
					conn.Close()
				}
				if err != nil {
					t.Errorf("probe %d: %v", probes.Load(), err)
					stop()
				}
				probes.Add(1)
			})
		}
	})

	variants := []string{
		"max_connections: 5000", "max_connections: 4000",
	}
	extra := "\n  - {name: extra, bind: \"127.0.0.1:0\", tls: none, upstream: extra}\n"
	upstreams := "\nupstreams: {relay: {}, extra: {addresses: [\"127.0.0.1:1\"], health_check_secs: 1}}\n"
	change := func(i int) {
		switch i % 4 {
		case 0:
			r.write(variants[0], variants[1])
		case 1:
			r.write(`bind: "127.0.0.1:0"}`+"\nrelay", `bind: "127.0.0.1:0"}`+extra+upstreams+"relay")
		case 2:
			r.write(variants[1], variants[0])
		case 3:
			r.write(extra+upstreams, "\n")
		}
		if i%10 == 0 {
			if said, err := r.reload(); err != nil {
				t.Fatalf("reload %d: %v: %s", i, err, said)
			}
		} else if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if err := eventually(func() error {
			if n := r.gauge(t, `relayedge_reloads_total{result="applied"}`); n != float64(i+1) {
				return fmt.Errorf("%v reloads were applied, want %d", n, i+1)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	// What is in use: the heap at which the collector comes next follows what it has
	// found in use last, whatever garbage there is.
	used := math.Inf(1)
	look := func() { used = min(used, r.gauge(t, "go_memstats_next_gc_bytes")) }
	var goroutines, memory float64
	for i := range reloads {
		change(i)
		if i%4 == 3 {
			look()
		}
		switch i {
		case reloads/5/4*4 - 1: // the process has settled
			goroutines, memory, used = r.gauge(t, "go_goroutines"), used, math.Inf(1)
		case reloads / 5 * 4:
			used = math.Inf(1)
		}
	}
	t.Logf("%d probes beside %d reloads", probes.Load(), reloads)
	stop()
	inFlight.Wait()
	if n := r.gauge(t, `relayedge_reloads_total{result="refused"}`); n != 0 {
		t.Errorf("%v reloads were refused", n)
	}
	if err := eventually(func() error {
		if now := r.gauge(t, "go_goroutines"); now > goroutines+100 {
			return fmt.Errorf("%v goroutines, after the first reloads %v", now, goroutines)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if used > memory*1.25 {
		t.Errorf("the collector comes at %.1f MB, after the first reloads it was %.1f MB", used/1e6, memory/1e6)
	}
	for i, c := range clients {
		if err := c.pinged(); err != nil {
			t.Errorf("WebSocket %d of %d: %v", i, webSockets, err)
			break
		}
		c.Close()
	}
}

// A policy that cannot be put in force changes nothing of what is, and the
// command says what is wrong with it; a good one afterwards is put in force.
func TestBadReloads(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	fixed := loopback4(t)
	r := runReloading(t, `
listeners: [{name: public, bind: "127.0.0.1:0"}, {name: fixed, bind: "`+fixed+`", tls: none}]
relay: {in_process: true, bind: "127.0.0.1:0", require_channel_binding: false, limits: {identification_timeout_secs: 300}}
limits: {max_connections_per_ip: 5, connection_rate_per_ip: 0}
`)
	good, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(fixed)
	open, err := openWebSocket(t.Context(), r.listeners["public"])
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for name, tt := range map[string]struct {
		replace []string
		says    string
	}{
		"an unknown key":   {[]string{"max_connections_per_ip: 5", "max_conections: 5"}, `policy.yaml:4:10: limits.max_conections: `},
		"a cap of nothing": {[]string{"max_connections_per_ip: 5", "max_connections: 0"}, `policy.yaml:4:27: limits.max_connections: `},
		"no YAML":          {[]string{"\nlimits:", "\nlimits: ]"}, `policy.yaml:4`},
		"a certificate that is not there": {
			[]string{`certificates: {`, `certificates: {files: [{certificate: nowhere.pem, key: nowhere.key}], `},
			`nowhere.pem: no such file or directory`,
		},
		"a port that another has": {
			[]string{`tls: none}]`, `tls: none}, {name: more, bind: "` + taken.Addr().String() + `"}]`, "per_ip: 5", "per_ip: 1"},
			`policy.yaml:2: listener more: cannot listen on ` + taken.Addr().String() + `: address already in use`,
		},
		"a port of another listener's": {
			[]string{`"127.0.0.1:` + port, `"[::]:` + port},
			`policy.yaml:2: listener fixed: cannot listen on [::]:` + port + ` beside listener fixed in force (` + fixed + `)`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.write(tt.replace...)
			defer os.WriteFile(r.file, good, 0o644)
			refused := r.gauge(t, `relayedge_reloads_total{result="refused"}`)
			said, err := r.reload()
			if err == nil || !strings.Contains(said, tt.says) || !strings.HasSuffix(said, "Everything stays as it was.\n") {
				t.Errorf("%v, want %q:\n%s", err, tt.says, said)
			}
			if now := r.gauge(t, `relayedge_reloads_total{result="refused"}`); now != refused+1 {
				t.Errorf("%v reloads were refused, before %v", now, refused)
			}
			if n := r.gauge(t, `relayedge_limit{limit="max_connections_per_ip"}`); n != 5 {
				t.Errorf("max_connections_per_ip is %v", n)
			}
			for name, address := range r.listeners {
				serverName := map[string]string{"public": "localhost"}[name]
				conn, err := dial(t.Context(), "", address, serverName)
				if err == nil {
					_, _, err = request(conn)
					conn.Close()
				}
				if err != nil {
					t.Errorf("listener %s: %v", name, err)
				}
			}
		})
	}
	r.write("max_connections_per_ip: 5", "max_connections_per_ip: 4", `name: fixed`, `name: other`)
	if said, err := r.reload(); err != nil || !strings.Contains(said, "limits.max_connections_per_ip: 5 → 4\n") {
		t.Errorf("%v: %s", err, said)
	}
	r.shows(t, `relayedge_limit{limit="max_connections_per_ip"} 4`, `relayedge_connections{listener="public"} 1`, `relayedge_connections{listener="other"} 0`)
	if said, err := r.reload(); err != nil || said != "nothing has changed\n" {
		t.Errorf("%v: %s", err, said)
	}
	if err := open.pinged(); err != nil {
		t.Error(err)
	}
}
