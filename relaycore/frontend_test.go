package relaycore

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/proxyheader"
	"relayedge/relaycore/wire"
)

// behind is a client whose address a PROXY header gives, upgraded and greeted.
func (w *world) behind(client string, tlvs ...proxyheader.TLV) *peer {
	w.t.Helper()
	var p *peer
	if w.edge != nil {
		if client == "" || len(tlvs) > 0 {
			w.t.Fatal("the edge writes its own header")
		}
		p = w.reach(client)
		p.write([]byte(upgradeRequest))
	} else {
		p = w.dial(frontEnd)
		p.write(append(header(w.t, client, tlvs...), upgradeRequest...))
	}
	if r := p.response(); r.StatusCode != http.StatusSwitchingProtocols {
		w.t.Fatalf("status %d", r.StatusCode)
	}
	p.listen()
	p.hello()
	return p
}

// refusedBehind checks that a client is closed without a word once its header has come.
func (w *world) refusedBehind(client string) {
	w.t.Helper()
	p := w.dial(frontEnd)
	p.write(header(w.t, client))
	if b, err := io.ReadAll(p.nc); err != nil || len(b) > 0 {
		w.t.Fatalf("%q, %v", b, err)
	}
}

// The caps count by the header's address: two clients behind one front end are two.
func TestCapsByHeaderAddress(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Limits)
		fill   []string
		over   string
		other  string
		reason Reason
	}{
		{"per IPv4 address", func(l *Limits) { l.MaxConnectionsPerIP = 2 },
			[]string{"192.0.2.10:1", "192.0.2.10:2"}, "192.0.2.10:3", "192.0.2.11:1", ReasonPerIPCap},
		{"mapped is IPv4", func(l *Limits) { l.MaxConnectionsPerIP = 1 },
			[]string{"[::ffff:192.0.2.10]:1"}, "192.0.2.10:3", "[::ffff:192.0.2.11]:1", ReasonPerIPCap},
		{"per /64", func(l *Limits) { l.MaxConnectionsPerIP = 2 },
			[]string{"[2001:db8::1]:1", "[2001:db8::2]:1"}, "[2001:db8::3]:1", "[2001:db8:0:1::1]:1", ReasonPerIPCap},
		{"per /48", func(l *Limits) { l.MaxConnectionsPerIPv648 = 2 },
			[]string{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1"}, "[2001:db8:0:2::1]:1", "[2001:db8:1::1]:1", ReasonPerPrefixCap},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *Config) { proxied(c); tc.change(&c.Limits) }, func(t *testing.T, w *world) {
				var open []*peer
				for _, client := range tc.fill {
					open = append(open, w.behind(client))
				}
				w.refusedBehind(tc.over)
				w.wantOnly(tc.reason, 1)
				w.behind(tc.other)
				// A slot that is given back is usable at once.
				open[0].nc.Close()
				synctest.Wait()
				w.behind(tc.over)
				w.wantOnly(tc.reason, 1)
			})
		})
	}
}

// spec/003: with both caps 0 everybody behind the front end is let in, up to max_connections.
func TestCapsOff(t *testing.T) {
	bubble(t, func(c *Config) {
		proxied(c)
		c.Limits.MaxConnections = 100
		c.Limits.MaxConnectionsPerIP, c.Limits.MaxConnectionsPerIPv648 = 0, 0
	}, func(t *testing.T, w *world) {
		for i := range 100 {
			w.behind(fmt.Sprintf("192.0.2.10:%d", 1000+i))
		}
		p := w.dial(frontEnd)
		if b, err := io.ReadAll(p.nc); err != nil || len(b) > 0 {
			t.Fatalf("%q, %v", b, err)
		}
		w.wantOnly(ReasonMaxConnections, 1)
	})
}

// A LOCAL header stands for the front end itself: it has no host, and takes a global slot only.
func TestLocalHeaderHasNoHost(t *testing.T) {
	bubble(t, func(c *Config) { proxied(c); c.Limits.MaxConnectionsPerIP = 1 }, func(t *testing.T, w *world) {
		for range 3 {
			w.behind("")
		}
		w.behind("192.0.2.10:1")
		if st := w.s.gate.Stats(time.Now()); st.Connections != 4 || st.Hosts != 1 {
			t.Fatalf("%+v", st)
		}
	})
}

