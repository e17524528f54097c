package testredis

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"relayedge/internal/testport"
)

// StartReplica runs a replica of a server, and returns when it has what that has.
func StartReplica(t testing.TB, of *Server, args ...string) *Server {
	t.Helper()
	s := Start(t, append([]string{"--replicaof", "127.0.0.1 " + of.port()}, args...)...)
	s.Await("it follows "+of.Addr, func() bool {
		return strings.Contains(s.Ask("INFO", "replication").(string), "master_link_status:up")
	})
	return s
}

// StartSentinel runs a redis-sentinel that watches the server and its replicas
// under a name, alone decides that it is down after a second without an answer,
// and then makes a replica the master. It returns when it knows so many replicas.
func StartSentinel(t testing.TB, name string, master *Server, replicas int) *Server {
	t.Helper()
	s := newServer(t, "redis-sentinel")
	// It keeps its state in its configuration.
	file := filepath.Join(filepath.Dir(s.Socket), "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\nunixsocket %s\ndir %s\nsentinel monitor %s 127.0.0.1 %s 1\n"+
		"sentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 6000\n",
		s.port(), s.Socket, filepath.Dir(s.Socket), name, master.port(), name, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.args = []string{s.args[0], file}
	s.run(nil)
	s.Await(fmt.Sprintf("it knows %d replicas", replicas), func() bool {
		return len(s.Ask("SENTINEL", "REPLICAS", name).([]any)) == replicas
	})
	return s
}

// StartCluster runs a cluster of so many masters that share the slots, and returns
// when each of them knows it.
func StartCluster(t testing.TB, n int, args ...string) (nodes []*Server) {
	t.Helper()
	const slots = 16384
	for i := range n {
		bus := strconv.Itoa(testport.Free(t))
		node := Start(t, append([]string{"--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "15000"}, args...)...)
		node.Ask("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/n), strconv.Itoa((i+1)*slots/n-1))
		node.Ask("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i > 0 {
			nodes[0].Ask("CLUSTER", "MEET", "127.0.0.1", node.port(), bus)
		}
		nodes = append(nodes, node)
	}
	for _, node := range nodes {
		node.Await("the cluster stands", func() bool {
			info := node.Ask("CLUSTER", "INFO").(string)
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_size:%d\r", n))
		})
	}
	return nodes
}
