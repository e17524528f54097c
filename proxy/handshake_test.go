package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/socket"
	"relayedge/proxy/certs"
)

func terminating(c *edgeConfig) { c.listener.TLS = "terminate" }

// source gives each test client an address of its own.
func source(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 50000)
}

// hello is the first flight of a client that asks for the name.
func hello(t *testing.T, name string) []byte {
	t.Helper()
	// The name is put in afterwards, so that it may be one that crypto/tls would not send.
	placeholder := strings.Repeat("x", len(name))
	own, peer := memconn.Pipe(aliceAddr, edgeAddr)
	go tls.Client(own, &tls.Config{ServerName: placeholder, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}).Handshake()
	head := make([]byte, 5)
	if _, err := io.ReadFull(peer, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(peer, body); err != nil {
		t.Fatal(err)
	}
	own.Close()
	peer.Close()
	if len(name) > 0 {
		at := bytes.Index(body, []byte(placeholder))
		copy(body[at:], name)
	}
	return append(head, body...)
}

// reshaped sends what is written in another shape.
type reshaped struct {
	*memconn.Conn
	shape func(p []byte, write func([]byte))
}

func (r reshaped) Write(p []byte) (int, error) {
	var err error
	r.shape(p, func(part []byte) {
		if err == nil {
			_, err = r.Conn.Write(part)
		}
	})
	return len(p), err
}

// A hello is understood in whatever records and segments it comes.
func TestHelloInAnyShape(t *testing.T) {
	inRecords := func(size int) func([]byte, func([]byte)) {
		return func(p []byte, write func([]byte)) {
			for len(p) >= 5 {
				n := int(binary.BigEndian.Uint16(p[3:]))
				for part := range chunks(p[5:5+n], size) {
					record := append([]byte{p[0], p[1], p[2], byte(len(part) >> 8), byte(len(part))}, part...)
					if p[0] != 22 { // only plain handshake records may be cut
						record = p[:5+n]
						write(record)
						break
					}
					write(record)
				}
				p = p[5+n:]
			}
		}
	}
	shapes := map[string]func([]byte, func([]byte)){
		"one byte a write": func(p []byte, write func([]byte)) { inPieces(p, 1, write) },
		"cut behind the name": func(p []byte, write func([]byte)) {
			n := min(300, len(p))
			write(p[:n])
			time.Sleep(300 * time.Millisecond)
			write(p[n:])
		},
		"records of 100 bytes":    inRecords(100),
		"records of one byte":     inRecords(1),
		"records in small writes": func(p []byte, write func([]byte)) { inRecords(100)(p, func(r []byte) { inPieces(r, 7, write) }) },
	}
	for name, shape := range shapes {
		for _, padding := range []int{0, 15 << 10, 60 << 10} {
			t.Run(fmt.Sprintf("%s, %d KiB", name, padding>>10), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					e := newEdge(t, terminating)
					cfg := clientTLS("RELAY.Example.ORG")
					cfg.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768, tls.X25519}
					for n := 0; n+256 <= padding; n += 256 {
						cfg.NextProtos = append(cfg.NextProtos, strings.Repeat("p", 255))
					}
					raw := e.dial(aliceAddr)
					client := e.handshake(reshaped{raw, shape}, cfg)
					if client.ConnectionState().CurveID != tls.X25519MLKEM768 {
						t.Error("the key exchange is not the hybrid one")
					}
					relay, _, _ := e.accept()
					client.Close()
					relay.Close()
				})
			})
		}
	}
}

func inPieces(p []byte, size int, write func([]byte)) {
	for part := range chunks(p, size) {
		write(part)
	}
}

// A hello of more than 64 KiB is refused with an alert.
func TestHelloTooLarge(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, terminating)
		raw := e.dial(aliceAddr)
		// A handshake message that announces 70,000 bytes.
		mustWrite(t, raw, []byte{22, 3, 1, 0, 4, 1, 0x01, 0x11, 0x70})
		go io.Copy(io.Discard, raw)
		e.wantEnd(TLSHandshakeFailed)
		raw.Close()
	})
}

