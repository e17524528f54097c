package proxy

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
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

// visitor is one client of a throng.
type visitor struct {
	*throng
	rng  *rand.Rand
	from netip.Addr
}

// dial connects to a listener.
func (v visitor) dial(front string) (net.Conn, error) {
	l := v.fronts[front]
	d := net.Dialer{Timeout: patience}
	if l.Addr().Network() == "tcp" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(v.from, 0))
	}
	conn, err := d.Dial(l.Addr().Network(), l.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	v.dialled.Add(1)
	conn.SetDeadline(time.Now().Add(patience))
	if front == "balanced" {
		h := proxyheader.Header{Source: netip.AddrPortFrom(v.from, 1), Destination: namedTarget}
		p, err := proxyheader.AppendV2(nil, h, true)
		if v.rng.IntN(2) == 0 {
			p = proxyheader.AppendV1(nil, h)
		}
		if _, err := conn.Write(p); err != nil {
			return conn, err
		}
		return conn, err
	}
	return conn, nil
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

func (v visitor) anyFront() string {
	return []string{"secure", "plain", "passthrough", "balanced", "unix"}[v.rng.IntN(5)]
}

// secure shakes hands, if there is a config to do it with.
func (v visitor) secure(front string, raw net.Conn, cfg *tls.Config) (party, error) {
	if cfg == nil {
		return party{Conn: raw, raw: raw}, nil
	}
	conn := tls.Client(raw, cfg)
	err := conn.Handshake()
	if err != nil {
		err = fmt.Errorf("handshake: %w", err)
	}
	return party{conn, raw, front == "passthrough"}, err
}

// connect dials and shakes hands. raw is to be closed, unless it fails.
func (v visitor) connect(front string, cfg *tls.Config) (party, error) {
	raw, err := v.dial(front)
	if err != nil {
		return party{}, err
	}
	conn, err := v.secure(front, raw, cfg)
	if err != nil {
		raw.Close()
	}
	return conn, err
}

func (v visitor) echo(front string, cfg *tls.Config, n int) error {
	conn, err := v.connect(front, cfg)
	if err != nil {
		return err
	}
	defer conn.raw.Close()
	return v.exchange(conn, n)
}

// exchange has n bytes echoed, ends the stream and awaits the relay's end.
func (v visitor) exchange(conn party, n int) error {
	sent := make([]byte, n)
	for i := range sent {
		sent[i] = byte(v.rng.Uint32())
	}
	if _, err := conn.Write(append([]byte{'e'}, sent...)); err != nil {
		return err
	}
	got := make([]byte, n)
	if m, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
		return fmt.Errorf("%d of %d bytes came back, or others: %w", m, n, err)
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		return fmt.Errorf("%d bytes after the end: %w", len(rest), err)
	}
	return nil
}

// turnedAway sends what the edge wants nothing of, and awaits its close.
func (v visitor) turnedAway(front string, p []byte, answer string) error {
	raw, err := v.dial(front)
	if err != nil {
		return err
	}
	defer raw.Close()
	if _, err := raw.Write(p); err != nil {
		return err
	}
	got, err := io.ReadAll(raw)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) || err == nil && !bytes.HasPrefix(got, []byte(answer)) {
		return fmt.Errorf("it was told %q, %w", got, err)
	}
	return nil
}

func (v visitor) noHeader() error {
	raw, err := net.Dial("tcp", v.fronts["balanced"].Addr().String())
	if err != nil {
		return err
	}
	defer raw.Close()
	v.dialled.Add(1)
	raw.SetDeadline(time.Now().Add(patience))
	raw.Write(v.hello)
	if _, err := io.ReadAll(raw); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}

// leave goes before the edge has done anything.
func (v visitor) leave(front string, p []byte, reset bool) error {
	raw, err := v.dial(front)
	if err != nil {
		return err
	}
	defer raw.Close()
	if _, err := raw.Write(p); err != nil && len(p) > 0 {
		return err
	}
	if _, ok := raw.(*net.TCPConn); ok && reset {
		party{raw: raw}.reset()
	}
	return nil
}

// slowHello sends byte after byte and is not done in time.
func (v visitor) slowHello() error {
	raw, err := v.dial("secure")
	if err != nil {
		return err
	}
	defer raw.Close()
	go func() {
		for i := range v.hello[:100] {
			if _, err := raw.Write(v.hello[i : i+1]); err != nil {
				return
			}
			time.Sleep(throngHandshake / 10)
		}
	}()
	if _, err := io.ReadAll(raw); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the end of a slow handshake: %w", err)
	}
	return nil
}

