package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/proxyheader"
)

// What a relay that reads version 1 is told, for clients and listeners of every
// pair of families, and for one without an address.
func TestSentVersion1(t *testing.T) {
	tests := []struct{ client, edge, line string }{
		{"192.0.2.10:51000", "198.51.100.5:443", "PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n"},
		{"[2001:db8::10]:51000", "[2001:db8::1]:443", "PROXY TCP6 2001:db8::10 2001:db8::1 51000 443\r\n"},
		{"192.0.2.10:51000", "[2001:db8::1]:443", "PROXY TCP6 ::ffff:c000:20a 2001:db8::1 51000 443\r\n"},
		{"[2001:db8::10]:51000", "198.51.100.5:443", "PROXY TCP6 2001:db8::10 ::ffff:c633:6405 51000 443\r\n"},
		{"", "", "PROXY UNKNOWN\r\n"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) { c.upstream.ClientAddress = "proxy-v1" })
				client := e.admit(tt.client, tt.edge)
				mustWrite(t, client, []byte("hello"))
				relay, err := e.relay.Accept()
				if err != nil {
					t.Fatal(err)
				}
				wantRead(t, relay, []byte(tt.line+"hello"))
				if _, n, err := proxyheader.Parse([]byte(tt.line), proxyheader.V1); err != nil || n != len(tt.line) {
					t.Errorf("a strict parser says %v", err)
				}
				client.Close()
				relay.Close()
			})
		})
	}
}

// admit hands the edge a connection with the addresses, or from a unix socket if
// there are none, and returns the client's end.
func (e *testEdge) admit(client, edge string) *memconn.Conn {
	if client == "" {
		own, peer := memconn.Pipe(edgeAddr, aliceAddr)
		e.server.listeners[0].admit(nameless{own})
		return peer
	}
	own, peer := memconn.Pipe(netip.MustParseAddrPort(edge), netip.MustParseAddrPort(client))
	e.server.listeners[0].admit(own)
	return peer
}

// nameless is a connection of a unix socket, whose client has no address.
type nameless struct{ *memconn.Conn }

func (nameless) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }
func (nameless) LocalAddr() net.Addr  { return &net.UnixAddr{Net: "unix", Name: "/run/edge.sock"} }

// Clients on a unix socket have a LOCAL header, take global slots alone, and are
// not lumped together as one host.
func TestClientsWithoutAddress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.limits.MaxConnectionsPerIP = 2 })
		for range 10 {
			client := e.admit("", "")
			defer client.Close()
			relay, h, _ := e.accept()
			defer relay.Close()
			if !h.Local || h.Source.IsValid() {
				t.Errorf("the relay is told %+v", h)
			}
			if id, _ := h.Lookup(proxyheader.TypeUniqueID); len(id) != 32 {
				t.Errorf("UNIQUE_ID %q", id)
			}
		}
		if held := e.server.gate.Stats(time.Now()); held.Connections != 10 || held.Hosts != 0 {
			t.Errorf("held: %+v", held)
		}
	})
}

// Custom TLVs come behind the others, in order, and beneath the checksum.
func TestSentCustomTLVs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			c.upstream.CustomTLVs = map[string]string{"233": "second", "224": "first", "239": ""}
		})
		client := e.dial(aliceAddr)
		relay, h, _ := e.accept()
		var got []string
		for _, tlv := range h.TLVs {
			if tlv.Type >= 224 {
				got = append(got, fmt.Sprintf("%d=%s", tlv.Type, tlv.Value))
			}
		}
		if strings.Join(got, " ") != "224=first 233=second 239=" {
			t.Errorf("TLVs %q", got)
		}
		client.Close()
		relay.Close()
	})
}

// received collects what comes on every connection to a relay that closes its
// side when the other has closed.
type received struct {
	mu    sync.Mutex
	bytes map[string]int
}

