package memconn

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/testconn"
)

// conformance is the suite of all connections, and what several writers may do.
var conformance = append(slices.Clone(testconn.Cases),
	testconn.Case{Name: "writes of several goroutines are not mixed", Run: conformWholeWrites})

func TestConformance(t *testing.T) {
	for _, c := range conformance {
		run := func(t *testing.T, a, b testconn.Conn) {
			defer a.Close()
			defer b.Close()
			c.Run(t, a, b)
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Run("plain", func(t *testing.T) {
				a, b := Pipe(addrA, addrB)
				run(t, a, b)
			})
			t.Run("bubble", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := Pipe(addrA, addrB)
					run(t, a, b)
				})
			})
			t.Run("kernel", func(t *testing.T) {
				a, b := loopback(t)
				run(t, a, b)
			})
		})
	}
}

// loopback is a real pair, which holds the suite to what TCP does.
func loopback(t *testing.T) (a, b testconn.Conn) {
	t.Helper()
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Skipf("no loopback: %v", err)
	}
	defer ln.Close()
	client, err := net.DialTCP("tcp", nil, ln.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	server, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

func conformWholeWrites(t *testing.T, a, b testconn.Conn) {
	const writers, size = 4, 2*BufferSize + 11
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			if _, err := a.Write(bytes.Repeat([]byte{byte(i)}, size)); err != nil {
				t.Error(err)
			}
		})
	}
	seen := map[byte]bool{}
	p := make([]byte, size)
	for range writers {
		if _, err := io.ReadFull(b, p); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(p, p[:1]) != size || seen[p[0]] {
			t.Fatal("two writes were mixed")
		}
		seen[p[0]] = true
	}
	wg.Wait()
}

// A whole HTTP server works in a bubble, as the packages that use this one need.
func TestHTTPInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := Listen(addrB)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Hour)
			_, _ = io.WriteString(w, r.RemoteAddr)
		})}
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.Serve(ln) })
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return ln.Dial(ctx, netip.MustParseAddrPort("192.0.2.9:99"))
		}}
		res, err := (&http.Client{Transport: tr}).Get("http://edge.test/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if string(body) != "192.0.2.9:99" || err != nil {
			t.Fatalf("%q, %v", body, err)
		}
		_ = res.Body.Close()
		tr.CloseIdleConnections()
		_ = srv.Close()
		wg.Wait()
	})
}

func BenchmarkPingPong(b *testing.B) {
	b.ReportAllocs()
	x, y := Pipe(addrA, addrB)
	defer x.Close()
	go func() {
		p := make([]byte, 64)
		for {
			n, err := y.Read(p)
			if err != nil {
				_ = y.Close()
				return
			}
			_, _ = y.Write(p[:n])
		}
	}()
	p := make([]byte, 64)
	for b.Loop() {
		_, _ = x.Write(p)
		if _, err := io.ReadFull(x, p); err != nil {
			b.Fatal(err)
		}
	}
}
