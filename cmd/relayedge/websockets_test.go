package main_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"relayedge/relaycore/client"
	"relayedge/relaycore/wire"
)

// gathering is what a relay has on a busy day: pairs that talk all the time, sessions
// that say nothing, and some that are sent much and read nothing.
type gathering struct {
	t     *testing.T
	ctx   context.Context
	dial  func(i int) (*client.Session, error)
	tasks sync.WaitGroup

	ends   chan error   // of those who read
	gone   atomic.Bool  // the relay drains: who sends may fail
	talked atomic.Int64 // messages that came
}

const (
	busyPairs = 25 // busy both ways
	idlers    = 45
	silent    = 5 // who read nothing, each with one that sends to it and is idle then
	listening = 2*busyPairs + idlers + silent
)

// gather connects them all, and returns when each does what it is for.
func gather(t *testing.T, dial func(i int) (*client.Session, error)) *gathering {
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	c := &gathering{t: t, ctx: ctx, dial: dial, ends: make(chan error, listening)}
	sessions := make([]*client.Session, listening+silent)
	t.Cleanup(func() {
		cancel() // ends whatever still waits
		c.tasks.Wait()
		for _, s := range sessions {
			if s != nil {
				s.Close()
			}
		}
	})
	var joining sync.WaitGroup
	places := make(chan struct{}, 4) // more at once would only wait longer each
	for i := range sessions {
		joining.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			var err error
			if sessions[i], err = dial(i); err == nil {
				err = sessions[i].Publish(ctx, gatheringKey(i), nil)
			}
			if err != nil {
				t.Errorf("session %d: %v", i, err)
			}
		})
	}
	joining.Wait()
	if t.Failed() {
		t.FailNow()
	}
	var settling sync.WaitGroup
	for i := range busyPairs {
		settling.Go(func() {
			a, b := sessions[2*i], sessions[2*i+1]
			circuit := c.pair(a, b, 2*i, 2*i+1)
			for _, s := range []*client.Session{a, b} {
				c.read(s, nil)
				c.tasks.Go(func() {
					for !c.gone.Load() {
						if _, err := s.Send(ctx, circuit, make([]byte, 300)); err != nil {
							return
						}
						time.Sleep(50 * time.Millisecond) // busy, and no flood
					}
				})
			}
		})
	}
	for i := range idlers {
		c.read(sessions[2*busyPairs+i], nil)
	}
	settling.Wait()
	if err := eventually(func() error {
		if n := c.talked.Load(); n < 4*busyPairs {
			return fmt.Errorf("%d messages have come", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	// Last, for who takes nothing is not kept for long.
	for i := range silent {
		settling.Go(func() {
			from, to := listening-1-i, listening+i
			circuit := c.pair(sessions[from], sessions[to], from, to)
			acks := make(chan struct{})
			c.read(sessions[from], acks)
			// More than the sockets hold on the way, less than the relay's queue takes.
			for range 40 {
				if _, err := sessions[from].Send(ctx, circuit, make([]byte, 64<<10)); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-acks:
				case <-ctx.Done():
					t.Error("a message is not acknowledged")
					return
				}
			}
		})
	}
	settling.Wait()
	if len(c.ends) > 0 {
		t.Fatalf("a session has ended: %v", <-c.ends)
	}
	return c
}

// gatheringKey is the key of a session.
func gatheringKey(i int) ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = byte(i)
	return ed25519.NewKeyFromSeed(seed)
}

// pair opens a circuit.
func (c *gathering) pair(a, b *client.Session, keyA, keyB int) (circuit uint64) {
	identity := func(i int) wire.Identity { return wire.Identity(gatheringKey(i).Public().(ed25519.PublicKey)) }
	if _, err := a.Ask(c.ctx, identity(keyB), nil); err != nil {
		c.t.Error(err)
	}
	if _, err := b.Receive(c.ctx); err != nil { // the knock
		c.t.Error(err)
	}
	if _, err := b.Ask(c.ctx, identity(keyA), nil); err != nil {
		c.t.Error(err)
	}
	for _, s := range []*client.Session{a, b} {
		f, err := s.Receive(c.ctx)
		open, ok := f.(wire.CircuitOpen)
		if err != nil || !ok {
			c.t.Errorf("no circuit: %v, %v", f, err)
		}
		circuit = open.Circuit
	}
	return circuit
}

// read reads a session to its end, and passes the acknowledgements on.
func (c *gathering) read(s *client.Session, acks chan<- struct{}) {
	c.tasks.Go(func() {
		for {
			f, err := s.Receive(c.ctx)
			if err != nil {
				c.ends <- err
				return
			}
			switch f.(type) {
			case wire.Message:
				c.talked.Add(1)
			case wire.MessageAck:
				if acks != nil {
					select {
					case acks <- struct{}{}:
					case <-c.ctx.Done():
					}
				}
			}
		}
	})
}

// hears1001 waits until everybody who reads has ended, which must be by 1001.
func (c *gathering) hears1001() {
	c.t.Helper()
	for i := range listening {
		select {
		case err := <-c.ends:
			if !strings.Contains(err.Error(), "StatusGoingAway") || !strings.Contains(err.Error(), "drain") {
				c.t.Errorf("a session ends with %v, want StatusGoingAway", err)
			}
		case <-c.ctx.Done():
			c.t.Fatalf("%d of %d sessions have ended", i, listening)
		}
	}
}

// from is a dialler for session i, with an address of its own and little room
// for what is not read. What it dials ends with the test, without goodbyes.
func from(t *testing.T, i int) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 2, byte(1 + i)}), 0))
		conn, err := (&net.Dialer{LocalAddr: local}).DialContext(ctx, network, address)
		if err == nil {
			if i >= listening {
				conn.(*net.TCPConn).SetReadBuffer(4 << 10)
			}
			t.Cleanup(func() { conn.Close() })
		}
		return conn, err
	}
}

