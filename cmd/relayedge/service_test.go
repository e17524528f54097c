package main_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// A plain service is one that is not ours and knows nothing of PROXY headers.

// service serves each connection of a listener with a function until closed.
type service struct {
	net.Listener
	tasks sync.WaitGroup
	mu    sync.Mutex
	open  map[net.Conn]struct{}
}

func serve(address string, each func(net.Conn)) (*service, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &service{Listener: ln, open: make(map[net.Conn]struct{})}
	s.tasks.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[conn] = struct{}{}
			s.mu.Unlock()
			s.tasks.Go(func() {
				each(conn)
				conn.Close()
				s.mu.Lock()
				delete(s.open, conn)
				s.mu.Unlock()
			})
		}
	})
	return s, nil
}

// close ends the service and every connection of it.
func (s *service) close() {
	s.Listener.Close()
	s.mu.Lock()
	for conn := range s.open {
		conn.Close()
	}
	s.mu.Unlock()
	s.tasks.Wait()
}

// echo sends everything back, and ends its stream when the client has ended its own.
func echo(conn net.Conn) { io.Copy(conn, conn) }

// answering starts a web server that answers every request with the same
// sentence and closes, and returns its address.
func answering(t testing.TB) string {
	t.Helper()
	s, err := serve("127.0.0.1:0", func(conn net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nthe service answers a body of %d bytes\n", n)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s.Addr().String()
}
