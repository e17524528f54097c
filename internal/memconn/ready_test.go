package memconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// What a call that never waits gives in each state of a connection. The
// comparison is by ==: an event loop looks at bare errors.
func TestTry(t *testing.T) {
	rows := []struct {
		name     string
		done     func(t *testing.T, a, b *Conn) // before a is tried
		read     string
		readErr  error
		written  int // of 3
		writeErr error
	}{
		{"idle", func(*testing.T, *Conn, *Conn) {}, "", syscall.EAGAIN, 3, nil},
		{"bytes are there", func(t *testing.T, _, b *Conn) { write(t, b, "ab") }, "ab", nil, 3, nil},
		{"more bytes than are asked for", func(t *testing.T, _, b *Conn) { write(t, b, "abcdef") }, "abcd", nil, 3, nil},
		{"no room", func(t *testing.T, a, _ *Conn) { fill(t, a) }, "", syscall.EAGAIN, 0, syscall.EAGAIN},
		{"room for one", func(t *testing.T, a, b *Conn) {
			fill(t, a)
			_, _ = b.Read(make([]byte, 1))
		}, "", syscall.EAGAIN, 1, nil},
		{"deadlines are over", func(t *testing.T, a, b *Conn) {
			write(t, b, "ab")
			_ = a.SetDeadline(time.Unix(1, 0))
		}, "ab", nil, 3, nil},
		{"the peer ended its direction", func(_ *testing.T, _, b *Conn) { _ = b.CloseWrite() }, "", io.EOF, 3, nil},
		{"bytes before the peer's end", func(t *testing.T, _, b *Conn) {
			write(t, b, "ab")
			_ = b.CloseWrite()
		}, "ab", nil, 3, nil},
		{"the peer closed", func(_ *testing.T, _, b *Conn) { _ = b.Close() }, "", io.EOF, 0, syscall.ECONNRESET},
		{"the peer reset", func(t *testing.T, _, b *Conn) {
			write(t, b, "ab")
			b.Reset()
		}, "", syscall.ECONNRESET, 0, syscall.ECONNRESET},
		{"own end", func(_ *testing.T, a, _ *Conn) { _ = a.CloseWrite() }, "", syscall.EAGAIN, 0, syscall.EPIPE},
		{"own end, no room", func(t *testing.T, a, _ *Conn) {
			fill(t, a)
			_ = a.CloseWrite()
		}, "", syscall.EAGAIN, 0, syscall.EPIPE},
		{"closed", func(t *testing.T, a, b *Conn) {
			write(t, b, "ab")
			_ = a.Close()
		}, "", net.ErrClosed, 0, net.ErrClosed},
		{"closed after deadlines were over", func(_ *testing.T, a, _ *Conn) {
			_ = a.SetDeadline(time.Unix(1, 0))
			_ = a.Close()
		}, "", net.ErrClosed, 0, net.ErrClosed},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			row.done(t, a, b)
			p := make([]byte, 4)
			if n, err := a.TryRead(p); string(p[:n]) != row.read || err != row.readErr {
				t.Errorf("TryRead: %q, %v, want %q, %v", p[:n], err, row.read, row.readErr)
			}
			if n, err := a.TryWrite([]byte("xyz")); n != row.written || err != row.writeErr {
				t.Errorf("TryWrite: %d, %v, want %d, %v", n, err, row.written, row.writeErr)
			}
		})
	}
}

func TestTryEmpty(t *testing.T) {
	a, b := Pipe(addrA, addrB)
	fill(t, a)
	if n, err := a.TryRead(nil); n != 0 || err != nil {
		t.Errorf("TryRead(nil): %d, %v", n, err)
	}
	if n, err := a.TryWrite(nil); n != 0 || err != nil {
		t.Errorf("TryWrite(nil): %d, %v", n, err)
	}
	_ = b.Close()
	if _, err := a.TryWrite(nil); err != syscall.ECONNRESET {
		t.Errorf("TryWrite(nil) after the peer's close: %v", err)
	}
}

// What is taken wakes a peer that waits in Read or Write, and arrives.
func TestTryWakesWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		time.AfterFunc(time.Second, func() { _, _ = a.TryWrite([]byte("x")) })
		p := make([]byte, 4)
		if n, err := b.Read(p); string(p[:n]) != "x" || err != nil {
			t.Fatalf("Read: %q, %v", p[:n], err)
		}
		fill(t, b)
		time.AfterFunc(time.Second, func() { _, _ = a.TryRead(make([]byte, 2)) })
		write(t, b, "yz")
	})
}

