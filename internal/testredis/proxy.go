package testredis

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Fate is what becomes of some bytes on their way.
type Fate struct {
	Delay time.Duration // before they go on, and all behind them
	Cut   bool          // the connection is closed instead
}

// Proxy passes connections on to a server. It is safe for concurrent use.
type Proxy struct {
	Addr string // where it listens

	target string
	ln     net.Listener
	work   sync.WaitGroup
	done   chan struct{}

	mu    sync.Mutex
	fate  func(toServer bool) Fate // nil: everything passes
	conns map[net.Conn]bool
}

// NewProxy runs a proxy before an address until the test's end.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: ln.Addr().String(), target: target, ln: ln, done: make(chan struct{}), conns: make(map[net.Conn]bool)}
	p.work.Go(p.serve)
	t.Cleanup(func() {
		close(p.done)
		ln.Close()
		p.CutAll()
		p.work.Wait()
	})
	return p
}

// Decide has fate called for every piece of bytes from then on, by many goroutines;
// nil lets everything pass.
func (p *Proxy) Decide(fate func(toServer bool) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fate = fate
}

// CutAll closes every connection there is.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *Proxy) serve() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.work.Go(func() { p.pass(server, client, true) })
		p.work.Go(func() { p.pass(client, server, false) })
		select {
		case <-p.done: // CutAll may have been before these two
			p.CutAll()
		default:
		}
	}
}

// pass passes bytes on until either connection ends, and ends both. A delay holds
// back what it meets and not the reading: the way is slow, not narrow.
func (p *Proxy) pass(to, from net.Conn, toServer bool) {
	type piece struct {
		due  time.Time
		data []byte
	}
	way := make(chan piece, 1<<16)
	p.work.Go(func() {
		defer to.Close()
		defer from.Close()
		for next := range way {
			select {
			case <-time.After(time.Until(next.due)):
			case <-p.done:
				return
			}
			if _, err := to.Write(next.data); err != nil {
				return
			}
		}
	})
	defer func() {
		close(way)
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			p.mu.Lock()
			fate := p.fate
			p.mu.Unlock()
			var f Fate
			if fate != nil {
				f = fate(toServer)
			}
			if f.Cut {
				from.Close()
				to.Close()
				return
			}
			select {
			case way <- piece{time.Now().Add(f.Delay), append([]byte(nil), buffer[:n]...)}:
			case <-p.done:
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				to.Close()
			}
			return
		}
	}
}
