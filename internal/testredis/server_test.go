package testredis_test

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"relayedge/internal/testredis"
)

func TestServer(t *testing.T) {
	s := testredis.Start(t, "--maxclients", "77")
	if got := s.Ask("SET", "a", "x\r\ny"); got != "OK" {
		t.Errorf("SET: %v", got)
	}
	if got := s.Ask("GET", "a"); got != "x\r\ny" {
		t.Errorf("GET: %q", got)
	}
	if got := s.Ask("GET", "b"); got != nil {
		t.Errorf("GET of nothing: %v", got)
	}
	if got := s.Ask("CONFIG", "GET", "maxclients").([]any); !slices.Equal(got, []any{"maxclients", "77"}) {
		t.Errorf("maxclients: %v", got)
	}
	stop := s.Monitor()
	if got := s.Ask("INCRBY", "n", "7"); got != int64(7) {
		t.Errorf("INCRBY: %v", got)
	}
	if seen := stop(); !strings.Contains(seen, `"INCRBY" "n" "7"`) {
		t.Errorf("the monitor saw\n%s", seen)
	}
	s.Stop()
	if c, err := net.Dial("tcp", s.Addr); err == nil {
		c.Close()
		t.Error("it listens when it is stopped")
	}
	s.Start()
	if keys := s.Keys(); len(keys) != 0 {
		t.Errorf("it came back with %v", keys)
	}

	pid := s.Pid()
	s.Freeze()
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 7)
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := c.Read(answer); err == nil {
		t.Errorf("frozen, it says %q", answer[:n])
	}
	s.Thaw()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := c.Read(answer); err != nil || string(answer[:n]) != "+PONG\r\n" {
		t.Errorf("thawed, it says %q, %v", answer[:n], err)
	}
	if s.Pid() != pid {
		t.Error("it is another process")
	}
}

func TestSentinel(t *testing.T) {
	master := testredis.Start(t)
	master.Ask("SET", "a", "1")
	replica := testredis.StartReplica(t, master)
	sentinel := testredis.StartSentinel(t, "limits", master, 1)
	if got := replica.Ask("GET", "a"); got != "1" {
		t.Errorf("the replica has %v", got)
	}
	master.Stop()
	replica.Await("it is the master", func() bool {
		return strings.Contains(replica.Ask("INFO", "replication").(string), "role:master")
	})
	sentinel.Await("it names the new master", func() bool {
		at := sentinel.Ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits").([]any)
		return net.JoinHostPort(at[0].(string), at[1].(string)) == replica.Addr
	})
}

func TestCluster(t *testing.T) {
	nodes := testredis.StartCluster(t, 3)
	if len(nodes) != 3 {
		t.Fatalf("%d nodes", len(nodes))
	}
	for _, n := range nodes {
		if ranges := n.Ask("CLUSTER", "SLOTS").([]any); len(ranges) != 3 {
			t.Errorf("%s knows %d owners of slots", n.Addr, len(ranges))
		}
	}
}

func TestProxy(t *testing.T) {
	s := testredis.Start(t)
	p := testredis.NewProxy(t, s.Addr)
	ping := func(c net.Conn) (string, time.Duration) {
		t.Helper()
		start := time.Now()
		c.SetDeadline(start.Add(time.Minute))
		if _, err := c.Write([]byte("PING\r\n")); err != nil {
			return "", 0
		}
		answer := make([]byte, 7)
		n, _ := c.Read(answer)
		return string(answer[:n]), time.Since(start)
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", p.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	c := dial()
	if got, _ := ping(c); got != "+PONG\r\n" {
		t.Errorf("through the proxy: %q", got)
	}
	p.Decide(func(toServer bool) testredis.Fate {
		if toServer {
			return testredis.Fate{}
		}
		return testredis.Fate{Delay: 300 * time.Millisecond}
	})
	if got, took := ping(c); got != "+PONG\r\n" || took < 300*time.Millisecond {
		t.Errorf("delayed: %q after %v", got, took)
	}
	p.Decide(func(bool) testredis.Fate { return testredis.Fate{Cut: true} })
	if got, _ := ping(c); got != "" {
		t.Errorf("cut: %q", got)
	}
	p.Decide(nil)
	c = dial()
	if got, _ := ping(c); got != "+PONG\r\n" {
		t.Errorf("after the cut: %q", got)
	}
	p.CutAll()
	if got, _ := ping(c); got != "" {
		t.Errorf("cut with all: %q", got)
	}
}
