package main_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// HAProxy and nginx in front of the edge. The client's address goes through
// both: client, peer, edge, and the same peer again as the receiver, which
// reports whom it takes the client for. What it must say are the two ends of
// the client's own connection.

// behindPeers is the policy of an edge with a load balancer before it and the
// receiver behind it.
func behindPeers(receiver string) string {
	return fmt.Sprintf(`
listeners:
  - {name: plain4, bind: "127.0.0.1:0", tls: none, trust_proxy_from: [127.0.0.0/8]}
  - {name: plain6, bind: "[::1]:0", tls: none, trust_proxy_from: ["::1/128"]}
  - {name: tls4, bind: "127.0.0.1:0", trust_proxy_from: [127.0.0.1/32]}
  - {name: tls6, bind: "[::1]:0", trust_proxy_from: ["::1/128"]}
  - {name: tls46, bind: "[::]:0", trust_proxy_from: ["::1/128", 127.0.0.1/32]}
  - {name: distrusting4, bind: "127.0.0.1:0", tls: none, trust_proxy_from: [192.0.2.0/24, "::1/128"]}
  - {name: distrusting6, bind: "[::1]:0", tls: none, trust_proxy_from: [127.0.0.0/8, "2001:db8::/32"]}
upstreams: {relay: {addresses: [%q], proxy_tlvs: [alpn, authority, ssl, unique_id, crc32c, channel_binding]}}
limits: {proxy_header_timeout_secs: 60}
`, receiver)
}

// passage is one way through a peer to a listener of the edge.
type passage struct {
	name       string
	from       string // the client's address
	to         string // the listener
	front      string // where the peer takes the client
	how        string // what the peer is told about the way to the edge
	serverName string // of the client's TLS; empty for none
	ownTLS     bool   // TLS ends in the peer
	reason     string // why the edge refuses it
}

const client4, client6 = "127.0.0.7", "::1"

func TestHAProxySendsToUs(t *testing.T) {
	t.Parallel()
	peer(t, "haproxy")
	needIPv6(t)
	folder := t.TempDir()
	certificate, key, err := writeCertificate(folder)
	if err != nil {
		t.Fatal(err)
	}
	pair := filepath.Join(folder, "pair.pem")
	if err := join(pair, certificate, key); err != nil {
		t.Fatal(err)
	}
	receiver := loopback4(t)
	e := runEdge(t, behindPeers(receiver))

	all := "send-proxy-v2 proxy-v2-options ssl,cert-cn,ssl-cipher,cert-sig,cert-key,authority,crc32c"
	believed := []*passage{
		{name: "v1", from: client4, to: "plain4", how: "send-proxy"},
		{name: "v1", from: client6, to: "plain6", how: "send-proxy"},
		{name: "v1 of IPv6 over IPv4", from: client6, to: "plain4", how: "send-proxy"},
		{name: "v1 of IPv4 over IPv6", from: client4, to: "plain6", how: "send-proxy"},
		{name: "v1 before TLS", from: client4, to: "tls4", how: "send-proxy", serverName: "localhost"},
		{name: "v1 before TLS", from: client6, to: "tls6", how: "send-proxy", serverName: "localhost"},
		{name: "v2", from: client4, to: "plain4", how: "send-proxy-v2"},
		{name: "v2", from: client6, to: "plain6", how: "send-proxy-v2"},
		{name: "v2 of IPv6 over IPv4", from: client6, to: "plain4", how: "send-proxy-v2"},
		{name: "v2 of IPv4 over IPv6", from: client4, to: "plain6", how: "send-proxy-v2"},
		{name: "v2 before TLS", from: client4, to: "tls4", how: "send-proxy-v2", serverName: "localhost"},
		{name: "v2 before TLS", from: client6, to: "tls6", how: "send-proxy-v2", serverName: "localhost"},
		{name: "v2 before TLS, dual stack", from: client4, to: "tls46", how: "send-proxy-v2", serverName: "localhost"},
		{name: "v2-ssl of plain TCP", from: client4, to: "plain4", how: "send-proxy-v2-ssl"},
		{name: "v2-ssl", from: client4, to: "plain4", how: "send-proxy-v2-ssl", serverName: "localhost", ownTLS: true},
		{name: "v2-ssl", from: client6, to: "plain6", how: "send-proxy-v2-ssl", serverName: "localhost", ownTLS: true},
		{name: "v2-ssl-cn", from: client4, to: "plain4", how: "send-proxy-v2-ssl-cn", serverName: "localhost", ownTLS: true},
		{name: "v2 with all TLVs", from: client4, to: "plain4", how: all, serverName: "localhost", ownTLS: true},
		{name: "v2 with all TLVs", from: client6, to: "plain4", how: all, serverName: "localhost", ownTLS: true},
	}
	refused := []*passage{
		{name: "v1 of a stranger", from: client4, to: "distrusting4", how: "send-proxy", reason: "proxy_untrusted"},
		{name: "v2 of a stranger", from: client4, to: "distrusting4", how: "send-proxy-v2", reason: "proxy_untrusted"},
		{name: "v1 of a stranger", from: client6, to: "distrusting6", how: "send-proxy", reason: "proxy_untrusted"},
		{name: "v2 of a stranger", from: client6, to: "distrusting6", how: "send-proxy-v2", reason: "proxy_untrusted"},
		{name: "no header from the trusted one", from: client4, to: "plain4", reason: "proxy_header"},
		{name: "no header from the trusted one", from: client6, to: "plain6", reason: "proxy_header"},
		{name: "no header before TLS", from: client4, to: "tls4", serverName: "localhost", reason: "proxy_header"},
	}
	var sections strings.Builder
	for i, p := range append(believed, refused...) {
		tls := ""
		if p.ownTLS {
			tls = " ssl crt " + pair
		}
		fmt.Fprintf(&sections, "listen front%d\n  mode tcp\n  bind %s%s\n  server edge %s %s\n", i, p.open(t), tls, e.behind(p), p.how)
	}
	haproxy(t, sections.String()+haproxyReceiver(receiver), receiver)
	pass(t, e, believed, refused)
}

