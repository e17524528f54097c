package memconn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// duplex is what the conformance suite needs of a connection; *net.TCPConn has
// it too, so that the same suite says what a real one does.
type duplex interface {
	net.Conn
	CloseWrite() error
}

var suite = []struct {
	name string
	run  func(t *testing.T, a, b duplex)
}{
	{"bytes arrive in order both ways at once", conformCopy},
	{"writes of several goroutines are not mixed", conformWholeWrites},
	{"a past deadline fails and its removal heals", conformPastDeadline},
	{"a deadline that comes ends the wait", conformFutureDeadline},
	{"close ends a read that waits", conformCloseWakes},
	{"half-close keeps the other direction", conformHalfClose},
	{"a write after the peer's close fails in the end", conformPeerClosed},
	{"any calls may race", conformRacing},
}

func TestConformance(t *testing.T) {
	for _, c := range suite {
		t.Run(c.name, func(t *testing.T) {
			t.Run("plain", func(t *testing.T) {
				a, b := Pipe(addrA, addrB)
				c.run(t, a, b)
			})
			t.Run("bubble", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := Pipe(addrA, addrB)
					c.run(t, a, b)
				})
			})
			t.Run("kernel", func(t *testing.T) {
				a, b := loopback(t)
				c.run(t, a, b)
			})
		})
	}
}

// loopback is a real pair, which holds the suite to what TCP does.
func loopback(t *testing.T) (a, b duplex) {
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

func conformCopy(t *testing.T, a, b duplex) {
	defer a.Close()
	defer b.Close()
	const size = 1 << 20
	var wg sync.WaitGroup
	for seed, ends := range [][2]duplex{{a, b}, {b, a}} {
		from, to := ends[0], ends[1]
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(rng.Uint32())
		}
		wg.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 1+rng.IntN(3*BufferSize/2))
				if _, err := from.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			if err := from.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := io.ReadAll(to)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
				t.Errorf("%d of %d bytes arrived, or others: %v", len(got), size, err)
			}
		})
	}
	wg.Wait()
}

func conformWholeWrites(t *testing.T, a, b duplex) {
	defer a.Close()
	defer b.Close()
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

func conformPastDeadline(t *testing.T, a, b duplex) {
	defer a.Close()
	defer b.Close()
	if _, err := b.Write([]byte("waits")); err != nil {
		t.Fatal(err)
	}
	_ = a.SetDeadline(time.Unix(1, 0))
	for range 2 {
		if _, err := a.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Read: %v", err)
		}
		if n, err := a.Write([]byte("x")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	_ = a.SetDeadline(time.Time{})
	p := make([]byte, 5)
	if _, err := io.ReadFull(a, p); string(p) != "waits" || err != nil {
		t.Fatalf("Read: %q, %v", p, err)
	}
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatalf("Write: %v", err)
	}
}

func conformFutureDeadline(t *testing.T, a, b duplex) {
	defer a.Close()
	defer b.Close()
	const wait = 10 * time.Millisecond
	start := time.Now()
	_ = a.SetReadDeadline(start.Add(wait))
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Read: %v", err)
	}
	if d := time.Since(start); d < wait {
		t.Fatalf("Read came back after %v", d)
	}
	big := make([]byte, 64<<20) // more than any kernel buffers
	for wait := wait; ; wait *= 2 {
		_ = a.SetWriteDeadline(time.Now().Add(wait))
		n, err := a.Write(big)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Write: %d, %v", n, err)
		}
		if n > 0 {
			return
		}
		if wait > time.Minute { // on a busy machine a short one is over before the call
			t.Fatal("a write that met its deadline took nothing")
		}
	}
}

func conformCloseWakes(t *testing.T, a, b duplex) {
	defer b.Close()
	done := make(chan error)
	go func() {
		_, err := a.Read(make([]byte, 1))
		done <- err
	}()
	_ = a.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Fatalf("Read: %v", err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("Write: %v", err)
	}
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("Close: %v", err)
	}
	if err := a.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("SetDeadline: %v", err)
	}
	if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatalf("the peer's Read: %d, %v", n, err)
	}
}

func conformHalfClose(t *testing.T, a, b duplex) {
	defer a.Close()
	defer b.Close()
	_, _ = a.Write([]byte("request"))
	for range 2 {
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := io.ReadAll(b); string(got) != "request" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("Write after CloseWrite: %v", err)
	}
	_, _ = b.Write([]byte("reply"))
	_ = b.Close()
	if got, err := io.ReadAll(a); string(got) != "reply" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
}

func conformPeerClosed(t *testing.T, a, b duplex) {
	defer a.Close()
	_ = b.Close()
	var err error
	for range 1000 {
		if _, err = a.Write([]byte("x")); err != nil {
			break
		}
		time.Sleep(time.Millisecond) // a kernel's RST is under way
	}
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("Write: %v", err)
	}
}

// conformRacing is for the race detector, and against a wait without end.
func conformRacing(t *testing.T, a, b duplex) {
	var wg sync.WaitGroup
	for _, c := range []duplex{a, b} {
		wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
		wg.Go(func() { _, _ = c.Write(make([]byte, 3*BufferSize)) })
		wg.Go(func() {
			for range 100 {
				_ = c.SetDeadline(time.Now().Add(time.Hour))
				_ = c.SetReadDeadline(time.Time{})
				_, _ = c.LocalAddr(), c.RemoteAddr()
			}
			_ = c.Close()
		})
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