// Whatever is not TLS is closed at once, counted, and not logged.
func TestNotTLS(t *testing.T) {
	const httpAnswer = "HTTP/1.1 400 Bad Request\r\n"
	tests := []struct{ name, send, answer string }{
		{"HTTP", "GET / HTTP/1.1\r\nHost: relay.example.org\r\n\r\n", httpAnswer},
		{"HTTP POST", "POST / HTTP/1.1\r\n\r\n", httpAnswer},
		{"HTTP HEAD", "HEAD / HTTP/1.1\r\n\r\n", httpAnswer},
		{"HTTP PUT", "PUT /a HTTP/1.1\r\n\r\n", httpAnswer},
		{"HTTP DELETE", "DELETE /a HTTP/1.1\r\n\r\n", httpAnswer},
		{"HTTP OPTIONS", "OPTIONS * HTTP/1.1\r\n\r\n", httpAnswer},
		{"HTTP PATCH", "PATCH /a HTTP/1.1\r\n\r\n", httpAnswer},
		{"HTTP CONNECT", "CONNECT a:443 HTTP/1.1\r\n\r\n", httpAnswer},
		{"SSH", "SSH-2.0-x\r\n", ""},
		{"zeros", strings.Repeat("\x00", 64), ""},
		{"SSLv2 hello", "\x80\x2e\x01\x00\x02" + strings.Repeat("\x00", 43), ""},
		{"RDP cookie", "\x03\x00\x00\x2a\x25\xe0\x00\x00\x00\x00\x00Cookie: mstshash=hello\r\n", ""},
		{"PROXY v1", "PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n", ""},
		{"PROXY v2", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c", ""},
		{"SMTP", "EHLO example.org\r\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				const times = 50
				e := newEdge(t, terminating)
				for i := range times {
					c := e.dial(source(i))
					mustWrite(t, c, []byte(tt.send))
					got, _ := io.ReadAll(c)
					if !strings.HasPrefix(string(got), tt.answer) || tt.answer == "" && bytes.HasPrefix(got, []byte("HTTP")) {
						t.Fatalf("answer %q", got)
					}
					c.Close()
				}
				synctest.Wait()
				if n := e.ended(NotTLS); n != times {
					t.Errorf("%d of %d ended as not_tls", n, times)
				}
				if held := e.server.gate.Stats(time.Now()); held.Connections != 0 {
					t.Errorf("%d slots are still held", held.Connections)
				}
				if log := e.logged(); log != "" {
					t.Errorf("logged: %s", log)
				}
			})
		})
	}
}

// Each way of naming the server, and what comes of it.
func TestServerNames(t *testing.T) {
	tests := []struct {
		name   string
		serves bool
		reason Reason
	}{
		{"relay.example.org", true, ""},
		{"RELAY.Example.ORG", true, ""},
		{"a.chat.example.org", true, ""},
		{"", true, ""}, // the default certificate
		{"other.example.org", false, UnknownServerName},
		{"chat.example.org", false, UnknownServerName},
		{"a.b.chat.example.org", false, UnknownServerName},
		{"xn--bcher-kva.example.org", false, UnknownServerName},
		{"relay.example.org.", false, TLSHandshakeFailed}, // crypto/tls takes no trailing dot
		{strings.Repeat("a", 255), false, UnknownServerName},
		{strings.Repeat("a", 64) + ".chat.example.org", false, UnknownServerName},
		{"relay\x00.example.org", false, UnknownServerName},
		{"relay .example.org", false, UnknownServerName},
		{"192.0.2.1", true, ""}, // an address is no name: the default certificate
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, terminating)
				raw := e.dial(aliceAddr)
				mustWrite(t, raw, hello(t, tt.name))
				first := make([]byte, 7)
				io.ReadFull(raw, first)
				if tt.serves {
					if first[0] != 22 { // handshake: the server hello
						t.Errorf("answer % x, want a server hello", first)
					}
					raw.Close()
					e.wantEnd(ClientClosed)
					return
				}
				if first[0] != 21 { // alert
					t.Errorf("answer % x, want an alert", first)
				}
				if tt.reason == UnknownServerName && first[6] != 112 {
					t.Errorf("alert %d, want unrecognized_name", first[6])
				}
				e.wantEnd(tt.reason)
				raw.Close()
			})
		})
	}
}

