package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"relayedge/internal/memconn"
	"relayedge/internal/proxyheader"
	"relayedge/proxy/upstream"
)

var ircAddr = netip.MustParseAddrPort("127.0.0.1:6667")

// withRoutes adds the upstream irc, which irc.chat.example.org leads to, and
// returns its relay. The upstream's alpn is what it speaks.
func withRoutes(t *testing.T, kind string, speaks ...string) (change func(*edgeConfig), irc *memconn.Listener) {
	irc = memconn.Listen(ircAddr)
	t.Cleanup(func() { irc.Close() })
	return func(c *edgeConfig) {
		c.listener.TLS = kind
		c.listener.ALPN = []string{"h2", "http/1.1", "irc"}
		c.listener.ServerNames = map[string]string{"irc.chat.example.org": "irc", "*.chat.example.org": "relay"}
		cfg := c.upstream
		cfg.ALPN = speaks
		cfg.Addresses = []string{ircAddr.String()}
		c.upstreams = map[string]upstream.Config{"irc": cfg}
		c.dials = map[string]upstream.DialFunc{ircAddr.String(): func(ctx context.Context, _, _ string) (net.Conn, error) {
			return irc.Dial(ctx, netip.MustParseAddrPort("127.0.0.1:40001"))
		}}
	}, irc
}

func TestFindRoute(t *testing.T) {
	ups := map[string]*destination{}
	for _, name := range []string{"exact", "wild", "rest"} {
		ups[name] = &destination{Upstream: upstream.New(name, upstream.Config{}, nil, nil)}
	}
	names := map[string]string{"A.example.org": "exact", "*.example.org": "wild", "xn--bcher-kva.example": "exact"}
	for _, tt := range []struct{ name, want string }{
		{"a.example.org", "exact"}, {"A.EXAMPLE.ORG", "exact"}, {"a.example.org.", "exact"},
		{"b.example.org", "wild"}, {"B.example.org.", "wild"}, {"xn--bcher-kva.EXAMPLE", "exact"},
		{"example.org", "rest"}, {"b.a.example.org", "rest"}, {"a.example.com", "rest"}, {"", "rest"},
		{"192.0.2.1", "rest"}, {"[2001:db8::1]", "rest"}, {"a\x00.example.org", "rest"}, {".example.org", "rest"},
		{strings.Repeat("a", 64) + ".example.org", "rest"}, {strings.Repeat("a.", 2000), "rest"},
	} {
		for _, open := range []bool{true, false} {
			cfg := ListenerConfig{ServerNames: names}
			if open {
				cfg.Upstream = "rest"
			}
			routes, err := newRoutes(cfg, ups)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if r := routes.find(tt.name); r != nil {
				got = r.upstream.Name
			}
			want := tt.want
			if want == "rest" && !open {
				want = ""
			}
			if got != want {
				t.Errorf("%q leads to %q, want %q", tt.name, got, want)
			}
		}
	}
	if _, err := newRoutes(ListenerConfig{ServerNames: map[string]string{"a.example": "none"}}, ups); err == nil {
		t.Error("a route to nowhere is taken")
	}
}

// Connections go where their name leads, and are offered what is spoken there.
func TestRouteAndItsProtocols(t *testing.T) {
	for _, tt := range []struct {
		name     string
		offers   []string
		irc      bool
		protocol string // none: no_application_protocol
	}{
		{"irc.chat.example.org", []string{"http/1.1", "irc"}, true, "irc"},
		{"irc.chat.example.org", []string{"http/1.1", "h2"}, true, ""},
		{"IRC.chat.example.org", nil, true, "-"},
		{"other.chat.example.org", []string{"irc", "http/1.1"}, false, "http/1.1"},
		{"relay.example.org", []string{"irc"}, false, "irc"},
		{"relay.example.org", []string{"mqtt"}, false, ""},
	} {
		t.Run(tt.name+" "+strings.Join(tt.offers, ","), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				change, irc := withRoutes(t, "terminate", "irc", "mqtt")
				e := newEdge(t, change)
				raw := e.dial(aliceAddr)
				defer raw.Close()
				cfg := clientTLS(tt.name)
				cfg.NextProtos = tt.offers
				client := tls.Client(raw, cfg)
				err := client.Handshake()
				if tt.protocol == "" {
					if err == nil || !strings.Contains(err.Error(), "no application protocol") {
						t.Errorf("handshake: %v", err)
					}
					e.wantEnd(TLSHandshakeFailed)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := client.ConnectionState().NegotiatedProtocol; got != strings.Trim(tt.protocol, "-") {
					t.Errorf("protocol %q, want %q", got, tt.protocol)
				}
				from := e.relay
				if tt.irc {
					from = irc
				}
				relay, err := from.Accept()
				if err != nil {
					t.Fatal(err)
				}
				relay.Close()
			})
		})
	}
}

