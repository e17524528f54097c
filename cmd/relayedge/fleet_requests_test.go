package main_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/internal/testredis"
)

// requestFleet runs three edges that count requests together.
func requestFleet(t testing.TB, store *testredis.Server, limit int, window time.Duration) []*edge {
	t.Helper()
	return runFleet(t, 3, requestPolicy(t, redisSection(t, store), limit, window))
}

// requestPolicy is that of an edge before a service that takes every request. A
// decision that the store is too slow for is an answer of its own, so that a test sees it.
func requestPolicy(t testing.TB, section string, limit int, window time.Duration) string {
	t.Helper()
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(service.Close)
	return strings.Replace(section, "}", ", on_failure: {request_limits: refuse}}", 1) + fmt.Sprintf(`
listeners: [{name: public, bind: "127.0.0.1:0", protocol: http, tls: none}]
upstreams: {relay: {addresses: [%q], client_address: x-real-ip, health_check_secs: 0}}
limits: {max_connections_per_ip: 0, connection_rate_per_ip: 0, drain_secs: 0}
request_limits: {limit: %d, window_secs: %d}
`, service.Listener.Addr(), limit, int(window.Seconds()))
}

// tally counts answers by their status.
type tally struct{ ok, limited, unavailable atomic.Int64 }

func (a *tally) String() string {
	return fmt.Sprintf("%d let through, %d refused, %d unavailable", a.ok.Load(), a.limited.Load(), a.unavailable.Load())
}

// requester is a client that keeps a connection to one of the edges.
type requester struct {
	net.Conn
	lines *bufio.Reader
	text  string
}

func newRequester(ctx context.Context, from string, e *edge, credential string) (*requester, error) {
	conn, err := dial(ctx, from, e.listeners["public"], "")
	if err != nil {
		return nil, err
	}
	text := "GET / HTTP/1.1\r\nHost: localhost\r\n"
	if credential != "" {
		text += "Authorization: Bearer " + credential + "\r\n"
	}
	return &requester{conn, bufio.NewReader(conn), text + "\r\n"}, nil
}

