package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/hostport"
)

// A refusal closes as refuse_with says, by the gate as by trust_proxy_from, at
// accept as when a header has named the client.
func TestRefuseWith(t *testing.T) {
	for _, tt := range []struct {
		with   string
		answer []byte
		err    error
	}{
		{"close", nil, nil},
		{"reset", nil, syscall.ECONNRESET},
		{"tls_alert", []byte{21, 3, 3, 0, 2, 2, 49}, nil},
	} {
		for where, change := range map[string]func(*edgeConfig){
			"by the gate":  func(c *edgeConfig) { c.limits.Deny = []netip.Prefix{netip.MustParsePrefix("192.0.2.10/32")} },
			"as untrusted": func(c *edgeConfig) { c.listener.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} },
			"after its header": func(c *edgeConfig) {
				c.listener.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
				c.limits.Deny = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
			},
		} {
			t.Run(tt.with+" "+where, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					e := newEdge(t, func(c *edgeConfig) {
						terminating(c)
						c.listener.RefuseWith = tt.with
						change(c)
					})
					raw := e.dial(aliceAddr)
					defer raw.Close()
					if where == "after its header" {
						mustWrite(t, raw, []byte("PROXY TCP4 203.0.113.9 198.51.100.5 51000 443\r\n"))
					}
					got, err := io.ReadAll(raw)
					if !bytes.Equal(got, tt.answer) || !errors.Is(err, tt.err) {
						t.Errorf("read % x, %v; want % x, %v", got, err, tt.answer, tt.err)
					}
					if where == "as untrusted" {
						e.wantEnd(ProxyUntrusted)
					} else {
						e.wantEnd(admission.Denied)
					}
				})
			})
		}
	}
}

// refusedConn is a connection that only counts what is done to it.
type refusedConn struct {
	net.Conn
	peer            net.Addr
	closes, writes  int
	lingers, linger int
}

func (c *refusedConn) RemoteAddr() net.Addr        { return c.peer }
func (c *refusedConn) Close() error                { c.closes++; return nil }
func (c *refusedConn) Write(p []byte) (int, error) { c.writes++; return len(p), nil }
func (c *refusedConn) SetLinger(s int) error       { c.lingers, c.linger = c.lingers+1, s; return nil }

func TestRefusalsAllocateNothing(t *testing.T) {
	for _, with := range []string{"close", "reset", "tls_alert"} {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, func(c *edgeConfig) {
				terminating(c)
				c.listener.RefuseWith = with
				c.limits.Deny = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			})
			conn := &refusedConn{peer: net.TCPAddrFromAddrPort(aliceAddr), linger: -1}
			const runs = 100
			if n := testing.AllocsPerRun(runs, func() { e.server.listeners[0].admit(conn) }); n != 0 {
				t.Errorf("%s: a refusal allocates %v times", with, n)
			}
			if conn.closes != runs+1 {
				t.Errorf("%s: closed %d times", with, conn.closes)
			}
			if (conn.writes > 0) != (with == "tls_alert") || (conn.lingers > 0) != (with == "reset") || conn.lingers > 0 && conn.linger != 0 {
				t.Errorf("%s: %+v", with, conn)
			}
		})
	}
}

// unixFront is an edge whose listener is a real unix socket; its relay is in memory no more.
func unixFront(t *testing.T, change func(*edgeConfig)) (e *testEdge, path string, relay net.Listener) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "edge.sock")
	bind, err := hostport.ParseBind("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	front, err := bind.Listen()
	if err != nil {
		t.Fatal(err)
	}
	relay, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	e = newEdge(t, func(c *edgeConfig) {
		local := c.listener
		local.Name = "local"
		c.dial = nil
		c.upstream.Addresses = []string{relay.Addr().String()}
		c.more = []Listener{{local, front}}
		if change != nil {
			change(c)
		}
	})
	return e, path, relay
}

// The peers of a unix socket have no address: they take global slots alone, are
// nobody's neighbours, and the relay is told that nobody is known.
func TestUnixPeersHaveNoHost(t *testing.T) { onEngines(t, unixPeersHaveNoHost) }

func unixPeersHaveNoHost(t *testing.T) {
	const clients = 10
	e, path, relay := unixFront(t, func(c *edgeConfig) {
		c.limits.MaxConnections, c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = clients, 1, 1
		c.limits.ConnectionRatePerIP, c.limits.ConnectionBurstPerIP = 1, 1
		c.limits.Deny = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	})
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for i := range clients {
		client, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, client)
		behind, err := relay.Accept()
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, behind)
		head := make([]byte, 16)
		if _, err := io.ReadFull(behind, head); err != nil {
			t.Fatal(err)
		}
		if head[12] != 0x20 || head[13] != 0 { // LOCAL, UNSPEC
			t.Fatalf("client %d: header % x", i, head)
		}
		if _, err := io.CopyN(io.Discard, behind, int64(head[14])<<8|int64(head[15])); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, client, []byte("x"))
		wantRead(t, behind, []byte("x"))
	}
	if held := e.server.gate.Stats(time.Now()); held.Connections != clients || held.Hosts != 0 || held.Sites != 0 {
		t.Errorf("the gate holds %+v", held)
	}
	over, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	wantEOF(t, over)
	waitFor(t, "one is refused for max_connections", func() bool { return e.ended(admission.MaxConnections) == 1 })
}

// On a unix socket the header is required, and believed, whatever network is written.
func TestUnixPeersAreTrustedByTheFile(t *testing.T) { onEngines(t, unixPeersAreTrustedByTheFile) }

func unixPeersAreTrustedByTheFile(t *testing.T) {
	e, path, relay := unixFront(t, func(c *edgeConfig) {
		c.more[0].TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		c.upstream.ClientAddress = "proxy-v2"
	})
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	mustWrite(t, client, []byte("PROXY TCP4 203.0.113.9 198.51.100.5 51000 443\r\nhello"))
	behind, err := relay.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	head := make([]byte, 28)
	if _, err := io.ReadFull(behind, head); err != nil {
		t.Fatal(err)
	}
	if want := []byte{0x21, 0x11}; !bytes.Equal(head[12:14], want) || !bytes.Equal(head[16:20], []byte{203, 0, 113, 9}) {
		t.Errorf("header % x", head)
	}
	if held := e.server.gate.Stats(time.Now()); held.Hosts != 1 {
		t.Errorf("%d hosts are charged", held.Hosts)
	}
	missing, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer missing.Close()
	mustWrite(t, missing, []byte("no header at all\r\n"))
	io.Copy(io.Discard, missing)
	client.Close()
	behind.Close()
	e.stop()
	e.server.running.Wait()
	if n := e.ended(ProxyHeader); n != 1 {
		t.Errorf("%d ended as proxy_header", n)
	}
}
