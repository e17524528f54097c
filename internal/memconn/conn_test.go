package memconn

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	addrA = netip.MustParseAddrPort("192.0.2.1:40001")
	addrB = netip.MustParseAddrPort("[2001:db8::2]:443")
)

// wantOpError checks that err is what the net package would give for op.
func wantOpError(t *testing.T, err error, op string, cause error) {
	t.Helper()
	opErr, ok := errors.AsType[*net.OpError](err)
	if !ok || opErr.Op != op || opErr.Net != "tcp" || !errors.Is(err, cause) {
		t.Fatalf("got %#v (%v), want a *net.OpError of %s around %v", err, err, op, cause)
	}
	if cause == os.ErrDeadlineExceeded && !opErr.Timeout() {
		t.Fatalf("%v is no timeout", err)
	}
}

func write(t *testing.T, c *Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("Write = %d, %v", n, err)
	}
}

func readAll(t *testing.T, c *Conn, want string) {
	t.Helper()
	got, err := io.ReadAll(c)
	if string(got) != want || err != nil {
		t.Fatalf("read %q, %v, want %q and the end", got, err, want)
	}
}

// fill writes until nothing more fits.
func fill(t *testing.T, c *Conn) {
	t.Helper()
	if n, err := c.Write(make([]byte, BufferSize)); n != BufferSize || err != nil {
		t.Fatalf("Write = %d, %v", n, err)
	}
}

func TestAddresses(t *testing.T) {
	a, b := Pipe(addrA, addrB)
	for _, row := range []struct {
		got  net.Addr
		want netip.AddrPort
	}{
		{a.LocalAddr(), addrA}, {a.RemoteAddr(), addrB}, {b.LocalAddr(), addrB}, {b.RemoteAddr(), addrA},
	} {
		if got := row.got.(*net.TCPAddr).AddrPort(); got != row.want {
			t.Errorf("got %v, want %v", got, row.want)
		}
	}
	mapped := netip.MustParseAddrPort("[::ffff:192.0.2.1]:40001")
	m, _ := Pipe(mapped, addrB)
	if got := m.LocalAddr().(*net.TCPAddr).AddrPort(); got != mapped {
		t.Errorf("a mapped address became %v", got)
	}
}

func TestReadTakesWhatIsThere(t *testing.T) {
	a, b := Pipe(addrA, addrB)
	write(t, a, "one")
	write(t, a, "two")
	p := make([]byte, 4)
	if n, err := b.Read(p); string(p[:n]) != "onet" || err != nil {
		t.Fatalf("got %q, %v", p[:n], err)
	}
	if n, err := b.Read(p); string(p[:n]) != "wo" || err != nil {
		t.Fatalf("got %q, %v", p[:n], err)
	}
}

func TestReadWaitsForBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		time.AfterFunc(time.Hour, func() { _, _ = a.Write([]byte("late")) })
		start := time.Now()
		p := make([]byte, 8)
		n, err := b.Read(p)
		if string(p[:n]) != "late" || err != nil || time.Since(start) != time.Hour {
			t.Fatalf("got %q, %v after %v", p[:n], err, time.Since(start))
		}
	})
}

func TestWriteWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		fill(t, a)
		start := time.Now()
		time.AfterFunc(time.Hour, func() { _, _ = b.Read(make([]byte, 1)) })
		write(t, a, "x")
		if time.Since(start) != time.Hour {
			t.Fatalf("a full buffer took a byte after %v", time.Since(start))
		}
	})
}

func TestDirectionsAreApart(t *testing.T) {
	a, b := Pipe(addrA, addrB)
	fill(t, a)
	write(t, b, "free")
	p := make([]byte, 8)
	if n, err := a.Read(p); string(p[:n]) != "free" || err != nil {
		t.Fatalf("got %q, %v", p[:n], err)
	}
}

// Whichever side half-closes, what it sent arrives, then the end; the other
// direction goes on, and ends in its own time.
func TestHalfClose(t *testing.T) {
	for _, second := range []bool{false, true} {
		a, b := Pipe(addrA, addrB)
		if second {
			a, b = b, a
		}
		write(t, a, "request")
		for range 2 { // a second CloseWrite is no error, as for TCP
			if err := a.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		_, err := a.Write([]byte("x"))
		wantOpError(t, err, "write", syscall.EPIPE)
		readAll(t, b, "request")
		write(t, b, "reply")
		if err := b.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		readAll(t, a, "reply")
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		readAll(t, b, "")
	}
}

func TestHalfCloseWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		time.AfterFunc(time.Second, func() { _ = a.CloseWrite() })
		readAll(t, b, "")
		fill(t, b)
		time.AfterFunc(time.Second, func() { _ = b.CloseWrite() })
		_, err := b.Write([]byte("x"))
		wantOpError(t, err, "write", syscall.EPIPE)
	})
}

