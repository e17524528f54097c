//go:build unix

// Command plain is a WebSocket server as one writes it over a good library: the
// measure for relaycore. A connection waits for readiness and takes a buffer only
// then. On /echo each message comes back; connections that name the same other
// path are a pair: a message goes to the other of the two, and 35 bytes of
// acknowledgement to its sender. It has no limits and must not be exposed.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/gobwas/ws"
)

// ack is what a sender gets.
var ack = append([]byte{0x82, 33}, make([]byte, 33)...)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: plain ADDRESS, host:port or unix:/path")
	}
	network, address := "tcp", os.Args[1]
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	ln, err := net.Listen(network, address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("plain: %s\n", ln.Addr())
	p := pairs{waiting: make(map[string]*peer)}
	for {
		nc, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go p.upgrade(nc)
	}
}

// peer is one connection.
type peer struct {
	net.Conn
	raw   syscall.RawConn
	echo  bool
	ready chan struct{} // closed when other is set
	other *peer
	mu    sync.Mutex // one writer at a time
}

func (p *peer) send(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.Write(b)
	return err
}

// pairs are those who wait for their others.
type pairs struct {
	mu      sync.Mutex
	waiting map[string]*peer
}

func (ps *pairs) upgrade(nc net.Conn) {
	path := ""
	u := ws.Upgrader{OnRequest: func(uri []byte) error {
		path = string(uri)
		return nil
	}}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err == nil {
		_, err = u.Upgrade(nc)
	}
	if err != nil {
		nc.Close()
		return
	}
	p := &peer{Conn: nc, raw: raw, echo: path == "/echo"}
	if !p.echo {
		p.ready = make(chan struct{})
		ps.meet(path, p)
	}
	go p.serve() // a fresh goroutine: this one's stack has grown
}

func (ps *pairs) meet(path string, p *peer) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	other := ps.waiting[path]
	if other == nil {
		ps.waiting[path] = p
		return
	}
	delete(ps.waiting, path)
	p.other, other.other = other, p
	close(p.ready)
	close(other.ready)
}

// work is what a connection needs while bytes are there.
type work struct {
	in   [16 << 10]byte
	r    bytes.Reader
	head bytes.Buffer
	out  []byte
}

var works = sync.Pool{New: func() any { return new(work) }}

func (p *peer) serve() {
	defer p.Close()
	var w *work
	n := 0
	var failed error
	try := func(fd uintptr) bool {
		w = works.Get().(*work)
		n, failed = syscall.Read(int(fd), w.in[:])
		if failed == syscall.EAGAIN {
			works.Put(w)
			w = nil
			return false
		}
		return true
	}
	for {
		if p.raw.Read(try) != nil {
			return
		}
		if n > 0 && failed == nil {
			failed = p.take(w, w.in[:n])
		}
		works.Put(w)
		if n <= 0 || failed != nil {
			return
		}
	}
}

// take answers the frames in b, and reads the rest of the last one.
func (p *peer) take(w *work, b []byte) error {
	for len(b) > 0 {
		w.r.Reset(b)
		var rest io.Reader = &w.r
		if len(b) < ws.MaxHeaderSize {
			rest = io.MultiReader(rest, p)
		}
		h, err := ws.ReadHeader(rest)
		if err != nil {
			return err
		}
		if h.Length > 1<<20 || !h.Masked {
			return errors.New("not of this benchmark")
		}
		op := h.OpCode
		switch op {
		case ws.OpPing:
			op = ws.OpPong
		case ws.OpBinary:
		default:
			return io.EOF
		}
		w.head.Reset()
		if err := ws.WriteHeader(&w.head, ws.Header{Fin: true, OpCode: op, Length: h.Length}); err != nil {
			return err
		}
		w.out = append(w.out[:0], w.head.Bytes()...)
		at := len(w.out)
		b = b[len(b)-w.r.Len():]
		have := min(int(h.Length), len(b))
		w.out = append(w.out, b[:have]...)
		b = b[have:]
		if missing := int(h.Length) - have; missing > 0 {
			w.out = append(w.out, make([]byte, missing)...)
			if _, err := io.ReadFull(p, w.out[at+have:]); err != nil {
				return err
			}
		}
		ws.Cipher(w.out[at:], h.Mask, 0)
		if p.echo || op == ws.OpPong {
			err = p.send(w.out)
		} else {
			<-p.ready
			if err = p.other.send(w.out); err == nil {
				err = p.send(ack)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
