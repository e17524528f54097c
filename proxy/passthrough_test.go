package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/proxyheader"
	"relayedge/proxy/certs"
)

func passing(c *edgeConfig) { c.listener.TLS = "passthrough" }

// inRecords writes the plain handshake records of p anew, in records of size bytes.
func inRecords(size int) func([]byte, func([]byte)) {
	return func(p []byte, write func([]byte)) {
		for len(p) >= 5 {
			n := int(binary.BigEndian.Uint16(p[3:]))
			if p[0] != 22 {
				write(p[:5+n])
			} else {
				for part := range chunks(p[5:5+n], size) {
					write(append([]byte{p[0], p[1], p[2], byte(len(part) >> 8), byte(len(part))}, part...))
				}
			}
			p = p[5+n:]
		}
	}
}

// A connection whose TLS is the relay's goes where its name leads, in whatever
// pieces its hello comes; the relay ends TLS with the client itself.
func TestPassthroughInAnyShape(t *testing.T) {
	shapes := map[string]func([]byte, func([]byte)){
		"one byte a write": func(p []byte, write func([]byte)) { inPieces(p, 1, write) },
		"cut behind the name": func(p []byte, write func([]byte)) {
			n := min(300, len(p))
			write(p[:n])
			time.Sleep(300 * time.Millisecond)
			write(p[n:])
		},
		"records of 100 bytes": inRecords(100),
		"records of one byte":  inRecords(1),
	}
	store, err := certs.Open(certs.Config{SelfIssued: []string{"irc.chat.example.org"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, shape := range shapes {
		for _, padding := range []int{0, 15 << 10, 60 << 10} {
			t.Run(fmt.Sprintf("%s, %d KiB", name, padding>>10), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					change, irc := withRoutes(t, "passthrough")
					e := newEdge(t, change)
					cfg := clientTLS("IRC.chat.example.org")
					cfg.NextProtos = nil
					cfg.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768}
					for n := 0; n+256 <= padding; n += 256 {
						cfg.NextProtos = append(cfg.NextProtos, strings.Repeat("p", 255))
					}
					raw := e.dial(aliceAddr)
					client := tls.Client(reshaped{raw, shape}, cfg)
					done := make(chan error, 1)
					go func() { done <- client.Handshake() }()
					relay, err := irc.Accept()
					if err != nil {
						t.Fatal(err)
					}
					h, rest, err := proxyheader.Read(relay, proxyheader.V2)
					if err != nil || h.Source != aliceAddr {
						t.Fatalf("header %+v, %v", h, err)
					}
					if v, ok := h.Lookup(proxyheader.TypeAuthority); !ok || string(v) != "IRC.chat.example.org" {
						t.Errorf("AUTHORITY %q", v)
					}
					for _, typ := range []byte{proxyheader.TypeSSL, proxyheader.TypeALPN, 228} {
						if v, ok := h.Lookup(typ); ok {
							t.Errorf("TLV %#x: %q, of a TLS session that is not ours", typ, v)
						}
					}
					server := tls.Server(unshifted{relay, io.MultiReader(bytes.NewReader(rest), relay)}, &tls.Config{GetCertificate: store.Certificate})
					if err := server.Handshake(); err != nil {
						t.Fatal(err)
					}
					if err := <-done; err != nil {
						t.Fatal(err)
					}
					go func() {
						_, err := client.Write([]byte("NICK alice"))
						done <- err
					}()
					wantRead(t, server, []byte("NICK alice"))
					if err := <-done; err != nil {
						t.Error(err)
					}
					if n := e.server.places.InFlight(); n != 0 {
						t.Errorf("%d handshakes in flight", n)
					}
					raw.Close()
					relay.Close()
				})
			})
		}
	}
}

