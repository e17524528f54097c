package proxy

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"

	"relayedge/admission"
)

// What hosts and sites hold is what the gate charges them, from the moment at which
// it knows the client to the end.
func TestHolders(t *testing.T) {
	for _, behind := range []bool{false, true} {
		t.Run(fmt.Sprintf("behind a balancer %v", behind), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = 2, 3
					c.limits.Classes = []admission.Class{{Name: "carrier", Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, MaxConnectionsPerIP: new(4)}}
					if behind {
						c.listener.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
					}
				})
				if behind {
					silent := e.dial(netip.MustParseAddrPort("198.51.100.9:1"))
					defer silent.Close()
					synctest.Wait()
					if got := e.server.Holders(); !reflect.DeepEqual(got, Holders{}) {
						t.Errorf("before its header: %+v", got)
					}
				}
				var open []held
				come := func(addr string, n int) {
					for i := range n {
						from := netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(1000+i))
						var h held
						if behind {
							h.client = e.dial(netip.MustParseAddrPort("198.51.100.9:1"))
							family := map[bool]string{true: "TCP4", false: "TCP6"}[from.Addr().Is4()]
							target := map[bool]string{true: "198.51.100.5", false: "2001:db8::5"}[from.Addr().Is4()]
							mustWrite(t, h.client, fmt.Appendf(nil, "PROXY %s %s %s %d 443\r\n", family, from.Addr(), target, from.Port()))
						} else {
							h.client = e.dial(from)
						}
						h.relay, _, _ = e.accept()
						open = append(open, h)
					}
				}
				come("192.0.2.10", 1)
				come("203.0.113.9", 3) // more than others may have, and less than its class
				come("2001:db8:1:1::1", 2)
				synctest.Wait()
				want := Holders{MostOfHost: 2, MostOfSite: 2, AtCap: []Holder{{netip.MustParsePrefix("2001:db8:1:1::/64"), false, 2, 2}}}
				if got := e.server.Holders(); !reflect.DeepEqual(got, want) {
					t.Errorf("%+v, want %+v", got, want)
				}
				come("2001:db8:1:2::1", 1)
				come("203.0.113.9", 1)
				synctest.Wait()
				want = Holders{MostOfHost: 2, MostOfSite: 3, AtCap: []Holder{
					{netip.MustParsePrefix("203.0.113.9/32"), false, 4, 4},
					{netip.MustParsePrefix("2001:db8:1::/48"), true, 3, 3},
					{netip.MustParsePrefix("2001:db8:1:1::/64"), false, 2, 2},
				}}
				if got := e.server.Holders(); !reflect.DeepEqual(got, want) {
					t.Errorf("%+v, want %+v", got, want)
				}
				for _, h := range open {
					h.close()
				}
				synctest.Wait()
				if got := e.server.Holders(); !reflect.DeepEqual(got, Holders{}) {
					t.Errorf("once all have gone: %+v", got)
				}
			})
		})
	}
}

// Whoever is in the lane is counted by no cap.
func TestHoldersWithoutTheLane(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLaneEdge(t, func(c *edgeConfig) {
			c.limits.MaxConnections, c.limits.MaxConnectionsPerIP, c.limits.MaxConnectionsPerIPv648 = 1, 1, 1
		})
		release := l.hold(aliceAddr, "")
		defer release()
		late := l.dial(neighbourAddr)
		defer late.Close()
		synctest.Wait()
		if n := l.server.lane.places.InFlight(); n != 1 {
			t.Fatalf("%d are in the lane", n)
		}
		if got := l.server.Holders(); got.MostOfHost != 1 || got.MostOfSite != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// A handshake that goes on in the lane has given its lease back.
func TestHoldersWithoutWhoWentToTheLane(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLaneEdge(t, func(c *edgeConfig) { c.limits.MaxHandshakes = 1 })
		first := l.dial(neighbourAddr)
		defer first.Close()
		synctest.Wait()
		second := l.dial(validatorAddr) // no lighter source, so it gets no place
		defer second.Close()
		synctest.Wait()
		if n := l.server.lane.places.InFlight(); n != 1 {
			t.Fatalf("%d are in the lane", n)
		}
		if got := l.server.Holders(); got.MostOfSite != 1 {
			t.Errorf("%+v", got)
		}
	})
}

func TestStatusOfListenersAndUpstreams(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		client, relay := e.pair()
		defer client.Close()
		defer relay.Close()
		synctest.Wait()
		if got, want := e.server.Listeners(), []ListenerStatus{{"public", edgeAddr.String(), "", "none", 1, false}}; !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		got := e.server.Upstreams()
		if len(got) != 1 || got[0].Name != "relay" || !got[0].Up || len(got[0].Addresses) != 1 || got[0].Addresses[0].Connections != 1 {
			t.Errorf("%+v", got)
		}
		e.relay.Close()
		lost := e.dial(aliceAddr)
		defer lost.Close()
		synctest.Wait()
		if got := e.server.Upstreams(); got[0].Up || got[0].Addresses[0].Up {
			t.Errorf("without its relay: %+v", got)
		}
		e.reload(func(c *Config) { c.Listeners = nil })
		if got := e.server.Listeners(); len(got) != 1 || !got[0].Leaving || got[0].Open != 1 {
			t.Errorf("removed: %+v", got)
		}
	})
}
