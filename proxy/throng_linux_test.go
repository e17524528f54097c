package proxy

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/internal/proxyheader"
	"relayedge/proxy/upstream"
)

// A throng is many connections of all kinds that an edge meets in its life, each
// from its own source, at most so many at once. What each of them saw is checked.
type throng struct {
	t      *testing.T
	e      *kernelEdge
	fronts map[string]net.Listener // by kind of listener
	tls    map[uint16]*tls.Config  // resumes sessions, by version
	plain  *tls.Config             // resumes none
	hello  []byte

	dialled atomic.Int64
	faults  atomic.Int64
}

const (
	throngStall     = 3 * time.Second // writer_stall_secs, shortened
	throngHandshake = 6 * time.Second
	throngPerIP     = 8 // max_connections_per_ip
	throngBig       = 1 << 20
)

// throngAddresses are how many of 127.0.1.0/24 the relay answers on, so that the
// edge's ports towards it last.
const throngAddresses = 16

// newThrong starts an edge with a listener of each kind, in front of a relay that
// does what a connection's first byte asks for.
func newThrong(t *testing.T) *throng {
	c := &throng{t: t, hello: hello(t, "relay.example.org"), fronts: map[string]net.Listener{}}
	c.tls, c.plain = map[uint16]*tls.Config{}, clientTLS("relay.example.org")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cfg := clientTLS("relay.example.org")
		cfg.MaxVersion = version
		cfg.ClientSessionCache = tls.NewLRUClientSessionCache(0)
		c.tls[version] = cfg
	}
	relay, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for i := range throngAddresses {
		addresses = append(addresses, fmt.Sprintf("127.0.1.%d:%d", i+1, addrPort(relay.Addr()).Port()))
	}
	c.e = newKernelEdge(t, secureWay, func(k *kernelConfig) {
		k.limits.MaxConnectionsPerIP, k.limits.MaxConnections = throngPerIP, 4096
		k.Upstreams["relay"] = upstream.Config{Addresses: addresses, ClientAddress: "proxy-v2", ConnectTimeoutSecs: 30, ProxyTLVs: []string{"unique_id", "crc32c"}}
		for name, l := range map[string]ListenerConfig{
			"plain":       {TLS: "none"},
			"passthrough": {TLS: "passthrough"},
			"balanced":    {TLS: "terminate", TrustProxyFrom: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			"unix":        {TLS: "terminate"},
		} {
			kind := "IPv4"
			if name == "unix" {
				kind = name
			}
			l.Name, l.TLSMinVersion, l.ALPN, l.Upstream = name, "1.2", []string{"http/1.1"}, "relay"
			c.fronts[name] = listenKernel(t, kind)
			k.more = append(k.more, Listener{ListenerConfig: l, Socket: c.fronts[name]})
		}
		k.times = func(q *times) { q.writerStall, q.handshake = throngStall, throngHandshake }
	})
	c.fronts["secure"] = c.e.front
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := relay.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		relay.Close()
		serving.Wait()
	})
	return c
}

// serve is the relay: the first byte says what is wanted of it.
func (c *throng) serve(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	_, rest, err := proxyheader.Read(conn, proxyheader.V2)
	if err != nil {
		return
	}
	var peer party
	peer.raw = conn
	peer.Conn = unshifted{conn, io.MultiReader(bytes.NewReader(rest), conn)}
	first := make([]byte, 1)
	if _, err := io.ReadFull(peer, first); err != nil {
		return
	}
	if first[0] == 22 { // a hello: TLS that passes through
		peer.Conn = tls.Server(unshifted{conn, io.MultiReader(bytes.NewReader([]byte{22}), peer.Conn)}, c.e.secure)
		peer.through = true
		if _, err := io.ReadFull(peer, first); err != nil {
			return
		}
	}
	switch first[0] {
	case 'e': // echo until the client's end
		io.Copy(peer.Conn, peer.Conn)
		peer.CloseWrite()
	case 'r': // reset
		peer.reset()
	case 'q': // end at once, whatever the client does
		peer.CloseWrite()
		io.Copy(io.Discard, peer.Conn)
	case 'm': // much, behind as much
		io.CopyN(io.Discard, peer.Conn, throngBig)
		io.CopyN(peer.Conn, rand.NewChaCha8([32]byte{'m'}), throngBig)
		peer.CloseWrite()
		io.Copy(io.Discard, peer.Conn)
	case 's': // more than any buffers hold
		io.CopyN(peer.Conn, rand.NewChaCha8([32]byte{'s'}), 64<<20)
	}
}

