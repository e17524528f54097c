package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fullUpgrades has the load of the upgrades be that of a busy edge for ten minutes.
const fullUpgrades = "RELAYEDGE_UPGRADES_FULL"

// load is what passes an edge while others take over from it.
type load struct {
	upgrades   int
	websockets int           // idle ones
	every      time.Duration // from one connection to the next
	apart      int           // connections between two upgrades, at least
}

func upgradeLoad() load {
	if os.Getenv(fullUpgrades) == "" {
		return load{upgrades: 4, websockets: 60, every: 20 * time.Millisecond, apart: 40}
	}
	// 200 connections a second, an upgrade every 30 seconds.
	return load{upgrades: 20, websockets: 1000, every: 5 * time.Millisecond, apart: 6000}
}

// Under steady load with idle WebSockets no upgrade refuses, resets or loses a
// connection, and a cap holds exactly across each.
func TestUpgradesUnderLoad(t *testing.T) {
	l := upgradeLoad()
	plain, err := serve("127.0.0.1:0", echo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plain.close)
	hub, err := serve("127.0.0.1:0", upgradeAndEcho)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hub.close)
	s := runSucceeded(t, fmt.Sprintf(`
listeners:
  - {name: public, bind: "127.0.0.1:0", tls: terminate, upstream: relay}
  - {name: plain, bind: "127.0.0.1:0", tls: none, upstream: relay}
  - {name: web, bind: "127.0.0.1:0", protocol: http, tls: terminate, upstream: hub}
certificates: {self_issued: [localhost]}
upstreams:
  relay: {addresses: [%q], client_address: none}
  hub: {addresses: [%q], client_address: none}
limits: {max_connections: 8000, max_connections_per_ip: 8, connection_rate_per_ip: 0, tls_handshake_timeout_secs: 120, drain_secs: 3600, connection_timeout_secs: 3600}
`, plain.Addr(), hub.Addr()))

	websockets := make([]net.Conn, l.websockets)
	for i := range websockets {
		websockets[i] = s.websocket(address(10, i/4))
	}
	// One host stands at its cap all the time.
	var capped []net.Conn
	for range 8 {
		capped = append(capped, s.enters("127.9.9.9", "plain", ""))
	}

	var passed, failed atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	places := make(chan struct{}, 200) // a slow machine is not to be buried
	clients.Go(func() {
		tick := time.NewTicker(l.every)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			places <- struct{}{}
			clients.Go(func() {
				defer func() { <-places }()
				if err := s.visit(i); err != nil {
					failed.Add(1)
					t.Errorf("connection %d: %v", i, err)
					return
				}
				passed.Add(1)
			})
		}
	})
	var gaps []time.Duration
	for range l.upgrades {
		from := passed.Load()
		if err := eventuallyWithin(10*patience, func() error {
			if n := passed.Load() - from; n < int64(l.apart) && failed.Load() == 0 {
				return fmt.Errorf("only %d connections have passed", n)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if failed.Load() > 0 {
			t.Fatal("connections have failed")
		}
		if err := eventually(func() error {
			done, err := s.tryUpgrade() // too many older processes, until those have ended that serve the newcomers of a moment ago
			gaps = append(gaps, done.Gap)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		s.refused("127.9.9.9", "plain", "")
		// It is of the process before, which may end with it.
		capped[0].Close()
		capped[0] = s.soonEnters("127.9.9.9", "plain")
		s.refused("127.9.9.9", "plain", "")
	}
	stop()
	clients.Wait()
	for i, conn := range append(websockets, capped...) {
		if err := carries(conn); err != nil {
			t.Errorf("open connection %d: %v", i, err)
		}
	}
	slices.Sort(gaps)
	t.Logf("%d upgrades, %d connections passed, %d failed; nobody accepted for %v in the middle, %v at most", l.upgrades, passed.Load(), failed.Load(), gaps[len(gaps)/2], gaps[len(gaps)-1])
}

// address is one of many on this machine.
func address(net, i int) string { return fmt.Sprintf("127.%d.%d.%d", net, i/250, 1+i%250) }

// visit connects, says something, hears it and leaves. Every tenth does it by TLS.
func (s *succeeded) visit(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if i%10 != 0 {
		conn, err := enter(ctx, address(20, i%2000), s.listeners["plain"], "")
		if err == nil {
			conn.Close()
		}
		return err
	}
	conn, err := dial(ctx, address(20, i%2000), s.listeners["public"], "localhost")
	if err != nil {
		return err
	}
	defer conn.Close()
	return carries(conn)
}

// websocket opens a connection that was upgraded and says nothing.
func (s *succeeded) websocket(from string) net.Conn {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := dial(ctx, from, s.listeners["web"], "localhost")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	head := bufio.NewReaderSize(conn, 16)
	response, err := http.ReadResponse(head, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols || head.Buffered() > 0 {
		s.t.Fatalf("no WebSocket: %v, %v", response, err)
	}
	conn.SetDeadline(time.Time{})
	return conn
}

// upgradeAndEcho is a relay that takes every upgrade and returns what follows.
func upgradeAndEcho(conn net.Conn) {
	r := bufio.NewReader(conn)
	if _, err := http.ReadRequest(r); err != nil {
		return
	}
	io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n")
	io.Copy(conn, r)
}

// eventuallyWithin is eventually for what takes longer.
func eventuallyWithin(long time.Duration, look func() error) error {
	deadline := time.Now().Add(long)
	for {
		err := look()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond) // another process is what changes
	}
}

// Killed at any moment of an upgrade, the older process or the newer one leaves an
// edge that serves, with exactly the connections counted that are left.
func TestKilledAtAnyMomentOfAnUpgrade(t *testing.T) {
	t.Parallel()
	rounds := 8
	if os.Getenv(fullUpgrades) != "" {
		rounds = 200
	}
	s := runSucceeded(t, echoBehind(t)+strings.Replace(capped, "max_connections_per_ip: 4", "max_connections_per_ip: 12", 1))
	const from = "127.0.0.2"
	var open []net.Conn
	longest := 100 * time.Millisecond
	for round := range rounds {
		// What lives of the connections is counted, and nothing else: that many more get in.
		if err := eventually(func() error {
			open = slices.DeleteFunc(open, func(conn net.Conn) bool {
				dead := carries(conn) != nil
				if dead {
					conn.Close()
				}
				return dead
			})
			for len(open) < 12 {
				conn, err := enter(context.Background(), from, s.listeners["public"], "")
				if err != nil {
					return fmt.Errorf("round %d, with %d connections: %w", round, len(open), err)
				}
				open = append(open, conn)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s.refused(from, "public", "")
		for range 4 {
			open[0].Close()
			open = open[1:]
		}
		old, before := s.newest(), len(s.started())
		asked := make(chan error, 1)
		began := time.Now()
		ask := func() {
			_, err := s.askUpgrade()
			asked <- err
		}
		go ask()
		var next int
		if err := eventually(func() error {
			started := s.started()
			if len(started) == before {
				select {
				case err := <-asked: // who has just taken over is not behind the control socket yet
					go ask()
					return fmt.Errorf("no new process is started: %w", err)
				default:
					return errors.New("no new process is started")
				}
			}
			next = started[before]
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(longest)) // the moment is what is tried
		victim, left := old, next
		if round%2 == 1 {
			victim, left = next, old
		}
		s.pids = []int{old, next}
		s.kill(victim)
		s.pids = []int{left}
		upgradeErr := <-asked
		s.pids = []int{left}
		// So that the moments spread over what an upgrade takes here.
		longest = max(20*time.Millisecond, min(2*time.Since(began), time.Second))
		t.Logf("round %d: killed the %s process; the upgrade: %v", round, []string{"old", "new"}[round%2], upgradeErr)
	}
	for _, conn := range open {
		conn.Close()
	}
}

// started returns the processes that were started to take over, in their order.
func (s *succeeded) started() (pids []int) {
	for _, m := range regexp.MustCompile(`a new process is started, to take over" pid=(\d+)\n`).FindAllStringSubmatch(s.wrote(), -1) {
		pid, _ := strconv.Atoi(m[1])
		pids = append(pids, pid)
	}
	return pids
}
