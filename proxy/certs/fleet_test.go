package certs

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"relayedge/internal/testca"
	"relayedge/internal/testredis"
)

// fleet are edges over one Redis, whose names one CA validates.
type fleet struct {
	*site
	redis *testredis.Server
	edges []*fleetEdge
}

// fleetEdge is one of them.
type fleetEdge struct {
	store   *Store
	j       journal
	stop    context.CancelFunc
	running sync.WaitGroup
}

// newFleet has the CA, the Redis and the sockets where the CA validates.
func newFleet(t *testing.T, o testca.Options, challenge string, domains ...string) *fleet {
	t.Helper()
	redis := testredis.Start(t)
	f := &fleet{site: newSite(t, o, domains...), redis: redis}
	f.cfg.Storage, f.cfg.Challenges = storageRedis, []string{challenge}
	return f
}

// used has the storage be one that has been used: the first order of a new one waits.
func (f *fleet) used() {
	f.Helper()
	try(f.T, openRecords(f.T, f.redis, ourSecret).Put(f.Context(), "orders/used", nil, time.Hour))
}

// add starts another edge.
func (f *fleet) add() *fleetEdge {
	f.Helper()
	e := new(fleetEdge)
	store, err := OpenShared(Config{ACME: f.cfg}, openRecords(f.T, f.redis, ourSecret), e.j.logger())
	try(f.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	e.store, e.stop = store, cancel
	e.running.Go(func() { store.Watch(ctx) })
	f.Cleanup(e.end)
	f.edges = append(f.edges, e)
	return e
}

func (e *fleetEdge) end() {
	e.stop()
	e.running.Wait()
}

// answer has the sockets answered by the edge that choose names at each connection.
func (f *fleet) answer(choose func() *Store) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	validation := &tls.Config{NextProtos: []string{ValidationProtocol}, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return choose().Certificate(hello)
	}}
	running.Go(func() {
		accept(ctx, f.tls, func(conn net.Conn) {
			tls.Server(conn, validation).HandshakeContext(ctx)
			conn.Close()
		})
	})
	// Of several servers on one socket, whoever is free would answer.
	running.Go(func() {
		accept(ctx, f.http, func(conn net.Conn) {
			one := &single{conn: conn, done: make(chan struct{})}
			choose().ServeHTTP01(ctx, one)
		})
	})
	f.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// single is a listener of one connection, which ends when that does.
type single struct {
	conn net.Conn
	once sync.Once
	done chan struct{}
}

type singleConn struct {
	net.Conn
	of *single
}

func (c singleConn) Close() error {
	defer c.of.Close()
	return c.Conn.Close()
}

func (l *single) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return singleConn{conn, l}, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *single) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *single) Addr() net.Addr { return &net.TCPAddr{} }

// orders reports whether an edge has an order open itself.
func (e *fleetEdge) orders() bool {
	c := e.store.challenges
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.certs)+len(c.tokens) > 0
}

// has reports whether an edge serves a certificate for a name.
func (e *fleetEdge) has(name string) bool {
	_, err := e.store.Certificate(helloFor(0x0304, name, 0x0403))
	return err == nil
}

func (e *fleetEdge) leaf(name string) string {
	cert, err := e.store.Certificate(helloFor(0x0304, name, 0x0403))
	if err != nil {
		return err.Error()
	}
	return serialOf(cert.Leaf)
}

