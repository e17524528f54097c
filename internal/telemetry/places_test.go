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

// holds is a Ready that takes 20 seconds.
func holds() error {
	time.Sleep(20 * time.Second)
	return nil
}

// hold has n connections be answered for as long as the Ready holds takes.
func (e *endpoint) hold(n int) (busy []*memconn.Conn) {
	e.t.Helper()
	for range n {
		c := e.dial()
		e.ask(c, "GET", "/readyz")
		busy = append(busy, c)
	}
	return busy
}

// wantStatus asks for a path and is answered at once.
func (e *endpoint) wantStatus(path string, want int) {
	e.t.Helper()
	c := e.dial()
	start := time.Now()
	e.ask(c, "GET", path)
	if status, body := e.answer(c, "GET"); status != want || time.Since(start) != 0 {
		e.t.Errorf("%s: %d %q after %v, want %d at once", path, status, body, time.Since(start), want)
	}
	synctest.Wait()
}

// spec/003: At most 8 connections are served at once; one of them is kept for /metrics.
func TestPlaces(t *testing.T) {
	t.Run("the eighth is served /metrics alone", func(t *testing.T) {
		inBubble(t, Options{Ready: holds}, func(t *testing.T, e *endpoint) {
			busy := e.hold(7)
			for path, want := range map[string]int{"/healthz": 503, "/readyz": 503, "/": 503, "/metrics": 200} {
				e.wantStatus(path, want)
				e.wantStatus("/metrics", 200)
			}
			for _, c := range busy {
				if status, _ := e.answer(c, "GET"); status != 200 {
					t.Errorf("a held one: %d", status)
				}
			}
			synctest.Wait()
			e.wantStatus("/healthz", 200)
		})
	})
	t.Run("the seventh is served anything", func(t *testing.T) {
		inBubble(t, Options{Ready: holds}, func(t *testing.T, e *endpoint) {
			busy := e.hold(6)
			e.wantStatus("/healthz", 200)
			e.answer(busy[5], "GET")
		})
	})
	t.Run("the ninth waits for a place", func(t *testing.T) {
		many := Family{Name: "big", Kind: Gauge, Label: "reason", Read: func(emit func(string, float64)) {
			for i := range 10_000 {
				emit(fmt.Sprint("reason_", i), 1)
			}
		}}
		inBubble(t, Options{Ready: holds, Groups: []Group{{"relayedge", []Family{many}}}}, func(t *testing.T, e *endpoint) {
			start := time.Now()
			e.hold(7)
			eighth := e.dial()
			e.ask(eighth, "GET", "/metrics") // and does not read
			ninth := e.dial()
			e.ask(ninth, "GET", "/nowhere")
			_ = ninth.SetReadDeadline(time.Now().Add(4 * time.Second))
			if n, err := ninth.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Fatal("a ninth connection was served")
			}
			_ = ninth.SetReadDeadline(time.Time{})
			if status, _ := e.answer(ninth, "GET"); status != 404 || time.Since(start) != 20*time.Second {
				t.Fatalf("%d after %v", status, time.Since(start))
			}
			if status, body := e.answer(eighth, "GET"); status != 200 || !strings.Contains(body, "reason_9999") {
				t.Errorf("the eighth was ended in its answer: %d, %d bytes", status, len(body))
			}
		})
	})
}

// Who has asked nothing holds nobody up, whatever is asked for: neither those who
// have been there for a while nor those who all come at once.
func TestSilenceHoldsNobodyUp(t *testing.T) {
	for _, sent := range []string{"", "G", "GET /metrics HTTP/1.1\r\nHost: edge\r\n", "GET /healthz HTTP/1.1\r\nHost: edge\r\nContent-Length: 9\r\n\r\n"} {
		inBubble(t, Options{}, func(t *testing.T, e *endpoint) {
			for range 100 {
				c, err := e.ln.Dial(t.Context(), netip.MustParseAddrPort(clientAddr+":0"))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(c, sent)
			}
			for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
				c := e.dial()
				start := time.Now()
				e.ask(c, "GET", path)
				if status, _ := e.answer(c, "GET"); status != 200 || time.Since(start) > 100*time.Millisecond {
					t.Errorf("after 100 times %q, %s: %d after %v", sent, path, status, time.Since(start))
				}
			}
			for range 8 {
				c := e.dial()
				_, _ = io.WriteString(c, sent)
			}
			time.Sleep(time.Second)
			for range 20 {
				e.wantStatus("/healthz", 200)
				e.wantStatus("/metrics", 200)
			}
		})
	}
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
			for range 8 { // no place was lost
				e.dial()
			}
			time.Sleep(time.Second)
			e.wantStatus("/metrics", 200)
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
