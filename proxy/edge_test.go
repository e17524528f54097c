package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/internal/memconn"
	"relayedge/internal/proxyheader"
	"relayedge/proxy/certs"
	"relayedge/proxy/upstream"
)

var (
	edgeAddr  = netip.MustParseAddrPort("198.51.100.5:443")
	relayAddr = netip.MustParseAddrPort("127.0.0.1:7777")
	aliceAddr = netip.MustParseAddrPort("192.0.2.10:51000")
)

// testEdge is a whole edge between a memconn listener and a memconn relay.
type testEdge struct {
	t      *testing.T
	server *Server
	config Config // of the server, for a reload of part of it
	front  *memconn.Listener
	relay  *memconn.Listener
	log    *bytes.Buffer // guarded by logMu
	logMu  sync.Mutex
	stop   context.CancelFunc
	served chan error
}

// edgeConfig is what a test may change before the edge is made.
type edgeConfig struct {
	listener ListenerConfig
	limits   Limits
	upstream upstream.Config
	dial     upstream.DialFunc
	certs    func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	order    func() bool // whether a CA's validation may come
	tickets  TicketStore
	carry    func(s *session, serve func(*session)) // the sessions, in goroutines of their own; nil: the engine does
	// more are further listeners and upstreams; addresses without a dial lead to the relay too.
	more      []Listener
	upstreams map[string]upstream.Config
	dials     map[string]upstream.DialFunc // by address
}

func testLimits() Limits {
	return Limits{
		Limits:        admission.DefaultLimits(),
		MaxHandshakes: 1024,
		RateLimitBPS:  1 << 20, RateLimitBurstBytes: 4 << 20,
		ProxyHeaderTimeoutSecs: 5, TLSHandshakeTimeoutSecs: 10, ConnectionTimeoutSecs: 300,
		IdleCounts: "client", WriterStallSecs: 30, HalfCloseTimeoutSecs: 60, DrainSecs: 30,
		MaxRequestHeaderBytes: 8192, MaxRequestBodyBytes: 1 << 20,
		RequestHeaderTimeoutSecs: 10, RequestBodyTimeoutSecs: 20, ResponseTimeoutSecs: 60,
	}
}

// newEdge starts an edge that ends with the test. change may be nil.
func newEdge(t *testing.T, change func(*edgeConfig)) *testEdge {
	t.Helper()
	e := &testEdge{t: t, front: memconn.Listen(edgeAddr), relay: memconn.Listen(relayAddr), log: new(bytes.Buffer), served: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(lockedWriter{e}, nil))
	cfg := edgeConfig{
		listener: ListenerConfig{Name: "public", TLS: "none", TLSMinVersion: "1.2", ALPN: []string{"http/1.1"}, Upstream: "relay"},
		limits:   testLimits(),
		upstream: upstream.Config{
			Addresses: []string{relayAddr.String()}, ClientAddress: "proxy-v2",
			ProxyTLVs:         []string{"alpn", "authority", "ssl", "unique_id", "crc32c", "channel_binding"},
			ChannelBindingTLV: 228, ConnectTimeoutSecs: 5,
		},
		dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return e.relay.Dial(ctx, netip.MustParseAddrPort("127.0.0.1:40000"))
		},
	}
	if change != nil {
		change(&cfg)
	}
	ends := func(l Listener) bool { return l.TLS == "terminate" }
	if (cfg.listener.TLS == "terminate" || slices.ContainsFunc(cfg.more, ends)) && cfg.certs == nil {
		store, err := certs.Open(certs.Config{SelfIssued: []string{"relay.example.org", "*.chat.example.org"}}, log)
		if err != nil {
			t.Fatal(err)
		}
		cfg.certs = store.Certificate
	}
	upstreams := map[string]upstream.Config{"relay": cfg.upstream}
	maps.Copy(upstreams, cfg.upstreams)
	e.config = Config{
		Listeners:   append([]Listener{{ListenerConfig: cfg.listener, Socket: e.front}}, cfg.more...),
		Limits:      cfg.limits,
		Certificate: cfg.certs,
		OrderOpen:   cfg.order,
		Tickets:     cfg.tickets,
		Upstreams:   upstreams,
		Dial:        cfg.dial,
		Engine:      engineOf(t),
		Log:         log,
	}
	if len(cfg.dials) > 0 {
		e.config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dial := cfg.dials[address]
			if dial == nil {
				dial = cfg.dial
			}
			return dial(ctx, network, address)
		}
	}
	server, err := New(e.config)
	if err != nil {
		t.Fatal(err)
	}
	e.server = server
	if cfg.carry != nil {
		server.engine = carriedBy{server.engine, cfg.carry}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	go func() { e.served <- server.Serve(ctx) }()
	t.Cleanup(e.end)
	return e
}