// The bytes of a TryWrite do not come between those of a Write.
func TestTryWriteLeavesAWriteItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		go func() { _, _ = a.Write(make([]byte, BufferSize+1)) }()
		synctest.Wait()
		var errs []error
		a.Notify(func() {
			_, err := a.TryWrite([]byte("x"))
			errs = append(errs, err)
		})
		// The read makes room, but for the Write first; its end must be told, whether
		// the Write has it before the read tells or after.
		_, _ = b.Read(make([]byte, BufferSize))
		synctest.Wait()
		if len(errs) == 0 || errs[len(errs)-1] != nil {
			t.Errorf("TryWrite, whenever told: %v", errs)
		}
		p := make([]byte, 8)
		if n, _ := b.Read(p); !strings.HasPrefix(string(p[:n]), "\x00x") {
			t.Errorf("%q follows, want the Write's end before the TryWrite's", p[:n])
		}
	})
	a, _ := Pipe(addrA, addrB)
	a.writing = true
	if n, err := a.TryWrite([]byte("x")); n != 0 || err != syscall.EAGAIN {
		t.Errorf("TryWrite in a Write's turn: %d, %v", n, err)
	}
}

// A Write that waits for its turn is woken by the end of the one before, even if
// the peer's function is slow and the lock was free meanwhile.
func TestWritesTakeTurnsAroundNotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		b.Notify(func() { time.Sleep(time.Second) })
		_ = a.SetWriteDeadline(time.Now().Add(time.Minute))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if n, err := a.Write([]byte("ab")); n != 2 || err != nil {
					t.Errorf("Write: %d, %v", n, err)
				}
			})
		}
		wg.Wait()
	})
}

// Everything that can end an EAGAIN is told to the end that would have had it.
func TestNotify(t *testing.T) {
	rows := []struct {
		name   string
		before func(t *testing.T, a, b *Conn)
		event  func(a, b *Conn)
		a, b   bool // who must be told
	}{
		{"a write", nil, func(a, _ *Conn) { _, _ = a.Write([]byte("x")) }, false, true},
		{"a write that does not wait", nil, func(a, _ *Conn) { _, _ = a.TryWrite([]byte("x")) }, false, true},
		{"a read", fillBoth, func(a, _ *Conn) { _, _ = a.Read(make([]byte, 1)) }, false, true},
		{"a read that does not wait", fillBoth, func(a, _ *Conn) { _, _ = a.TryRead(make([]byte, 1)) }, false, true},
		{"an end", fillBoth, func(a, _ *Conn) { _ = a.CloseWrite() }, true, true},
		{"a close", fillBoth, func(a, _ *Conn) { _ = a.Close() }, false, true},
		{"a reset", fillBoth, func(a, _ *Conn) { a.Reset() }, false, true},
		{"a close that resets", fillBoth, func(a, _ *Conn) {
			_ = a.SetLinger(0)
			_ = a.Close()
		}, false, true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			if row.before != nil {
				row.before(t, a, b)
			}
			var toldA, toldB int
			a.Notify(func() { toldA++ })
			b.Notify(func() { toldB++ })
			toldA, toldB = 0, 0
			row.event(a, b)
			if row.a && toldA == 0 || row.b && toldB == 0 {
				t.Errorf("told %d and %d times", toldA, toldB)
			}
			toldA, toldB = 0, 0
			_, _ = a.TryRead(make([]byte, 1))
			_, _ = a.TryWrite([]byte("x"))
			if a.closed && toldA > 0 {
				t.Error("a closed end was told")
			}
		})
	}
}

func fillBoth(t *testing.T, a, b *Conn) {
	fill(t, a)
	fill(t, b)
}

