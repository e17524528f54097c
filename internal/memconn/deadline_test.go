package memconn

import (
	"bytes"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

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
