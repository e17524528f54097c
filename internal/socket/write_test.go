package socket

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

// much is more than any buffers on the way hold.
var much = make([]byte, 64<<20)

// recorded is a TCP connection that remembers its write deadline.
type recorded struct {
	*net.TCPConn
	writeBy time.Time
}

func (r *recorded) SetWriteDeadline(t time.Time) error {
	r.writeBy = t
	return r.TCPConn.SetWriteDeadline(t)
}

// A slow peer gets every byte, and no deadline is left behind.
func TestWriteAllToSlowPeer(t *testing.T) {
	dialled, peer := kernel(t)
	record := &recorded{TCPConn: dialled.Conn.(*net.TCPConn)}
	own := New(record, NewPool(1))
	peer.SetReadBuffer(32 << 10)
	sent := make([]byte, 8<<20)
	rand.Read(sent)
	got := make([]byte, len(sent))
	done := make(chan error, 1)
	for range 2 {
		go func() { done <- own.WriteAll(sent, time.Minute) }()
		if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("received: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("WriteAll: %v", err)
		}
		if !record.writeBy.IsZero() {
			t.Error("the deadline of that wait is still there")
		}
	}
}

// WriteNow writes what fits and says how much that was; the rest is WriteAll's.
func TestWriteNow(t *testing.T) {
	own, peer := kernel(t)
	sent := make([]byte, 16<<20)
	rand.Read(sent)
	n := own.WriteNow(sent)
	if n == 0 || n == len(sent) {
		t.Fatalf("%d of %d bytes fit", n, len(sent))
	}
	done := make(chan error, 1)
	go func() { done <- own.WriteAll(sent[n:], time.Minute) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("received: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	own.Close()
	if n := own.WriteNow(sent); n != 0 {
		t.Errorf("%d bytes into a closed connection", n)
	}
	near, _ := memconn.Pipe(netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2"))
	if n := New(near, NewPool(1)).WriteNow(sent); n != 0 {
		t.Errorf("%d bytes into a connection without readiness", n)
	}
}

func TestWriteAllStalls(t *testing.T) {
	const patience = 50 * time.Millisecond
	own, _ := kernel(t)
	began := time.Now()
	if err := own.WriteAll(much, patience); err != ErrStalled || time.Since(began) < patience {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestWriteAllToClosedPeer(t *testing.T) {
	own, peer := kernel(t)
	peer.SetLinger(0)
	peer.Close()
	var err error
	for range 1000 {
		if err = own.WriteAll(much[:1<<20], time.Minute); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("WriteAll: %v", err)
	}
	own.Close()
	if err := own.WriteAll(much, time.Second); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

// Hurry cuts a write that waits, at whatever moment it comes; what the peer
// takes at once can be written afterwards.
func TestHurry(t *testing.T) {
	for range 50 {
		own, peer := kernel(t)
		done := make(chan error, 1)
		go func() { done <- own.WriteAll(much, time.Hour) }()
		runtime.Gosched()
		own.Hurry()
		if err := <-done; err != ErrStalled {
			t.Fatalf("the write that waited: %v", err)
		}
		if err := own.WriteAll(much, time.Hour); err != ErrStalled {
			t.Fatalf("a large write afterwards: %v", err)
		}
		go io.Copy(io.Discard, peer)
		for own.WriteAll([]byte("goodbye"), time.Hour) != nil {
			runtime.Gosched() // until the peer has made room
		}
		peer.Close()
		own.Close()
	}
}

// A Hurry between two writes takes nothing from what the peer takes at once,
// whether the first has waited or not.
func TestHurryBetweenWrites(t *testing.T) {
	own, peer := kernel(t)
	done := make(chan error, 1)
	go func() { done <- own.WriteAll(much, time.Hour) }()
	if _, err := io.CopyN(io.Discard, peer, int64(len(much))); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	own.Hurry()
	for range 3 {
		if err := own.WriteAll([]byte("goodbye"), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
}

// CloseAt ends a write that waits already and all writing afterwards; a write
// that has run out of patience before does not wait for it.
func TestCloseAt(t *testing.T) {
	own, peer := kernel(t)
	done := make(chan error, 1)
	go func() { done <- own.WriteAll(much, time.Hour) }()
	awaitWait(own)
	by := time.Now().Add(50 * time.Millisecond)
	own.CloseAt(by)
	if err := <-done; err != ErrStalled || time.Now().Before(by) {
		t.Errorf("%v, %v before the moment", err, time.Until(by))
	}
	io.CopyN(io.Discard, peer, 64<<10) // there is room
	if err := own.WriteAll([]byte("more"), time.Hour); err != ErrStalled {
		t.Errorf("after the moment: %v", err)
	}

	own, _ = kernel(t)
	go func() { done <- own.WriteAll(much, 2*time.Second) }()
	awaitWait(own)
	own.CloseAt(time.Now().Add(time.Hour))
	if err := <-done; err != ErrStalled {
		t.Errorf("without patience: %v", err)
	}
}

// awaitWait returns once the writer waits for the peer.
func awaitWait(s *Socket) {
	for waits := false; !waits; runtime.Gosched() {
		s.mu.Lock()
		waits = !s.waitBy.IsZero()
		s.mu.Unlock()
	}
}

// Without readiness a stall is seen within a slice of its patience, counted
// from the last byte that was taken.
func TestPlainStall(t *testing.T) {
	const patience = 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		own, peer := memory(t)
		done := make(chan error, 1)
		go func() { done <- own.WriteAll(make([]byte, 10*memconn.BufferSize), patience) }()
		var taken time.Time
		for range 3 {
			time.Sleep(patience - time.Second)
			if _, err := io.ReadFull(peer, make([]byte, memconn.BufferSize)); err != nil {
				t.Fatal(err)
			}
			taken = time.Now()
			synctest.Wait()
		}
		if err := <-done; err != ErrStalled {
			t.Errorf("WriteAll: %v", err)
		}
		if waited := time.Since(taken); waited < patience || waited > patience+StallSlice {
			t.Errorf("it waited for %v", waited)
		}
	})
	// The deadlines of a write are gone with it.
	synctest.Test(t, func(t *testing.T) {
		own, peer := memory(t)
		if err := own.WriteAll([]byte("hello"), time.Second); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if _, err := own.Write([]byte("again")); err != nil {
			t.Error(err)
		}
		peer.Close()
		if err := own.WriteAll(make([]byte, 2*memconn.BufferSize), time.Hour); err == nil || err == ErrStalled {
			t.Errorf("to a closed peer: %v", err)
		}
	})
}

// Who is beside a plain write ends its waiting too.
func TestPlainWriteFromBeside(t *testing.T) {
	const soon = 1250 * time.Millisecond
	big := make([]byte, 2*memconn.BufferSize)
	cases := []struct {
		name   string
		beside func(s *Socket)
		took   time.Duration
	}{
		{"Hurry", (*Socket).Hurry, 0},
		{"CloseAt", func(s *Socket) { s.CloseAt(time.Now().Add(soon)) }, soon},
		{"Hurry and CloseAt", func(s *Socket) { s.Hurry(); s.CloseAt(time.Now().Add(soon)) }, 0},
		{"CloseAt and Hurry", func(s *Socket) { s.CloseAt(time.Now().Add(soon)); s.Hurry() }, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				own, _ := memory(t)
				done := make(chan error, 1)
				go func() { done <- own.WriteAll(big, time.Hour) }()
				synctest.Wait()
				began := time.Now()
				c.beside(own)
				if err := <-done; err != ErrStalled || time.Since(began) != c.took {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		own, peer := memory(t)
		own.Hurry()
		if err := own.WriteAll([]byte("goodbye"), time.Hour); err != nil {
			t.Errorf("what is taken at once: %v", err)
		}
		began := time.Now()
		if err := own.WriteAll(big, time.Hour); err != ErrStalled || time.Since(began) > hurriedPatience {
			t.Errorf("what is not: %v after %v", err, time.Since(began))
		}
		io.ReadFull(peer, big[:memconn.BufferSize])
		own.CloseAt(time.Now())
		if err := own.WriteAll([]byte("more"), time.Hour); err != ErrStalled {
			t.Errorf("after the last moment: %v", err)
		}
	})
}