// ask makes a request and counts its answer.
func (r *requester) ask(a *tally) error {
	if _, err := io.WriteString(r, r.text); err != nil {
		return err
	}
	response, err := http.ReadResponse(r.lines, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		a.ok.Add(1)
	case http.StatusTooManyRequests:
		a.limited.Add(1)
	case http.StatusServiceUnavailable:
		a.unavailable.Add(1)
	default:
		return fmt.Errorf("status %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// askAll has clients at these addresses, each with a connection to one of the edges,
// make so many requests each. All are connected at the same time, and a few requests
// are under way at once: what is measured is the counting, not how busy the machine is.
func askAll(t testing.TB, edges []*edge, from []string, requests, atOnce int, credential string) *tally {
	t.Helper()
	places := make(chan struct{}, atOnce)
	var a tally
	var work sync.WaitGroup
	for i, address := range from {
		places <- struct{}{}
		r, err := newRequester(t.Context(), address, edges[i%len(edges)], credential)
		<-places
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		work.Go(func() {
			for range requests {
				places <- struct{}{}
				err := r.ask(&a)
				<-places
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	return &a
}

// addresses returns n of this machine's, or one n times; each part has others.
func addresses(part, n, different int) (all []string) {
	for i := range n {
		i %= different
		all = append(all, fmt.Sprintf("127.%d.%d.%d", part, i/200, i%200+1))
	}
	return all
}

// windowKeys are the windows of requests that the store holds.
func windowKeys(store *testredis.Server) (keys []string) {
	return slices.DeleteFunc(store.Keys(), func(key string) bool { return !strings.HasPrefix(key, "relayedge:relayedge-requests:") })
}

// Three edges hold a window of 6000 requests to the very number, whether they come
// from one source or a credential's from a thousand, all of them at the same time.
func TestFleetHoldsOneRequestWindow(t *testing.T) {
	t.Parallel()
	const window = 10 * time.Minute
	limit := 6000
	if raceDetector {
		limit = 1500 // the clients and the service are this process, which is slow then
	}
	store := testredis.Start(t)
	edges := requestFleet(t, store, limit, window)
	for i, load := range []struct {
		name                         string
		clients, different, requests int
		credential                   bool
	}{
		{"one source", 24, 1, limit/24 + 25, false},
		{"a credential at a thousand sources", 1000, 1000, limit/1000 + 1, true},
	} {
		t.Run(load.name, func(t *testing.T) {
			sent := int64(load.clients * load.requests)
			// A decision that took longer than it may can stand charged all the same. Then
			// the sum says less, and another source has to say it all; on a machine that is
			// too slow for that each time, one that says nearly all has to do.
			least := int64(limit)
			for attempt := range 8 {
				credential := ""
				if load.credential {
					credential = rand.Text()
				}
				for _, key := range windowKeys(store) {
					store.Ask("DEL", key)
				}
				began := time.Now()
				a := askAll(t, edges, addresses(1+i+10*attempt, load.clients, load.different), load.requests, max(6>>attempt, len(edges)), credential)
				t.Logf("%v in %v", a, time.Since(began))
				ok, late := a.ok.Load(), a.unavailable.Load()
				if ok > int64(limit) || ok+late < int64(limit) || ok+late+a.limited.Load() != sent {
					t.Fatalf("%d requests: %v; the limit is %d", sent, a, limit)
				}
				if keys := windowKeys(store); len(keys) != 1 {
					t.Errorf("the store counts for %d keys, want 1", len(keys))
				}
				if least = min(least, late); least == 0 {
					return
				}
			}
			if least > int64(limit/100) {
				t.Errorf("the store was too slow each time: at best %d decisions came too late", least)
			}
		})
	}
}

// What a thousand sources asked for is forgotten within two windows, and when the
// edges have gone, nothing is left.
func TestRequestWindowsOfAFleetEnd(t *testing.T) {
	t.Parallel()
	const window = 5 * time.Second
	store := testredis.Start(t)
	edges := requestFleet(t, store, 2, window)
	a := askAll(t, edges, addresses(100, 1000, 1000), 3, 12, "")
	latest := time.Now()
	if a.ok.Load()+a.unavailable.Load() < 2000 {
		t.Errorf("%v, want 2 of each source let through at least", a)
	}
	if len(windowKeys(store)) == 0 {
		t.Error("the store counts for nobody")
	}
	// All by one command: they end meanwhile.
	const ends = "local all = {} for i, key in ipairs(redis.call('KEYS', ARGV[1])) do all[i] = redis.call('PTTL', key) end return all"
	for _, left := range store.Ask("EVAL", ends, "0", "relayedge:relayedge-requests:*").([]any) {
		if left := left.(int64); left == -1 || left > window.Milliseconds() {
			t.Fatalf("a window of %v ends in %d ms", window, left)
		}
	}
	if err := eventually(func() error {
		if keys := windowKeys(store); len(keys) > 0 {
			return fmt.Errorf("the store still counts for %d keys", len(keys))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if took := time.Since(latest); took > 2*window {
		t.Errorf("windows of %v ended in %v", window, took)
	}
	for _, e := range edges {
		e.terminate(t)
		if code, err := e.ended(); code != 0 || err != nil {
			t.Errorf("relayedge ends with %d, %v", code, err)
		}
	}
	forgets(t, store)
}

// The user that docs/fleet.md makes may do all that an edge does in the store, and
// cannot touch the keys of others.
func TestTheUserOfAFleet(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile("(?m)^ACL SETUSER relayedge on >PASSWORD .*$").FindString(string(page))
	store := testredis.Start(t)
	store.Ask(strings.Fields(rule)...)
	section := strings.Replace(redisSection(t, store), "redis://", "redis://relayedge:PASSWORD@", 1)
	e := runEdge(t, requestPolicy(t, section, 100, time.Minute))
	e.shows(t, "relayedge_fleet_edges 1", "relayedge_store_away 0")
	if err := eventually(func() error {
		a := askAll(t, []*edge{e}, addresses(101, 4, 4), 1, 1, "")
		if a.ok.Load() != 4 {
			return fmt.Errorf("%v", a)
		}
		if keys := store.Keys(); !slices.Contains(keys, "relayedge:{records}:tickets:secrets") {
			return fmt.Errorf("no tickets are stored, but %q", keys)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	for _, command := range [][]string{{"GET", "others"}, {"FLUSHALL"}, {"KEYS", "*"}, {"CONFIG", "GET", "*"}, {"SUBSCRIBE", "x"}} {
		if answer := store.Ask(append([]string{"ACL", "DRYRUN", "relayedge"}, command...)...); answer == "OK" {
			t.Errorf("%q is allowed", command)
		}
	}
}