// Three edges that start at once on a new Redis place one order for a name, whose
// validations are answered by the edges that did not order; each serves the
// certificate, and nobody who reads the Redis finds a key.
func TestThreeEdgesPlaceOneOrder(t *testing.T) {
	for _, challenge := range []string{challengeALPN, challengeHTTP} {
		t.Run(challenge, func(t *testing.T) {
			t.Parallel()
			names := []string{"a.example.org", "b.example.org", "c.example.org"}
			f := newFleet(t, testca.Options{}, challenge, names...)
			for range 3 {
				f.add()
			}
			three := slices.Clone(f.edges)
			var mu sync.Mutex
			answered, alone := 0, 0
			f.answer(func() *Store {
				mu.Lock()
				defer mu.Unlock()
				answered++
				for _, e := range three {
					if !e.orders() {
						if challenge == challengeALPN && !e.store.OrderOpen() {
							t.Error("the lane of an edge that does not order is shut")
						}
						return e.store
					}
				}
				alone++ // each of the three orders one of the names
				return three[answered%3].store
			})
			for _, e := range f.edges {
				f.until("three certificates at each edge", func() bool {
					return !slices.ContainsFunc(names, func(name string) bool { return !e.has(name) })
				})
			}
			if n := f.ca.Orders(); n != 3 {
				t.Errorf("%d orders for three names", n)
			}
			for _, name := range names {
				if a, b, c := f.edges[0].leaf(name), f.edges[1].leaf(name), f.edges[2].leaf(name); a != b || b != c {
					t.Errorf("%s: the edges serve %s, %s, %s", name, a, b, c)
				}
			}
			t.Logf("%d validations, %d of them while every edge ordered", answered, alone)
			for _, key := range f.redis.Keys() {
				if left := f.redis.Ask("PTTL", key).(int64); left == -1 {
					t.Errorf("%s has no end", key)
				}
				if f.redis.Ask("TYPE", key) != "string" {
					continue
				}
				text, there := f.redis.Ask("GET", key).(string)
				if !there {
					continue // a lock that was given back
				}
				for _, clear := range []string{"-----BEGIN", "PRIVATE", "CERTIFICATE", "ops@example.org", "\"status\""} {
					if strings.Contains(text, clear) {
						t.Errorf("%s holds %q in clear", key, clear)
					}
				}
			}
			f.until("the challenges are gone", func() bool {
				return !slices.ContainsFunc(f.redis.Keys(), func(key string) bool { return strings.Contains(key, challengeFolder) })
			})
			f.until("no lane is open", func() bool {
				return !slices.ContainsFunc(f.edges, func(e *fleetEdge) bool { return e.store.OrderOpen() })
			})
			// The account that three registered at once is one.
			f.cfg.Domains = []string{"d.example.org"}
			late := f.add()
			f.until("a certificate by the account that is stored", func() bool { return late.has("d.example.org") })
		})
	}
}

// One edge orders, and another one alone answers the CA.
func TestAnotherEdgeAnswers(t *testing.T) {
	for _, challenge := range []string{challengeALPN, challengeHTTP} {
		t.Run(challenge, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, testca.Options{}, challenge, "a.example.org")
			f.used()
			f.cfg.Domains = []string{"z.example.org"} // the other one orders nothing that is asked for here
			other := f.add()
			other.store.acme.Load().firstAt = time.Now().Add(time.Hour)
			f.cfg.Domains = []string{"a.example.org"}
			f.answer(func() *Store { return other.store })
			orders := f.add()
			f.until("a certificate", func() bool { return orders.has("a.example.org") })
			if n := f.ca.Orders(); n != 1 {
				t.Errorf("%d orders", n)
			}
			if other.orders() {
				t.Error("the other one has ordered")
			}
		})
	}
}

// A renewed certificate reaches the other edges, and is ordered once each time.
func TestRenewalInAFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testca.Options{Validity: time.Minute}, challengeALPN, "a.example.org")
	f.used()
	for range 3 {
		f.add()
	}
	f.answer(func() *Store { return f.edges[0].store })
	var first []string
	for _, e := range f.edges {
		f.until("a certificate at each edge", func() bool { return e.has("a.example.org") })
		first = append(first, e.leaf("a.example.org"))
	}
	for i, e := range f.edges {
		f.until("another certificate at each edge", func() bool { return e.leaf("a.example.org") != first[i] })
	}
	renewed := 0.0
	for _, e := range f.edges {
		f.store = e.store
		renewed += f.metric("acme_orders_total", "renewed") + f.metric("acme_orders_total", "obtained")
	}
	if n := f.ca.Orders(); float64(n) < renewed || float64(n) > renewed+1 { // one may be under way
		t.Errorf("%d orders for %v certificates", n, renewed)
	}
}

// What one edge has been refused, the others know.
func TestPausesAreShared(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testca.Options{}, challengeALPN, "a.example.org")
	f.used()
	f.tls.Close() // nobody answers
	for range 3 {
		f.add()
	}
	f.until("a failed order", func() bool { return f.ca.Orders() > 0 })
	f.until("each edge knows of it", func() bool {
		return !slices.ContainsFunc(f.edges, func(e *fleetEdge) bool {
			d := e.store.domains()[0]
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.record.Failures == 0
		})
	})
	if n := f.ca.Orders(); n != 1 {
		t.Errorf("%d orders for one name that fails", n)
	}
}
