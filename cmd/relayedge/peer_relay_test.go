package main_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"relayedge/internal/proxyheader"
)

// Real relays behind the edge, each configured with the blocks of docs/relays.md.

// recipe returns a block of a section of docs/relays.md, with words replaced:
// pairs of what is written there and what the test needs instead.
func recipe(t testing.TB, section, block string, replace ...string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/relays.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	_, text, _ = strings.Cut(text, "\n```"+block+"\n")
	text, _, found := strings.Cut(text, "\n```\n")
	if !found {
		t.Fatalf("docs/relays.md has no block %s in the section %s", block, section)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("the block %s of %s does not say %q", block, section, replace[i])
		}
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	return text + "\n"
}

var (
	recipeListener = regexp.MustCompile(`(?m)^  - \{name: \w+, bind: "\[::\]:\d+", (.*)upstream: (\w+)\}$`)
	recipeUpstream = regexp.MustCompile(`(?m)^  \w+: \{addresses: \["\S+"\]\}$`)
)

// inFront runs an edge with the policy that docs/relays.md has for a relay,
// which listens on address. Beside the listener of the recipe (secure) there is
// one without TLS (plain), and one that adds the channel binding (bound).
func inFront(t testing.TB, section, address string) *edge {
	t.Helper()
	policy := recipe(t, section, "yaml")
	if len(recipeListener.FindAllString(policy, -1)) != 1 || len(recipeUpstream.FindAllString(policy, -1)) != 1 {
		t.Fatalf("the policy of %s is not one listener and one upstream:\n%s", section, policy)
	}
	policy = recipeListener.ReplaceAllString(policy, `  - {name: secure, bind: "[::]:0", ${1}upstream: ${2}}
  - {name: plain, bind: "[::]:0", tls: none, ${1}upstream: ${2}}
  - {name: bound, bind: "[::]:0", ${1}upstream: bound}`)
	policy = recipeUpstream.ReplaceAllStringFunc(policy, func(line string) string {
		name, _, _ := strings.Cut(line, ":")
		return fmt.Sprintf("%s: {addresses: [%q]}\n  bound: {addresses: [%q], proxy_tlvs: [alpn, authority, ssl, unique_id, crc32c, channel_binding]}", name, address, address)
	})
	return runEdge(t, policy)
}

// sessions are open sessions by the way through the edge.
type sessions map[string]*dialogue

// everyWay opens a session through each of the edge's listeners, over IPv4 and
// IPv6. Clients offer the ALPN names, where there are any.
func everyWay(t *testing.T, e *edge, alpn ...string) sessions {
	needIPv6(t)
	all := make(sessions)
	for _, listener := range []string{"secure", "plain", "bound"} {
		for _, from := range []string{client4, client6} {
			way := listener + " from " + from
			conn, err := e.enter(t.Context(), listener, from, alpn)
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			t.Cleanup(func() { conn.Close() })
			all[way] = newDialogue(conn)
		}
	}
	return all
}

// each takes a step in every session; where one fails, the test ends.
func (all sessions) each(t *testing.T, step string, do func(t *testing.T, d *dialogue)) {
	t.Helper()
	if !t.Run(step, func(t *testing.T) {
		for way, d := range all {
			t.Run(way, func(t *testing.T) { do(t, d) })
		}
	}) {
		t.FailNow()
	}
}

// enter connects from an address to a listener that takes both families.
func (e *edge) enter(ctx context.Context, listener, from string, alpn []string) (net.Conn, error) {
	host := "127.0.0.1"
	if netip.MustParseAddr(from).Is6() {
		host = "::1"
	}
	_, port, err := net.SplitHostPort(e.listeners[listener])
	if err != nil {
		return nil, fmt.Errorf("the listener %s: %w", listener, err)
	}
	conn, err := dial(ctx, from, net.JoinHostPort(host, port), "")
	if err != nil || listener == "plain" {
		return conn, err
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: alpn})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// dialogue is a session, of a protocol of lines mostly.
type dialogue struct {
	net.Conn
	lines *bufio.Reader
}