// A session that was made for one name is not resumed under another that is not served.
func TestResumptionUnderAnotherName(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, terminating)
				cfg := clientTLS("relay.example.org")
				cfg.MaxVersion = version
				cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)}
				for _, resumed := range []bool{false, true} {
					client, raw, relay := e.tlsPair(cfg)
					mustWrite(t, relay, []byte("x")) // the ticket comes with it
					wantRead(t, client, []byte("x"))
					if client.ConnectionState().DidResume != resumed {
						t.Fatalf("resumed: %v, want %v", !resumed, resumed)
					}
					raw.Close()
					relay.Close()
				}
				cfg.ServerName = "other.example.org"
				raw := e.dial(aliceAddr)
				err := tls.Client(raw, cfg).Handshake()
				if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
					t.Errorf("handshake: %v", err)
				}
				synctest.Wait()
				if e.ended(UnknownServerName) != 1 {
					t.Error("it is not counted as unknown_server_name")
				}
				raw.Close()
			})
		})
	}
}

// oneSession offers its session for every name.
type oneSession struct{ s **tls.ClientSessionState }

func (o oneSession) Get(string) (*tls.ClientSessionState, bool) { return *o.s, *o.s != nil }
func (o oneSession) Put(_ string, s *tls.ClientSessionState)    { *o.s = s }

// Two names in one hello are no hello.
func TestTwoServerNames(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, terminating)
		first := hello(t, strings.Repeat("n", 33))
		at := bytes.Index(first, []byte(strings.Repeat("n", 33)))
		copy(first[at-2:], "\x00\x0frelay.example.o\x00\x00\x0frelay.example.p")
		raw := e.dial(aliceAddr)
		mustWrite(t, raw, first)
		answer := make([]byte, 7)
		io.ReadFull(raw, answer)
		if answer[0] != 21 {
			t.Errorf("answer % x, want an alert", answer)
		}
		e.wantEnd(TLSHandshakeFailed)
		raw.Close()
	})
}

// A name whose certificate is not to be had is another fault than an unknown one.
func TestCertificateUnavailable(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			terminating(c)
			c.certs = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, certs.ErrUnavailable }
		})
		raw := e.dial(aliceAddr)
		mustWrite(t, raw, hello(t, "relay.example.org"))
		answer := make([]byte, 7)
		io.ReadFull(raw, answer)
		if answer[0] != 21 || answer[6] != 80 {
			t.Errorf("answer % x, want the alert internal_error", answer)
		}
		e.wantEnd(CertificateUnavailable)
		raw.Close()
	})
}

// A client that does not get on with its handshake is gone at its time, which
// runs from accept and which no byte extends; others get in meanwhile.
func TestStalledHandshake(t *testing.T) {
	const life = 10 * time.Second
	clients := 5000
	if underRace { // under which a handshake is many times dearer
		clients = 1000
	}
	states := map[string]func(c *memconn.Conn, first []byte){
		"nothing sent":        func(*memconn.Conn, []byte) {},
		"three bytes":         func(c *memconn.Conn, first []byte) { c.Write(first[:3]) },
		"hello, then silence": func(c *memconn.Conn, first []byte) { c.Write(first) },
		"a byte a second": func(c *memconn.Conn, first []byte) {
			for _, b := range first {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		},
	}
	for name, stall := range states {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					terminating(c)
					c.limits.MaxHandshakes = clients + 1
				})
				first := hello(t, "relay.example.org")
				var stalling sync.WaitGroup
				defer stalling.Wait()
				for i := range clients {
					c := e.dial(source(i))
					defer c.Close()
					stalling.Go(func() { stall(c, first) })
				}
				synctest.Wait()
				if n := e.server.places.InFlight(); n != clients {
					t.Errorf("%d handshakes in flight, want %d", n, clients)
				}
				client, raw, relay := e.tlsPair(nil)
				mustWrite(t, client, []byte("x"))
				wantRead(t, relay, []byte("x"))
				time.Sleep(life - time.Nanosecond)
				e.wantOpen()
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				if n := e.ended(TLSHandshakeTimeout); n != clients {
					t.Errorf("%d of %d ended by the time of the handshake", n, clients)
				}
				raw.Close()
				relay.Close()
			})
		})
	}
}

