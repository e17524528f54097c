package proxy

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"relayedge/admission"
	"relayedge/internal/memconn"
)

// Beyond the descriptors a newcomer is refused at once, and costs its host
// nothing; a place is free when its holder has gone.
func TestRoom(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.limits.ConnectionRatePerIP, c.limits.ConnectionBurstPerIP = 1, 5 })
		e.server.room.most = 3
		var in, relays []*memconn.Conn
		for range 3 {
			client, relay := e.pair()
			in, relays = append(in, client), append(relays, relay)
		}
		for range 10 { // more than the burst
			over := e.dial(aliceAddr)
			wantEOF(t, over)
			over.Close()
		}
		if n := e.ended(Descriptors); n != 10 || e.ended(admission.ConnectionRate) != 0 || int(e.server.stats.rejected[Descriptors].Load()) != n {
			t.Errorf("%d were refused for descriptors, %d for the rate", n, e.ended(admission.ConnectionRate))
		}
		in[0].Close()
		relays[0].Close()
		synctest.Wait()
		again, relay := e.pair()
		again.Close()
		relay.Close()
		for i := range in {
			in[i].Close()
			relays[i].Close()
		}
		synctest.Wait()
		if n := e.server.room.taken.Load(); n != 0 {
			t.Errorf("%d places are held by nobody", n)
		}
	})
}

// Whoever else is refused gives the place back.
func TestRoomOfTheRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { c.limits.MaxConnectionsPerIP = 1 })
		e.server.room.most = 2
		first, relay := e.pair()
		for range 5 {
			over := e.dial(aliceAddr)
			wantEOF(t, over)
		}
		synctest.Wait()
		if n := e.server.room.taken.Load(); n != 1 || e.ended(admission.PerIPCap) != 5 {
			t.Errorf("%d places are held, %d were refused", n, e.ended(admission.PerIPCap))
		}
		first.Close()
		relay.Close()
	})
}

// The room shows beside the limits, where there is one.
func TestRoomIsALimit(t *testing.T) {
	for room, want := range map[int]float64{0: -1, 96: 96} {
		e, err := New(Config{Limits: testLimits(), Engine: "auto", Room: room})
		if err != nil {
			t.Fatal(err)
		}
		got := -1.0
		for _, f := range e.Families() {
			if f.Name == "limit" {
				f.Read(func(limit string, v float64) {
					if limit == "descriptors" {
						got = v
					}
				})
			}
		}
		if got != want {
			t.Errorf("room %d shows as %v, want %v", room, got, want)
		}
	}
}

// It is never exceeded, nor refused while there is a place.
func TestRoomUnderConcurrentUse(t *testing.T) {
	const most = 4
	r := room{most: most}
	var holding, refused atomic.Int64
	var tasks sync.WaitGroup
	for range most {
		tasks.Go(func() {
			for range 2000 {
				if !r.take() {
					refused.Add(1)
					continue
				}
				if holding.Add(1) > most {
					t.Error("more hold a place than there are")
				}
				holding.Add(-1)
				r.give()
			}
		})
	}
	tasks.Wait()
	if r.taken.Load() != 0 || refused.Load() != 0 {
		t.Errorf("%d held, %d refused of as many as there are places", r.taken.Load(), refused.Load())
	}
}

// silent is a connection that is only there to be refused.
type silent struct{ net.Conn }

func (silent) RemoteAddr() net.Addr {
	return silentAddr
}
func (silent) Close() error { return nil }

var silentAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:1"))

func TestRoomRefusesForNothing(t *testing.T) {
	e, err := New(Config{Limits: testLimits(), Engine: "auto", Room: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{server: e}
	l.terms.Store(new(terms))
	e.room.take()
	var conn net.Conn = silent{}
	if n := testing.AllocsPerRun(100, func() { l.admit(conn) }); n != 0 {
		t.Errorf("a refusal takes %v allocations", n)
	}
}
