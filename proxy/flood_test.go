package proxy

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

// heard keeps what its reader has read.
type heard struct {
	net.Conn
	got bytes.Buffer
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	h.got.Write(p[:n])
	return n, err
}

// sealer is a TLS 1.2 client's sending side after its handshake, in our own
// hands, because crypto/tls's client sends no empty records, warnings or hellos then.
type sealer struct {
	aead cipher.AEAD
	iv   []byte
	seq  uint64
}

func sealingClient(e *testEdge) (*sealer, *memconn.Conn) {
	e.t.Helper()
	raw := e.dial(aliceAddr)
	return sealing(e.t, raw), raw
}

// sealing shakes hands over a connection.
func sealing(t *testing.T, conn net.Conn) *sealer {
	t.Helper()
	var log bytes.Buffer
	cfg := clientTLS("relay.example.org")
	cfg.MaxVersion, cfg.KeyLogWriter = tls.VersionTLS12, &log
	cfg.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
	raw := &heard{Conn: conn}
	if err := tls.Client(raw, cfg).Handshake(); err != nil {
		t.Fatalf("handshake: %v", err)
	}
	fields := strings.Fields(log.String()) // CLIENT_RANDOM, the random, the master secret
	client, err1 := hex.DecodeString(fields[1])
	master, err2 := hex.DecodeString(fields[2])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	server := raw.got.Bytes()[5+4+2:][:32] // of the ServerHello, behind record head, message head and version
	block := expand12(master, append([]byte("key expansion"), append(bytes.Clone(server), client...)...), 40)
	b, err := aes.NewCipher(block[:16])
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(b)
	if err != nil {
		t.Fatal(err)
	}
	return &sealer{aead: aead, iv: block[32:36], seq: 1} // Finished was record 0
}

// expand12 is the PRF of TLS 1.2 (RFC 5246, section 5); seed begins with the label.
func expand12(secret, seed []byte, n int) (out []byte) {
	mac := func(p []byte) []byte {
		h := hmac.New(sha256.New, secret)
		h.Write(p)
		return h.Sum(nil)
	}
	for a := mac(seed); len(out) < n; a = mac(a) {
		out = append(out, mac(append(bytes.Clone(a), seed...))...)
	}
	return out[:n]
}

// record seals one record (RFC 5288).
func (s *sealer) record(kind byte, content []byte) []byte {
	seq := binary.BigEndian.AppendUint64(nil, s.seq)
	s.seq++
	n := len(content)
	aad := append(bytes.Clone(seq), kind, 3, 3, byte(n>>8), byte(n))
	n += len(seq) + s.aead.Overhead()
	head := append([]byte{kind, 3, 3, byte(n >> 8), byte(n)}, seq...)
	return s.aead.Seal(head, append(bytes.Clone(s.iv), seq...), content, aad)
}

// A TLS 1.2 client that asks to negotiate anew, or sends records that say
// nothing, and reads nothing, is gone after a few of them.
func TestUselessRecords(t *testing.T) {
	again := hello(t, "relay.example.org")[5:]
	for name, useless := range map[string]func(s *sealer) []byte{
		"hellos":                    func(s *sealer) []byte { return s.record(22, again) },
		"hello requests":            func(s *sealer) []byte { return s.record(22, []byte{0, 0, 0, 0}) },
		"empty records":             func(s *sealer) []byte { return s.record(23, nil) },
		"warnings":                  func(s *sealer) []byte { return s.record(21, []byte{1, 90}) }, // user_canceled
		"no_renegotiation warnings": func(s *sealer) []byte { return s.record(21, []byte{1, 100}) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, terminating)
				s, raw := sealingClient(e)
				defer raw.Close()
				relay, _, rest := e.accept()
				defer relay.Close()
				// The keys are right: what is sealed with them arrives.
				mustWrite(t, raw, s.record(23, []byte("x")))
				wantRead(t, io.MultiReader(bytes.NewReader(rest), relay), []byte("x"))
				e.wantOpen()
				const few = 20 // crypto/tls bears 16 records in a row that say nothing
				for range few {
					if _, err := raw.Write(useless(s)); err != nil {
						break // it is gone already
					}
				}
				synctest.Wait()
				if n := e.ended(Reset) + e.ended(ClientClosed); n != 1 {
					t.Fatalf("after %d of them the connection is open", few)
				}
				if held := e.server.gate.Stats(time.Now()); held.Connections != 0 {
					t.Error("its slot is still held")
				}
				if log := e.logged(); log != "" {
					t.Errorf("logged: %s", log)
				}
			})
		})
	}
}

// Thousands of clients that are silent after their handshake are gone at the
// time of the first byte, or of silence.
func TestSilenceAfterTheHandshake(t *testing.T) {
	for _, tt := range []struct {
		secs, clients int
		want          Reason
	}{{0, 5000, IdleTimeout}, {7, 500, FirstByteTimeout}} {
		secs, clients, want := tt.secs, tt.clients, tt.want
		if underRace { // a handshake each
			clients /= 10
		}
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, func(c *edgeConfig) { terminating(c); c.limits.FirstByteTimeoutSecs = secs })
			cfg := clientTLS("relay.example.org")
			cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)} // resumed, to be quick
			cfg.MaxVersion = tls.VersionTLS12
			for i := range clients {
				raw := e.dial(source(i))
				defer raw.Close()
				e.handshake(raw, cfg)
				relay, _, _ := e.accept()
				defer relay.Close()
			}
			life := time.Duration(secs) * time.Second
			if secs == 0 {
				life = e.server.limits.Load().times().idle
			}
			time.Sleep(life - time.Nanosecond)
			e.wantOpen()
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if n := e.ended(want); n != clients {
				t.Errorf("%d of %d ended as %s", n, clients, want)
			}
		})
	}
}
