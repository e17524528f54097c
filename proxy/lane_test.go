package proxy

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/internal/memconn"
	"relayedge/proxy/certs"
)

var (
	neighbourAddr = netip.MustParseAddrPort("[2001:db8:1:1::1]:50000")
	validatorAddr = netip.MustParseAddrPort("[2001:db8:1:2::1]:50000") // of neighbourAddr's /48
	fromAlice     = "PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n"
	fromStranger  = "PROXY TCP4 203.0.113.9 198.51.100.5 51000 443\r\n"
)

// laneEdge is an edge of which a CA has been asked to validate relay.example.org
// while ordered says so.
type laneEdge struct {
	*testEdge
	ordered atomic.Bool
	dials   atomic.Int32 // of the relay
}

func newLaneEdge(t *testing.T, change func(*edgeConfig)) *laneEdge {
	t.Helper()
	store, err := certs.Open(certs.Config{SelfIssued: []string{"relay.example.org"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := new(laneEdge)
	l.ordered.Store(true)
	l.testEdge = newEdge(t, func(c *edgeConfig) {
		terminating(c)
		change(c)
		c.certs = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if certs.Validation(hello) && !l.ordered.Load() {
				return nil, certs.ErrUnknownName
			}
			return store.Certificate(&tls.ClientHelloInfo{ServerName: hello.ServerName, SupportedProtos: []string{"http/1.1"}})
		}
		c.order = l.ordered.Load
		dial := c.dial
		c.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			l.dials.Add(1)
			return dial(ctx, network, address)
		}
	})
	return l
}

// hold has a client in, through to the relay.
func (l *laneEdge) hold(from netip.AddrPort, header string) (release func()) {
	l.t.Helper()
	raw := l.send(from, header)
	l.handshake(raw, nil)
	relay, _, _ := l.accept()
	return func() {
		raw.Close()
		relay.Close()
	}
}

// send connects and sends a PROXY header, or none; the edge may have closed by then.
func (l *laneEdge) send(from netip.AddrPort, header string) *memconn.Conn {
	l.t.Helper()
	raw := l.dial(from)
	raw.Write([]byte(header))
	return raw
}

// validate tries to validate the name as a CA does, and reports whether it could.
func (l *laneEdge) validate(from netip.AddrPort, header string) error {
	l.t.Helper()
	raw := l.send(from, header)
	defer raw.Close()
	client := tls.Client(raw, &tls.Config{ServerName: "relay.example.org", InsecureSkipVerify: true, NextProtos: []string{certs.ValidationProtocol}})
	if err := client.Handshake(); err != nil {
		return err
	}
	wantEOF(l.t, client)
	return nil
}

func (l *laneEdge) rejections() (n uint64) {
	for _, c := range l.server.stats.rejected {
		n += c.Load()
	}
	return n
}

// laneRow is a cap that is full.
type laneRow struct {
	name   string
	reason Reason
	change func(*edgeConfig)
	// fill fills it, if a client of alice's does not.
	fill   func(l *laneEdge) (release func())
	from   netip.AddrPort // who is refused
	header string
}

func laneRows() []laneRow {
	behind := trusting("10.0.0.0/8")
	both := func(more func(*edgeConfig)) func(*edgeConfig) {
		return func(c *edgeConfig) {
			behind(c)
			c.listener.TLS = "terminate"
			more(c)
		}
	}
	one := func(c *edgeConfig) {
		c.limits.MaxConnections, c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = 1, 0, 0
	}
	perHost := func(c *edgeConfig) { c.limits.MaxConnectionsPerIP = 1 }
	balanced := func(l *laneEdge) func() { return l.hold(balancerAddr, fromAlice) }
	return []laneRow{
		{"max_connections", admission.MaxConnections, one, nil, strangerAddr, ""},
		{"per_ip_cap", admission.PerIPCap, perHost, nil, aliceAddr, ""},
		{"per_prefix_cap", admission.PerPrefixCap, func(c *edgeConfig) { c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = 1, 1 },
			func(l *laneEdge) func() { return l.hold(neighbourAddr, "") }, validatorAddr, ""},
		{"connection_rate", admission.ConnectionRate, func(c *edgeConfig) { c.limits.ConnectionRatePerIP, c.limits.ConnectionBurstPerIP = 1, 1 }, nil, aliceAddr, ""},
		{"descriptors", Descriptors, func(*edgeConfig) {}, func(l *laneEdge) func() {
			l.server.room.most = 1
			return l.hold(aliceAddr, "")
		}, strangerAddr, ""},
		{"handshake_cap", HandshakeCap, func(c *edgeConfig) { c.limits.MaxHandshakes = 1 }, func(l *laneEdge) func() {
			silent := l.dial(aliceAddr)
			synctest.Wait()
			return func() { silent.Close() }
		}, strangerAddr, ""},
		{"max_connections behind a load balancer", admission.MaxConnections, both(one), balanced, balancerAddr, fromStranger},
		{"max_connections behind a load balancer that names nobody", admission.MaxConnections, both(one), balanced, balancerAddr, "PROXY UNKNOWN\r\n"},
		{"descriptors behind a load balancer", Descriptors, both(func(*edgeConfig) {}), func(l *laneEdge) func() {
			l.server.room.most = 1
			return l.hold(balancerAddr, fromAlice)
		}, balancerAddr, fromStranger},
		{"per_ip_cap behind a load balancer", admission.PerIPCap, both(perHost), balanced, balancerAddr, fromAlice},
		{"connection_rate behind a load balancer", admission.ConnectionRate, both(func(c *edgeConfig) { c.limits.ConnectionRatePerIP, c.limits.ConnectionBurstPerIP = 1, 1 }), balanced, balancerAddr, fromAlice},
	}
}

// inLane runs f for each cap, while that is full.
func inLane(t *testing.T, change func(*edgeConfig), f func(t *testing.T, l *laneEdge, row laneRow)) {
	for _, row := range laneRows() {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				l := newLaneEdge(t, func(c *edgeConfig) {
					row.change(c)
					change(c)
				})
				fill := row.fill
				if fill == nil {
					fill = func(l *laneEdge) func() { return l.hold(aliceAddr, "") }
				}
				release := fill(l)
				defer release()
				dials, open, charged := l.dials.Load(), l.server.listeners[0].open.Load(), l.server.gate.Stats(time.Now()).Connections
				f(t, l, row)
				synctest.Wait()
				if n := l.dials.Load(); n != dials {
					t.Errorf("the relay was dialled %d times more", n-dials)
				}
				if n := l.server.listeners[0].open.Load(); n != open {
					t.Errorf("%d connections are open, want %d", n, open)
				}
				if n := l.server.gate.Stats(time.Now()).Connections; n != charged {
					t.Errorf("the gate holds %d connections, want %d", n, charged)
				}
			})
		})
	}
}

