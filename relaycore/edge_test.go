package relaycore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/memconn"
	"relayedge/proxy"
	"relayedge/proxy/certs"
	"relayedge/proxy/upstream"
)

// front is what stands before the relay in a test.
type front struct {
	name   string
	edge   bool                // TLS ends there, and it writes the PROXY header; else the test itself does
	limits func(*proxy.Limits) // of the edge; nil: none binds
}

var headerFront, edgeFront = front{name: "header"}, front{name: "edge", edge: true}

var bothFronts = []front{headerFront, edgeFront}

// eachFront runs f in a bubble of its own behind each.
func eachFront(t *testing.T, change func(*Config), f func(t *testing.T, w *world)) {
	behindEach(t, bothFronts, change, f)
}

func behindEach(t *testing.T, fronts []front, change func(*Config), f func(t *testing.T, w *world)) {
	for _, fr := range fronts {
		t.Run(fr.name, func(t *testing.T) { bubbleBehind(t, fr, change, f) })
	}
}

// costly are the fronts of a test that moves so much that the race detector makes a
// minute of each: there it is the first alone. What the fronts have in common with
// others they have in the lighter tests too.
func costly(fronts []front) []front {
	if raceEnabled {
		return fronts[:1]
	}
	return fronts
}

// edge is the edge before a relay. Its own limits are out of the way, so that
// the relay's are those that bind.
type edge struct {
	t      testing.TB
	server *proxy.Server
	ln     *memconn.Listener
	stop   context.CancelFunc
	served chan error
	client *tls.Config
	binds  string // the reason of a limit of its own that is to bind
}

// The server names of an edge stand for how the relay behind it is reached.
const (
	atRelay = "relay.example.org"   // as it should be
	unnamed = "unnamed.example.org" // without a PROXY header
	fromFar = "far.example.org"     // from an address that the relay does not trust
)

var reached = map[string]struct{ address, from, told string }{
	atRelay: {"127.0.0.1:7777", "127.0.0.1:0", "proxy-v2"},
	unnamed: {"127.0.0.1:7778", "127.0.0.1:0", "none"},
	fromFar: {"127.0.0.1:7779", "192.0.2.1:0", "proxy-v2"},
}

// edgeCertificates are the same for all edges: the clock of every bubble begins
// at the same moment.
var edgeCertificates = sync.OnceValues(func() (*certs.Store, error) {
	return certs.Open(certs.Config{SelfIssued: []string{atRelay, unnamed, fromFar}}, slog.New(slog.DiscardHandler))
})

func edgeLimits() proxy.Limits {
	l := proxy.Limits{
		Limits: admission.DefaultLimits(), MaxHandshakes: 100_000,
		RateLimitBPS: 1 << 40, RateLimitBurstBytes: 1 << 40,
		ProxyHeaderTimeoutSecs: 60, TLSHandshakeTimeoutSecs: 120, ConnectionTimeoutSecs: 86400, IdleCounts: "client",
		WriterStallSecs: 3600, HalfCloseTimeoutSecs: 3600, SocketBufferBytes: 131072,
	}
	l.MaxConnections, l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = 100_000, 0, 0
	l.ConnectionRatePerIP, l.ConnectionRatePerIPv648 = 0, 0
	return l
}

// newEdge starts an edge before the relay that listens on ln. change may be nil.
func newEdge(t testing.TB, ln *memconn.Listener, change func(*proxy.Limits)) *edge {
	t.Helper()
	limits := edgeLimits()
	if change != nil {
		change(&limits)
	}
	store, err := edgeCertificates()
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{t: t, ln: memconn.Listen(netip.MustParseAddrPort("198.51.100.5:443")), served: make(chan error, 1)}
	public := proxy.ListenerConfig{Name: "public", TLS: "terminate", TLSMinVersion: "1.2", ALPN: []string{"http/1.1"}, ServerNames: map[string]string{}}
	upstreams := make(map[string]upstream.Config)
	from := make(map[string]netip.AddrPort)
	for name, r := range reached {
		public.ServerNames[name] = name
		up := upstream.Config{Addresses: []string{r.address}, ClientAddress: r.told, ChannelBindingTLV: 228, ConnectTimeoutSecs: 5, WhenDown: "keep"}
		if r.told == "proxy-v2" {
			up.ProxyTLVs = []string{"alpn", "authority", "ssl", "unique_id", "crc32c", "channel_binding"}
		}
		upstreams[name], from[r.address] = up, netip.MustParseAddrPort(r.from)
	}
	e.server, err = proxy.New(proxy.Config{
		Listeners: []proxy.Listener{{ListenerConfig: public, Socket: e.ln}}, Limits: limits,
		Certificate: store.Certificate, Upstreams: upstreams, Engine: "stream", Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, _, address string) (net.Conn, error) { return ln.Dial(ctx, from[address]) },
	})
	if err != nil {
		t.Fatal(err)
	}
	// The certificate of our own making is its own anchor. Of the key exchanges the
	// cheapest will do.
	made, err := store.Certificate(&tls.ClientHelloInfo{ServerName: atRelay, SupportedVersions: []uint16{tls.VersionTLS13}, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}})
	if err != nil {
		t.Fatal(err)
	}
	e.client = &tls.Config{RootCAs: x509.NewCertPool(), NextProtos: []string{"http/1.1"}, CurvePreferences: []tls.CurveID{tls.X25519}, ClientSessionCache: tls.NewLRUClientSessionCache(3)}
	e.client.RootCAs.AddCert(made.Leaf)
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	go func() { e.served <- e.server.Serve(ctx) }()
	return e
}

