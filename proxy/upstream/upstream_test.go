package upstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/testlog"
)

func validConfig() Config {
	return Config{Addresses: []string{"127.0.0.1:7777"}, ClientAddress: "proxy-v2", ChannelBindingTLV: 228, ConnectTimeoutSecs: 5}
}

// hangUp does with a link what a session does at its end.
func hangUp(l *Link) {
	l.Conn.Close()
	l.Release()
}

func failing(err error) DialFunc {
	return func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
}

func TestDialErrors(t *testing.T) {
	tests := []struct {
		err  error
		want error
		up   bool // whether the relay still counts as up
	}{
		{syscall.ECONNREFUSED, ErrUnavailable, false},
		{syscall.EHOSTUNREACH, ErrUnavailable, false},
		{syscall.ENETUNREACH, ErrUnavailable, false},
		{syscall.ETIMEDOUT, ErrTimeout, false},
		{os.ErrDeadlineExceeded, ErrTimeout, false},
		{context.DeadlineExceeded, ErrTimeout, false},
		{os.NewSyscallError("connect", syscall.EADDRNOTAVAIL), ErrLocalPorts, true},
		{os.NewSyscallError("socket", syscall.EMFILE), ErrDescriptors, true},
		{syscall.ENFILE, ErrDescriptors, true},
	}
	for _, tt := range tests {
		t.Run(tt.err.Error(), func(t *testing.T) {
			u := New("relay", validConfig(), slog.New(slog.DiscardHandler), failing(tt.err))
			_, err := u.Dial(t.Context())
			if !errors.Is(err, tt.want) || !errors.Is(err, tt.err) {
				t.Errorf("Dial: %v; want %v with its cause", err, tt.want)
			}
			if u.Up() != tt.up {
				t.Errorf("up: %v, want %v", u.Up(), tt.up)
			}
		})
	}
}

// The dial has connect_timeout_secs, and its caller may end it earlier without
// the relay being blamed.
func TestDialDeadline(t *testing.T) {
	hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	synctest.Test(t, func(t *testing.T) {
		u := New("relay", validConfig(), slog.New(slog.DiscardHandler), hang)
		began := time.Now()
		if _, err := u.Dial(t.Context()); !errors.Is(err, ErrTimeout) || time.Since(began) != 5*time.Second {
			t.Errorf("Dial: %v after %v", err, time.Since(began))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		u := New("relay", validConfig(), slog.New(slog.DiscardHandler), hang)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := u.Dial(ctx); err == nil {
			t.Error("Dial has no error")
		}
		if !u.Up() {
			t.Error("the relay is blamed")
		}
	})
}

// Down lasts ten seconds or until a dial works; each change is one line.
func TestUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777"))
		var dialErr error
		var log testlog.Log
		u := New("relay", validConfig(), slog.New(slog.NewTextHandler(&log, nil)), func(ctx context.Context, network, address string) (net.Conn, error) {
			if network != "tcp" || address != "127.0.0.1:7777" {
				t.Errorf("dialled %s %s", network, address)
			}
			if dialErr != nil {
				return nil, dialErr
			}
			return relay.Dial(ctx, netip.AddrPort{})
		})
		check := func(up bool, lines int) {
			t.Helper()
			if u.Up() != up {
				t.Errorf("up: %v, want %v", u.Up(), up)
			}
			if n := strings.Count(log.String(), "\n"); n != lines {
				t.Errorf("%d lines, want %d:\n%s", n, lines, log.String())
			}
		}
		check(true, 0)
		dialErr = syscall.ECONNREFUSED
		for range 100 {
			u.Dial(t.Context())
		}
		check(false, 1)
		time.Sleep(10*time.Second - time.Nanosecond)
		check(false, 1)
		time.Sleep(time.Nanosecond)
		check(true, 1)
		u.Dial(t.Context())
		check(false, 1) // still the same outage
		dialErr = nil
		c, err := u.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		check(true, 2)
		hangUp(c)
		relay.Close()
	})
}

// A relay that comes and goes with every dial makes a line every ten seconds,
// and the last one says how it is.
func TestFlappingIsNotAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777"))
		var log testlog.Log
		fails := false
		u := New("relay", validConfig(), slog.New(slog.NewTextHandler(&log, nil)), func(ctx context.Context, _, _ string) (net.Conn, error) {
			if fails {
				return nil, syscall.ECONNREFUSED
			}
			return relay.Dial(ctx, netip.AddrPort{})
		})
		for range 1000 { // 100 seconds
			fails = !fails
			if c, err := u.Dial(t.Context()); err == nil {
				hangUp(c)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := strings.Count(log.String(), "\n"); n > 10 {
			t.Errorf("%d lines in 100 seconds", n)
		}
		fails = true
		for range 2 {
			time.Sleep(10 * time.Second)
			u.Dial(t.Context())
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if last := lines[len(lines)-1]; !strings.Contains(last, "cannot be reached") {
			t.Errorf("the last line: %s", last)
		}
		relay.Close()
	})
}

// What changed too soon after a line is told later, without a further dial.
func TestTheLogIsRightInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777"))
		var log testlog.Log
		fails := true
		u := New("relay", validConfig(), slog.New(slog.NewTextHandler(&log, nil)), func(ctx context.Context, _, _ string) (net.Conn, error) {
			if fails {
				return nil, syscall.ECONNREFUSED
			}
			return relay.Dial(ctx, netip.AddrPort{})
		})
		u.Dial(t.Context())
		time.Sleep(time.Second)
		fails = false
		c, err := u.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		hangUp(c)
		time.Sleep(9*time.Second - time.Nanosecond)
		synctest.Wait()
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines before their time:\n%s", n, log.String())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !strings.Contains(log.String(), "answers again") {
			t.Errorf("the log says:\n%s", log.String())
		}
		relay.Close()
	})
}