// A client that leaves, cleanly or by reset, at any step of the handshake is
// counted, and nothing else comes of it.
func TestEarlyEnd(t *testing.T) {
	steps := map[string]int{"before a byte": 0, "after a byte": 1, "after half the hello": 2, "after the hello": 3, "after the server's flight": 4}
	for name, step := range steps {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reset %v", name, reset), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					const times = 1000
					e := newEdge(t, terminating)
					first := hello(t, "relay.example.org")
					for i := range times {
						c := e.dial(source(i))
						switch step {
						case 1:
							mustWrite(t, c, first[:1])
						case 2:
							mustWrite(t, c, first[:len(first)/2])
						case 3:
							mustWrite(t, c, first)
						case 4:
							mustWrite(t, c, first)
							io.ReadFull(c, make([]byte, 100))
						}
						if reset {
							synctest.Wait()
							c.Reset()
						} else {
							c.Close()
						}
					}
					synctest.Wait()
					if n := e.ended(ClientClosed) + e.ended(Reset); n != times {
						t.Errorf("%d of %d were counted as closed or reset", n, times)
					}
					if n := e.ended(Reset); reset && n != times || !reset && step < 3 && n != 0 {
						t.Errorf("%d of %d were counted as reset", n, times)
					}
					if log := e.logged(); log != "" {
						t.Errorf("logged: %s", log)
					}
				})
			})
		}
	}
}

// tls_min_version is kept.
func TestMinVersion(t *testing.T) {
	for _, tt := range []struct {
		min string
		max uint16
		ok  bool
	}{
		{"1.2", tls.VersionTLS12, true}, {"1.2", tls.VersionTLS13, true}, {"1.2", tls.VersionTLS11, false},
		{"1.3", tls.VersionTLS13, true}, {"1.3", tls.VersionTLS12, false},
	} {
		t.Run(tt.min+" "+tls.VersionName(tt.max), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) { terminating(c); c.listener.TLSMinVersion = tt.min })
				cfg := clientTLS("relay.example.org")
				cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tt.max
				raw := e.dial(aliceAddr)
				defer raw.Close()
				err := tls.Client(raw, cfg).Handshake()
				if tt.ok != (err == nil) {
					t.Errorf("handshake: %v", err)
				}
				if !tt.ok {
					e.wantEnd(TLSHandshakeFailed)
				}
			})
		})
	}
}

// With client_ca_file a client without a certificate, or with one of another
// CA, does not reach the relay.
func TestClientCertificates(t *testing.T) {
	ca, good := clientCertificate(t, "alice")
	_, foreign := clientCertificate(t, "mallory")
	for name, certificates := range map[string][]tls.Certificate{"none": nil, "another CA's": {foreign}, "good": {good}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) { terminating(c); c.listener.ClientCAFile = ca })
				cfg := clientTLS("relay.example.org")
				cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					if certificates == nil {
						return new(tls.Certificate), nil
					}
					return &certificates[0], nil
				}
				raw := e.dial(aliceAddr)
				defer raw.Close()
				client := e.handshake(raw, cfg)
				if name == "good" {
					relay, _, _ := e.accept()
					relay.Close()
					return
				}
				if _, err := client.Read(make([]byte, 1)); err == nil {
					t.Error("the client is served")
				}
				e.wantEnd(TLSHandshakeFailed)
			})
		})
	}
}

// crypto/tls keeps a connection usable after a read error that is temporary;
// the engine's reads rest on it.
func TestReadErrorOfTheWireIsNotKept(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				store, err := certs.Open(certs.Config{SelfIssued: []string{"relay.example.org"}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				own, peer := memconn.Pipe(edgeAddr, aliceAddr)
				cfg := clientTLS("relay.example.org")
				cfg.MaxVersion = version
				client := tls.Client(peer, cfg)
				done := make(chan error, 1)
				go func() { done <- client.Handshake() }()
				w := &wire{Socket: socket.New(own, buffers), stats: newStats()}
				server := tls.Server(w, &tls.Config{GetCertificate: store.Certificate})
				if err := server.Handshake(); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				w.settle(time.Second)
				// One record is delivered to the wire in two parts, with a read in between.
				for range 3 {
					if _, err := server.Read(make([]byte, 100)); err != errWouldBlock {
						t.Fatalf("read without bytes: %v", err)
					}
				}
				go client.Write([]byte("message"))
				if _, err := w.fill(); err != nil {
					t.Fatal(err)
				}
				whole := w.ahead
				w.ahead = whole[:7]
				if _, err := server.Read(make([]byte, 100)); err != errWouldBlock {
					t.Fatalf("read of a part: %v", err)
				}
				w.ahead = whole[7:]
				wantRead(t, server, []byte("message"))
				own.Close()
				peer.Close()
			})
		})
	}
}