// Notify calls at once exactly if there is something to do.
func TestNotifyTellsWhatIs(t *testing.T) {
	full := func(t *testing.T, a, _ *Conn) { fill(t, a) }
	rows := []struct {
		name   string
		before func(t *testing.T, a, b *Conn)
		want   int
	}{
		{"room", func(*testing.T, *Conn, *Conn) {}, 1},
		{"no room, nothing to read", full, 0},
		{"bytes", fillBoth, 1},
		{"the peer's end", func(t *testing.T, a, b *Conn) {
			fill(t, a)
			_ = b.CloseWrite()
		}, 1},
		{"the peer's close", func(t *testing.T, a, b *Conn) {
			fill(t, a)
			_ = b.Close()
		}, 1},
		{"a reset", func(t *testing.T, a, b *Conn) {
			fill(t, a)
			b.Reset()
		}, 1},
		{"own end", func(t *testing.T, a, _ *Conn) {
			fill(t, a)
			_ = a.CloseWrite()
		}, 1},
		{"closed", func(_ *testing.T, a, _ *Conn) { _ = a.Close() }, 0},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			row.before(t, a, b)
			told := 0
			a.Notify(func() { told++ })
			if told != row.want {
				t.Errorf("told %d times, want %d", told, row.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // room, but a Write has its turn
		a, _ := Pipe(addrA, addrB)
		a.writing = true
		told := 0
		a.Notify(func() { told++ })
		if told != 0 {
			t.Errorf("told %d times in a Write's turn", told)
		}
	})
}

// After Close, and after Notify(nil), nothing is called.
func TestNotifyOff(t *testing.T) {
	for name, off := range map[string]func(c *Conn){
		"nil":   func(c *Conn) { c.Notify(nil) },
		"Close": func(c *Conn) { _ = c.Close() },
		"Reset": (*Conn).Reset,
		"replaced": func(c *Conn) {
			c.Notify(func() {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := Pipe(addrA, addrB)
			told := 0
			a.Notify(func() { told++ })
			off(a)
			told = 0
			_, _ = b.Write([]byte("x"))
			_ = b.CloseWrite()
			_ = b.Close()
			_ = a.CloseWrite()
			if told != 0 {
				t.Errorf("told %d times", told)
			}
		})
	}
	a, b := Pipe(addrA, addrB)
	_ = a.Close()
	a.Notify(func() { t.Error("Notify after Close called") })
	_, _ = b.Write([]byte("x"))
	_ = b.Close()
}

// The function may use the connection: no lock is held.
func TestNotifyHoldsNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(addrA, addrB)
		var got []byte
		var end error
		b.Notify(func() {
			p := make([]byte, BufferSize)
			n, err := b.TryRead(p)
			if got = append(got, p[:n]...); err == io.EOF {
				end = b.Close()
			}
		})
		write(t, a, "one")
		write(t, a, string(make([]byte, 2*BufferSize))) // goes on as the function reads
		_ = a.CloseWrite()
		if len(got) != 3+2*BufferSize || string(got[:3]) != "one" || end != nil {
			t.Errorf("%d bytes, %v", len(got), end)
		}
	})
}

// An event loop that does nothing unless it is told moves every byte, both ways,
// against a peer that waits in Read and Write and against one of its own kind.
func TestNotifyMissesNothing(t *testing.T) {
	echoes := map[string]func(c *Conn) error{"waits": echoWaiting, "told": echoTold}
	for name, echo := range echoes {
		for _, bubble := range []bool{false, true} {
			run := func(t *testing.T) {
				a, b := Pipe(addrA, addrB)
				sent := bytes.Repeat([]byte("abcdefghijklm"), 100_000)
				var wg sync.WaitGroup
				wg.Go(func() {
					if err := echo(b); err != nil {
						t.Error(err)
					}
				})
				wg.Go(func() {
					_, _ = a.Write(sent)
					_ = a.CloseWrite()
				})
				got, err := io.ReadAll(a)
				if !bytes.Equal(got, sent) || err != nil {
					t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
				}
				wg.Wait()
			}
			if bubble {
				t.Run(name+" in a bubble", func(t *testing.T) { synctest.Test(t, run) })
			} else {
				t.Run(name, run)
			}
		}
	}
}

func echoWaiting(c *Conn) error {
	defer c.Close()
	_, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	return err
}

func echoTold(c *Conn) error {
	defer c.Close()
	word := make(chan struct{}, 1)
	c.Notify(func() {
		select {
		case word <- struct{}{}:
		default:
		}
	})
	var held []byte
	p := make([]byte, 3000)
	for range word {
		for {
			if len(held) == 0 {
				n, err := c.TryRead(p)
				if err == io.EOF {
					return nil
				}
				if err == syscall.EAGAIN {
					break
				}
				if err != nil {
					return err
				}
				held = p[:n]
			}
			n, err := c.TryWrite(held)
			held = held[n:]
			if err == syscall.EAGAIN {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return errors.New("the loop fell out")
}

// Calls of all kinds may race with Notify; for the race detector, and against a
// lock that is let go of twice.
func TestNotifyRacing(t *testing.T) {
	a, b := Pipe(addrA, addrB)
	var told atomic.Int64
	var wg sync.WaitGroup
	for _, c := range []*Conn{a, b} {
		wg.Go(func() {
			for range 200 {
				c.Notify(func() { told.Add(1) })
				_, _ = c.TryWrite(make([]byte, BufferSize/3))
				_, _ = c.TryRead(make([]byte, BufferSize/2))
				c.Notify(nil)
			}
			_ = c.Close()
		})
		wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
		wg.Go(func() {
			_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
			if _, err := c.Write(make([]byte, 3*BufferSize)); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if told.Load() == 0 {
		t.Error("nobody was told")
	}
}