// What comes with the hello, and after it, reaches the relay byte for byte.
func TestPassthroughIsByteExact(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, passing)
		first := append(hello(t, "relay.example.org"), strings.Repeat("early data ", 1000)...)
		raw := e.dial(aliceAddr)
		mustWrite(t, raw, first)
		relay, _, rest := e.accept()
		wantRead(t, io.MultiReader(bytes.NewReader(rest), relay), first)
		mustWrite(t, relay, []byte("answer"))
		wantRead(t, raw, []byte("answer"))
		raw.CloseWrite()
		wantEOF(t, relay)
		relay.Close()
		wantEOF(t, raw)
		raw.Close()
		e.wantEnd(ClientClosed)
	})
}

// What comes to no hello is answered, counted and closed at once.
func TestPassthroughRefuses(t *testing.T) {
	good := hello(t, "relay.example.org")
	malformed := bytes.Clone(good)
	malformed[len(malformed)-1]++ // the last extension runs past the end, or is another
	malformed[5+4+2+32]++         // and so does the session id
	for _, tt := range []struct {
		name   string
		send   []byte
		answer []byte
		reason Reason
	}{
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), []byte("HTTP/1.1 400 Bad Request\r\n"), NotTLS},
		{"SSH", []byte("SSH-2.0-x\r\n"), nil, NotTLS},
		{"zeros", make([]byte, 64), nil, NotTLS},
		{"SSLv2", append([]byte{0x80, 0x2e, 1, 0, 2}, make([]byte, 43)...), nil, NotTLS},
		{"RDP cookie", []byte("\x03\x00\x00\x2a\x25\xe0\x00\x00\x00\x00\x00Cookie: mstshash=hello\r\n"), nil, NotTLS},
		{"no hello", []byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, alertDecodeError, TLSHandshakeFailed},
		{"malformed", malformed, alertDecodeError, TLSHandshakeFailed},
		{"an alert", []byte{21, 3, 1, 0, 2, 2, 0}, alertDecodeError, TLSHandshakeFailed},
		{"too long", []byte{22, 3, 1, 0, 4, 1, 1, 0, 1}, alertInternalError, TLSHandshakeFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				const times = 50
				e := newEdge(t, passing)
				for i := range times {
					raw := e.dial(source(i))
					mustWrite(t, raw, tt.send)
					got, _ := io.ReadAll(raw)
					if !bytes.HasPrefix(got, tt.answer) || tt.answer == nil && len(got) > 0 {
						t.Fatalf("answer %q, want %q", got, tt.answer)
					}
					raw.Close()
				}
				synctest.Wait()
				if n := e.ended(tt.reason); n != times {
					t.Errorf("%d of %d ended as %s", n, times, tt.reason)
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

// A hello has the handshake's time, in all; a client that leaves before is counted as such.
func TestPassthroughWaitsInItsTime(t *testing.T) {
	first := hello(t, "relay.example.org")
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, passing)
		raw := e.dial(aliceAddr)
		var dripping sync.WaitGroup
		defer dripping.Wait()
		defer raw.Close()
		dripping.Go(func() {
			for _, b := range first {
				if _, err := raw.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		time.Sleep(10*time.Second - time.Nanosecond)
		e.wantOpen()
		time.Sleep(time.Nanosecond)
		e.wantEnd(TLSHandshakeTimeout)
	})
	for _, reset := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, passing)
			raw := e.dial(aliceAddr)
			mustWrite(t, raw, first[:len(first)-1])
			synctest.Wait()
			want := ClientClosed
			if reset {
				raw.Reset()
				want = Reset
			} else {
				raw.Close()
			}
			e.wantEnd(want)
		})
	}
}

// A client that is silent in the midst of its hello holds what it has sent, and no buffer.
func TestPassthroughHoldsNoBuffer(t *testing.T) {
	first := hello(t, "relay.example.org")
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, passing)
		raw := e.dial(aliceAddr)
		mustWrite(t, raw, first[:100])
		synctest.Wait()
		e.server.mu.Lock()
		for s := range e.server.sessions {
			if s.wire.ahead != nil {
				t.Errorf("%d bytes of a buffer are held", cap(s.wire.ahead))
			}
		}
		e.server.mu.Unlock()
		raw.Close()
	})
}