func unchanged(*edgeConfig) {}

func TestValidationGetsInWhileTheCapIsFull(t *testing.T) {
	inLane(t, unchanged, func(t *testing.T, l *laneEdge, row laneRow) {
		if err := l.validate(row.from, row.header); err != nil {
			t.Fatal(err)
		}
		l.wantEnd(ClientClosed)
		if n := l.rejections(); n != 0 {
			t.Errorf("%d rejections are counted", n)
		}
	})
}

// Without an order nobody gets into the lane, however much it looks like a validation.
func TestNoLaneWithoutAnOrder(t *testing.T) {
	inLane(t, unchanged, func(t *testing.T, l *laneEdge, row laneRow) {
		l.ordered.Store(false)
		began := time.Now()
		if err := l.validate(row.from, row.header); err == nil {
			t.Error("a validation that nobody asked for got in")
		}
		l.wantEnd(row.reason)
		if took := time.Since(began); took != 0 {
			t.Errorf("the refusal took %v", took)
		}
	})
}

// Who is no validation is refused as by the cap: by its reason, once, and in the
// manner of refuse_with, without a byte of TLS before.
func TestTheLaneRefusesAsTheCap(t *testing.T) {
	junk := make([]byte, laneHelloBytes)
	copy(junk, []byte{22, 3, 1, 0x40, 0, 1, 0, 0x60, 0}) // a hello of 24 KiB begins
	binary.BigEndian.PutUint16(junk[3:], 16384)
	for _, tt := range []struct {
		name  string
		first []byte
		ends  bool // the client ends its stream
		after time.Duration
	}{
		{name: "another protocol", first: hello(t, "relay.example.org")},
		{name: "plain HTTP", first: []byte("GET / HTTP/1.1\r\n\r\n")},
		{name: "no TLS", first: []byte("NICK alice\r\n")},
		{name: "no ClientHello", first: []byte{22, 3, 1, 0, 4, 2, 0, 0, 0}},
		{name: "a hello too long for a validation", first: append(junk, 0)},
		{name: "nothing", after: laneTime},
		{name: "half a hello", first: hello(t, "relay.example.org")[:100], after: laneTime},
		{name: "an end at once", ends: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			alert := func(c *edgeConfig) { c.listener.RefuseWith = "tls_alert" }
			inLane(t, alert, func(t *testing.T, l *laneEdge, row laneRow) {
				began := time.Now()
				raw := l.send(row.from, row.header)
				defer raw.Close()
				mustWrite(t, raw, tt.first)
				if tt.ends {
					raw.CloseWrite()
				}
				got, err := io.ReadAll(raw)
				if string(got) != string(alertAccessDenied) || err != nil && streamEnd(err) == "" {
					t.Errorf("it got %x, %v; want the alert alone", got, err)
				}
				l.wantEnd(row.reason)
				if n := l.rejections(); n != 1 {
					t.Errorf("%d rejections are counted", n)
				}
				if took := time.Since(began); took != tt.after {
					t.Errorf("the refusal took %v, want %v", took, tt.after)
				}
			})
		})
	}
}

