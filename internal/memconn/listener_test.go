package memconn

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestListenerOrder(t *testing.T) {
	l := Listen(addrB)
	defer l.Close()
	if got := l.Addr().(*net.TCPAddr).AddrPort(); got != addrB {
		t.Fatalf("Addr = %v", got)
	}
	from := []netip.AddrPort{
		netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("[2001:db8::1]:2"), netip.MustParseAddrPort("192.0.2.2:3"),
	}
	for _, a := range from {
		if _, err := l.Dial(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range from {
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c := nc.(*Conn)
		if got := c.RemoteAddr().(*net.TCPAddr).AddrPort(); got != a {
			t.Errorf("accepted %v, want %v", got, a)
		}
		if got := c.LocalAddr().(*net.TCPAddr).AddrPort(); got != addrB {
			t.Errorf("accepted on %v", got)
		}
	}
}

func TestDialIsConnected(t *testing.T) {
	l := Listen(addrB)
	defer l.Close()
	client, err := l.Dial(t.Context(), addrA)
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	write(t, client, "to the server")
	_ = client.CloseWrite()
	readAll(t, server.(*Conn), "to the server")
	_, _ = io.WriteString(server, "to the client")
	_ = server.Close()
	readAll(t, client, "to the client")
}

func TestDialChoosesPort(t *testing.T) {
	l := Listen(addrB)
	defer l.Close()
	seen := map[netip.AddrPort]bool{}
	for range 100 {
		c, err := l.Dial(t.Context(), netip.AddrPortFrom(addrA.Addr(), 0))
		if err != nil {
			t.Fatal(err)
		}
		a := c.LocalAddr().(*net.TCPAddr).AddrPort()
		if a.Port() == 0 || a.Addr() != addrA.Addr() || seen[a] {
			t.Fatalf("dialled from %v", a)
		}
		seen[a] = true
	}
}

func TestAcceptWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen(addrB)
		time.AfterFunc(time.Hour, func() { _, _ = l.Dial(context.Background(), addrA) })
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { _ = l.Close() })
		_, err := l.Accept()
		wantOpError(t, err, "accept", net.ErrClosed)
	})
}

func TestListenerClose(t *testing.T) {
	l := Listen(addrB)
	waiting, err := l.Dial(t.Context(), addrA)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wantOpError(t, l.Close(), "close", net.ErrClosed)
	_, err = l.Accept()
	wantOpError(t, err, "accept", net.ErrClosed)
	_, err = l.Dial(t.Context(), addrA)
	wantOpError(t, err, "dial", syscall.ECONNREFUSED)
	_, err = waiting.Read(make([]byte, 1))
	wantOpError(t, err, "read", syscall.ECONNRESET)
}

func TestListenerCloseKeepsAccepted(t *testing.T) {
	l := Listen(addrB)
	client, _ := l.Dial(t.Context(), addrA)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	write(t, client, "x")
	_ = client.Close()
	readAll(t, server.(*Conn), "x")
}

func TestDialContext(t *testing.T) {
	t.Run("ended before", func(t *testing.T) {
		l := Listen(addrB)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := l.Dial(ctx, addrA)
		wantOpError(t, err, "dial", context.Canceled)
		if len(l.backlog) != 0 {
			t.Fatal("a cancelled dial left a connection")
		}
	})
	t.Run("ends while it waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := Listen(addrB)
			l.SetDialDelay(time.Minute)
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := l.Dial(ctx, addrA)
			wantOpError(t, err, "dial", context.DeadlineExceeded)
			if opErr, _ := errors.AsType[*net.OpError](err); !opErr.Timeout() || time.Since(start) != 5*time.Second {
				t.Fatalf("%v after %v", err, time.Since(start))
			}
		})
	})
	t.Run("outlives the delay", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := Listen(addrB)
			l.SetDialDelay(time.Minute)
			start := time.Now()
			if _, err := l.Dial(t.Context(), addrA); err != nil || time.Since(start) != time.Minute {
				t.Fatalf("%v after %v", err, time.Since(start))
			}
		})
	})
}

func TestSetAcceptError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen(addrB)
		_, _ = l.Dial(t.Context(), addrA)
		l.SetAcceptError(syscall.EMFILE)
		l.SetAcceptError(io.ErrNoProgress)
		_, err := l.Accept()
		wantOpError(t, err, "accept", syscall.EMFILE)
		if opErr, _ := errors.AsType[*net.OpError](err); !opErr.Temporary() {
			t.Error("EMFILE is not temporary")
		}
		_, err = l.Accept()
		wantOpError(t, err, "accept", io.ErrNoProgress)
		if _, err := l.Accept(); err != nil {
			t.Fatalf("the connection was lost: %v", err)
		}
		time.AfterFunc(time.Second, func() { l.SetAcceptError(syscall.ENFILE) })
		_, err = l.Accept()
		wantOpError(t, err, "accept", syscall.ENFILE)
	})
}
