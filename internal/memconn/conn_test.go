package memconn

import (
	"bytes"
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

func TestReadDeadline(t *testing.T) {
	t.Run("ends a read that waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, _ := Pipe(addrA, addrB)
			start := time.Now()
			_ = a.SetReadDeadline(start.Add(time.Minute))
			_, err := a.Read(make([]byte, 1))
			wantOpError(t, err, "read", os.ErrDeadlineExceeded)
			if time.Since(start) != time.Minute {
				t.Fatalf("after %v", time.Since(start))
			}
		})
	})
	t.Run("is over at its instant and not before", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			write(t, b, "12")
			_ = a.SetReadDeadline(time.Now().Add(time.Minute))
			time.Sleep(time.Minute - time.Nanosecond)
			if _, err := a.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Nanosecond)
			_, err := a.Read(make([]byte, 1))
			wantOpError(t, err, "read", os.ErrDeadlineExceeded)
		})
	})
	t.Run("fails though bytes are there, and keeps them", func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		write(t, b, "kept")
		_ = a.SetReadDeadline(time.Now().Add(-time.Second))
		_, err := a.Read(make([]byte, 4))
		wantOpError(t, err, "read", os.ErrDeadlineExceeded)
		_ = a.SetReadDeadline(time.Time{})
		p := make([]byte, 4)
		if n, err := a.Read(p); string(p[:n]) != "kept" || err != nil {
			t.Fatalf("got %q, %v", p[:n], err)
		}
	})
	t.Run("can be moved while a read waits", func(t *testing.T) {
		for _, row := range []struct {
			name  string
			moved time.Duration // from the time of the move, a second after the start
			want  time.Duration // from the start
		}{
			{"later", time.Hour, time.Hour + time.Second},
			{"sooner", time.Second, 2 * time.Second},
			{"into the past", -time.Hour, time.Second},
		} {
			t.Run(row.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, _ := Pipe(addrA, addrB)
					start := time.Now()
					_ = a.SetReadDeadline(start.Add(time.Minute))
					time.AfterFunc(time.Second, func() { _ = a.SetReadDeadline(time.Now().Add(row.moved)) })
					_, err := a.Read(make([]byte, 1))
					wantOpError(t, err, "read", os.ErrDeadlineExceeded)
					if time.Since(start) != row.want {
						t.Fatalf("after %v, want %v", time.Since(start), row.want)
					}
				})
			})
		}
	})
	t.Run("can be taken back while a read waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			_ = a.SetReadDeadline(time.Now().Add(time.Minute))
			time.AfterFunc(time.Second, func() { _ = a.SetReadDeadline(time.Time{}) })
			time.AfterFunc(time.Hour, func() { _, _ = b.Write([]byte("x")) })
			if _, err := a.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("does not bind writes", func(t *testing.T) {
		a, _ := Pipe(addrA, addrB)
		_ = a.SetReadDeadline(time.Now().Add(-time.Second))
		write(t, a, "x")
	})
}

func TestWriteDeadline(t *testing.T) {
	t.Run("returns what was taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			write(t, a, "head")
			start := time.Now()
			_ = a.SetWriteDeadline(start.Add(time.Minute))
			n, err := a.Write(bytes.Repeat([]byte{'x'}, BufferSize))
			wantOpError(t, err, "write", os.ErrDeadlineExceeded)
			if n != BufferSize-4 || time.Since(start) != time.Minute {
				t.Fatalf("%d bytes after %v", n, time.Since(start))
			}
			_ = a.Close()
			if got, err := io.ReadAll(b); len(got) != BufferSize || err != nil {
				t.Fatalf("the peer has %d bytes, %v", len(got), err)
			}
		})
	})
	t.Run("fails though there is room", func(t *testing.T) {
		a, _ := Pipe(addrA, addrB)
		_ = a.SetWriteDeadline(time.Now())
		n, err := a.Write([]byte("x"))
		wantOpError(t, err, "write", os.ErrDeadlineExceeded)
		if n != 0 {
			t.Fatalf("%d bytes were taken", n)
		}
	})
	t.Run("can be moved while a write waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, _ := Pipe(addrA, addrB)
			fill(t, a)
			start := time.Now()
			time.AfterFunc(time.Hour, func() { _ = a.SetWriteDeadline(time.Now()) })
			_, err := a.Write([]byte("x"))
			wantOpError(t, err, "write", os.ErrDeadlineExceeded)
			if time.Since(start) != time.Hour {
				t.Fatalf("after %v", time.Since(start))
			}
		})
	})
	t.Run("does not bind reads", func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		write(t, b, "x")
		_ = a.SetWriteDeadline(time.Now().Add(-time.Second))
		if _, err := a.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("SetDeadline binds both", func(t *testing.T) {
		a, _ := Pipe(addrA, addrB)
		_ = a.SetDeadline(time.Now())
		_, err := a.Read(make([]byte, 1))
		wantOpError(t, err, "read", os.ErrDeadlineExceeded)
		_, err = a.Write([]byte("x"))
		wantOpError(t, err, "write", os.ErrDeadlineExceeded)
	})
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