// A header that is sent again inside the stream is payload: it is judged as HTTP
// before the upgrade, as a WebSocket frame behind it, and names nobody.
func TestHeaderAgainIsPayload(t *testing.T) {
	forged := header(t, "203.0.113.77:1")
	t.Run("before the upgrade", func(t *testing.T) {
		bubble(t, proxied, func(t *testing.T, w *world) {
			p := w.dial(frontEnd)
			p.write(append(append(header(t, "192.0.2.10:1"), forged...), upgradeRequest...))
			if r := p.response(); r.StatusCode != http.StatusBadRequest {
				t.Fatalf("status %d", r.StatusCode)
			}
			if st := w.s.gate.Stats(time.Now()); st.Hosts != 1 {
				t.Fatalf("%+v", st)
			}
			for _, r := range reasons {
				w.wantOnly(r, 0)
			}
		})
	})
	t.Run("behind it", func(t *testing.T) {
		bubble(t, func(c *Config) { proxied(c); c.Limits.MaxConnectionsPerIP = 1 }, func(t *testing.T, w *world) {
			p := w.behind("192.0.2.10:1")
			p.write(forged)
			if code, _, _ := p.end(); code != 1002 {
				t.Fatalf("closed with %d", code)
			}
			w.behind("203.0.113.77:1") // nobody was charged in its name
			w.wantOnly(ReasonPerIPCap, 0)
		})
	})
}

// spec/003: proxy_header is a missing or malformed header, proxy_not_loopback a peer that is not trusted.
func TestHeaderRefused(t *testing.T) {
	good := header(t, "192.0.2.10:1")
	long := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff"), make([]byte, 65535)...)
	for _, tc := range []struct {
		name   string
		from   string
		send   []byte
		reason Reason
	}{
		{"missing: HTTP", frontEnd, []byte(upgradeRequest), ReasonProxyHeader},
		{"missing: TLS", frontEnd, []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), ReasonProxyHeader},
		{"version 1", frontEnd, []byte("PROXY TCP4 192.0.2.10 198.51.100.5 1 443\r\n"), ReasonProxyHeader},
		{"bad version", frontEnd, append(append([]byte(nil), good[:12]...), 0x31, 0x11, 0, 12), ReasonProxyHeader},
		{"declared length too short", frontEnd, []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x08\xc0\x00\x02\x0a\xc6\x33\x64\x05"), ReasonProxyHeader},
		{"too long", frontEnd, long, ReasonProxyHeader},
		{"not trusted", "192.0.2.1:1000", good, ReasonProxyNotLoopback},
		{"not trusted, IPv6", "[2001:db8::1]:1000", good, ReasonProxyNotLoopback},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, proxied, func(t *testing.T, w *world) {
				p := w.dial(tc.from)
				go p.nc.Write(tc.send)
				start := time.Now()
				io.Copy(io.Discard, p.nc)
				if time.Since(start) != 0 {
					t.Fatalf("closed after %v", time.Since(start))
				}
				synctest.Wait()
				w.wantOnly(tc.reason, 1)
			})
		})
	}
}

// However the header and what follows are cut, the client is the same and the stream is whole.
func TestHeaderCutAnywhere(t *testing.T) {
	session := [32]byte{7}
	bubble(t, func(c *Config) { proxied(c); c.Limits.MaxConnectionsPerIP = 1 }, func(t *testing.T, w *world) {
		stream := append(header(t, "192.0.2.10:51000", proxyheader.TLV{Type: 228, Value: session[:]}), upgradeRequest...)
		stream = append(stream, wireFrame(wire.Hello{Version: wire.Version})...)
		for cut := range len(stream) {
			p := w.dial(frontEnd)
			p.write(stream[:cut])
			synctest.Wait()
			p.write(stream[cut:])
			if r := p.response(); r.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("cut at %d: status %d", cut, r.StatusCode)
			}
			p.listen()
			p.nonce = want[wire.Welcome](p).Nonce
			p.send(wire.NewPublish(newKey(1), nil, p.nonce, session))
			want[wire.Published](p)
			w.refusedBehind("192.0.2.10:1") // its host is the header's
			p.nc.Close()
			synctest.Wait()
		}
	})
}