// carriedBy has sessions carried by another than the engine's own serve.
type carriedBy struct {
	engine
	carry func(s *session, serve func(*session))
}

func (c carriedBy) serve(s *session) { go c.carry(s, c.engine.serve) }

// end drains the edge and checks that it gave everything back.
func (e *testEdge) end() {
	e.stop()
	if err := <-e.served; err != nil {
		e.t.Errorf("Serve: %v", err)
	}
	e.relay.Close()
	e.wantNothingHeld()
}

// wantNothingHeld checks that every gauge is 0 and every table empty, once the
// buckets had the time to fill.
func (e *testEdge) wantNothingHeld() {
	e.t.Helper()
	held := e.server.gate.Stats(time.Now().Add(time.Hour))
	if held.Connections != 0 || held.Hosts != 0 || held.Sites != 0 {
		e.t.Errorf("the gate still holds %d connections, %d hosts, %d sites", held.Connections, held.Hosts, held.Sites)
	}
	for name, n := range e.server.openByListener() {
		if n != 0 {
			e.t.Errorf("the gauge of listener %s is %d", name, n)
		}
	}
	if n := e.server.places.InFlight(); n != 0 {
		e.t.Errorf("%d handshakes are in flight", n)
	}
	if n := e.server.lane.places.InFlight(); n != 0 {
		e.t.Errorf("%d places of the lane are taken", n)
	}
	if n := e.server.room.taken.Load(); n != 0 {
		e.t.Errorf("%d places of the room are taken", n)
	}
	var ended uint64
	for _, c := range e.server.stats.ended {
		ended += c.Load()
	}
	if accepted := e.server.stats.accepted.Load(); ended != accepted {
		e.t.Errorf("%d connections were accepted, %d have ended", accepted, ended)
	}
}

type lockedWriter struct{ e *testEdge }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.e.logMu.Lock()
	defer w.e.logMu.Unlock()
	return w.e.log.Write(p)
}

func (e *testEdge) logged() string {
	e.logMu.Lock()
	defer e.logMu.Unlock()
	return e.log.String()
}