func TestNginxSendsToUs(t *testing.T) {
	t.Parallel()
	peer(t, "nginx")
	needIPv6(t)
	receiver := loopback4(t)
	e := runEdge(t, behindPeers(receiver))

	believed := []*passage{
		{name: "v1", from: client4, to: "plain4", how: "on"},
		{name: "v1", from: client6, to: "plain6", how: "on"},
		{name: "v1 of IPv6 over IPv4", from: client6, to: "plain4", how: "on"},
		{name: "v1 of IPv4 over IPv6", from: client4, to: "plain6", how: "on"},
		{name: "v1 before TLS", from: client4, to: "tls4", how: "on", serverName: "localhost"},
		{name: "v1 before TLS", from: client6, to: "tls6", how: "on", serverName: "localhost"},
		{name: "v1 before TLS, dual stack", from: client4, to: "tls46", how: "on", serverName: "localhost"},
	}
	refused := []*passage{
		{name: "v1 of a stranger", from: client4, to: "distrusting4", how: "on", reason: "proxy_untrusted"},
		{name: "v1 of a stranger", from: client6, to: "distrusting6", how: "on", reason: "proxy_untrusted"},
		{name: "no header from the trusted one", from: client4, to: "plain4", how: "off", reason: "proxy_header"},
		{name: "no header before TLS", from: client6, to: "tls6", how: "off", serverName: "localhost", reason: "proxy_header"},
	}
	var servers strings.Builder
	for _, p := range append(believed, refused...) {
		fmt.Fprintf(&servers, "  server { listen %s; proxy_pass %s; proxy_protocol %s; }\n", p.open(t), e.behind(p), p.how)
	}
	nginx(t, "stream {\n"+servers.String()+"}\n"+nginxReceiver(receiver), receiver)
	pass(t, e, believed, refused)
}

// open gives the passage an address where the peer takes its client.
func (p *passage) open(t testing.TB) string {
	p.front = loopback4(t)
	if p.from == client6 {
		p.front = loopback6(t)
	}
	return p.front
}

// behind is where the peer reaches the passage's listener.
func (e *edge) behind(p *passage) string {
	return strings.Replace(e.listeners[p.to], "[::]", "127.0.0.1", 1)
}

// pass goes every way through a peer: those that are believed tell the
// receiver who the client is, the others end at the edge, each for its reason.
func pass(t *testing.T, e *edge, believed, refused []*passage) {
	title := func(p *passage) string { return p.name + ", " + p.from + " to " + p.to }
	for _, p := range believed {
		t.Run(title(p), func(t *testing.T) {
			conn, err := dial(t.Context(), p.from, p.front, p.serverName)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			reported(t, conn)
		})
	}
	e.shows(t, `relayedge_rejections_total{reason="proxy_untrusted"} 0`, `relayedge_rejections_total{reason="proxy_header"} 0`)
	reasons := map[string]int{}
	for _, p := range refused {
		t.Run(title(p), func(t *testing.T) {
			reasons[p.reason]++
			conn, err := dial(t.Context(), p.from, p.front, p.serverName)
			if err == nil {
				defer conn.Close()
				var body string
				if _, body, err = request(conn); err == nil {
					t.Errorf("it is answered: %s", body)
				}
			}
			if isTimeout(err) {
				t.Errorf("it was left waiting: %v", err)
			}
			e.shows(t, fmt.Sprintf(`relayedge_rejections_total{reason=%q} %d`, p.reason, reasons[p.reason]))
		})
	}
	e.shows(t, `relayedge_connections{listener="plain4"} 0`, `relayedge_connections{listener="tls6"} 0`)
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// join writes the contents of files one after the other into a file.
func join(file string, parts ...string) error {
	var whole []byte
	for _, part := range parts {
		b, err := os.ReadFile(part)
		if err != nil {
			return err
		}
		whole = append(whole, b...)
	}
	return os.WriteFile(file, whole, 0o600)
}