func newDialogue(conn net.Conn) *dialogue { return &dialogue{conn, bufio.NewReader(conn)} }

// say sends lines.
func (d *dialogue) say(t testing.TB, lines ...string) {
	t.Helper()
	if _, err := io.WriteString(d, strings.Join(lines, "\r\n")+"\r\n"); err != nil {
		t.Fatal(err)
	}
}

// hear reads lines up to one that matches, and returns the match.
func (d *dialogue) hear(t testing.TB, pattern string) []string {
	t.Helper()
	expression := regexp.MustCompile(pattern)
	var heard strings.Builder
	for {
		line, err := d.lines.ReadString('\n')
		heard.WriteString(line)
		if m := expression.FindStringSubmatch(strings.TrimRight(line, "\r\n")); m != nil {
			return m
		}
		if err != nil {
			t.Fatalf("no line matches %s, %v:\n%s", pattern, err, heard.String())
		}
	}
}

// ends expects the end of the relay's stream.
func (d *dialogue) ends(t testing.TB) {
	t.Helper()
	if rest, err := io.ReadAll(d.lines); err != nil || len(rest) != 0 {
		t.Errorf("instead of the end comes %q, %v", rest, err)
	}
}

// quiet is the part of an idle hour that a test has time for.
const quiet = 2 * time.Second

// stayQuiet lets the sessions be idle, all at once: nothing may come, and the end
// least of all.
func (all sessions) stayQuiet(t testing.TB) {
	t.Helper()
	until := time.Now().Add(quiet)
	for way, d := range all {
		d.SetReadDeadline(until)
		if b, err := d.lines.Peek(1); !isTimeout(err) {
			t.Fatalf("%s: an idle session gets %q, %v", way, b, err)
		}
		d.SetReadDeadline(until.Add(patience))
	}
}

// largest is as long a header as the edge writes without custom TLVs: IPv6, a
// server name of the longest that there is, a client certificate.
func largest(t testing.TB, source netip.AddrPort) []byte {
	t.Helper()
	ssl := proxyheader.SSL{Verified: true, Version: "TLSv1.3", Cipher: "TLS_AES_128_GCM_SHA256", CommonName: strings.Repeat("n", 64)}
	header, err := proxyheader.AppendV2(nil, proxyheader.Header{
		Version: 2, Source: source, Destination: netip.MustParseAddrPort("[2001:db8::1]:443"),
		TLVs: []proxyheader.TLV{
			{Type: proxyheader.TypeALPN, Value: []byte("http/1.1")},
			{Type: proxyheader.TypeAuthority, Value: []byte(strings.Repeat("n", 253))},
			ssl.TLV(),
			{Type: proxyheader.TypeUniqueID, Value: []byte(strings.Repeat("0", 32))},
			{Type: 0xe4, Value: make([]byte, 32)},
		},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	return header
}

// named is a documentation address that no socket here has.
var named = netip.MustParseAddrPort("[2001:db8::7]:4711")

// direct connects to a relay without an edge, and sends a header.
func direct(t testing.TB, address string, header []byte) net.Conn {
	t.Helper()
	conn, err := dial(t.Context(), "", address, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write(header); err != nil {
		t.Fatal(err)
	}
	return conn
}

// probe does to a relay what a health check does, a few times: LOCAL, and the end
// at once.
func probe(t testing.TB, address string) {
	t.Helper()
	for range 3 {
		sayLocal(t, address).Close()
	}
}

// probeAndReset is probe with ends that are resets.
func probeAndReset(t testing.TB, address string) {
	t.Helper()
	for range 3 {
		conn := sayLocal(t, address)
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}

func sayLocal(t testing.TB, address string) net.Conn {
	t.Helper()
	header, err := proxyheader.AppendV2(nil, proxyheader.Header{Version: 2, Local: true}, true)
	if err != nil {
		t.Fatal(err)
	}
	return direct(t, address, header)
}