// dial connects a client from addr; a test closes it.
func (e *testEdge) dial(addr netip.AddrPort) *memconn.Conn {
	e.t.Helper()
	c, err := e.front.Dial(context.Background(), addr)
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

// accept takes the edge's connection at the relay's side, and reads its header.
func (e *testEdge) accept() (*memconn.Conn, proxyheader.Header, []byte) {
	e.t.Helper()
	c, err := e.relay.Accept()
	if err != nil {
		e.t.Fatal(err)
	}
	h, rest, err := proxyheader.Read(c, proxyheader.V2)
	if err != nil {
		e.t.Fatalf("the header for the relay: %v", err)
	}
	return c.(*memconn.Conn), h, rest
}

// pair connects a client from aliceAddr through to the relay.
func (e *testEdge) pair() (client, relay *memconn.Conn) {
	e.t.Helper()
	client = e.dial(aliceAddr)
	relay, _, rest := e.accept()
	if len(rest) != 0 {
		e.t.Fatalf("%d bytes came with the header", len(rest))
	}
	return client, relay
}

// tlsPair is pair through TLS.
func (e *testEdge) tlsPair(cfg *tls.Config) (client *tls.Conn, raw, relay *memconn.Conn) {
	e.t.Helper()
	raw = e.dial(aliceAddr)
	client = e.handshake(raw, cfg)
	relay, _, _ = e.accept()
	return client, raw, relay
}

func (e *testEdge) handshake(raw net.Conn, cfg *tls.Config) *tls.Conn {
	e.t.Helper()
	if cfg == nil {
		cfg = clientTLS("relay.example.org")
	}
	client := tls.Client(raw, cfg)
	if err := client.Handshake(); err != nil {
		e.t.Fatalf("handshake: %v", err)
	}
	return client
}

func openCertificates(t testing.TB) *certs.Store {
	t.Helper()
	store, err := certs.Open(certs.Config{SelfIssued: []string{"relay.example.org", "*.chat.example.org"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func clientTLS(name string) *tls.Config {
	return &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}
}

// ends is how many connections have ended, by reason.
func (e *testEdge) ends() map[Reason]int {
	settled()
	got := map[Reason]int{}
	for reason, c := range e.server.stats.ended {
		if n := c.Load(); n != 0 {
			got[reason] = int(n)
		}
	}
	return got
}

// ended is how often a connection ended for the reason.
func (e *testEdge) ended(r Reason) int {
	settled()
	return int(e.server.stats.ended[r].Load())
}

// settled waits until the edge has done, and so counted, all that it can by now: a
// client may read its end before the edge goes on. Outside of a bubble, whose clock
// begins with the year 2000, nothing tells, and the test waits for what it expects.
func settled() {
	if time.Now().Year() == 2000 {
		synctest.Wait()
	}
}

// patience is how long anything may take before a test takes it for hung.
const patience = time.Minute

// waitFor waits until the condition holds.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// wantEnd checks that just one connection has ended, for the reason.
func (e *testEdge) wantEnd(r Reason) {
	e.t.Helper()
	synctest.Wait()
	got := map[Reason]uint64{}
	for reason, c := range e.server.stats.ended {
		if n := c.Load(); n != 0 {
			got[reason] = n
		}
	}
	if len(got) != 1 || got[r] != 1 {
		e.t.Errorf("ended: %v, want one %s", got, r)
	}
}

// wantOpen checks that no connection has ended.
func (e *testEdge) wantOpen() {
	e.t.Helper()
	synctest.Wait()
	for reason, c := range e.server.stats.ended {
		if n := c.Load(); n != 0 {
			e.t.Errorf("%d ended for %s, want none", n, reason)
		}
	}
}

func mustWrite(t *testing.T, w io.Writer, p []byte) {
	t.Helper()
	if _, err := w.Write(p); err != nil {
		t.Fatalf("write: %v", err)
	}
}

func wantRead(t *testing.T, r io.Reader, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil {
		t.Fatalf("read %d of %d bytes: %v", n, len(want), err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("read %q, want %q", got, want)
	}
}

// wantEOF checks that r ends cleanly and without a further byte.
func wantEOF(t *testing.T, r io.Reader) {
	t.Helper()
	if err := readsEOF(r); err != nil {
		t.Fatal(err)
	}
}

func readsEOF(r io.Reader) error {
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("read %d bytes, %w; want the end", n, err)
	}
	return nil
}

// unshifted is a connection some of whose bytes were read already.
type unshifted struct {
	net.Conn
	r io.Reader
}

func (u unshifted) Read(p []byte) (int, error) { return u.r.Read(p) }
func (u unshifted) CloseWrite() error {
	return u.Conn.(interface{ CloseWrite() error }).CloseWrite()
}
func (u unshifted) SetLinger(n int) error {
	return u.Conn.(interface{ SetLinger(int) error }).SetLinger(n)
}