// The trusted networks are matched by address, however the peer's is written.
func TestTrustByAddress(t *testing.T) {
	bubble(t, func(c *Config) {
		proxied(c)
		c.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::ffff:172.16.0.0/112")}
	}, func(t *testing.T, w *world) {
		for _, from := range []string{"10.2.3.4:1", "[::ffff:10.2.3.4]:1", "172.16.0.9:1"} {
			p := w.dial(from)
			p.write(header(t, "192.0.2.10:1"))
			p.upgrade()
		}
		w.wantOnly(ReasonProxyNotLoopback, 0)
		io.Copy(io.Discard, w.dial("127.0.0.1:1").nc)
		w.wantOnly(ReasonProxyNotLoopback, 1)
	})
}

// spec/003: key_auth is a bad bundle signature, or a proof that does not match this TLS session.
func TestChannelBinding(t *testing.T) {
	var session, other [32]byte
	rand.Read(session[:])
	rand.Read(other[:])
	key := newKey(1)
	tlv := func(typ byte, b []byte) proxyheader.TLV { return proxyheader.TLV{Type: typ, Value: b} }
	for _, tc := range []struct {
		name   string
		change func(*Config)
		tlvs   []proxyheader.TLV
		proof  [32]byte
		break_ func(*wire.Publish)
		fault  wire.Fault // 0: taken
	}{
		{"this session", nil, []proxyheader.TLV{tlv(228, session[:])}, session, nil, 0},
		{"another session", nil, []proxyheader.TLV{tlv(228, session[:])}, other, nil, wire.FaultKeyAuth},
		{"zeros", nil, []proxyheader.TLV{tlv(228, session[:])}, [32]byte{}, nil, wire.FaultKeyAuth},
		{"no TLV", nil, nil, [32]byte{}, nil, wire.FaultBinding},
		{"another type", nil, []proxyheader.TLV{tlv(229, session[:])}, session, nil, wire.FaultBinding},
		{"of another length", nil, []proxyheader.TLV{tlv(228, session[:31])}, [32]byte{}, nil, wire.FaultBinding},
		{"configured type", func(c *Config) { c.ChannelBindingTLV = 239 }, []proxyheader.TLV{tlv(228, other[:]), tlv(239, session[:])}, session, nil, 0},
		{"not required", func(c *Config) { c.RequireChannelBinding = false }, []proxyheader.TLV{tlv(228, session[:])}, [32]byte{}, nil, 0},
		{"not required, and not looked at", func(c *Config) { c.RequireChannelBinding = false }, []proxyheader.TLV{tlv(228, session[:])}, session, nil, wire.FaultKeyAuth},
		{"bundle signature", nil, []proxyheader.TLV{tlv(228, session[:])}, session, func(f *wire.Publish) { f.BundleSignature[5] ^= 1 }, wire.FaultKeyAuth},
		{"proof", nil, []proxyheader.TLV{tlv(228, session[:])}, session, func(f *wire.Publish) { f.Proof[5] ^= 1 }, wire.FaultKeyAuth},
		{"another bundle", nil, []proxyheader.TLV{tlv(228, session[:])}, session, func(f *wire.Publish) { f.Bundle = []byte("bundlf") }, wire.FaultKeyAuth},
		{"another identity", nil, []proxyheader.TLV{tlv(228, session[:])}, session, func(f *wire.Publish) { f.Identity = identity(newKey(2)) }, wire.FaultKeyAuth},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *Config) {
				proxied(c)
				if tc.change != nil {
					tc.change(c)
				}
			}, func(t *testing.T, w *world) {
				p := w.behind("192.0.2.10:1", tc.tlvs...)
				f := wire.NewPublish(key, []byte("bundle"), p.nonce, tc.proof)
				if tc.break_ != nil {
					tc.break_(&f)
				}
				p.send(f)
				if tc.fault == 0 {
					want[wire.Published](p)
					w.wantOnly(ReasonKeyAuth, 0)
					return
				}
				if got := want[wire.Error](p); got.Frame != wire.TypePublish || got.Fault != tc.fault {
					t.Fatalf("%+v", got)
				}
				w.wantOnly(ReasonKeyAuth, 1)
				p.ask(1, identity(newKey(3)))
				if got := want[wire.Error](p); got.Fault != wire.FaultOrder {
					t.Fatalf("%+v", got)
				}
			})
		})
	}
}

