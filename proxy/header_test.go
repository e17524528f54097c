package proxy

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/internal/memconn"
	"relayedge/internal/proxyheader"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const signature = "0d0a0d0a000d0a515549540a"

// named is a header for 192.0.2.10:51000 to 198.51.100.5:443.
const named = signature + "21 11 000c c000020a c6336405 c738 01bb"

var (
	balancerAddr = netip.MustParseAddrPort("10.0.0.1:60000")
	strangerAddr = netip.MustParseAddrPort("203.0.113.66:60000")
)

func trusting(networks ...string) func(*edgeConfig) {
	return func(c *edgeConfig) {
		for _, n := range networks {
			c.listener.TrustProxyFrom = append(c.listener.TrustProxyFrom, netip.MustParsePrefix(n))
		}
	}
}

// trustingTLS is a TLS listener behind the balancer.
func trustingTLS(c *edgeConfig) {
	trusting("10.0.0.0/8")(c)
	terminating(c)
}

// What a trusted peer's header makes of the client, and what stays of the stream.
func TestReceivedHeader(t *testing.T) {
	const payload = "GET / HTTP/1.1\r\n\r\n"
	tests := []struct {
		name   string
		header string // hex, or text if it begins with PROXY
		source string // what the relay is told
		hosts  int    // rows of the host table while it is open
	}{
		{"v2", named, "192.0.2.10:51000", 1},
		{"v2, IPv6", signature + "21 21 0024 20010db8000000000000000000000010 20010db8000000000000000000000001 c738 01bb", "[2001:db8::10]:51000", 1},
		{"v2 with TLVs", signature + "21 11 0016 c000020a c6336405 c738 01bb 04000100 e00003414243", "192.0.2.10:51000", 1},
		{"v1", "PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n", "192.0.2.10:51000", 1},
		{"v1 unknown", "PROXY UNKNOWN\r\n", balancerAddr.String(), 0},
		{"local with a dummy block", signature + "20 11 000c c000020a c6336405 c738 01bb", balancerAddr.String(), 0},
		{"local", signature + "20 00 0000", balancerAddr.String(), 0},
		{"unspec with a body", signature + "21 00 0005 deadbeef00", balancerAddr.String(), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, trusting("10.0.0.0/8"))
				header := []byte(tt.header)
				if !strings.HasPrefix(tt.header, "PROXY") {
					header = unhex(t, tt.header)
				}
				client := e.dial(balancerAddr)
				mustWrite(t, client, append(header, payload...))
				relay, h, rest := e.accept()
				if got := h.Source.String(); got != tt.source {
					t.Errorf("the relay is told %s, want %s", got, tt.source)
				}
				wantRead(t, io.MultiReader(bytes.NewReader(rest), relay), []byte(payload))
				if held := e.server.gate.Stats(time.Now()); held.Connections != 1 || held.Hosts != tt.hosts {
					t.Errorf("held: %+v, want 1 connection, %d hosts", held, tt.hosts)
				}
				client.Close()
				relay.Close()
			})
		})
	}
}

// Every cut of a header leaves the same client and the same payload.
func TestReceivedHeaderInPieces(t *testing.T) {
	header := unhex(t, signature+"21 11 0264 c000020a c6336405 c738 01bb"+"e00255"+strings.Repeat("ab", 597))
	payload := []byte("hello")
	for _, kind := range []string{"v2", "v1"} {
		if kind == "v1" {
			header = []byte("PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n")
		}
		for cut := 1; cut < len(header); cut++ {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, trusting("10.0.0.0/8"))
				client := e.dial(balancerAddr)
				mustWrite(t, client, header[:cut])
				synctest.Wait()
				time.Sleep(50 * time.Millisecond)
				mustWrite(t, client, append(header[cut:len(header):len(header)], payload...))
				relay, h, rest := e.accept()
				if h.Source != aliceAddr {
					t.Errorf("%s cut at %d: the relay is told %s", kind, cut, h.Source)
				}
				wantRead(t, io.MultiReader(bytes.NewReader(rest), relay), payload)
				client.Close()
				relay.Close()
			})
		}
	}
}

