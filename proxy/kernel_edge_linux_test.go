package proxy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"relayedge/internal/hostport"
	"relayedge/internal/proxyheader"
	"relayedge/proxy/upstream"
)

// way is how a client and a relay reach each other through an edge.
type way struct {
	name  string
	front string // the listener: IPv4, IPv6 or unix
	tls   string // none, 1.2, 1.3 (ended by the edge) or passthrough
	relay string // the upstream: tcp or unix
	in    string // the PROXY header of a trusted peer: v1, v2, or none that is expected
	out   string // client_address
}

// ways are all listeners, with every kind of TLS, upstream and header among them.
var ways = []way{
	{"IPv4", "IPv4", "none", "tcp", "", "proxy-v2"},
	{"IPv4, TLS 1.3", "IPv4", "1.3", "tcp", "", "proxy-v2"},
	{"IPv4, TLS 1.2", "IPv4", "1.2", "tcp", "", "proxy-v1"},
	{"IPv4, passthrough", "IPv4", "passthrough", "tcp", "", "proxy-v2"},
	{"IPv4 behind a balancer, v1", "IPv4", "none", "unix", "v1", "proxy-v2"},
	{"IPv4 behind a balancer, v2, TLS 1.3", "IPv4", "1.3", "unix", "v2", "proxy-v1"},
	{"IPv4 behind a balancer, v2, passthrough", "IPv4", "passthrough", "tcp", "v2", "proxy-v2"},
	{"IPv6", "IPv6", "none", "tcp", "", "none"},
	{"IPv6, TLS 1.3", "IPv6", "1.3", "unix", "", "proxy-v2"},
	{"IPv6 behind a balancer, v1, TLS 1.2", "IPv6", "1.2", "tcp", "v1", "proxy-v2"},
	{"unix", "unix", "none", "unix", "", "proxy-v1"},
	{"unix, TLS 1.3", "unix", "1.3", "tcp", "", "proxy-v2"},
	{"unix behind a balancer, v2, TLS 1.2", "unix", "1.2", "unix", "v2", "none"},
}

// plainWay and secureWay are for what is the same on all ways.
var plainWay, secureWay = ways[0], ways[1]

// ended reports whether TLS ends at the edge.
func (w way) ended() bool { return w.tls == "1.2" || w.tls == "1.3" }

// resets reports whether both sides' sockets know a reset.
func (w way) resets() bool { return w.front != "unix" && w.relay != "unix" }

// Who a balancer speaks for.
var (
	namedClient = netip.MustParseAddrPort("192.0.2.77:5555")
	namedTarget = netip.MustParseAddrPort("198.51.100.5:443")
)

// kernelEdge is a whole edge over sockets of the kernel.
type kernelEdge struct {
	*testEdge
	way    way
	front  net.Listener
	relay  net.Listener
	secure *tls.Config // of a relay that ends TLS itself
}

// kernelConfig is what a test may change before the edge is made.
type kernelConfig struct {
	Config
	listener *ListenerConfig
	limits   *Limits
	more     []Listener // beside that of the way
	// times shortens what the policy counts in whole seconds.
	times func(*times)
}

func listenKernel(t testing.TB, kind string) net.Listener {
	t.Helper()
	at, ok := map[string]string{
		"IPv4": "127.0.0.1:0", "tcp": "127.0.0.1:0", "IPv6": "[::1]:0",
		"unix": "unix:" + filepath.Join(t.TempDir(), "s"),
	}[kind]
	if !ok {
		t.Fatalf("no listener is %q", kind)
	}
	bind, err := hostport.ParseBind(at)
	if err != nil {
		t.Fatal(err)
	}
	l, err := bind.Listen()
	if err != nil && kind == "IPv6" {
		t.Skip("this machine has no IPv6")
	}
	if err != nil {
		t.Fatal(err)
	}
	return l.(*hostport.Socket).Listener // whose Accept has a deadline
}

