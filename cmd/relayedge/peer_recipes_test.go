package main_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

const talkInPython = `
import asyncio, inspect, ssl, sys, websockets

async def main(url, *locals):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    key = "additional_headers" if "additional_headers" in inspect.signature(websockets.connect.__init__).parameters else "extra_headers"
    all = []
    for local in locals:
        ws = await websockets.connect(url, ssl=context, local_addr=(local, 0), open_timeout=60, close_timeout=60, **{key: [("X-Real-IP", "203.0.113.66")]})
        print(await asyncio.wait_for(ws.recv(), 60))
        all.append(ws)
    await all[0].send("hello")
    for ws in all[1:]:
        print(await asyncio.wait_for(ws.recv(), 60))
    for ws in all:
        await ws.close()
        print("closed", ws.close_code)

asyncio.run(main(*sys.argv[1:]))
`

// The page's relay in Python knows its clients by their addresses, whatever they
// write themselves, and passes on what they say.
func TestPythonRelayBehindUs(t *testing.T) {
	t.Parallel()
	if err := exec.Command(systemPython, "-c", "import websockets").Run(); err != nil {
		missing(t, "python3-websockets for "+systemPython)
	}
	const section = "WebSocket relays that read X-Real-IP"
	address := loopback4(t)
	_, port, _ := net.SplitHostPort(address)
	file := filepath.Join(t.TempDir(), "relay.py")
	if err := os.WriteFile(file, []byte(recipe(t, section, "python", "7777", port)), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := launch(t, exec.Command(systemPython, file), "the relay")
	relay.awaitListening(t, address)
	e := runEdge(t, recipe(t, section, "yaml", "name: https", "name: public", "[::]:443", "127.0.0.1:0", "127.0.0.1:7777", address))
	e.showsOnConsole(t, section, "public", &relay.stdout)

	other := "127.0.0.78"
	if clientAddress() == "127.0.0.1" {
		other = clientAddress()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, systemPython, "-c", talkInPython, "wss://"+e.listeners["public"]+"/", clientAddress(), other).CombinedOutput()
	want := fmt.Sprintf("you are %s\nyou are %s\nhello\nclosed 1000\nclosed 1000\n", clientAddress(), other)
	if err != nil || string(out) != want {
		t.Errorf("python (%v) wrote\n%s\nwant\n%s", err, out, want)
	}
	if _, err := relay.await(&relay.stdout, regexp.MustCompile(`(?m)^gone `+regexp.QuoteMeta(other)+`$`)); err != nil {
		t.Error(err)
	}
	e.shows(t, `relayedge_connections{listener="public"} 0`, `relayedge_rejections_total{reason="upstream_unavailable"} 0`)
}

// Edge and relay as two processes, from one file.
func TestRelaycoreBehindUs(t *testing.T) {
	t.Parallel()
	address := loopback4(t)
	policy := recipe(t, "relaycore", "yaml", "[::]:443", "127.0.0.1:0", "127.0.0.1:7777", address,
		"\nrelay:\n", "\nrelay:\n  metrics: {bind_addr: \"127.0.0.1:0\"}\n  control: {socket: \"\"}\n")
	if !strings.Contains(policy, address+"\n") || !strings.Contains(policy, address+`"`) {
		t.Fatalf("the policy does not say twice where the relay is:\n%s", policy)
	}
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(policy+"certificates: {self_issued: [localhost]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := launch(t, exec.Command(binary(t, "relaycore"), "run", "-c", file), "relaycore")
	relay.awaitListening(t, address)
	metrics, err := relay.await(&relay.stdout, regexp.MustCompile(`(?m)^metrics: (\S+)$`))
	if err != nil {
		t.Fatal(err)
	}
	e := runEdge(t, policy)
	e.showsOnConsole(t, "relaycore", "public", &relay.stdout)
	e.shows(t, `relayedge_upstream_up{upstream="relay"} 1`, `relayedge_connections_total 2`)
	_, body, err := get(metrics[1])
	for _, want := range []string{`relaycore_rejections_total{reason="key_auth"} 0`, `relaycore_relay_messages_total 2`} {
		if err != nil || !strings.Contains(body, want+"\n") {
			t.Errorf("the relay's metrics (%v) do not say %s:\n%s", err, want, body)
		}
	}
}

// ergo cannot be run here. Its block fits the edge's policy, and that policy serves
// a receiver which reads headers as ergo's source says: sixteen bytes first, then as
// many as they announce, of which the source address alone is looked at; LOCAL
// stands for the peer itself; one connection after the other.
func TestErgoRecipe(t *testing.T) {
	t.Parallel()
	const section = "IRC: ergo"
	var ircd struct {
		Server struct {
			Listeners map[string]struct {
				Proxy bool `yaml:"proxy"`
			} `yaml:"listeners"`
			AllowedFrom []string `yaml:"proxy-allowed-from"`
		} `yaml:"server"`
	}
	if err := yaml.Unmarshal([]byte(recipe(t, section, "ircd.yaml")), &ircd); err != nil {
		t.Fatal(err)
	}
	const at = "127.0.0.1:16667"
	if l, ok := ircd.Server.Listeners[at]; !ok || !l.Proxy || len(ircd.Server.Listeners) != 1 || len(ircd.Server.AllowedFrom) != 1 || ircd.Server.AllowedFrom[0] != "localhost" {
		t.Fatalf("ergo's block says %+v", ircd)
	}
	if !strings.Contains(recipe(t, section, "yaml"), `addresses: ["`+at+`"]`) {
		t.Fatalf("the edge does not lead to %s", at)
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &ergoStandIn{}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.serve(ln)
	}()
	t.Cleanup(func() { ln.Close(); <-served })
	e := inFront(t, section, ln.Addr().String())
	all := everyWay(t, e, "irc")
	all.each(t, "it knows the client", func(t *testing.T, irc *dialogue) {
		irc.say(t, "NICK probe")
		m := irc.hear(t, `^:irc\.example\.org NOTICE \* :you are (\S+)$`)
		if want := netip.MustParseAddrPort(irc.LocalAddr().String()).Addr().String(); m[1] != want {
			t.Errorf("it takes the client for %s, want %s", m[1], want)
		}
	})
	for range 2 {
		sayLocal(t, ln.Addr().String()).Close()
	}
	direct(t, ln.Addr().String(), largest(t, named))
	if err := eventually(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.local < 2 || s.told[named.Addr()] != 1 || len(s.faults) > 0 {
			return fmt.Errorf("%d LOCAL, %d of our largest header, faults %v", s.local, s.told[named.Addr()], s.faults)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

type ergoStandIn struct {
	mu     sync.Mutex
	local  int
	told   map[netip.Addr]int
	faults []error
}

func (s *ergoStandIn) serve(ln net.Listener) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		// Here, and not beside: the next one waits.
		client, err := s.header(conn)
		s.mu.Lock()
		switch {
		case err != nil:
			s.faults = append(s.faults, err)
		case !client.IsValid():
			s.local++
		default:
			if s.told == nil {
				s.told = make(map[netip.Addr]int)
			}
			s.told[client]++
		}
		s.mu.Unlock()
		all.Go(func() {
			defer conn.Close()
			if client.IsValid() {
				fmt.Fprintf(conn, ":irc.example.org NOTICE * :you are %s\r\n", client)
				conn.SetReadDeadline(time.Now().Add(patience))
				io.Copy(io.Discard, conn)
			}
		})
	}
}

func (s *ergoStandIn) header(conn net.Conn) (client netip.Addr, err error) {
	conn.SetReadDeadline(time.Now().Add(patience))
	head := make([]byte, 16)
	if _, err := io.ReadFull(conn, head); err != nil {
		return client, err
	}
	if string(head[:12]) != "\r\n\r\n\x00\r\nQUIT\n" || head[12]>>4 != 2 || head[12]&15 > 1 {
		return client, fmt.Errorf("a header begins with %x", head)
	}
	rest := make([]byte, int(head[14])<<8|int(head[15]))
	if _, err := io.ReadFull(conn, rest); err != nil {
		return client, err
	}
	size := map[byte]int{1: 4, 2: 16}[head[13]>>4]
	if head[12]&15 == 0 || size == 0 {
		return client, nil
	}
	if len(rest) < 2*size+4 {
		return client, errors.New("a header is shorter than its addresses")
	}
	client, _ = netip.AddrFromSlice(rest[:size])
	return client.Unmap(), nil
}