// A header, a TLS hello behind it in the same segment, and the first request.
func TestReceivedHeaderThenTLS(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, trustingTLS)
		raw := e.dial(balancerAddr)
		client := tls.Client(&joined{Conn: raw, first: unhex(t, named)}, clientTLS("relay.example.org"))
		mustWrite(t, client, []byte("request"))
		relay, h, rest := e.accept()
		if h.Source != aliceAddr {
			t.Errorf("the relay is told %s", h.Source)
		}
		wantRead(t, io.MultiReader(bytes.NewReader(rest), relay), []byte("request"))
		client.Close()
		relay.Close()
	})
}

// joined sends something together with the first bytes that are written.
type joined struct {
	net.Conn
	first []byte
}

func (j *joined) Write(b []byte) (int, error) {
	first := j.first
	j.first = nil
	n, err := j.Conn.Write(append(first, b...))
	return max(n-len(first), 0), err
}

// A header that is wrong, missing or late is refused, and credits nobody.
func TestRefusedHeader(t *testing.T) {
	tests := []struct{ name, send string }{
		{"no header", "GET / HTTP/1.1\r\n\r\n"},
		{"a TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		{"bad version", signature + "31 11 000c c000020a c6336405 c738 01bb"},
		{"bad command", signature + "22 11 000c c000020a c6336405 c738 01bb"},
		{"shorter than the addresses", signature + "21 11 0008 c000020a c6336405"},
		{"a TLV that runs past the end", signature + "21 11 0011 c000020a c6336405 c738 01bb 04ffff 0000"},
		{"larger than allowed", signature + "21 11 ffff c000020a c6336405 c738 01bb"},
		{"v1 with a bare LF", "PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\n"},
		{"v1 that never ends", "PROXY UNKNOWN" + strings.Repeat(" ", 100)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, trusting("10.0.0.0/8"))
				client := e.dial(balancerAddr)
				send := []byte(tt.send)
				if strings.HasPrefix(tt.send, signature) {
					send = unhex(t, tt.send)
				}
				mustWrite(t, client, send)
				e.wantEnd(ProxyHeader) // at once, not after the time for it
				client.Close()
			})
		})
	}
}

// proxy_header_timeout_secs is for the header in all: bytes do not extend it.
func TestHeaderTimeout(t *testing.T) {
	for name, send := range map[string]string{"nothing": "", "a byte a second": signature + "21 11 ffff"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, trusting("10.0.0.0/8"))
				client := e.dial(balancerAddr)
				var sending sync.WaitGroup
				defer sending.Wait()
				sending.Go(func() {
					for _, b := range unhex(t, send) {
						client.Write([]byte{b})
						time.Sleep(time.Second)
					}
				})
				time.Sleep(5*time.Second - time.Nanosecond)
				e.wantOpen()
				time.Sleep(time.Nanosecond)
				e.wantEnd(ProxyHeader)
				client.Close()
			})
		})
	}
}

// The header and the handshake have a clock each.
func TestHeaderAndHandshakeClocks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, trustingTLS)
		raw := e.dial(balancerAddr)
		time.Sleep(4 * time.Second)
		mustWrite(t, raw, unhex(t, named))
		time.Sleep(9 * time.Second)
		client := e.handshake(raw, nil)
		relay, _, _ := e.accept()
		mustWrite(t, client, []byte("x"))
		wantRead(t, relay, []byte("x"))
		client.Close()
		relay.Close()
	})
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, trustingTLS)
		raw := e.dial(balancerAddr)
		time.Sleep(4 * time.Second)
		mustWrite(t, raw, unhex(t, named))
		time.Sleep(10*time.Second - time.Nanosecond)
		e.wantOpen()
		time.Sleep(time.Nanosecond)
		e.wantEnd(TLSHandshakeTimeout)
		raw.Close()
	})
}

// Trust is by address, not by spelling, and a peer outside it never gets a
// header believed.
func TestTrust(t *testing.T) {
	tests := []struct {
		trust, peer string
		trusted     bool
	}{
		{"10.0.0.0/8", "10.0.0.1", true},
		{"10.0.0.0/8", "::ffff:10.0.0.1", true},
		{"::ffff:10.0.0.0/104", "10.0.0.1", true},
		{"10.0.0.1/32", "10.0.0.1", true},
		{"10.0.0.1/32", "10.0.0.2", false},
		{"::1/128", "::1", true},
		{"0:0:0:0:0:0:0:1/128", "::1", true},
		{"0.0.0.0/0", "2001:db8::1", false},
		{"::/0", "10.0.0.1", false},
		{"10.0.0.0/8", "203.0.113.66", false},
		{"fe80::/10", "fe80::1%eth0", true},
	}
	for _, tt := range tests {
		t.Run(tt.trust+" "+tt.peer, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, trusting(tt.trust))
				client := e.dial(netip.AddrPortFrom(netip.MustParseAddr(tt.peer), 60000))
				defer client.Close()
				client.Write(unhex(t, named))
				if !tt.trusted {
					e.wantEnd(ProxyUntrusted)
					return
				}
				relay, h, _ := e.accept()
				if h.Source != aliceAddr {
					t.Errorf("the relay is told %s", h.Source)
				}
				relay.Close()
			})
		})
	}
}