// edgeWithRelay runs an edge with its relay, and returns how sessions reach it.
func edgeWithRelay(t *testing.T, drainSecs int) (*edge, func(i int) (*client.Session, error)) {
	t.Helper()
	e := runEdge(t, fmt.Sprintf(`
listeners: [{name: public, bind: "127.0.0.1:0"}]
limits: {drain_secs: %d, rate_limit_bps: 1073741824, socket_buffer_bytes: 16384, writer_stall_secs: 3600}
relay: {in_process: true, bind: "127.0.0.1:0", limits: {rate_limit_bps: 1073741824}}
`, drainSecs))
	return e, func(i int) (*client.Session, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return client.Dial(ctx, "wss://"+e.listeners["public"]+wire.Path, client.Options{
			// The default key exchange takes long for so many under the race detector.
			TLS:         &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}},
			DialContext: from(t, i),
		})
	}
}

// terminates sends SIGTERM and checks that nobody gets in from there on.
func terminates(c *gathering, p *process, address string) {
	c.t.Helper()
	c.gone.Store(true)
	p.terminate(c.t)
	if _, err := p.await(&p.stderr, regexp.MustCompile(`draining the`)); err != nil {
		c.t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		c.t.Errorf("a newcomer is not refused: %v", err)
		if err == nil {
			conn.Close()
		}
	}
}

// endsWell waits for the process and checks its exit status and how long it took since.
func endsWell(t *testing.T, p *process, since time.Time, most time.Duration) {
	t.Helper()
	code, err := p.ended()
	if took := time.Since(since); code != 0 || err != nil || took > most {
		t.Errorf("%s ends with %d, %v after %v, at most %v were given", p.name, code, err, took, most)
	}
}

func saysOnce(t *testing.T, p *process, pattern string) {
	t.Helper()
	if n := len(regexp.MustCompile(pattern).FindAllString(p.stderr.String(), -1)); n != 1 {
		t.Errorf("%s is said %d times", pattern, n)
	}
}

// SIGTERM to an edge with its relay: who reads hears 1001 through the edge, busy
// or idle, and who does not read is cut behind drain_secs. The status is 0.
func TestDrainOfWebSockets(t *testing.T) {
	t.Parallel()
	const drainSecs = 10 // time for all who read to be gone
	e, dial := edgeWithRelay(t, drainSecs)
	c := gather(t, dial)
	start := time.Now()
	terminates(c, e.process, e.listeners["public"])
	c.hears1001()
	endsWell(t, e.process, start, patience)
	saysOnce(t, e.process, `msg="draining: no new connections; a second signal ends at once"`)
	saysOnce(t, e.process, fmt.Sprintf(`msg="draining the edge" open=%d not_served_yet=0 drain_secs=%d`, listening+silent, drainSecs))
	saysOnce(t, e.process, fmt.Sprintf(`msg="draining the relay" .*sessions=%d drain_secs=%d`, listening+silent, drainSecs))
	saysOnce(t, e.process, fmt.Sprintf(`msg="drain_secs are over: closing what is still open, spread out" open=%d`, silent))
}

// With hours to drain in, who reads is told at once all the same; then a second
// SIGTERM ends the wait for who does not.
func TestSecondSignalWithWebSockets(t *testing.T) {
	t.Parallel()
	e, dial := edgeWithRelay(t, 3600)
	c := gather(t, dial)
	terminates(c, e.process, e.listeners["public"])
	c.hears1001()
	select {
	case <-e.exited:
		t.Fatal("it did not wait for those who do not read")
	default:
	}
	start := time.Now()
	e.terminate(t)
	endsWell(t, e.process, start, patience/2)
	saysOnce(t, e.process, `msg="ending at once"`)
}

// The relay alone does the same, and cuts who takes nothing by itself.
func TestDrainOfTheRelayAlone(t *testing.T) {
	t.Parallel()
	for _, twice := range []bool{false, true} {
		t.Run(map[bool]string{false: "once", true: "twice"}[twice], func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "policy.yaml")
			policy := "relay: {bind: \"127.0.0.1:0\", drain_secs: 3600, metrics: {enabled: false}, limits: {max_connections_per_ip: 0, rate_limit_bps: 1073741824}}\n"
			if err := os.WriteFile(file, []byte(policy), 0o644); err != nil {
				t.Fatal(err)
			}
			p := launch(t, exec.Command(binary(t, "relaycore"), "run", "-c", file), "relaycore")
			m, err := p.await(&p.stdout, regexp.MustCompile(`(?m)^relay: (\S+),`))
			if err != nil {
				t.Fatal(err)
			}
			c := gather(t, func(i int) (*client.Session, error) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				return client.Dial(ctx, "ws://"+m[1]+wire.Path, client.Options{DialContext: from(t, i)})
			})
			start := time.Now()
			terminates(c, p, m[1])
			if twice {
				// It may have ended by itself already, which is as good.
				if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
					t.Fatal(err)
				}
			} else {
				c.hears1001()
			}
			endsWell(t, p, start, patience)
			saysOnce(t, p, fmt.Sprintf(`msg="draining the relay" sessions=%d drain_secs=3600`, listening+silent))
		})
	}
}
