package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"relayedge/relaycore/wire"
)

// edgePolicy is relayedge's in front of a relay: what is not here has its default.
const edgePolicy = `
listeners: [{name: public, bind: "127.0.0.1:0", upstream: relay}]
certificates: {self_issued: [localhost]}
limits: {max_connections: 6000, drain_secs: 0}
metrics: {bind_addr: "127.0.0.1:0"}
log: {level: warn}
control: {socket: ""}
`

const upstreamPolicy = `
upstreams:
  relay: {addresses: [%q], proxy_tlvs: [alpn, authority, ssl, unique_id, crc32c, channel_binding]}
`

const inProcessPolicy = `
relay:
  in_process: true
  bind: %q
  proxy_protocol: true
  limits: {max_connections_per_ip: 0, max_connections_per_ipv6_48: 0, identification_timeout_secs: 300}
`

// setting is how the edge and the relay are run.
type setting struct {
	name    string
	network string // between the two
	one     bool   // in one process
}

var settings = []setting{
	{"tcp", "tcp", false},
	{"unix", "unix", false},
	{"in-process", "unix", true},
}

// launch starts the servers of a setting, the edge first.
func (with setting) launch(t testing.TB) ([]*process, target) {
	t.Helper()
	var relay *process
	policy := edgePolicy
	if with.one {
		policy += fmt.Sprintf(inProcessPolicy, address(t, with.network, "relay"))
	} else {
		var at target
		relay, at = launchRelay(t, with.network)
		prefix := ""
		if with.network == "unix" {
			prefix = "unix:"
		}
		policy += fmt.Sprintf(upstreamPolicy, prefix+at.address)
	}
	edge := launch(t, "relayedge", []string{"run", "-c", write(t, policy)}, `^listener public: .* on (\S+)$`, `^metrics: (\S+)$`)
	servers := []*process{edge}
	if relay != nil {
		servers = append(servers, relay)
	}
	return servers, target{network: "tcp", address: edge.told[0], path: func(int) string { return wire.Path }, tls: true}
}

// steady has a tenth of n clients send a message every half second.
func steady(t testing.TB, s *sheet, with setting, n int, period time.Duration) {
	servers, to := with.launch(t)
	for _, p := range servers {
		defer p.stop()
	}
	connect(t, to, n, min(n, 100)).leave() // what the first ones cost once
	before := make([]float64, len(servers))
	for i, p := range servers {
		p.settle(t)
		before[i] = p.memory(t)
	}
	kernel := kernelMemory(t)
	var all crowd
	used := during(t, servers, func() int {
		all = connect(t, to, 0, n)
		all.identify(t)
		return n
	})
	for i, p := range servers {
		s.addTime(p.name+" connect and identify", used[i])
	}
	all.pairUp(t)
	for _, p := range servers {
		p.settle(t)
	}
	s.add("kernel, all sockets, per client, KB", (kernelMemory(t)-kernel)/float64(n)/1e3)
	var senders crowd
	for i := 0; i < n; i += 10 {
		senders = append(senders, all[i])
	}
	all.listen()
	wrote := senders[0].raw.written.Load()
	sent := 0
	used = during(t, servers, func() int {
		sent = paced(t, all, senders, 2*len(senders), period, firstByte(wire.TypeMessage))
		return sent
	})
	// The first sender is also the first to send once more. It may have answered a ping.
	const pong = 5 + 6 + 8 + 17
	turns := int64((sent + len(senders) - 1) / len(senders))
	if wrote = senders[0].raw.written.Load() - wrote; wrote != turns*wireSize && (wrote-turns*wireSize)%pong != 0 {
		t.Errorf("a sender wrote %d bytes for %d messages", wrote, turns)
	}
	total := time.Duration(0)
	for i, p := range servers {
		s.addTime(p.name+" steady, a message", used[i])
		total += used[i]
		s.add(p.name+" memory per client while steady, KB", (p.memory(t)-before[i])/float64(n)/1e3)
	}
	if len(servers) > 1 {
		s.addTime("both steady, a message", total)
	}
	for i, p := range servers {
		p.rest(t)
		s.add(p.name+" memory per client at rest, KB", (p.memory(t)-before[i])/float64(n)/1e3)
	}
	all.stay(t)
	all.leave()
	edge, relay := servers[0], servers[len(servers)-1]
	edge.metrics = edge.told[1]
	if len(servers) == 1 {
		relay.metrics = edge.metrics
	}
	relay.becomes(t, 0, "relaycore_connections", "relaycore_circuits", "relaycore_outbound_bytes", "relaycore_buffer_bytes")
	edge.becomes(t, 0, `relayedge_connections\{listener="public"\}`)
}

func BenchmarkSteady(b *testing.B) {
	for _, with := range settings {
		b.Run(with.name, func(b *testing.B) {
			var s sheet
			for b.Loop() {
				steady(b, &s, with, *clients, *period)
			}
			metrics := map[string]string{
				"relayedge memory per client at rest, KB": "edge-KB/conn",
				"relayedge steady, a message, µs":         "edge-µs/msg",
			}
			if !with.one {
				metrics["relaycore memory per client at rest, KB"] = "relay-KB/conn"
				metrics["relaycore steady, a message, µs"] = "relay-µs/msg"
			}
			s.report(b, metrics)
		})
	}
}

// A few clients for a moment: the benchmarks still measure what they say. That
// every message has come, nobody was cut and the relay's budgets are 0 in the end
// is seen to by the rounds themselves.
func TestSmoke(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	const few, moment = 24, 200 * time.Millisecond
	giveBack = 0
	check := func(t *testing.T, s *sheet, rows ...string) {
		t.Log(s.String())
		for _, row := range rows {
			if len(s.values[row]) != 1 {
				t.Errorf("%d figures of %s", len(s.values[row]), row)
			}
		}
	}
	for _, network := range []string{"tcp", "unix"} {
		t.Run("relay "+network, func(t *testing.T) {
			var s sheet
			round(t, &s, network, few, moment)
			check(t, &s, "relaycore idle, KB", "relaycore forward, µs", "relaycore paced, µs", "plain echo, µs", "plain forward, µs")
		})
	}
	for _, with := range settings {
		t.Run("steady "+with.name, func(t *testing.T) {
			var s sheet
			steady(t, &s, with, few, moment)
			check(t, &s, "relayedge memory per client at rest, KB", "relayedge steady, a message, µs")
			if !strings.Contains(s.String(), "kernel") {
				t.Error("the kernel's memory is not printed")
			}
		})
	}
}
