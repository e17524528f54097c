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
	"syscall"
	"time"

	"relayedge/internal/proxyheader"
)

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