// A validation of a name that is not asked for is told so, as everywhere.
func TestTheLaneDoesNotAnswerForOtherNames(t *testing.T) {
	inLane(t, unchanged, func(t *testing.T, l *laneEdge, row laneRow) {
		raw := l.send(row.from, row.header)
		defer raw.Close()
		client := tls.Client(raw, &tls.Config{ServerName: "other.example.org", InsecureSkipVerify: true, NextProtos: []string{certs.ValidationProtocol}})
		if err := client.Handshake(); err == nil {
			t.Error("it is validated")
		}
		l.wantEnd(UnknownServerName)
	})
}

// A validation that stalls has five seconds in all.
func TestTheLaneTakesFiveSeconds(t *testing.T) {
	inLane(t, unchanged, func(t *testing.T, l *laneEdge, row laneRow) {
		began := time.Now()
		raw := l.send(row.from, row.header)
		defer raw.Close()
		over := make(chan struct{})
		defer close(over)
		stalled := tls.Client(stalling{raw, over}, &tls.Config{ServerName: "relay.example.org", InsecureSkipVerify: true, NextProtos: []string{certs.ValidationProtocol}})
		go stalled.Handshake()
		time.Sleep(laneTime - time.Nanosecond)
		l.wantOpen()
		time.Sleep(time.Nanosecond)
		l.wantEnd(TLSHandshakeTimeout)
		if took := time.Since(began); took != laneTime {
			t.Errorf("it took %v", took)
		}
	})
}

// stalling never sees what the edge answers.
type stalling struct {
	*memconn.Conn
	over <-chan struct{}
}

func (s stalling) Read([]byte) (int, error) {
	<-s.over
	return 0, io.EOF
}

// A deny list is no cap, nor is the trust in a load balancer.
func TestNoLaneForTheDenied(t *testing.T) {
	deny := func(c *edgeConfig) {
		c.limits.Deny = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	}
	behind := func(c *edgeConfig) {
		trusting("10.0.0.0/8")(c)
		terminating(c)
		deny(c)
	}
	for _, tt := range []struct {
		name   string
		change func(*edgeConfig)
		full   bool
		from   netip.AddrPort
		header string
		want   Reason
	}{
		{"denied", deny, false, strangerAddr, "", admission.Denied},
		{"denied by its header", behind, false, balancerAddr, fromStranger, admission.Denied},
		{"denied by its header while the cap is full", behind, true, balancerAddr, fromStranger, admission.Denied},
		{"untrusted", behind, false, aliceAddr, fromAlice, ProxyUntrusted},
		{"no header while the cap is full", behind, true, balancerAddr, "", admission.MaxConnections},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				l := newLaneEdge(t, func(c *edgeConfig) {
					tt.change(c)
					if tt.full {
						c.limits.MaxConnections, c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = 1, 0, 0
					}
				})
				if tt.full {
					defer l.hold(balancerAddr, fromAlice)()
				}
				if err := l.validate(tt.from, tt.header); err == nil {
					t.Error("it got in")
				}
				l.wantEnd(tt.want)
			})
		})
	}
}