// Without trust_proxy_from a header is payload like any other bytes.
func TestHeaderWithoutTrustIsPayload(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		client := e.dial(strangerAddr)
		mustWrite(t, client, unhex(t, named))
		relay, h, rest := e.accept()
		if h.Source != strangerAddr {
			t.Errorf("the relay is told %s", h.Source)
		}
		wantRead(t, io.MultiReader(bytes.NewReader(rest), relay), unhex(t, named))
		client.Close()
		relay.Close()
	})
}

// Behind a load balancer the caps bind the client that the header names, not
// the balancer.
func TestNamedClientIsCharged(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			trusting("10.0.0.0/8")(c)
			c.limits.MaxConnectionsPerIP = 2
		})
		open := func(host string) (*memconn.Conn, *memconn.Conn) {
			client := e.dial(balancerAddr)
			mustWrite(t, client, []byte("PROXY TCP4 "+host+" 198.51.100.5 51000 443\r\n"))
			relay, _, _ := e.accept()
			return client, relay
		}
		for _, host := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"} {
			client, relay := open(host)
			defer client.Close()
			defer relay.Close()
		}
		third := e.dial(balancerAddr)
		mustWrite(t, third, []byte("PROXY TCP4 192.0.2.1 198.51.100.5 51000 443\r\n"))
		e.wantEnd(admission.PerIPCap)
		third.Close()
	})
}

// The host cap binds a /64, the site cap a /48, and IPv4 addresses stand each
// for themselves; a refusal says which level refused.
func TestNamedClientsByLevel(t *testing.T) {
	const perHost, perSite = 8, 20
	tests := []struct {
		name   string
		client func(i int) string
		tries  int
		get    int // how many get in
		reason Reason
	}{
		{"addresses of one /64", func(i int) string { return fmt.Sprintf("2001:db8:1:1::%x", i+1) }, perHost + 5, perHost, admission.PerIPCap},
		{"/64s of one /48", func(i int) string { return fmt.Sprintf("2001:db8:2:%x::1", i) }, 300, perSite, admission.PerPrefixCap},
		{"IPv4 addresses", func(i int) string { return fmt.Sprintf("198.18.%d.%d", i/250, i%250+1) }, 300, 300, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					trusting("10.0.0.0/8")(c)
					c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648, c.limits.DrainSecs = perHost, perSite, 0
				})
				go func() {
					for {
						if _, err := e.relay.Accept(); err != nil {
							return
						}
					}
				}()
				for i := range tt.tries {
					c := e.dial(balancerAddr)
					defer c.Close()
					family := "TCP4 " + tt.client(i) + " 198.51.100.5"
					if strings.Contains(tt.client(i), ":") {
						family = "TCP6 " + tt.client(i) + " 2001:db8::1"
					}
					mustWrite(t, c, []byte("PROXY "+family+" 51000 443\r\n"))
				}
				synctest.Wait()
				if held := e.server.gate.Stats(time.Now()).Connections; held != tt.get {
					t.Errorf("%d of %d got in, want %d", held, tt.tries, tt.get)
				}
				if tt.reason != "" && e.ended(tt.reason) != tt.tries-tt.get {
					t.Errorf("%d were refused as %s, want %d", e.ended(tt.reason), tt.reason, tt.tries-tt.get)
				}
			})
		})
	}
}

