package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"relayedge/internal/proxyheader"
)

// What the first byte after the PROXY header asks of the backend. The bulk ones are
// followed by eight bytes of length.
const (
	wantEcho     = 'e' // that byte and all after it come back
	wantDownload = 'd' // so many bytes
	wantUpload   = 'u' // takes so many bytes and answers with one
	bulkHead     = 9
)

// serveBackend serves until standard input ends, and says on out where.
func serveBackend(in io.Reader, out io.Writer) error {
	listen := net.ListenConfig{KeepAlive: -1}
	ln, err := listen.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, ln.Addr())
	go func() {
		io.Copy(io.Discard, in)
		ln.Close()
	}()
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go serveOne(c)
	}
}

// serveOne is small while it waits: its memory is not counted, but the machine's.
func serveOne(c net.Conn) {
	defer c.Close()
	var b [2 << 10]byte
	n, at := 0, 0
	for at == 0 {
		m, err := c.Read(b[n:])
		if m == 0 && err != nil {
			return
		}
		n += m
		h, size, err := proxyheader.Parse(b[:n], proxyheader.V1|proxyheader.V2)
		if err == nil && h.Local {
			return // a health check
		}
		if err != nil && (!errors.Is(err, proxyheader.ErrShort) || n == len(b)) {
			fmt.Fprintln(os.Stderr, "backend: no PROXY header:", err)
			return
		}
		if err == nil {
			at = size
		}
	}
	for n == at { // what follows the header may come later
		n, at = 0, 0
		m, err := c.Read(b[:])
		if m == 0 && err != nil {
			return
		}
		n = m
	}
	if b[at] == wantEcho {
		echo(c, b[:], at, n)
		return
	}
	for n-at < bulkHead {
		m, err := c.Read(b[n:])
		if m == 0 {
			fmt.Fprintln(os.Stderr, "backend: a bulk stream without its length:", err)
			return
		}
		n += m
	}
	size := int64(binary.BigEndian.Uint64(b[at+1:]))
	switch b[at] {
	case wantDownload:
		download(c, size)
	case wantUpload:
		upload(c, size-int64(n-at-bulkHead))
	}
}

// echo is a function of its own, as are the others, so that the stack of one that
// waits is no larger than it has to be.
func echo(c net.Conn, b []byte, from, to int) {
	for {
		if _, err := c.Write(b[from:to]); err != nil {
			return
		}
		n, err := c.Read(b)
		if n == 0 && err != nil {
			return
		}
		from, to = 0, n
	}
}

var bulks = sync.Pool{New: func() any { return new([64 << 10]byte) }}

func download(c net.Conn, size int64) {
	b := bulks.Get().(*[64 << 10]byte)
	defer bulks.Put(b)
	for size > 0 {
		n, err := c.Write(b[:min(size, int64(len(b)))])
		if err != nil {
			return
		}
		size -= int64(n)
	}
	c.Read(b[:1]) // the client closes
}

func upload(c net.Conn, size int64) {
	b := bulks.Get().(*[64 << 10]byte)
	defer bulks.Put(b)
	for size > 0 {
		n, err := c.Read(b[:])
		if n == 0 && err != nil {
			return
		}
		size -= int64(n)
	}
	if _, err := c.Write([]byte{wantUpload}); err != nil {
		return
	}
	c.Read(b[:1]) // the client closes
}
