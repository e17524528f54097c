package proxy

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/internal/logging"
)

// crowd is a server with the listeners' open connections, n of each address.
type crowd struct {
	*Server
	log bytes.Buffer
}

func newCrowd(addresses string) *crowd {
	c := new(crowd)
	c.Server = &Server{sessions: make(map[*session]struct{})}
	c.Server.log, _ = logging.New(logging.Config{Level: "info", Format: "text", ClientAddresses: addresses}, &c.log)
	return c
}

func (c *crowd) listener(name string, trust ...netip.Prefix) *listener {
	l := &listener{server: c.Server}
	l.terms.Store(&terms{config: ListenerConfig{Name: name}, trust: admission.NewNetworks(trust)})
	c.listeners = append(c.listeners, l)
	return l
}

func (c *crowd) come(l *listener, n int, from string) {
	var addr netip.Addr
	if from != "" {
		addr = netip.MustParseAddr(from)
	}
	for i := range n {
		c.remember(&session{server: c.Server, listener: l, client: netip.AddrPortFrom(addr, uint16(1000+i))})
	}
}

// watched runs the watch for a time and returns what it said.
func (c *crowd) watched(t *testing.T, d time.Duration) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.watchBalancers(ctx); close(done) }()
	time.Sleep(d)
	cancel()
	<-done
	said := strings.Split(strings.TrimSuffix(c.log.String(), "\n"), "\n")
	c.log.Reset()
	if said[0] == "" {
		return nil
	}
	return said
}

func TestBalancerIsNoticed(t *testing.T) {
	trusted := netip.MustParsePrefix("10.0.0.0/8")
	for _, row := range []struct {
		name  string
		come  func(c *crowd, l *listener)
		trust []netip.Prefix
		holds string // of the line; empty: none
	}{
		{"nobody", func(*crowd, *listener) {}, nil, ""},
		{"RFC 1918", func(c *crowd, l *listener) { c.come(l, 32, "10.1.2.3") }, nil, "holds=32 open=32"},
		{"too few", func(c *crowd, l *listener) { c.come(l, 31, "10.1.2.3") }, nil, ""},
		{"ULA", func(c *crowd, l *listener) { c.come(l, 32, "fd00::1") }, nil, "holds=32 open=32"},
		{"carrier", func(c *crowd, l *listener) { c.come(l, 32, "100.64.0.1") }, nil, "holds=32 open=32"},
		{"beside the carrier", func(c *crowd, l *listener) { c.come(l, 32, "100.128.0.1") }, nil, ""},
		{"loopback", func(c *crowd, l *listener) { c.come(l, 32, "::1") }, nil, "holds=32 open=32"},
		{"public", func(c *crowd, l *listener) { c.come(l, 500, "192.0.2.1") }, nil, ""},
		{"without address", func(c *crowd, l *listener) { c.come(l, 500, "") }, nil, ""},
		{"with trust_proxy_from", func(c *crowd, l *listener) { c.come(l, 500, "10.1.2.3") }, []netip.Prefix{trusted}, ""},
		{"half", func(c *crowd, l *listener) { c.come(l, 40, "10.1.2.3"); c.come(l, 40, "10.1.2.4") }, nil, ""},
		{"more than half", func(c *crowd, l *listener) {
			c.come(l, 41, "10.1.2.3")
			c.come(l, 20, "192.0.2.1")
			c.come(l, 20, "192.0.2.2")
		}, nil, "holds=41 open=81"},
		{"the most, but not most of them", func(c *crowd, l *listener) {
			c.come(l, 40, "10.1.2.3")
			for i := range 50 {
				c.come(l, 1, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String())
			}
		}, nil, ""},
		{"two listeners apart", func(c *crowd, l *listener) {
			c.come(l, 33, "10.1.2.3")
			c.come(c.listener("other"), 500, "192.0.2.1")
		}, nil, "holds=33 open=33"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd("none")
				row.come(c, c.listener("public", row.trust...))
				said := c.watched(t, balancerWatch+time.Second)
				if row.holds == "" {
					if len(said) != 0 {
						t.Errorf("it said %q", said)
					}
					return
				}
				if len(said) != 1 || !strings.Contains(said[0], "level=WARN") || !strings.Contains(said[0], "trust_proxy_from") || !strings.Contains(said[0], "listener=public "+row.holds) {
					t.Errorf("it said %q, want %s", said, row.holds)
				}
			})
		})
	}
}

// It is said after a minute, and then once an hour of a listener; the address
// only as far as log.client_addresses goes.
func TestBalancerIsToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd("full")
		c.come(c.listener("public"), 50, "10.1.2.3")
		if said := c.watched(t, balancerWatch-time.Nanosecond); len(said) != 0 {
			t.Errorf("before the first minute: %q", said)
		}
		if said := c.watched(t, balancerWatch+balancerQuiet-time.Nanosecond); len(said) != 1 || !strings.Contains(said[0], "client=10.1.2.3 ") {
			t.Errorf("within the hour: %q", said)
		}
		c.come(c.listener("other"), 50, "10.1.2.3")
		if said := c.watched(t, balancerWatch+2*balancerQuiet+time.Second); len(said) != 6 {
			t.Errorf("in two hours of two listeners: %d lines", len(said))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		for addresses, want := range map[string]string{"none": "", "prefix": "client=10.1.2.0/24 "} {
			c := newCrowd(addresses)
			c.come(c.listener("public"), 50, "10.1.2.3")
			if said := c.watched(t, balancerWatch+time.Second); len(said) != 1 || !strings.Contains(said[0], want) || strings.Contains(said[0], "10.1.2.3") {
				t.Errorf("%s: %q", addresses, said)
			}
		}
	})
}