// fault counts what a client saw that it should not have, and tells the first few.
func (c *throng) fault(kind string, err error) {
	if c.faults.Add(1) <= 10 {
		c.t.Errorf("%s: %v", kind, err)
	}
}

// visits are the kinds of connections, each as often as its weight says. A kind
// returns what was wrong with what it saw.
var visits = []struct {
	name   string
	weight int
	visit  func(v visitor) error
}{
	{"TLS 1.3 echo", 30, func(v visitor) error { return v.echo("secure", v.plain, 1+v.rng.IntN(4096)) }},
	{"TLS 1.3 echo, resumed", 45, func(v visitor) error { return v.echo("secure", v.tls[tls.VersionTLS13], 1+v.rng.IntN(4096)) }},
	{"TLS 1.2 echo, resumed", 24, func(v visitor) error { return v.echo("secure", v.tls[tls.VersionTLS12], 1+v.rng.IntN(4096)) }},
	{"plain echo", 30, func(v visitor) error { return v.echo("plain", nil, 1+v.rng.IntN(40960)) }},
	{"echo through", 15, func(v visitor) error { return v.echo("passthrough", v.plain, 1+v.rng.IntN(4096)) }},
	{"echo behind a balancer", 15, func(v visitor) error { return v.echo("balanced", v.tls[tls.VersionTLS13], 1+v.rng.IntN(4096)) }},
	{"echo over unix", 15, func(v visitor) error { return v.echo("unix", v.tls[tls.VersionTLS13], 1+v.rng.IntN(4096)) }},
	{"HTTP to the TLS port", 15, func(v visitor) error {
		return v.turnedAway("secure", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 400 ")
	}},
	{"noise", 15, func(v visitor) error { return v.turnedAway("secure", []byte("\x00\x01\x02\x03\x04\x05\x06\x07"), "") }},
	{"noise through", 6, func(v visitor) error { return v.turnedAway("passthrough", []byte("NICK alice\r\n"), "") }},
	{"noise for a header", 6, func(v visitor) error { return v.noHeader() }},
	{"connect and close", 18, func(v visitor) error { return v.leave(v.anyFront(), nil, false) }},
	{"connect and reset", 18, func(v visitor) error { return v.leave(v.anyFront(), nil, true) }},
	{"half a hello and close", 12, func(v visitor) error { return v.leave("secure", v.hello[:1+v.rng.IntN(len(v.hello)-1)], false) }},
	{"half a hello and reset", 12, func(v visitor) error { return v.leave("secure", v.hello[:1+v.rng.IntN(len(v.hello)-1)], true) }},
	{"a hello and close", 9, func(v visitor) error { return v.leave("secure", v.hello, false) }},
	{"slow hello", 1, visitor.slowHello},
	{"over the cap", 1, visitor.overTheCap},
	{"much", 6, visitor.much},
	{"reads nothing", 1, visitor.readsNothing},
	{"reset by the relay", 12, visitor.resetByRelay},
	{"ended by the relay", 12, visitor.endedByRelay},
	{"cut anywhere", 60, visitor.cutAnywhere},
}

// come has n connections come, at most so many at once, in an order that the seed says.
func (c *throng) come(n, atOnce int, seed uint64) {
	weights := 0
	for _, k := range visits {
		weights += k.weight
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for worker := range atOnce {
		all.Go(func() {
			for {
				i := next.Add(1)
				if c.dialled.Load() >= int64(n) || c.faults.Load() > 100 {
					return
				}
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				at := rng.IntN(weights)
				kind := visits[0]
				for _, kind = range visits {
					if at -= kind.weight; at < 0 {
						break
					}
				}
				// A worker has an address of its own at a time: no cap is met by chance.
				from := netip.AddrFrom4([4]byte{127, 16, byte(worker), byte(1 + i%250)})
				if err := kind.visit(visitor{c, rng, from}); err != nil {
					c.fault(fmt.Sprintf("%s (connection %d of seed %d)", kind.name, i, seed), err)
				}
			}
		})
	}
	all.Wait()
}

// settle waits until everything that the throng took has been given back.
func (c *throng) settle() {
	c.t.Helper()
	waitFor(c.t, "every connection has come, and ended", func() bool {
		came, ended := c.e.server.stats.accepted.Load(), uint64(0)
		for _, n := range c.e.server.stats.ended {
			ended += n.Load()
		}
		if came < uint64(c.dialled.Load()) || ended < came {
			return false
		}
		for _, n := range c.e.server.openByListener() {
			if n != 0 {
				return false
			}
		}
		return true
	})
	c.e.wantNothingHeld()
}