// overTheCap opens more connections from one address than it may.
func (v visitor) overTheCap() error {
	v.from = netip.AddrFrom4([4]byte{127, 8, byte(v.rng.Uint32()), byte(1 + v.rng.IntN(254))})
	refused := 0
	for range throngPerIP + 2 {
		raw, err := v.dial("plain")
		if err != nil {
			return err
		}
		defer raw.Close()
		raw.Write([]byte("ex"))
		if _, err := io.ReadFull(raw, make([]byte, 1)); err != nil {
			refused++
		}
	}
	if refused < 2 {
		return fmt.Errorf("%d of %d got in", throngPerIP+2-refused, throngPerIP+2)
	}
	return nil
}

func (v visitor) much() error {
	front, cfg := "plain", (*tls.Config)(nil)
	if v.rng.IntN(2) == 0 {
		front, cfg = "secure", v.tls[tls.VersionTLS13]
	}
	conn, err := v.connect(front, cfg)
	if err != nil {
		return err
	}
	defer conn.raw.Close()
	if _, err := conn.Write(append([]byte{'m'}, make([]byte, throngBig)...)); err != nil {
		return err
	}
	got, want := sha256.New(), sha256.New()
	io.CopyN(want, rand.NewChaCha8([32]byte{'m'}), throngBig)
	if n, err := io.Copy(got, conn); n != throngBig || err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		return fmt.Errorf("%d of %d bytes came, or others: %w", n, throngBig, err)
	}
	return conn.CloseWrite()
}

// readsNothing asks for much and takes none of it.
func (v visitor) readsNothing() error {
	conn, err := v.connect("secure", v.tls[tls.VersionTLS13])
	if err != nil {
		return err
	}
	defer conn.raw.Close()
	if _, err := conn.Write([]byte("s")); err != nil {
		return err
	}
	for {
		// The edge's reset shows at a write; it is a while before the stall is one.
		if _, err := conn.Write([]byte("x")); err != nil {
			return nil
		}
		time.Sleep(throngStall / 10)
	}
}

func (v visitor) resetByRelay() error {
	raw, err := v.dial("plain")
	if err != nil {
		return err
	}
	defer raw.Close()
	raw.Write([]byte("r"))
	if _, err := raw.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the relay's reset: %w", err)
	}
	return nil
}

func (v visitor) endedByRelay() error {
	conn, err := v.connect("secure", v.tls[tls.VersionTLS13])
	if err != nil {
		return err
	}
	defer conn.raw.Close()
	conn.Write([]byte("q"))
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		return fmt.Errorf("%d bytes at the relay's end: %w", len(rest), err)
	}
	return conn.CloseWrite()
}

// cutAnywhere is an echo that ends at any byte of it.
func (v visitor) cutAnywhere() error {
	front := v.anyFront()
	raw, err := v.dial(front)
	if err != nil {
		return err
	}
	defer raw.Close()
	cfg := v.plain
	switch {
	case front == "plain":
		cfg = nil
	case v.rng.IntN(2) == 0:
		cfg = v.tls[[]uint16{tls.VersionTLS12, tls.VersionTLS13}[v.rng.IntN(2)]].Clone()
	}
	ends := []func(net.Conn){
		func(c net.Conn) { c.Close() },
		func(c net.Conn) { c.(interface{ CloseWrite() error }).CloseWrite(); io.Copy(io.Discard, c); c.Close() },
	}
	if _, ok := raw.(*net.TCPConn); ok {
		ends = append(ends, func(c net.Conn) { party{raw: c}.reset() })
	}
	limited := &severed{Conn: raw, left: v.rng.IntN(6000), end: ends[v.rng.IntN(len(ends))]}
	conn, err := v.secure(front, limited, cfg)
	if err == nil {
		conn.raw = limited
		err = v.exchange(conn, 1+v.rng.IntN(4096))
	}
	if err != nil && !limited.over {
		return err
	}
	return nil
}

// severed is a connection that ends after so many bytes, of both directions.
type severed struct {
	net.Conn
	left int
	over bool
	end  func(net.Conn)
}

var errSevered = errors.New("severed")

func (s *severed) cut() {
	if !s.over {
		s.over = true
		s.end(s.Conn)
	}
}

func (s *severed) Read(p []byte) (int, error) {
	if s.left == 0 {
		s.cut()
		return 0, errSevered
	}
	n, err := s.Conn.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

func (s *severed) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p[:min(len(p), s.left)])
	if s.left -= n; err == nil && n < len(p) {
		s.cut()
		err = errSevered
	}
	return n, err
}

func (s *severed) CloseWrite() error {
	return s.Conn.(interface{ CloseWrite() error }).CloseWrite()
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
	waitFor(c.t, "every connection has ended", func() bool {
		for _, n := range c.e.server.openByListener() {
			if n != 0 {
				return false
			}
		}
		return true
	})
	c.e.wantNothingHeld()
}
