package proxy

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/socket"
	"relayedge/internal/spread"
)

// rekeyer is a TLS 1.3 client after its handshake, in our own hands, because
// crypto/tls's client never asks for a KeyUpdate (RFC 8446, section 4.6.3).
type rekeyer struct {
	t   *testing.T
	raw net.Conn
	trafficKeys
	in      trafficKeys  // the edge's
	renewed atomic.Int32 // how often the edge has renewed its keys
}

// trafficKeys seal or open one direction.
type trafficKeys struct {
	secret []byte // TRAFFIC_SECRET_N
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// rekeyingClient connects and shakes hands; what the edge sends is left unread.
func rekeyingClient(e *testEdge) *rekeyer {
	e.t.Helper()
	return rekeying(e.t, e.dial(aliceAddr))
}

// rekeying shakes hands over a connection.
func rekeying(t *testing.T, raw net.Conn) *rekeyer {
	t.Helper()
	var log bytes.Buffer
	cfg := clientTLS("relay.example.org")
	cfg.KeyLogWriter = &log
	cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)} // so that it is sent a ticket
	client := tls.Client(&recordwise{Conn: raw}, cfg)
	if err := client.Handshake(); err != nil {
		t.Fatalf("handshake: %v", err)
	}
	if suite := client.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Skip("this machine prefers another cipher than the test knows: " + tls.CipherSuiteName(suite))
	}
	r := &rekeyer{t: t, raw: raw}
	for line := range strings.Lines(log.String()) {
		fields := strings.Fields(line)
		keys := map[string]*trafficKeys{"CLIENT_TRAFFIC_SECRET_0": &r.trafficKeys, "SERVER_TRAFFIC_SECRET_0": &r.in}[fields[0]]
		if keys == nil {
			continue
		}
		secret, err := hex.DecodeString(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		keys.use(secret)
	}
	return r
}

// recordwise reads no further than to the end of a record, so that what comes
// behind the handshake is left on the connection.
type recordwise struct {
	net.Conn
	record []byte
}

func (r *recordwise) Read(p []byte) (int, error) {
	if len(r.record) == 0 {
		var err error
		if r.record, err = readRecord(r.Conn); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.record)
	r.record = r.record[n:]
	return n, nil
}

// readRecord reads one record, with its head.
func readRecord(r io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	record := append(head, make([]byte, binary.BigEndian.Uint16(head[3:]))...)
	_, err := io.ReadFull(r, record[5:])
	return record, err
}

// use derives the keys of a traffic secret (RFC 8446, section 7.3).
func (k *trafficKeys) use(secret []byte) {
	block, err := aes.NewCipher(expand13(secret, "key", 16))
	if err != nil {
		panic(err)
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		panic(err)
	}
	k.secret, k.iv, k.seq = secret, expand13(secret, "iv", 12), 0
}

// renew derives the next traffic secret (RFC 8446, section 7.2).
func (k *trafficKeys) renew() { k.use(expand13(k.secret, "traffic upd", 32)) }

// expand13 is HKDF-Expand-Label without a context (RFC 8446, section 7.1).
func expand13(secret []byte, label string, n int) []byte {
	label = "tls13 " + label
	info := append([]byte{0, byte(n), byte(len(label))}, label...)
	out, err := hkdf.Expand(sha256.New, secret, string(append(info, 0)), n)
	if err != nil {
		panic(err)
	}
	return out
}

// nonce is that of the next record.
func (k *trafficKeys) nonce() []byte {
	nonce := bytes.Clone(k.iv)
	var seq [8]byte
	binary.BigEndian.PutUint64(seq[:], k.seq)
	for i, b := range seq {
		nonce[4+i] ^= b
	}
	k.seq++
	return nonce
}

// record seals one record of the inner type.
func (k *trafficKeys) record(content []byte, inner byte) []byte {
	n := len(content) + 1 + k.aead.Overhead()
	head := []byte{23, 3, 3, byte(n >> 8), byte(n)}
	return k.aead.Seal(head, k.nonce(), append(bytes.Clone(content), inner), head)
}

// update asks the edge to renew its keys too, and renews its own.
func (r *rekeyer) update() []byte {
	p := r.record([]byte{24, 0, 0, 1, 1}, 22) // key_update, update_requested
	r.renew()
	return p
}

func (r *rekeyer) data(p string) []byte { return r.record([]byte(p), 23) }

