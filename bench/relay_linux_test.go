package bench

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"relayedge/relaycore/wire"
)

var (
	clients = flag.Int("clients", 5000, "clients of a benchmark")
	period  = flag.Duration("period", 5*time.Second, "how long each load lasts")
)

// atOnce is how many clients or pairs are busy in a closed loop.
const atOnce = 64

// rate is how many messages a second are paced.
const rate = 1000

// relayPolicy is relaycore's: what is not here has its default. The byte bucket is
// on, but a closed loop may use its processors up; and identification waits while
// so many connect.
const relayPolicy = `
relay:
  bind: %q
  proxy_protocol: true
  drain_secs: 0
  limits: {max_connections_per_ip: 0, max_connections_per_ipv6_48: 0, rate_limit_bps: 1073741824, identification_timeout_secs: 300}
  metrics: {bind_addr: "127.0.0.1:0"}
  control: {socket: ""}
log: {level: warn}
`

func launchRelay(t testing.TB, network string) (*process, target) {
	t.Helper()
	at := address(t, network, "relay")
	p := launch(t, "relaycore", []string{"run", "-c", write(t, fmt.Sprintf(relayPolicy, at))}, `^relay: (\S+), `, `^metrics: (\S+)$`)
	p.metrics = p.told[1]
	return p, target{network: network, address: strings.TrimPrefix(at, "unix:"), path: func(int) string { return wire.Path }, proxied: true}
}

func launchPlain(t testing.TB, network string) (*process, target) {
	t.Helper()
	at := address(t, network, "plain")
	p := launch(t, "plain", []string{at}, `^plain: (\S+)$`)
	return p, target{network: network, address: strings.TrimPrefix(at, "unix:"), path: func(int) string { return "/echo" }}
}

// open connects n clients and adds what that costs, and what they cost when silent.
func open(t testing.TB, s *sheet, p *process, to target, n int) crowd {
	t.Helper()
	connect(t, to, n, min(n, 100)).leave() // what the first ones cost once
	p.settle(t)
	before, kernel := p.memory(t), kernelMemory(t)
	var all crowd
	used := during(t, []*process{p}, func() int {
		all = connect(t, to, 0, n)
		return n
	})
	s.addTime(p.name+" connect", used[0])
	p.rest(t)
	s.add(p.name+" idle, KB", (p.memory(t)-before)/float64(n)/1e3)
	s.add(p.name+" kernel, both ends, KB", (kernelMemory(t)-kernel)/float64(n)/1e3)
	return all
}

// roundOfRelay measures relaycore.
func roundOfRelay(t testing.TB, s *sheet, network string, n int, period time.Duration) {
	p, to := launchRelay(t, network)
	defer p.stop()
	base := p.memory(t)
	all := open(t, s, p, to, n)
	one := []*process{p}
	s.addTime("relaycore identify", during(t, one, func() int { all.identify(t); return n })[0])
	p.rest(t)
	s.add("relaycore identified, KB", (p.memory(t)-base)/float64(n)/1e3)
	// Others take over, whose pings are not due while they are measured.
	all.leave()
	p.becomes(t, 0, "relaycore_connections")
	all = connect(t, to, 0, n)
	all.identify(t)
	all.pairUp(t)
	all.listen()
	s.addTime("relaycore paced", during(t, one, func() int {
		return paced(t, all, all, rate, period, firstByte(wire.TypeMessage))
	})[0])
	p.settle(t) // the last acknowledgements are there
	var couples, singles []crowd
	for i := range min(atOnce, n/2) {
		couples = append(couples, all[2*i:2*i+2])
		singles = append(singles, all[i:i+1])
	}
	s.addTime("relaycore forward", during(t, one, func() int {
		return closedLoop(t, couples, func(g crowd) error { return g[0].write(frameOf(g[0])) }, period)
	})[0])
	nowhere := masked(opBinary, wire.Send{Payload: make([]byte, steadySize)}.Append(nil))
	s.addTime("relaycore answer", during(t, one, func() int {
		return closedLoop(t, singles, func(g crowd) error { return g[0].write(nowhere) }, period)
	})[0])
	all.stay(t)
	all.leave()
	p.becomes(t, 0, "relaycore_connections", "relaycore_identities", "relaycore_circuits", "relaycore_pending_requests", "relaycore_outbound_bytes", "relaycore_buffer_bytes")
}

// frameOf is the client's message, made once.
func frameOf(c *client) []byte {
	if c.frame == nil {
		c.frame = c.message()
	}
	return c.frame
}

// roundOfPlain measures the plain server.
func roundOfPlain(t testing.TB, s *sheet, network string, n int, period time.Duration) {
	p, to := launchPlain(t, network)
	defer p.stop()
	all := open(t, s, p, to, n)
	one := []*process{p}
	all.listen()
	// Its echo begins with what was sent.
	s.addTime("plain paced echo", during(t, one, func() int {
		return paced(t, all, all, rate, period, firstByte(wire.TypeSend))
	})[0])
	var couples, singles []crowd
	for i := range min(atOnce, n/2) {
		singles = append(singles, all[i:i+1])
	}
	send := func(g crowd) error { return g[0].write(frameOf(g[0])) }
	s.addTime("plain echo", during(t, one, func() int { return closedLoop(t, singles, send, period) })[0])
	to.path = func(i int) string { return fmt.Sprintf("/pair/%d", i/2) }
	paired := connect(t, to, 0, 2*len(singles))
	paired.listen()
	for i := range len(singles) {
		couples = append(couples, paired[2*i:2*i+2])
	}
	s.addTime("plain forward", during(t, one, func() int { return closedLoop(t, couples, send, period) })[0])
	all.stay(t)
	paired.stay(t)
	all.leave()
	paired.leave()
}

// round measures both, and how they compare.
func round(t testing.TB, s *sheet, network string, n int, period time.Duration) {
	roundOfRelay(t, s, network, n, period)
	roundOfPlain(t, s, network, n, period)
	for _, ratio := range [][2]string{
		{"connect", "connect"}, {"forward", "echo"}, {"forward", "forward"}, {"answer", "echo"}, {"paced", "paced echo"},
	} {
		ours, theirs := s.last("relaycore "+ratio[0]), s.last("plain "+ratio[1])
		if theirs > 0 {
			s.add("ratio "+ratio[0]+" / plain "+ratio[1], ours/theirs)
		}
	}
}

func BenchmarkRelay(b *testing.B) {
	for _, network := range []string{"tcp", "unix"} {
		b.Run(network, func(b *testing.B) {
			var s sheet
			for b.Loop() {
				round(b, &s, network, *clients, *period)
			}
			s.report(b, map[string]string{
				"relaycore idle, KB":             "idle-KB/conn",
				"relaycore connect, µs":          "connect-µs",
				"relaycore forward, µs":          "forward-µs",
				"relaycore paced, µs":            "paced-µs/msg",
				"ratio forward / plain echo":     "forward/echo",
				"ratio paced / plain paced echo": "paced/echo",
			})
		})
	}
}