// A /64 at its cap that goes on trying does not use up what its neighbours in
// the /48 may have.
func TestRefusedNeighbourTakesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = 4, 6
			c.limits.ConnectionRatePerIP = 1000 // so that the site's rate is what the flood could use up
		})
		var all []io.Closer
		open := func(addr string) {
			t.Helper()
			client := e.dial(netip.AddrPortFrom(netip.MustParseAddr(addr), 50000))
			relay, _, _ := e.accept()
			all = append(all, client, relay)
		}
		for range 4 {
			open("2001:db8:0:1::1")
		}
		for range 10 { // 10 seconds of 1,000 attempts each
			for range 1000 {
				e.dial(netip.MustParseAddrPort("[2001:db8:0:1::1]:50000")).Close()
			}
			time.Sleep(time.Second)
		}
		if n := e.ended(admission.PerIPCap); n != 10_000 {
			t.Errorf("%d were refused as per_ip_cap", n)
		}
		open("2001:db8:0:2::1")
		open("2001:db8:0:2::1")
		for _, c := range all {
			c.Close()
		}
	})
}

// What the relay is told of clients and listeners of every pair of families.
func TestSentAddresses(t *testing.T) {
	tests := []struct{ client, edge, source, destination string }{
		{"192.0.2.10:51000", "198.51.100.5:443", "192.0.2.10:51000", "198.51.100.5:443"},
		{"[2001:db8::10]:51000", "[2001:db8::1]:443", "[2001:db8::10]:51000", "[2001:db8::1]:443"},
		{"[::ffff:192.0.2.10]:51000", "[::ffff:198.51.100.5]:443", "192.0.2.10:51000", "198.51.100.5:443"},
		{"192.0.2.10:51000", "[2001:db8::1]:443", "[::ffff:192.0.2.10]:51000", "[2001:db8::1]:443"},
		{"[2001:db8::10]:51000", "198.51.100.5:443", "[2001:db8::10]:51000", "[::ffff:198.51.100.5]:443"},
		{"[fe80::1%eth0]:51000", "[fe80::2%eth0]:443", "[fe80::1]:51000", "[fe80::2]:443"},
	}
	for _, tt := range tests {
		t.Run(tt.client+" "+tt.edge, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, nil)
				own, peer := memconn.Pipe(netip.MustParseAddrPort(tt.edge), netip.MustParseAddrPort(tt.client))
				e.server.listeners[0].admit(own)
				relay, h, _ := e.accept()
				if h.Local || h.Source.String() != tt.source || h.Destination.String() != tt.destination {
					t.Errorf("the relay is told %v to %v (local: %v), want %s to %s", h.Source, h.Destination, h.Local, tt.source, tt.destination)
				}
				peer.Close()
				relay.Close()
			})
		})
	}
}

// The relay's header carries what the policy lists, each with its true value.
func TestSentTLVs(t *testing.T) {
	ca, clientCert := clientCertificate(t, "alice")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					c.listener.TLS = "terminate"
					c.listener.ClientCAFile = ca
				})
				cfg := clientTLS("relay.example.org")
				cfg.MaxVersion = version
				cfg.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
				cfg.Certificates = []tls.Certificate{clientCert}
				raw := e.dial(aliceAddr)
				client := e.handshake(raw, cfg)
				relay, h, _ := e.accept()
				defer relay.Close()
				defer client.Close()
				state := client.ConnectionState()

				if alpn, _ := h.Lookup(proxyheader.TypeALPN); string(alpn) != "http/1.1" {
					t.Errorf("ALPN %q", alpn)
				}
				if name, _ := h.Lookup(proxyheader.TypeAuthority); string(name) != "relay.example.org" {
					t.Errorf("AUTHORITY %q", name)
				}
				if id, _ := h.Lookup(proxyheader.TypeUniqueID); len(id) != 32 {
					t.Errorf("UNIQUE_ID %q", id)
				}
				if _, ok := h.Lookup(proxyheader.TypeCRC32C); !ok {
					t.Error("no CRC32C")
				}
				ssl, ok := h.SSL()
				want := proxyheader.SSL{Verified: true, Version: "TLSv1.3", Cipher: tls.CipherSuiteName(state.CipherSuite), CommonName: "alice"}
				if version == tls.VersionTLS12 {
					want.Version, want.Cipher = "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"
				}
				if !ok || ssl != want {
					t.Errorf("SSL %+v, want %+v", ssl, want)
				}
				binding, _ := h.Lookup(228)
				own, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
				if err != nil || !bytes.Equal(binding, own) || len(binding) != 32 {
					t.Errorf("channel binding %x, the client has %x (%v)", binding, own, err)
				}
			})
		})
	}
}

