package relaycore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/proxyheader"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// world is a relay on in-memory connections, inside a bubble, or on loopback.
type world struct {
	t       testing.TB
	s       *Server
	ln      *memconn.Listener
	connect func() net.Conn // to a relay on loopback, in place of ln
	edge    *edge           // before the relay; nil: nothing is
	stop    func()          // ends Serve and waits for it
	log     *bytes.Buffer

	peers []*peer
}

const frontEnd = "127.0.0.1:0"

// bubble runs f against a relay in synthetic time. Its goroutines must all have
// ended when f returns and the relay has stopped, or synctest fails the test.
func bubble(t *testing.T, change func(*Config), f func(t *testing.T, w *world)) {
	t.Helper()
	bubbleBehind(t, headerFront, change, f)
}

func bubbleBehind(t *testing.T, fr front, change func(*Config), f func(t *testing.T, w *world)) {
	t.Helper()
	bubbleWith(t, fr, nil, change, f)
}

// bubbleServing is bubble for a relay that serves HTTP by what wrap makes of its routes.
func bubbleServing(t *testing.T, wrap func(http.Handler) http.Handler, f func(t *testing.T, w *world)) {
	t.Helper()
	bubbleWith(t, headerFront, wrap, nil, f)
}

func bubbleWith(t *testing.T, fr front, wrap func(http.Handler) http.Handler, change func(*Config), f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.DrainSecs = 2
		if change != nil {
			change(&cfg)
		}
		if fr.edge {
			cfg.RequireChannelBinding = cfg.ProxyProtocol // there are TLS sessions to bind to
		}
		var log bytes.Buffer
		s, err := NewServer(cfg, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if wrap != nil {
			s.routes = wrap(s.routes)
		}
		w := &world{t: t, s: s, ln: memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777")), log: &log}
		if fr.edge {
			w.edge = newEdge(t, w.ln, fr.limits)
		}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, w.ln) }()
		stopped := false
		w.stop = func() {
			if stopped {
				return
			}
			stopped = true
			if w.edge != nil {
				w.edge.wantOwn()
			}
			cancel()
			if err := <-served; err != nil {
				t.Error(err)
			}
			if w.edge != nil {
				w.edge.end()
			}
			if st := s.gate.Stats(time.Now()); st.Connections != 0 || st.Hosts != 0 || st.Sites != 0 {
				t.Errorf("the gate still holds %+v", st)
			}
			w.empty()
			for _, b := range []*budget{s.outboundBudget, s.bufferBudget} {
				if held, counts := b.sums(); held != 0 || counts != 0 {
					t.Errorf("%s: %d bytes are still held, %d count", b.why.reason, held, counts)
				}
			}
			if n := s.count.open.Load(); n != 0 || len(s.conns) != 0 || s.lingers.taken.Load() != 0 {
				t.Errorf("%d connections are still open, %d noted, %d lingering", n, len(s.conns), s.lingers.taken.Load())
			}
		}
		defer w.stop()
		defer func() {
			for _, p := range w.peers {
				p.resume()
			}
		}()
		f(t, w)
	})
}

func proxied(cfg *Config) { cfg.ProxyProtocol = true }

// rejected returns the count of a reason.
func (w *world) rejected(r Reason) int { return int(w.s.count.rejections[r].Load()) }

// wantOnly checks that of all reasons the given one was counted n times and no other at all.
func (w *world) wantOnly(r Reason, n int) {
	w.t.Helper()
	synctest.Wait()
	for _, each := range reasons {
		want := 0
		if each == r {
			want = n
		}
		if got := w.rejected(each); got != want {
			w.t.Errorf("rejections_total{reason=%q} is %d, want %d", each, got, want)
		}
	}
}

// peer is a client of the relay, byte by byte.
type peer struct {
	w     *world
	nc    net.Conn
	read  *bufio.Reader
	key   ed25519.PrivateKey
	nonce [32]byte

	binding [32]byte // of its TLS session; zeros without one

	frames chan received // what came; closed at the end of the stream
	gate   chan struct{} // closed when reading goes on
	halt   chan chan struct{}

	detached chan struct{} // closed when nobody reads p.frames's bytes any more
	pongs    atomic.Bool   // answer pings
}