func TestClose(t *testing.T) {
	t.Run("what was sent arrives, then the end", func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		write(t, a, "bye")
		_ = a.Close()
		readAll(t, b, "bye")
		readAll(t, b, "")
	})
	t.Run("with unread bytes it is still an orderly end", func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		write(t, b, "never read")
		write(t, a, "bye")
		_ = a.Close()
		readAll(t, b, "bye")
		n, err := b.Write([]byte("x"))
		wantOpError(t, err, "write", syscall.ECONNRESET)
		if n != 0 {
			t.Fatalf("%d bytes were taken", n)
		}
	})
	t.Run("the peer's write that waits fails with what was taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			time.AfterFunc(time.Second, func() { _ = a.Close() })
			n, err := b.Write(make([]byte, BufferSize+1))
			wantOpError(t, err, "write", syscall.ECONNRESET)
			if n != BufferSize {
				t.Fatalf("%d bytes were taken", n)
			}
		})
	})
	t.Run("wakes its own read and write", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, _ := Pipe(addrA, addrB)
			fill(t, a)
			reads := make(chan error, 1)
			go func() {
				_, err := a.Read(make([]byte, 1))
				reads <- err
			}()
			time.AfterFunc(time.Second, func() { _ = a.Close() })
			_, err := a.Write([]byte("x"))
			wantOpError(t, err, "write", net.ErrClosed)
			wantOpError(t, <-reads, "read", net.ErrClosed)
		})
	})
	t.Run("everything after it says so", func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		write(t, b, "x")
		_ = a.Close()
		_, err := a.Read(make([]byte, 1))
		wantOpError(t, err, "read", net.ErrClosed)
		_, err = a.Read(nil)
		wantOpError(t, err, "read", net.ErrClosed)
		_, err = a.Write([]byte("x"))
		wantOpError(t, err, "write", net.ErrClosed)
		wantOpError(t, a.Close(), "close", net.ErrClosed)
		wantOpError(t, a.CloseWrite(), "close", net.ErrClosed)
		wantOpError(t, a.SetDeadline(time.Now()), "set", net.ErrClosed)
		wantOpError(t, a.SetReadDeadline(time.Now()), "set", net.ErrClosed)
		wantOpError(t, a.SetWriteDeadline(time.Now()), "set", net.ErrClosed)
		wantOpError(t, a.SetLinger(0), "set", net.ErrClosed)
		a.Reset()
		readAll(t, b, "")
	})
}

func TestReset(t *testing.T) {
	ways := map[string]func(c *Conn){
		"Reset": (*Conn).Reset,
		"SetLinger": func(c *Conn) {
			_ = c.SetLinger(0)
			_ = c.Close()
		},
	}
	for name, reset := range ways {
		t.Run(name, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			write(t, a, "lost")
			reset(a)
			for range 2 {
				_, err := b.Read(make([]byte, 4))
				wantOpError(t, err, "read", syscall.ECONNRESET)
				_, err = b.Write([]byte("x"))
				wantOpError(t, err, "write", syscall.ECONNRESET)
			}
			wantOpError(t, b.CloseWrite(), "close", syscall.ENOTCONN)
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			_, err := a.Read(make([]byte, 1))
			wantOpError(t, err, "read", net.ErrClosed)
		})
	}
	t.Run("a linger that was taken back", func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		write(t, a, "kept")
		_ = a.SetLinger(0)
		_ = a.SetLinger(-1)
		_ = a.Close()
		readAll(t, b, "kept")
	})
	t.Run("wakes the peer's read and write", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			fill(t, b)
			reads := make(chan error, 1)
			go func() {
				_, err := b.Read(make([]byte, 1))
				reads <- err
			}()
			time.AfterFunc(time.Second, a.Reset)
			_, err := b.Write([]byte("x"))
			wantOpError(t, err, "write", syscall.ECONNRESET)
			wantOpError(t, <-reads, "read", syscall.ECONNRESET)
		})
	})
}

func TestEmptyReadAndWrite(t *testing.T) {
	a, _ := Pipe(addrA, addrB)
	_ = a.SetReadDeadline(time.Now())
	if n, err := a.Read(nil); n != 0 || err != nil {
		t.Fatalf("Read(nil) = %d, %v", n, err)
	}
	if n, err := a.Write(nil); n != 0 || err != nil {
		t.Fatalf("Write(nil) = %d, %v", n, err)
	}
}