// Read returns the data of one record, which has to fit into p. Tickets are
// passed over, and the edge's keys renewed as it says. The end is io.EOF if it
// came with close_notify, and io.ErrUnexpectedEOF otherwise.
func (r *rekeyer) Read(p []byte) (int, error) {
	for {
		record, err := readRecord(r.raw)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
		content, err := r.in.aead.Open(nil, r.in.nonce(), record[5:], record[:5])
		if err != nil {
			return 0, err
		}
		content = bytes.TrimRight(content, "\x00") // padding
		switch inner, content := content[len(content)-1], content[:len(content)-1]; {
		case inner == 23 && len(content) <= len(p):
			return copy(p, content), nil
		case inner == 22 && content[0] == 4: // new_session_ticket
		case inner == 22 && bytes.Equal(content, []byte{24, 0, 0, 1, 0}): // key_update, update_not_requested
			r.in.renew()
			r.renewed.Add(1)
		case inner == 21 && bytes.Equal(content, []byte{1, 0}): // close_notify
			return 0, io.EOF
		default:
			return 0, fmt.Errorf("a record of type %d: % x", inner, content[:min(len(content), 16)])
		}
	}
}

// fillReplies asks for new keys, with a byte of data in between, and reads
// nothing, until the edge cannot write its replies.
func (r *rekeyer) fillReplies() {
	go func() {
		for range 1000 {
			var flight []byte
			for range 8 {
				flight = append(flight, r.update()...)
			}
			if _, err := r.raw.Write(append(flight, r.data("x")...)); err != nil {
				return
			}
		}
	}()
	synctest.Wait()
}

// Someone who renews keys now and then is served for ever.
func TestKeyUpdateNowAndThen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, terminating)
		r := rekeyingClient(e)
		relay, _, _ := e.accept()
		go io.Copy(io.Discard, r.raw)
		for range 100 {
			time.Sleep(time.Minute)
			mustWrite(t, r.raw, append(r.update(), r.data("x")...))
			wantRead(t, relay, []byte("x"))
		}
		e.wantOpen()
		r.raw.Close()
		relay.Close()
	})
}

// One who asks for new keys and nothing else is closed, and one who mixes it
// with data and never reads ends as the stalled writer that it makes of us.
func TestKeyUpdateFloods(t *testing.T) {
	t.Run("back to back", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, terminating)
			r := rekeyingClient(e)
			e.accept()
			for range 100 {
				if _, err := r.raw.Write(r.update()); err != nil {
					break
				}
			}
			e.wantEnd(Reset)
			r.raw.Close()
		})
	})
	t.Run("with data and unread replies", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, func(c *edgeConfig) {
				terminating(c)
				c.limits.RateLimitBPS, c.limits.RateLimitBurstBytes = 1<<30, 1<<30
			})
			r := rekeyingClient(e)
			relay, _, _ := e.accept()
			go io.Copy(io.Discard, relay)
			r.fillReplies()
			e.wantOpen()
			time.Sleep(30*time.Second + socket.StallSlice) // memconn is not read by readiness
			e.wantEnd(WriterStall)
			r.raw.Close()
			relay.Close()
		})
	})
}

// A client that has the edge wait for it, inside a read or a write, keeps
// nobody's drain waiting.
func TestDrainDoesNotWaitForStalledClients(t *testing.T) {
	stalls := map[string]func(t *testing.T, e *testEdge) []io.Closer{
		"replies of TLS's own": func(t *testing.T, e *testEdge) []io.Closer {
			r := rekeyingClient(e)
			relay, _, _ := e.accept()
			go io.Copy(io.Discard, relay)
			r.fillReplies()
			return []io.Closer{r.raw, relay}
		},
		"the relay's bytes": func(t *testing.T, e *testEdge) []io.Closer {
			_, raw, relay := e.tlsPair(nil)
			go relay.Write(make([]byte, 1<<20))
			synctest.Wait()
			return []io.Closer{raw, relay}
		},
		"close_notify": func(t *testing.T, e *testEdge) []io.Closer {
			_, raw, relay := e.tlsPair(nil)
			relay.Write(make([]byte, memconn.BufferSize-200)) // TLS makes it just too much
			relay.CloseWrite()
			synctest.Wait()
			return []io.Closer{raw, relay}
		},
	}
	for name, stall := range stalls {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					terminating(c)
					c.limits.WriterStallSecs, c.limits.DrainSecs = 3600, 2
				})
				var all []io.Closer
				for range 3 {
					all = append(all, stall(t, e)...)
				}
				began := time.Now()
				e.stop()
				e.served <- <-e.served
				if took := time.Since(began); took != 2*time.Second+2*spread.Step {
					t.Errorf("the drain took %v", took)
				}
				if n := e.ended(Drain); n != 3 {
					t.Errorf("%d of 3 ended by the drain", n)
				}
				for _, c := range all {
					c.Close()
				}
			})
		})
	}
}