type received struct {
	op      websocket.Opcode
	payload []byte
	at      time.Time
}

// dial connects from an address and does nothing more.
func (w *world) dial(from string) *peer {
	w.t.Helper()
	nc, err := w.ln.Dial(w.t.Context(), netip.MustParseAddrPort(from))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.adopt(nc)
}

// adopt makes a client of a connection.
func (w *world) adopt(nc net.Conn) *peer {
	p := &peer{w: w, nc: nc, read: bufio.NewReaderSize(nc, 512), halt: make(chan chan struct{}, 1)}
	p.pongs.Store(true)
	w.peers = append(w.peers, p)
	return p
}

// header is the PROXY header of a client.
func header(t testing.TB, client string, tlvs ...proxyheader.TLV) []byte {
	t.Helper()
	h := proxyheader.Header{Version: 2, TLVs: tlvs, Destination: netip.MustParseAddrPort("198.51.100.5:443")}
	if client == "" {
		h.Local = true
	} else {
		h.Source = netip.MustParseAddrPort(client)
	}
	b, err := proxyheader.AppendV2(nil, h, true)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const upgradeRequest = "GET /relay HTTP/1.1\r\nHost: relay.example.org\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: relaycore.v1\r\n\r\n"

func (p *peer) write(b []byte) {
	p.w.t.Helper()
	if _, err := p.nc.Write(b); err != nil {
		p.w.t.Fatal(err)
	}
}

// response reads an HTTP response.
func (p *peer) response() *http.Response {
	p.w.t.Helper()
	r, err := http.ReadResponse(p.read, &http.Request{Method: "GET"})
	if err != nil {
		p.w.t.Fatal(err)
	}
	return r
}

// upgrade upgrades and starts to read frames.
func (p *peer) upgrade() *peer {
	p.w.t.Helper()
	p.write([]byte(upgradeRequest))
	if r := p.response(); r.StatusCode != http.StatusSwitchingProtocols {
		p.w.t.Fatalf("status %d", r.StatusCode)
	}
	p.listen()
	return p
}

func (p *peer) listen() {
	p.frames = make(chan received, 4096)
	p.detached = make(chan struct{})
	go func() {
		defer close(p.detached)
		defer close(p.frames)
		for {
			r, err := readFrame(p.read)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				gate := <-p.halt
				if gate == nil {
					return
				}
				<-gate
				continue
			}
			if err != nil {
				return
			}
			if r.op == websocket.Ping && p.pongs.Load() {
				p.nc.Write(masked(0x8a, r.payload))
			}
			p.frames <- r
		}
	}()
}

// stopReading makes the client take nothing until resume. No frame may be on its way.
func (p *peer) stopReading() {
	synctest.Wait()
	p.gate = make(chan struct{})
	p.halt <- p.gate
	p.nc.SetReadDeadline(time.Unix(1, 0))
	synctest.Wait()
}

// detach leaves what comes from here on to the caller. No frame may be on its way.
func (p *peer) detach() {
	p.halt <- nil
	p.nc.SetReadDeadline(time.Unix(1, 0))
	<-p.detached
	p.nc.SetReadDeadline(time.Time{})
}

func (p *peer) resume() {
	if p.gate == nil {
		return
	}
	p.nc.SetReadDeadline(time.Time{})
	close(p.gate)
	p.gate = nil
}

func readFrame(r io.Reader) (received, error) {
	var h [10]byte
	if _, err := io.ReadFull(r, h[:2]); err != nil {
		return received{}, err
	}
	op, n := websocket.Opcode(h[0]&0x0f), uint64(h[1])
	switch n {
	case 126:
		io.ReadFull(r, h[:2])
		n = uint64(binary.BigEndian.Uint16(h[:2]))
	case 127:
		io.ReadFull(r, h[:8])
		n = binary.BigEndian.Uint64(h[:8])
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return received{op, b, time.Now()}, err
}

// masked makes a client's frame with the given first byte.
func masked(first byte, payload []byte) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	if len(payload) > 1<<16 {
		// Masking takes long under the race detector.
		return append(append(b, 0, 0, 0, 0), payload...)
	}
	mask := [4]byte{0x1f, 0x82, 0x5c, 0xe7}
	b = append(b, mask[:]...)
	for i, c := range payload {
		b = append(b, c^mask[i&3])
	}
	return b
}

