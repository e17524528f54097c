package proxy

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// play is a script under way.
type play struct {
	t     *testing.T
	began time.Time
	sides [2]*player
	quiet func()              // returns when everything that was begun has happened
	rest  func(time.Duration) // lets time pass
	loose bool
}

// player is one side: a reader and a writer, each in a goroutine of its own.
type player struct {
	play   *play
	who    int
	raw    net.Conn
	gate   *gate
	stream io.ReadWriter
	queue  chan func() // what the writer does, in this order
	rekey  *rekeyer    // nil: it renews no keys

	mu   sync.Mutex // guards what follows
	seen seen
	sent int64
	asks int32 // how often it has asked for new keys
	left bool  // it has closed its socket itself
}

// all is a gate that is open.
const all = -1

// gate is a connection that is read only as far as it is allowed.
type gate struct {
	net.Conn
	mu    sync.Mutex
	more  sync.Cond
	left  int  // all: without an end
	ended bool // the socket's end was read
}

func newGate(c net.Conn) *gate {
	g := &gate{Conn: c, left: all}
	g.more.L = &g.mu
	return g
}

// allow says how much may be read from here on; a read that waits is bound too.
func (g *gate) allow(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = n
	if n == 0 {
		g.SetReadDeadline(time.Unix(1, 0))
	} else {
		g.SetReadDeadline(time.Time{})
	}
	g.more.Broadcast()
}

func (g *gate) Read(p []byte) (int, error) {
	for {
		g.mu.Lock()
		for g.left == 0 {
			g.more.Wait()
		}
		if g.left > 0 {
			p = p[:min(len(p), g.left)]
		}
		g.mu.Unlock()
		n, err := g.Conn.Read(p)
		g.mu.Lock()
		if g.left > 0 {
			g.left = max(g.left-n, 0)
		}
		again := isTimeout(err) && n == 0
		g.ended = g.ended || err == io.EOF
		g.mu.Unlock()
		if !again {
			return n, err
		}
	}
}

// pattern is the byte at a place of a side's stream.
func pattern(who int, at int64) byte {
	return byte(at) ^ byte(at>>8)*31 ^ byte(at>>16)*7 ^ byte(who)*85
}

// newPlayer is a side of a connection; a client shakes hands.
func (p *play) newPlayer(who int, raw net.Conn, mode string) *player {
	p.t.Helper()
	s := &player{play: p, who: who, raw: raw, gate: newGate(raw), queue: make(chan func(), 1000)}
	s.stream = s.gate
	switch mode {
	case "1.3":
		s.rekey = rekeying(p.t, s.gate)
		s.stream = rekeyingStream{s.rekey}
	case "1.2":
		cfg := clientTLS("relay.example.org")
		cfg.MaxVersion = tls.VersionTLS12
		conn := tls.Client(s.gate, cfg)
		if err := conn.Handshake(); err != nil {
			p.t.Fatalf("handshake: %v", err)
		}
		s.stream = conn
	}
	go s.write()
	go s.read()
	p.t.Cleanup(func() { close(s.queue) })
	return s
}

// rekeyingStream writes through a rekeyer, in records.
type rekeyingStream struct{ *rekeyer }

func (r rekeyingStream) Write(p []byte) (int, error) {
	n := 0
	for part := range chunks(p, 16384) {
		if _, err := r.raw.Write(r.data(string(part))); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

func (r rekeyingStream) CloseWrite() error {
	_, err := r.raw.Write(r.record([]byte{1, 0}, 21))
	return err
}

func (s *player) write() {
	for do := range s.queue {
		do()
	}
}

// read reads until the end, and then the socket's.
func (s *player) read() {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.stream.Read(buf)
		s.mu.Lock()
		for i, b := range buf[:n] {
			if b != pattern(1-s.who, s.seen.got+int64(i)) {
				s.play.t.Errorf("byte %d is another", s.seen.got+int64(i))
				break
			}
		}
		s.seen.got += int64(n)
		if err != nil {
			s.seen.stream = s.ended(err)
		}
		s.mu.Unlock()
		if err != nil {
			break
		}
	}
	for {
		if _, err := s.gate.Read(buf); err != nil {
			s.mu.Lock()
			s.seen.socket = s.ended(err)
			s.mu.Unlock()
			return
		}
	}
}

// ended requires mu.
func (s *player) ended(err error) ending {
	e := ending{howEnded(err), time.Since(s.play.began)}
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	switch {
	case s.left:
		return ending{how: "by itself"}
	case err == io.EOF && s.stream != io.ReadWriter(s.gate) && !s.gate.ended:
		e.how = "close_notify"
	}
	return e
}

// streamEnded reports whether this side has read its last byte.
func (s *player) streamEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.stream.how != ""
}

// underWay is how many of this side's bytes the other has not got.
func (s *player) underWay(other *player) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	other.mu.Lock()
	defer other.mu.Unlock()
	return s.sent - other.seen.got
}

// answersDue reports whether the edge's answer to a KeyUpdate has not been read.
func (s *player) answersDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rekey != nil && s.rekey.renewed.Load() != s.asks
}

// early has the client send before there is a relay.
func (p *play) early(n int) {
	if n > 0 {
		p.sides[client].send(n)
	}
}

// send has the writer write n bytes more.
func (s *player) send(n int) {
	s.mu.Lock()
	from := s.sent
	s.sent += int64(n)
	s.mu.Unlock()
	b := make([]byte, n)
	for i := range b {
		b[i] = pattern(s.who, from+int64(i))
	}
	s.queue <- func() { s.stream.Write(b) }
}

// perform does one step, and waits for what comes of it.
func (p *play) perform(at step) {
	s, other := p.sides[at.who], p.sides[1-at.who]
	half := func(c net.Conn) { c.(interface{ CloseWrite() error }).CloseWrite() }
	switch at.do {
	case leave, reset, fin, broken:
		if s.underWay(other) != 0 || other.underWay(s) != 0 || s.answersDue() || other.answersDue() {
			p.loose = true
		}
	}
	switch at.do {
	case send:
		s.send(at.n)
	case stop:
		s.gate.allow(0)
	case sip:
		s.gate.allow(at.n)
	case resume:
		s.gate.allow(all)
	case rekey:
		s.mu.Lock()
		s.asks++
		s.mu.Unlock()
		s.queue <- func() { s.raw.Write(s.rekey.update()) }
	case finish:
		s.queue <- func() {
			if secure, ok := s.stream.(interface{ CloseWrite() error }); ok {
				secure.CloseWrite()
				return
			}
			half(s.raw)
		}
	case fin:
		s.queue <- func() { half(s.raw) }
	case broken:
		s.queue <- func() { s.raw.Write([]byte{23, 3, 3, 1, 0, 42}); half(s.raw) }
	case leave, reset:
		s.mu.Lock()
		s.left = true
		if s.seen.stream.how == "" {
			s.seen.stream.how = "by itself"
		}
		s.mu.Unlock()
		if at.do == reset {
			s.raw.(interface{ SetLinger(int) error }).SetLinger(0)
		} else if secure, ok := s.stream.(interface{ CloseWrite() error }); ok && !p.loose { // no write waits
			said := make(chan struct{})
			s.queue <- func() { secure.CloseWrite(); close(said) }
			<-said
		}
		s.raw.Close()
		s.gate.allow(all)
	case wait:
		p.rest(time.Duration(at.n) * waited)
	}
	p.quiet()
}