// Whatever floods the lane, it holds 16 connections, admits none of them, and a
// validation gets in: at once beside one source, within a second of the flood's
// last new address beside many.
func TestFloodOfTheLane(t *testing.T) {
	for _, tt := range []struct {
		name    string
		source  func(i int) (netip.AddrPort, string)
		balance bool
		wait    time.Duration
	}{
		{"one source", func(int) (netip.AddrPort, string) { return strangerAddr, "" }, false, 0},
		{"many sources", func(i int) (netip.AddrPort, string) { return source(i), "" }, false, time.Second + time.Nanosecond},
		{"one client of a load balancer", func(int) (netip.AddrPort, string) { return balancerAddr, fromStranger }, true, 0},
		{"a load balancer that is silent", func(int) (netip.AddrPort, string) { return balancerAddr, "" }, true, time.Second + time.Nanosecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				const full, flood = 4, 300
				l := newLaneEdge(t, func(c *edgeConfig) {
					c.limits.MaxConnections, c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = full, 0, 0
					if tt.balance {
						trusting("10.0.0.0/8")(c)
						terminating(c)
					}
				})
				from, header := aliceAddr, ""
				if tt.balance {
					from, header = balancerAddr, fromAlice
				}
				for range full {
					defer l.hold(from, header)()
				}
				for i := range flood {
					addr, header := tt.source(i)
					c := l.send(addr, header)
					defer c.Close()
					synctest.Wait()
					if n := l.server.listeners[0].open.Load(); n > full+lanePlaces {
						t.Fatalf("%d connections are open beyond the cap", n-full)
					}
				}
				if n := l.ended(admission.MaxConnections); n != flood-lanePlaces {
					t.Errorf("%d are refused, want all but %d", n, lanePlaces)
				}
				time.Sleep(tt.wait)
				began := time.Now()
				ca, caHeader := netip.MustParseAddrPort("198.51.100.77:50000"), ""
				if tt.balance {
					ca, caHeader = balancerAddr, "PROXY TCP4 198.51.100.77 198.51.100.5 51000 443\r\n"
				}
				if err := l.validate(ca, caHeader); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("the validation took %v", took)
				}
				time.Sleep(laneTime)
				synctest.Wait()
				if n := l.ended(admission.MaxConnections); n != flood {
					t.Errorf("%d of %d are refused", n, flood)
				}
				if n := int(l.dials.Load()); n != full {
					t.Errorf("the relay was dialled %d times by %d clients", n, full)
				}
				if n := l.ended(ClientClosed); n != 1 {
					t.Errorf("%d ended as validations", n)
				}
			})
		})
	}
}

// A client that is refused for its handshake does not push others out of their places.
func TestTheLaneEvictsNoHandshake(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLaneEdge(t, func(c *edgeConfig) {
			c.limits.MaxHandshakes, c.limits.MaxConnections, c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = 2, 2, 0, 0
		})
		for range 2 {
			defer l.dial(aliceAddr).Close() // waits in its handshake
		}
		time.Sleep(2 * time.Second) // anyone lighter would take a place
		if err := l.validate(strangerAddr, ""); err != nil {
			t.Fatal(err)
		}
		l.wantEnd(ClientClosed)
		if n := l.server.places.InFlight(); n != 2 {
			t.Errorf("%d handshakes are in flight", n)
		}
	})
}

// A drain ends what is in the lane like everything else.
func TestDrainOfTheLane(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLaneEdge(t, func(c *edgeConfig) {
			c.limits.MaxConnections, c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648, c.limits.DrainSecs = 1, 0, 0, 1
		})
		defer l.hold(aliceAddr, "")()
		silent := l.dial(strangerAddr)
		defer silent.Close()
		synctest.Wait()
		began := time.Now()
		l.stop()
		wantEOF(t, silent)
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		synctest.Wait()
		if n := l.ended(Drain); n != 1 {
			t.Errorf("%d ended by the drain", n)
		}
	})
}

// Of a small room the lane takes an eighth.
func TestPlacesOfTheLane(t *testing.T) {
	for room, want := range map[int]int{0: 16, 1: 1, 7: 1, 16: 2, 100: 12, 128: 16, 100000: 16} {
		places := newLane(nil, room).places
		n := 0
		for {
			if _, ok := places.Enter(netip.Prefix{}, time.Now(), func() {}); !ok {
				break
			}
			n++
		}
		if n != want {
			t.Errorf("room %d: %d places, want %d", room, n, want)
		}
	}
}

// Where TLS does not end here no validation can be answered.
func TestNoLaneWithoutTLS(t *testing.T) {
	for _, mode := range []string{"none", "passthrough"} {
		inBubble(t, func(t *testing.T) {
			l := newLaneEdge(t, func(c *edgeConfig) {
				c.listener.TLS, c.limits.MaxConnections, c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = mode, 1, 0, 0
			})
			first := l.dial(aliceAddr)
			defer first.Close()
			synctest.Wait()
			over := l.dial(strangerAddr)
			defer over.Close()
			wantEOF(t, over)
			if n := l.ended(admission.MaxConnections); n != 1 {
				t.Errorf("%s: %d refused", mode, n)
			}
		})
	}
}