// newKernelEdge starts an edge that ends with the test. change may be nil.
func newKernelEdge(t *testing.T, w way, change func(*kernelConfig)) *kernelEdge {
	t.Helper()
	e := &kernelEdge{
		testEdge: &testEdge{t: t, log: new(bytes.Buffer), served: make(chan error, 1)},
		way:      w, front: listenKernel(t, w.front), relay: listenKernel(t, w.relay),
	}
	store := openCertificates(t)
	e.secure = &tls.Config{GetCertificate: store.Certificate}
	limits := testLimits()
	limits.ConnectionRatePerIP, limits.ConnectionRatePerIPv648 = 0, 0
	limits.MaxConnectionsPerIP, limits.MaxConnectionsPerIPv648 = 0, 0
	limits.RateLimitBPS, limits.RateLimitBurstBytes = 1<<30, 1<<30
	limits.DrainSecs = 0
	listener := ListenerConfig{Name: "public", TLS: "none", TLSMinVersion: "1.2", ALPN: []string{"http/1.1"}, Upstream: "relay"}
	switch {
	case w.ended():
		listener.TLS = "terminate"
	case w.tls == "passthrough":
		listener.TLS = w.tls
	}
	if w.in != "" {
		listener.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	}
	cfg := kernelConfig{listener: &listener, limits: &limits, times: func(*times) {}}
	cfg.Config = Config{
		Certificate: store.Certificate,
		Upstreams: map[string]upstream.Config{"relay": {
			Addresses: []string{address(e.relay)}, ClientAddress: w.out, ConnectTimeoutSecs: 10,
			ProxyTLVs: []string{"alpn", "authority", "ssl", "unique_id", "crc32c"}, ChannelBindingTLV: 228,
		}},
		Engine: strings.TrimSuffix(engineOf(t), alone),
		Log:    slog.New(slog.NewTextHandler(lockedWriter{e.testEdge}, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	cfg.Limits, cfg.Listeners = limits, append([]Listener{{ListenerConfig: listener, Socket: e.front}}, cfg.more...)
	e.config = cfg.Config
	server, err := New(e.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range server.listeners {
		cfg.times(l.terms.Load().times)
	}
	e.server = server
	if engine, ok := server.engine.(*loopEngine); ok {
		engine.together = 1
		if strings.HasSuffix(engineOf(t), alone) {
			engine.together = 0
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	go func() { e.served <- server.Serve(ctx) }()
	t.Cleanup(e.end)
	return e
}

// address is a listener's, as an upstream's config has it.
func address(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}

// end drains the edge and checks that it gave everything back.
func (e *kernelEdge) end() {
	e.stop()
	select {
	case err := <-e.served:
		if err != nil {
			e.t.Errorf("Serve: %v", err)
		}
	case <-time.After(patience):
		e.t.Error("the drain hangs")
		return
	}
	e.relay.Close()
	e.wantNothingHeld()
}

// party is one end of a pair, as its protocol has it: through TLS, if it speaks
// that itself.
type party struct {
	net.Conn          // what is read from and written to
	raw      net.Conn // its socket
	through  bool     // its TLS goes through the edge, which sees the socket's end alone
}

// CloseWrite ends this side's stream: with close_notify where there is TLS, and
// with a FIN where that is what the edge sees.
func (s party) CloseWrite() error {
	if secure, ok := s.Conn.(*tls.Conn); ok {
		if err := secure.CloseWrite(); err != nil || !s.through {
			return err
		}
	}
	return s.raw.(interface{ CloseWrite() error }).CloseWrite()
}

// wantStreamEnd checks that the other side's stream has ended in order, and
// without a further byte.
func (s party) wantStreamEnd(t *testing.T) {
	t.Helper()
	if err := s.streamEnd(); err != nil {
		t.Fatal(err)
	}
}

// streamEnd reads the end of the other side's stream: where TLS goes through the
// edge, its socket's too.
func (s party) streamEnd() error {
	if err := readsEOF(s); err != nil || !s.through {
		return err
	}
	return readsEOF(s.raw)
}

// reset closes the socket by a RST.
func (s party) reset() {
	s.raw.(interface{ SetLinger(int) error }).SetLinger(0)
	s.raw.Close()
}

// dial connects a client. It ends with the test.
func (e *kernelEdge) dial() net.Conn {
	e.t.Helper()
	return e.dialFrom(netip.Addr{})
}

// dialFrom is dial from an address of this machine.
func (e *kernelEdge) dialFrom(from netip.Addr) net.Conn {
	e.t.Helper()
	d := net.Dialer{Timeout: patience}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	c, err := d.Dial(e.front.Addr().Network(), e.front.Addr().String())
	if err != nil {
		e.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	e.t.Cleanup(func() { c.Close() })
	return c
}

// introduction is the header that a client's balancer sends.
func (w way) introduction() []byte {
	h := proxyheader.Header{Source: namedClient, Destination: namedTarget}
	switch w.in {
	case "v1":
		return proxyheader.AppendV1(nil, h)
	case "v2":
		p, err := proxyheader.AppendV2(nil, h, true)
		if err != nil {
			panic(err)
		}
		return p
	}
	return nil
}

// clientConfig is a client's TLS on this way.
func (w way) clientConfig() *tls.Config {
	cfg := clientTLS("relay.example.org")
	if w.tls == "1.2" {
		cfg.MaxVersion = tls.VersionTLS12
	}
	return cfg
}

// accept takes the edge's connection at the relay's side, and reads its header.
func (e *kernelEdge) accept() (net.Conn, proxyheader.Header) {
	e.t.Helper()
	e.relay.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(patience))
	c, err := e.relay.Accept()
	if err != nil {
		e.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	e.t.Cleanup(func() { c.Close() })
	version := map[string]proxyheader.Versions{"proxy-v1": proxyheader.V1, "proxy-v2": proxyheader.V2}[e.config.Upstreams["relay"].ClientAddress]
	if version == 0 {
		return c, proxyheader.Header{}
	}
	h, rest, err := proxyheader.Read(c, version)
	if err != nil {
		e.t.Fatalf("the header for the relay: %v", err)
	}
	return unshifted{c, io.MultiReader(bytes.NewReader(rest), c)}, h
}

// pair connects a client through to the relay, as its way has it.
func (e *kernelEdge) pair() (client, relay party) {
	e.t.Helper()
	client, relay, _ = e.introduced()
	return client, relay
}

// introduced is pair, and the header that the relay got.
func (e *kernelEdge) introduced() (client, relay party, h proxyheader.Header) {
	e.t.Helper()
	raw := e.dial()
	mustWrite(e.t, raw, e.way.introduction())
	return e.pairOf(raw)
}

// pairOf is introduced for a client that is connected.
func (e *kernelEdge) pairOf(raw net.Conn) (client, relay party, h proxyheader.Header) {
	e.t.Helper()
	switch {
	case e.way.ended():
		client = party{Conn: e.handshake(raw, e.way.clientConfig()), raw: raw}
		c, h := e.accept()
		return client, party{Conn: c, raw: c}, h
	case e.way.tls == "none":
		c, h := e.accept()
		return party{Conn: raw, raw: raw}, party{Conn: c, raw: c}, h
	}
	secure := tls.Client(raw, e.way.clientConfig())
	done := make(chan error, 1)
	go func() { done <- secure.Handshake() }()
	c, h := e.accept()
	server := tls.Server(c, e.secure)
	if err := cmp.Or(server.Handshake(), <-done); err != nil {
		e.t.Fatalf("handshake through the edge: %v", err)
	}
	return party{secure, raw, true}, party{server, c, true}, h
}

// wantEnd waits until a connection has ended, and checks that it was just one,
// for the reason.
func (e *kernelEdge) wantEnd(r Reason) { e.t.Helper(); e.wantEnds(1, r) }

func (e *kernelEdge) wantEnds(n int, r Reason) {
	e.t.Helper()
	waitFor(e.t, "connections have ended", func() bool {
		all := 0
		for _, n := range e.ends() {
			all += n
		}
		return all >= n
	})
	if got := e.ends(); len(got) != 1 || got[r] != n {
		e.t.Errorf("ended: %v, want %d %s", got, n, r)
	}
}

func (e *kernelEdge) wantOpen() {
	e.t.Helper()
	if got := e.ends(); len(got) != 0 {
		e.t.Errorf("ended: %v, want none", got)
	}
}

// alone is behind the name of an engine whose loops make each system call alone.
// Elsewhere they make all of a turn together, as far as the kernel allows it.
const alone = "-alone"

// onKernelEngines is onEngines, with the loop in both manners.
func onKernelEngines(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	onEngines(t, f)
	t.Run(engineMark+"loop"+alone, f)
}

// onWays runs f for each of the ways that suit, on each engine.
func onWays(t *testing.T, suits func(way) bool, f func(t *testing.T, w way)) {
	t.Helper()
	onKernelEngines(t, func(t *testing.T) {
		for _, w := range ways {
			if suits == nil || suits(w) {
				t.Run(w.name, func(t *testing.T) {
					t.Parallel()
					f(t, w)
				})
			}
		}
	})
}

// among suits the named ways.
func among(some ...way) func(way) bool { return func(w way) bool { return slices.Contains(some, w) } }

// together runs tasks of one test at the same time.
func together(tasks ...func()) {
	var all sync.WaitGroup
	for _, task := range tasks {
		all.Go(task)
	}
	all.Wait()
}