func (p *peer) send(f wire.Frame) {
	p.w.t.Helper()
	p.write(masked(0x82, f.Append(nil)))
}

// next returns what comes next, pings left out.
func (p *peer) next() received {
	p.w.t.Helper()
	for {
		select {
		case r, ok := <-p.frames:
			if !ok {
				p.w.t.Fatal("the relay closed the connection")
			}
			if r.op != websocket.Ping {
				return r
			}
		case <-time.After(24 * time.Hour):
			p.w.t.Fatal("nothing came within a day")
		}
	}
}

// want returns the next frame, which must be an F.
func want[F wire.Frame](p *peer) F {
	p.w.t.Helper()
	r := p.next()
	if r.op != websocket.Binary {
		p.w.t.Fatalf("opcode %x with %.40q came", r.op, r.payload)
	}
	f, err := wire.DecodeServer(r.payload)
	if err != nil {
		p.w.t.Fatal(err)
	}
	got, ok := f.(F)
	if !ok {
		p.w.t.Fatalf("%T came: %.200s", f, fmt.Sprintf("%+v", f))
	}
	return got
}

// quiet checks that nothing has come, pings left out.
func (p *peer) quiet() {
	p.w.t.Helper()
	synctest.Wait()
	for {
		select {
		case r, ok := <-p.frames:
			if !ok {
				p.w.t.Fatal("the relay closed the connection")
			}
			if r.op != websocket.Ping {
				p.w.t.Fatalf("opcode %x with %.40x came", r.op, r.payload)
			}
			continue
		default:
		}
		return
	}
}

// end waits for the end of the stream and returns the close frame that came
// before it, if one did, and when the first of the two came.
func (p *peer) end() (code websocket.Code, text string, at time.Time) {
	p.w.t.Helper()
	for {
		select {
		case r, ok := <-p.frames:
			if !ok {
				if at.IsZero() {
					at = time.Now()
				}
				return code, text, at
			}
			if r.op == websocket.Close {
				code, text, _ = websocket.ParseClose(r.payload)
				at = r.at
			}
		case <-time.After(24 * time.Hour):
			p.w.t.Fatal("still open after a day")
		}
	}
}

// hello greets and keeps the nonce.
func (p *peer) hello() wire.Welcome {
	p.w.t.Helper()
	p.send(wire.Hello{Version: wire.Version})
	w := want[wire.Welcome](p)
	p.nonce = w.Nonce
	return w
}

// newKey makes a key that is the same in every run.
func newKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func identity(key ed25519.PrivateKey) wire.Identity {
	return wire.Identity(key.Public().(ed25519.PublicKey))
}

// member is a client that has proved the identity of the seed, without a front end.
func (w *world) member(seed byte) *peer {
	w.t.Helper()
	p := w.dial("127.0.0.1:0").upgrade()
	p.hello()
	p.publish(seed)
	return p
}

func (p *peer) publish(seed byte) {
	p.w.t.Helper()
	p.key = newKey(seed)
	p.send(wire.NewPublish(p.key, []byte("bundle"), p.nonce, p.binding))
	if got := want[wire.Published](p); got.Identity != identity(p.key) {
		p.w.t.Fatal("another identity was published")
	}
}

func (p *peer) ask(id uint64, target wire.Identity) {
	p.w.t.Helper()
	p.send(wire.Ask{RequestID: id, Mode: wire.Named, Key: target, Content: make([]byte, wire.AskSize)})
}

// pairUp opens a circuit between two members.
func (w *world) pairUp(a, b *peer) uint64 {
	w.t.Helper()
	a.ask(1, identity(b.key))
	want[wire.Knock](b)
	b.ask(2, identity(a.key))
	open := want[wire.CircuitOpen](a)
	if want[wire.CircuitOpen](b).Circuit != open.Circuit {
		w.t.Fatal("two circuits")
	}
	return open.Circuit
}

func messageID(n int) (id wire.MessageID) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	return id
}