// A proof holds for one greeting: the nonce of another connection is no use.
func TestProofIsForOneNonce(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		a, b := w.dial("192.0.2.1:1").upgrade(), w.dial("192.0.2.1:2").upgrade()
		a.hello()
		b.hello()
		stolen := wire.NewPublish(newKey(1), nil, a.nonce, [32]byte{})
		b.send(stolen)
		if got := want[wire.Error](b); got.Fault != wire.FaultKeyAuth {
			t.Fatalf("%+v", got)
		}
		a.hello() // a newer nonce takes the older one's place
		a.send(stolen)
		if got := want[wire.Error](a); got.Fault != wire.FaultKeyAuth {
			t.Fatalf("%+v", got)
		}
		w.wantOnly(ReasonKeyAuth, 2)
	})
}

// Anything but an upgrade at /relay gets a plain answer, counts as a connection, and ends.
func TestAnswers(t *testing.T) {
	without := func(line string) string { return strings.Replace(upgradeRequest, line, "", 1) }
	instead := func(old, with string) string { return strings.Replace(upgradeRequest, old, with, 1) }
	for _, tc := range []struct {
		name, request string
		status        int
		decoy         bool
	}{
		{"root", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404, true},
		{"the relay's path, no upgrade", "GET /relay HTTP/1.1\r\nHost: x\r\n\r\n", 404, true},
		{"an upgrade elsewhere", instead("/relay", "/other"), 404, true},
		{"a longer path", instead("/relay", "/relay/"), 404, true},
		{"a masked path", instead("/relay", "/%72elay"), 404, true},
		{"POST with a body", "POST /submit HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 404, true},
		{"no HTTP", "SSH-2.0-x\r\n\r\n", 400, false},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, false},
		{"HTTP/1.0", instead("HTTP/1.1", "HTTP/1.0"), 400, false},
		{"POST", instead("GET", "POST"), 400, false},
		{"a body", instead("Upgrade:", "Content-Length: 1\r\nUpgrade:"), 400, false},
		{"no host", without("Host: relay.example.org\r\n"), 400, false},
		{"no key", without("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), 400, false},
		{"version 8", instead("Version: 13", "Version: 8"), 426, false},
		{"other subprotocols", instead("relaycore.v1", "chat, superchat"), 400, false},
		{"8192 bytes", sized(8192), 101, false},
		{"8193 bytes", sized(8193), 431, false},
		{"no end", strings.Repeat("a", 20000), 431, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				p := w.dial("192.0.2.1:1")
				go p.nc.Write([]byte(tc.request))
				r := p.response()
				if r.StatusCode != tc.status {
					t.Fatalf("status %d", r.StatusCode)
				}
				if tc.status == 101 {
					return
				}
				body, err := io.ReadAll(r.Body)
				if err != nil || bytes.Contains(bytes.ToLower(body), []byte("relay")) || r.Header.Get("Server") != "" {
					t.Fatalf("%q, %v", body, err)
				}
				if n, err := p.read.Read(make([]byte, 1)); err != io.EOF {
					t.Fatalf("%d, %v", n, err)
				}
				if n := w.s.count.connections.Load(); n != 1 {
					t.Fatalf("%d connections counted", n)
				}
				if decoys := w.s.count.decoys.Load() == 1; decoys != tc.decoy {
					t.Fatalf("counted as a decoy: %v", decoys)
				}
				// The client does not close: its slot is not its own for ever.
				time.Sleep(lastWords)
				synctest.Wait()
				if st := w.s.gate.Stats(time.Now()); st.Connections != 0 {
					t.Fatalf("%+v", st)
				}
			})
		})
	}
}

// sized is an upgrade request of n bytes.
func sized(n int) string {
	const filler = "X-Filler: \r\n"
	return strings.Replace(upgradeRequest, "Upgrade: websocket", "X-Filler: "+
		strings.Repeat("a", n-len(upgradeRequest)-len(filler))+"\r\nUpgrade: websocket", 1)
}