// With an empty upstream only listed names are served; others, and clients that
// name nobody, get unrecognized_name.
func TestOnlyListedNames(t *testing.T) {
	for _, kind := range []string{"terminate", "passthrough"} {
		for name, served := range map[string]bool{"irc.chat.example.org": true, "relay.example.org": false, "": false, "192.0.2.1": false} {
			t.Run(kind+" "+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					change, irc := withRoutes(t, kind)
					e := newEdge(t, func(c *edgeConfig) { change(c); c.listener.Upstream = "" })
					raw := e.dial(aliceAddr)
					mustWrite(t, raw, hello(t, name))
					if served {
						if kind == "passthrough" {
							relay, err := irc.Accept()
							if err != nil {
								t.Fatal(err)
							}
							relay.Close()
						}
						raw.Close()
						return
					}
					wantRead(t, raw, alertUnrecognizedName[:1])
					answer, _ := io.ReadAll(raw)
					if len(answer) != 6 || answer[5] != 112 {
						t.Errorf("answer % x, want the alert unrecognized_name", answer)
					}
					e.wantEnd(UnknownServerName)
					raw.Close()
				})
			})
		}
	}
}

// A session made under one name may be resumed under another of the same
// listener; it goes where the new name leads.
func TestResumptionGoesWhereTheNameLeads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		change, irc := withRoutes(t, "terminate", "irc")
		e := newEdge(t, change)
		cfg := clientTLS("relay.example.org")
		cfg.NextProtos = []string{"http/1.1", "irc"}
		cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)}
		client, raw, relay := e.tlsPair(cfg)
		mustWrite(t, relay, []byte("x"))
		wantRead(t, client, []byte("x"))
		raw.Close()
		relay.Close()

		cfg.ServerName = "irc.chat.example.org"
		raw = e.dial(aliceAddr)
		client = e.handshake(raw, cfg)
		other, err := irc.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if state := client.ConnectionState(); !state.DidResume || state.NegotiatedProtocol != "irc" {
			t.Errorf("resumed %v, protocol %q", state.DidResume, state.NegotiatedProtocol)
		}
		raw.Close()
		other.Close()
	})
}

func TestOffer(t *testing.T) {
	for _, tt := range []struct{ listener, upstream, want []string }{
		{[]string{"h2", "irc"}, nil, []string{"h2", "irc"}},
		{[]string{"h2", "http/1.1", "irc"}, []string{"irc", "h2"}, []string{"h2", "irc"}},
		{[]string{"h2"}, []string{"irc"}, nil},
	} {
		if got := offer(tt.listener, tt.upstream); !slices.Equal(got, tt.want) {
			t.Errorf("%q and %q: %q, want %q", tt.listener, tt.upstream, got, tt.want)
		}
	}
}

// A name that is routed and that no certificate covers is told at the start.
func TestUncoveredNamesAreTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			terminating(c)
			c.listener.ServerNames = map[string]string{"relay.example.org": "relay", "*.chat.example.org": "relay", "irc.example.net": "relay", "*.example.net": "relay"}
		})
		log := e.logged()
		for name, told := range map[string]bool{"irc.example.net": true, "*.example.net": true, "relay.example.org": false, "*.chat.example.org": false} {
			if strings.Contains(log, "server_name="+name) != told {
				t.Errorf("told of %s: %v\n%s", name, !told, log)
			}
		}
	})
}

// Three listeners in one process: each with its own kind, gauge and route.
func TestSeveralListeners(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		plain, through := memconn.Listen(netip.MustParseAddrPort("198.51.100.5:80")), memconn.Listen(netip.MustParseAddrPort("198.51.100.5:8443"))
		e := newEdge(t, func(c *edgeConfig) {
			terminating(c)
			c.more = []Listener{
				{ListenerConfig{Name: "plain", TLS: "none", Upstream: "relay"}, plain},
				{ListenerConfig{Name: "through", TLS: "passthrough", Upstream: "relay"}, through},
			}
		})
		_, raw, relay := e.tlsPair(nil)
		open := func(front *memconn.Listener, first []byte) (client net.Conn, relay *memconn.Conn, h proxyheader.Header) {
			client, err := front.Dial(t.Context(), aliceAddr)
			if err != nil {
				t.Fatal(err)
			}
			mustWrite(t, client, first)
			relay, h, rest := e.accept()
			wantRead(t, io.MultiReader(strings.NewReader(string(rest)), relay), first)
			return client, relay, h
		}
		plainClient, plainRelay, h := open(plain, []byte("NICK alice\r\n"))
		if h.Destination.Port() != 80 {
			t.Errorf("the header names %v", h.Destination)
		}
		throughClient, throughRelay, _ := open(through, hello(t, "irc.example.org"))
		got := map[string]float64{}
		for _, f := range e.server.Families() {
			if f.Name == "connections" {
				f.Read(func(label string, v float64) { got[label] = v })
			}
		}
		if want := map[string]float64{"public": 1, "plain": 1, "through": 1}; !maps.Equal(got, want) {
			t.Errorf("gauges %v, want %v", got, want)
		}
		for _, c := range []net.Conn{raw, relay, plainClient, plainRelay, throughClient, throughRelay} {
			c.Close()
		}
	})
}