// connect connects a client from an address.
func (e *edge) connect(from string) net.Conn {
	e.t.Helper()
	nc, err := e.ln.Dial(e.t.Context(), netip.MustParseAddrPort(from))
	if err != nil {
		e.t.Fatal(err)
	}
	return nc
}

// dial connects a client and ends with its TLS handshake.
func (e *edge) dial(from, serverName string) (*tlsConn, [32]byte) {
	e.t.Helper()
	nc := e.connect(from)
	cfg := e.client.Clone()
	cfg.ServerName = serverName
	c := &tlsConn{Conn: tls.Client(nc, cfg), turn: make(chan struct{}, 1)}
	if err := c.Handshake(); err != nil {
		e.t.Fatalf("handshake: %v", err)
	}
	state := c.ConnectionState()
	material, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
	if err != nil {
		e.t.Fatal(err)
	}
	return c, [32]byte(material)
}

// reads gives the values of one of the edge's metrics, by label, without the zeros.
func (e *edge) reads(family string) map[string]int {
	e.t.Helper()
	for _, f := range e.server.Families() {
		if f.Name == family {
			got := make(map[string]int)
			f.Read(func(label string, v float64) {
				if v != 0 {
					got[label] = int(v)
				}
			})
			return got
		}
	}
	e.t.Fatalf("the edge has no metric %s", family)
	return nil
}

// end stops the edge, whose relay has ended, and checks that it holds nothing.
func (e *edge) end() {
	e.t.Helper()
	e.stop()
	if err := <-e.served; err != nil {
		e.t.Error(err)
	}
	if open := e.reads("connections"); len(open) > 0 {
		e.t.Errorf("the edge still has %v", open)
	}
	ended := 0
	for _, n := range e.reads("ended_total") {
		ended += n
	}
	if accepted := e.reads("connections_total")[""]; ended != accepted {
		e.t.Errorf("%d connections were accepted by the edge, %d have ended", accepted, ended)
	}
}

// wantOwn checks that no limit of the edge has bound that is not to: what has
// ended was the relay's doing, or the client's.
func (e *edge) wantOwn() {
	e.t.Helper()
	got := e.reads("rejections_total")
	delete(got, e.binds)
	if len(got) > 0 {
		e.t.Errorf("limits of the edge have bound: %v", got)
	}
}

// tlsConn is a client's TLS connection whose writers wait for each other on a
// channel: in a bubble a wait for crypto/tls's mutex would stop the clock.
type tlsConn struct {
	*tls.Conn
	turn chan struct{}
}

func (c *tlsConn) Write(p []byte) (int, error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	return c.Conn.Write(p)
}

// reach is a client whose address a PROXY header has told the relay, and that
// has sent nothing itself. The relay may have closed it by now.
func (w *world) reach(client string) *peer {
	w.t.Helper()
	if w.edge != nil {
		return w.throughEdge(client, atRelay)
	}
	p := w.dial(frontEnd)
	p.nc.Write(header(w.t, client))
	return p
}

// through is a client of the edge.
func (w *world) throughEdge(client, serverName string) *peer {
	w.t.Helper()
	nc, binding := w.edge.dial(client, serverName)
	p := w.adopt(nc)
	p.binding = binding
	return p
}

// reachUnnamed is a client that no PROXY header names; reachFromFar one of a
// front end that is not trusted.
func (w *world) reachUnnamed() *peer {
	w.t.Helper()
	if w.edge != nil {
		return w.throughEdge(client(0), unnamed)
	}
	return w.dial(frontEnd)
}

func (w *world) reachFromFar() *peer {
	w.t.Helper()
	if w.edge != nil {
		return w.throughEdge(client(0), fromFar)
	}
	return w.dial("192.0.2.1:1")
}

// unknown is a client of an edge that tells the relay nothing of it, upgraded and greeted.
func (w *world) unknown(client string) *peer {
	w.t.Helper()
	p := w.throughEdge(client, unnamed).upgrade()
	p.binding = [32]byte{}
	p.hello()
	return p
}

// gone waits until the relay has closed a connection without a word.
func (p *peer) gone() {
	p.w.t.Helper()
	b, err := io.ReadAll(p.nc)
	if len(b) > 0 || err != nil && (p.w.edge == nil || !errors.Is(err, syscall.ECONNRESET)) {
		p.w.t.Fatalf("%q, %v", b, err)
	}
}

// What the relay learns of a client behind the edge: its address, by which it is
// counted, and its TLS session, for which alone a proof is good.
func TestEdgeNamesTheClient(t *testing.T) {
	bubbleBehind(t, edgeFront, func(c *Config) { fronted(c); c.Limits.MaxConnectionsPerIP = 1 }, func(t *testing.T, w *world) {
		a := w.as("192.0.2.10:1", 1)
		w.reach("192.0.2.10:2").gone()
		w.wantOnly(ReasonPerIPCap, 1)
		b := w.behind("192.0.2.11:1")
		if st := w.s.gate.Stats(time.Now()); st.Connections != 2 || st.Hosts != 2 {
			t.Fatalf("%+v", st)
		}
		own := b.binding
		for _, wrong := range [][32]byte{{}, a.binding} {
			b.binding = wrong
			b.refusedPublish()
		}
		b.binding = own
		b.publishAs(keyOf(2), nil)
		if w.rejected(ReasonKeyAuth) != 2 {
			t.Fatalf("%d refused", w.rejected(ReasonKeyAuth))
		}
	})
}
