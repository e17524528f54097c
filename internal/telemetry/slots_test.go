package telemetry

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

// spec/003: … and 30-second total timeout
func TestTotalTimeout(t *testing.T) {
	many := Family{Name: "big", Kind: Gauge, Label: "reason", Read: func(emit func(string, float64)) {
		for i := range 10_000 {
			emit(fmt.Sprint("reason_", i), 1)
		}
	}}
	t.Run("a client that does not read", func(t *testing.T) {
		inBubble(t, Options{Groups: []Group{{"relayedge", []Family{many}}}}, func(t *testing.T, e *endpoint) {
			c := e.dial()
			e.ask(c, "GET", "/metrics")
			time.Sleep(30*time.Second - time.Nanosecond)
			synctest.Wait()
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatalf("ended too soon: %v", err)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("still open: %v", err)
			}
			got, _ := io.ReadAll(c)
			if len(got) == 0 || len(got) > 2*memconn.BufferSize {
				t.Fatalf("%d bytes of answer", len(got))
			}
		})
	})
	t.Run("an answer that hangs", func(t *testing.T) {
		release := make(chan struct{})
		ready := func() error { time.Sleep(time.Hour); close(release); return nil }
		inBubble(t, Options{Ready: ready}, func(t *testing.T, e *endpoint) {
			c := e.dial()
			time.Sleep(4 * time.Second)
			e.ask(c, "GET", "/readyz")
			wantEnd(t, c, 26*time.Second)
			time.Sleep(time.Hour)
			<-release
		})
	})
}

// spec/003: At most 8 connections are served at once; one of them is kept for /metrics.
func TestSlots(t *testing.T) {
	hold := func(e *endpoint, n int) (held []*memconn.Conn) {
		for range n {
			held = append(held, e.dial())
		}
		return held
	}
	t.Run("the eighth is served /metrics alone", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			hold(e, 7)
			for _, row := range []struct {
				path   string
				status int
			}{{"/healthz", 503}, {"/readyz", 503}, {"/", 503}, {"/metrics", 200}, {"/metrics", 200}} {
				c := e.dial()
				e.ask(c, "GET", row.path)
				if status, body := e.answer(c, "GET"); status != row.status {
					t.Errorf("%s: %d %q", row.path, status, body)
				}
			}
		})
	})
	t.Run("the seventh is served anything", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			hold(e, 6)
			c := e.dial()
			e.ask(c, "GET", "/healthz")
			if status, _ := e.answer(c, "GET"); status != 200 {
				t.Error(status)
			}
		})
	})
	t.Run("the ninth waits for a slot", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			held := hold(e, 8)
			ninth := e.dial()
			e.ask(ninth, "GET", "/metrics")
			_ = ninth.SetReadDeadline(time.Now().Add(4 * time.Second))
			if n, err := ninth.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Fatal("a ninth connection was served")
			}
			_ = ninth.SetReadDeadline(time.Time{})
			_ = held[3].Close()
			start := time.Now()
			if status, _ := e.answer(ninth, "GET"); status != 200 || time.Since(start) != 0 {
				t.Fatalf("%d after %v", status, time.Since(start))
			}
		})
	})
	t.Run("a common slot that came free is taken", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			held := hold(e, 7)
			eighth := e.dial()
			_ = held[0].Close()
			synctest.Wait()
			e.ask(eighth, "GET", "/healthz")
			if status, _ := e.answer(eighth, "GET"); status != 200 {
				t.Error(status)
			}
		})
	})
	t.Run("every end gives its slot back", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			for range 3 {
				for i, c := range hold(e, 8) {
					switch i % 4 {
					case 0:
						c.Reset()
					case 1:
						_ = c.Close()
					case 2:
						_ = c.CloseWrite()
					}
				}
				time.Sleep(5 * time.Second) // the silent ones meet the header's time
				synctest.Wait()
			}
			hold(e, 6)
			c := e.dial()
			e.ask(c, "GET", "/healthz")
			if status, _ := e.answer(c, "GET"); status != 200 {
				t.Error(status)
			}
		})
	})
	t.Run("silence on all of them lasts no longer than the header's time", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			hold(e, 8)
			start := time.Now()
			c := e.dial()
			e.ask(c, "GET", "/metrics")
			if status, _ := e.answer(c, "GET"); status != 200 || time.Since(start) != 5*time.Second {
				t.Errorf("%d after %v", status, time.Since(start))
			}
		})
	})
}

func TestAcceptErrors(t *testing.T) {
	t.Run("survived", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			for range 4 {
				for _, passes := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EPROTO} {
					e.ln.SetAcceptError(passes)
				}
			}
			c := e.dial()
			e.ask(c, "GET", "/healthz")
			if status, _ := e.answer(c, "GET"); status != 200 {
				t.Fatal(status)
			}
			if n := strings.Count(e.logged(), "Metrics endpoint cannot accept"); n != 1 {
				t.Fatalf("%d lines:\n%s", n, e.logged())
			}
			for range 8 { // no slot was lost
				e.dial()
			}
			c = e.dial()
			e.ask(c, "GET", "/metrics")
			if status, _ := e.answer(c, "GET"); status != 200 {
				t.Fatal(status)
			}
			time.Sleep(time.Minute)
			e.ln.SetAcceptError(syscall.EMFILE) // another time, another line
			e.dial()
			e.dial()
			if n := strings.Count(e.logged(), "Metrics endpoint cannot accept"); n != 2 {
				t.Fatalf("%d lines:\n%s", n, e.logged())
			}
		})
	})
	t.Run("final", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, err := NewServer(Options{})
			if err != nil {
				t.Fatal(err)
			}
			ln := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:9090"))
			open, _ := ln.Dial(t.Context(), netip.MustParseAddrPort("192.0.2.1:1"))
			time.AfterFunc(time.Second, func() { ln.SetAcceptError(syscall.EINVAL) })
			if err := s.Serve(t.Context(), ln); !errors.Is(err, syscall.EINVAL) {
				t.Fatal(err)
			}
			start := time.Now()
			if _, err := open.Read(make([]byte, 1)); err == nil || time.Since(start) != 0 {
				t.Fatalf("a connection outlived the endpoint by %v", time.Since(start))
			}
		})
	})
}
