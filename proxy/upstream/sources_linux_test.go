package upstream

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"relayedge/internal/sockopt"
	"relayedge/internal/testlog"
)

// relayOn listens on a loopback address and accepts whatever comes.
func relayOn(t *testing.T, network, address string) string {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("this machine has no %s: %v", address, err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	return ln.Addr().String()
}

func (u *Upstream) wantFrom(t *testing.T, want ...string) {
	t.Helper()
	for i, from := range want {
		l, err := u.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Conn.Close() })
		if got := l.Conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr(); got != netip.MustParseAddr(from) {
			t.Errorf("connection %d comes from %s, want %s", i, got, from)
		}
	}
}

// Connections come from the source addresses in turn, over all networks.
func TestSourcesInTurn(t *testing.T) {
	cfg := withAddresses(relayOn(t, "tcp4", "127.0.0.1:0"))
	cfg.SourceAddresses = prefixes("127.0.0.9/32", "127.0.1.0/30")
	u := New("relay", cfg, slog.New(slog.DiscardHandler), nil)
	u.wantFrom(t, "127.0.1.1", "127.0.1.2", "127.0.0.9", "127.0.1.1", "127.0.1.2", "127.0.0.9")
}

// Each family has sources of its own; one without any is not dialled from others.
func TestSourcesByFamily(t *testing.T) {
	six := relayOn(t, "tcp6", "[::1]:0")
	cfg := withAddresses(six)
	cfg.SourceAddresses = prefixes("127.0.0.9/32", "::1/128")
	New("relay", cfg, slog.New(slog.DiscardHandler), nil).wantFrom(t, "::1", "::1")

	cfg.SourceAddresses = prefixes("127.0.0.9/32")
	_, err := New("relay", cfg, slog.New(slog.DiscardHandler), nil).Dial(t.Context())
	wantError(t, err, ErrUnavailable)
	wantError(t, err, errNoSource)
}

// A source that cannot be used (here, because it is of no machine of ours) is
// passed over for the next; when none can, it is our own trouble, and the log
// says which it was.
func TestSourcesPassOn(t *testing.T) {
	cfg := withAddresses(relayOn(t, "tcp4", "127.0.0.1:0"))
	cfg.SourceAddresses = prefixes("203.0.113.0/30", "127.0.0.9/32")
	New("relay", cfg, slog.New(slog.DiscardHandler), nil).wantFrom(t, "127.0.0.9", "127.0.0.9", "127.0.0.9")

	var log testlog.Log
	cfg.SourceAddresses = prefixes("203.0.113.9/32")
	u := New("relay", cfg, slog.New(slog.NewTextHandler(&log, nil)), nil)
	_, err := u.Dial(t.Context())
	wantError(t, err, ErrLocalPorts)
	if !u.Up() {
		t.Error("the relay is blamed")
	}
	if !strings.Contains(log.String(), "source address 203.0.113.9") {
		t.Errorf("the log says:\n%s", log.String())
	}
}

// A dial goes through eight sources at most, and through each of the family once.
func TestSourceTriesAreBounded(t *testing.T) {
	address := relayOn(t, "tcp4", "127.0.0.1:0")
	for _, tt := range []struct {
		networks []string
		bound    int
	}{
		{[]string{"203.0.113.0/24"}, 2 * sourceTries},
		{[]string{"203.0.113.1/32", "203.0.113.2/32"}, 2},
		{[]string{"203.0.113.1/32", "2001:db8::/120"}, 1},
	} {
		s, err := newSources(prefixes(tt.networks...))
		if err != nil {
			t.Fatal(err)
		}
		bound := 0
		for try := range 2 * sourceTries {
			_, err := s.dialFrom(t.Context(), sockopt.Options{}, "tcp", address, 1, try)
			wantError(t, err, syscall.EADDRNOTAVAIL)
			if bind, ok := errors.AsType[*os.SyscallError](err); ok && bind.Syscall == "bind" {
				bound++
			}
		}
		if bound != tt.bound {
			t.Errorf("%v: %d binds in %d tries, want %d", tt.networks, bound, 2*sourceTries, tt.bound)
		}
	}
	// The ports of the first eight are gone: the ninth is not asked.
	s, err := newSources(prefixes("203.0.113.0/29", "203.0.113.8/31", "127.0.0.9/32"))
	if err != nil {
		t.Fatal(err)
	}
	s.turn.Store(^uint64(0)) // the next turn is 0
	if conn, err := s.dial(t.Context(), sockopt.Options{}, "tcp", address); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("%v, %v; the ninth source was asked", conn, err)
	}
	s.turn.Store(0) // the next turn is 1, and so the last of its eight is the ninth
	conn, err := s.dial(t.Context(), sockopt.Options{}, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// wantError checks the kind of a dial's error.
func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}