func (r *received) serve(relay *memconn.Listener) {
	for {
		c, err := relay.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b, _ := io.ReadAll(c)
			if h, n, err := proxyheader.Parse(b, proxyheader.V2); err == nil {
				b = fmt.Appendf(nil, "local=%v %s", h.Local, b[n:])
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.bytes[string(b)]++
		}()
	}
}

// With health checks on, a relay that wants headers gets one connection and one
// header a client, and LOCAL of the checks; one that wants none gets not a byte.
func TestOneHeaderAClientBesideChecks(t *testing.T) {
	for clientAddress, want := range map[string]struct{ client, check string }{
		"proxy-v2": {"local=false hello", "local=true "},
		"proxy-v1": {"PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\nhello", "PROXY UNKNOWN\r\n"},
		"none":     {"hello", ""},
	} {
		t.Run(clientAddress, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					c.upstream.ClientAddress, c.upstream.HealthCheckSecs = clientAddress, 10
				})
				r := &received{bytes: map[string]int{}}
				go r.serve(e.relay)
				for range 50 {
					client := e.dial(aliceAddr)
					mustWrite(t, client, []byte("hello"))
					time.Sleep(2 * time.Second)
					client.Close()
				}
				synctest.Wait()
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.bytes[want.client] != 50 || r.bytes[want.check] < 9 || len(r.bytes) != 2 {
					t.Errorf("the relay got %v", r.bytes)
				}
			})
		})
	}
}

// A connection to an address that is lost ends as upstream_unavailable, cut
// short for both sides; with when_down: keep it lives on.
func TestLostAddressEndsSessions(t *testing.T) {
	for whenDown, ends := range map[string]bool{"close": true, "keep": false} {
		t.Run(whenDown, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var up *destination
				e := newEdge(t, func(c *edgeConfig) { c.upstream.WhenDown = whenDown })
				up = e.server.upstreams["relay"]
				client, relay := e.pair()
				if got := up.Status()[0].Connections; got != 1 {
					t.Errorf("the upstream counts %d", got)
				}
				cfg := up.Config()
				cfg.Addresses = []string{"127.0.0.2:7777"}
				up.SetConfig(cfg)
				if !ends {
					e.wantOpen()
					mustWrite(t, client, []byte("still"))
					wantRead(t, relay, []byte("still"))
					client.Close()
					relay.Close()
					return
				}
				e.wantEnd(UpstreamUnavailable)
				for name, c := range map[string]*memconn.Conn{"client": client, "relay": relay} {
					if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
						t.Errorf("the %s sees %v, want a reset", name, err)
					}
				}
			})
		})
	}
}

// The upstream's count follows sessions to their end, whichever it is.
func TestUpstreamCountComesBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		up := e.server.upstreams["relay"]
		for i := range 6 {
			client, relay := e.pair()
			switch i % 3 {
			case 0:
				client.Reset()
			case 1:
				relay.Reset()
			default:
				relay.Close()
			}
			client.Close()
			relay.Close()
		}
		synctest.Wait()
		if got := up.Status()[0].Connections; got != 0 {
			t.Errorf("the upstream counts %d", got)
		}
	})
}

// A relay on a unix socket gets its header like any other.
func TestRelayOnUnixSocket(t *testing.T) { onEngines(t, relayOnUnixSocket) }

func relayOnUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	e := newEdge(t, func(c *edgeConfig) {
		c.upstream.Addresses = []string{"unix:" + path}
		c.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	})
	for range 10 {
		client := e.dial(aliceAddr)
		mustWrite(t, client, []byte("hello"))
		relay, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		h, rest, err := proxyheader.Read(relay, proxyheader.V2)
		if err != nil || h.Source != aliceAddr {
			t.Errorf("header %+v, %v", h, err)
		}
		wantRead(t, io.MultiReader(bytes.NewReader(rest), relay), []byte("hello"))
		mustWrite(t, relay, []byte("answer"))
		wantRead(t, client, []byte("answer"))
		client.Close()
		relay.Close()
	}
}