// A client certificate of a resumed session is told apart from one that was
// presented on this connection.
func TestSentTLVsOfResumedSession(t *testing.T) {
	ca, clientCert := clientCertificate(t, "alice")
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			c.listener.TLS = "terminate"
			c.listener.ClientCAFile = ca
		})
		cfg := clientTLS("relay.example.org")
		cfg.Certificates = []tls.Certificate{clientCert}
		cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)}
		for _, resumed := range []bool{false, true} {
			raw := e.dial(aliceAddr)
			client := e.handshake(raw, cfg)
			relay, h, _ := e.accept()
			if ssl, _ := h.SSL(); !ssl.Verified || ssl.CommonName != "alice" || ssl.Resumed != resumed {
				t.Errorf("SSL %+v, want resumed %v", ssl, resumed)
			}
			mustWrite(t, relay, []byte("x")) // the ticket comes with it
			wantRead(t, client, []byte("x"))
			raw.Close()
			relay.Close()
		}
	})
}

// What there is nothing to say of is left out.
func TestSentTLVsWithoutTLS(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		client := e.dial(aliceAddr)
		relay, h, _ := e.accept()
		for _, typ := range []byte{proxyheader.TypeALPN, proxyheader.TypeAuthority, proxyheader.TypeSSL, 228} {
			if v, ok := h.Lookup(typ); ok {
				t.Errorf("TLV %#x is sent: %x", typ, v)
			}
		}
		client.Close()
		relay.Close()
	})
}

// Only the listed TLVs are sent.
func TestSentTLVsAreTheListed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			c.listener.TLS = "terminate"
			c.upstream.ProxyTLVs = []string{"alpn"}
		})
		client, _, relay := e.tlsPair(nil)
		second := e.handshake(e.dial(aliceAddr), nil)
		other, h, _ := e.accept()
		if len(h.TLVs) != 1 || h.TLVs[0].Type != proxyheader.TypeALPN {
			t.Errorf("TLVs %v", h.TLVs)
		}
		for _, c := range []io.Closer{client, relay, second, other} {
			c.Close()
		}
	})
}

// Each connection has an id of its own.
func TestUniqueIDIsUnique(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		seen := map[string]bool{}
		for range 50 {
			client := e.dial(aliceAddr)
			relay, h, _ := e.accept()
			id, _ := h.Lookup(proxyheader.TypeUniqueID)
			seen[string(id)] = true
			client.Close()
			relay.Close()
		}
		if len(seen) != 50 {
			t.Errorf("%d ids for 50 connections", len(seen))
		}
	})
}

// With client_address: none the relay gets the client's bytes and nothing else.
func TestNoHeaderWhereNoneIsWanted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.upstream.ClientAddress = "none" })
		for range 50 {
			client := e.dial(aliceAddr)
			mustWrite(t, client, []byte("hello"))
			relay, err := e.relay.Accept()
			if err != nil {
				t.Fatal(err)
			}
			wantRead(t, relay, []byte("hello"))
			client.Close()
			relay.Close()
		}
	})
}

// A relay that speaks first gets its header without a byte of the client's;
// there is one connection and one header a client, and none without one.
func TestHeaderComesAtOnceAndOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		for range 50 {
			client := e.dial(aliceAddr)
			relay, h, rest := e.accept()
			if h.Source != aliceAddr || len(rest) != 0 {
				t.Fatalf("header of %s, %d bytes behind it", h.Source, len(rest))
			}
			mustWrite(t, relay, []byte("220 ready"))
			wantRead(t, client, []byte("220 ready"))
			client.Close()
			relay.Close()
		}
		synctest.Wait()
		go func() {
			if c, err := e.relay.Accept(); err == nil {
				t.Errorf("a further connection to the relay, from %s", c.RemoteAddr())
			}
		}()
		time.Sleep(time.Hour)
	})
}

// clientCertificate makes a CA file and a client certificate under it.
func clientCertificate(t *testing.T, cn string) (caFile string, cert tls.Certificate) {
	t.Helper()
	sign := func(template, parent *x509.Certificate, public, signer any) []byte {
		der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	forever := time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: forever}
	caDER := sign(ca, ca, &key.PublicKey, key)
	leafKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: cn}, NotAfter: forever, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	leafDER := sign(leaf, ca, &leafKey.PublicKey, key)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), 0o600); err != nil {
		t.Fatal(err)
	}
	return caFile, tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}
}
