package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/socket"
)

// The differential test has all engines play the same random scripts of what a
// client and a relay do, and compares what each of the two saw, when it saw it, and
// what the edge counted.
//
// RELAYEDGE_DIFFERENTIAL is how many scripts there are, and
// RELAYEDGE_DIFFERENTIAL_SEED repeats those of a failure:
//
//	RELAYEDGE_DIFFERENTIAL=20000 go test ./proxy -run TestDifferential -timeout 1h
const (
	differentialVariable = "RELAYEDGE_DIFFERENTIAL"
	differentialSeed     = "RELAYEDGE_DIFFERENTIAL_SEED"
)

// fromEnvironment is a number of the environment's, or the other.
func fromEnvironment(t *testing.T, name string, other uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return other
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// script is what a client and a relay do, one step after the other; before each
// step everything that the one before led to has happened.
type script struct {
	tls      string // none, 1.2 or 1.3
	early    int    // bytes that the client sends before the relay is reached
	delay    time.Duration
	throttle bool // the byte bucket is small
	both     bool // idle_counts
	first    int  // first_byte_timeout_secs
	steps    []step
}

type step struct {
	who int // client or relay
	do  action
	n   int
}

const (
	client = 0
	relay  = 1
)

type action string

const (
	send   action = "send"   // n bytes
	stop   action = "stop"   // reading
	sip    action = "sip"    // n bytes more, and stop again
	resume action = "resume" // reading
	rekey  action = "rekey"  // a KeyUpdate that asks for one
	finish action = "finish" // the stream, behind what was sent
	fin    action = "fin"    // a FIN without close_notify
	broken action = "broken" // half a record and a FIN
	leave  action = "leave"  // close both directions
	reset  action = "reset"
	wait   action = "wait" // n times waited
)

// waited has no multiple near a limit: an engine may notice one a little late, and
// what a script does at the same moment would come before or after it.
const waited = 3700 * time.Millisecond

func (s step) String() string {
	return fmt.Sprintf("%s %s %d", [...]string{"client", "relay"}[s.who], s.do, s.n)
}

func (s script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tls %s, early %d, delay %v, throttle %v, both %v, first byte %d\n", s.tls, s.early, s.delay, s.throttle, s.both, s.first)
	for _, step := range s.steps {
		fmt.Fprintf(&b, "\t%v\n", step)
	}
	return b.String()
}

const (
	// A reader that has stopped has at most surely of bytes waiting for it, which
	// every buffer on the way holds, or at least toomuch, which none does: what lies
	// between depends on how an engine cuts what it moves.
	surely  = 40 << 10
	toomuch = 100 << 10
	// differentialRate is a throttled client's.
	differentialRate = 256 << 10
)

// newScript makes a random one.
func newScript(rng *rand.Rand, waits bool) script {
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	s := script{tls: []string{"none", "1.2", "1.3", "1.3"}[rng.IntN(4)]}
	if waits {
		s.throttle, s.both = rng.IntN(5) == 0, rng.IntN(4) == 0
		s.delay = time.Duration(pick(0, 0, 1)) * waited
		s.first = pick(0, 0, 0, 10)
	}
	if rng.IntN(3) == 0 {
		s.early = pick(1, 100, 5000, 30000)
	}
	var ended, gone, stopped [2]bool
	var unread [2]int // of who has stopped
	held := lag{level: differentialRate}
	held.sent(s.early)
	for range 2 + rng.IntN(14) {
		who := rng.IntN(2)
		other := 1 - who
		at := step{who: who}
		switch p := rng.IntN(100); {
		case p < 40:
			at.do, at.n = send, pick(1, 10, 100, 1000, 1300, 5000, 16384, 20000, 32768, 100000, 300000)
			if stopped[other] {
				if left := surely - unread[other]; at.n > left && unread[other] < toomuch {
					at.n = toomuch + 1000*rng.IntN(200)
				}
				unread[other] += at.n
			}
		case p < 48:
			if who == relay && s.throttle && !held.none() {
				continue // what the bucket lets through later would be unread too, and how much is open
			}
			at.do = stop
			stopped[who] = true
		case p < 54 && stopped[who] && unread[who] > 0:
			at.do, at.n = sip, min(1+rng.IntN(2000), unread[who])
			if left := unread[who] - at.n; left > surely && left < toomuch {
				continue
			}
			unread[who] -= at.n
		case p < 60 && stopped[who]:
			at.do = resume
			if who == relay && unread[who] > surely {
				held.again(unread[who])
			}
			stopped[who], unread[who] = false, 0
		case p < 68 && s.tls == "1.3":
			if stopped[client] && unread[client] > surely {
				continue // the answer would wait for a mutex of crypto/tls, which no bubble waits for
			}
			at.who, at.do = client, rekey
		case p < 76:
			at.do = finish
		case p < 78 && s.tls != "none":
			at.who, at.do = client, fin
		case p < 80 && s.tls != "none":
			at.who, at.do = client, broken
		case p < 84:
			at.do = leave
		case p < 87:
			at.do = reset
		case waits:
			at.do, at.n = wait, pick(1, 2, 5, 8, 9, 13, 35, 70)
		default:
			continue
		}
		if gone[at.who] && at.do != wait || ended[at.who] && (at.do == send || at.do == rekey || at.do == finish || at.do == fin || at.do == broken) {
			continue
		}
		switch at.do {
		case send:
			if at.who == client {
				held.sent(at.n)
			}
		case wait:
			held.waited(at.n)
		case finish, fin, broken:
			ended[at.who] = true
		case leave, reset:
			gone[at.who] = true
		}
		s.steps = append(s.steps, at)
	}
	return s
}

// lag is what the byte bucket may keep back of what a throttled client has sent.
type lag struct {
	level int // of the bucket, at least
	kept  int // bytes, at most
}

func (l *lag) sent(n int) {
	through := min(n, l.level)
	l.level -= through
	l.kept += n - through
}

// again is for bytes that may wait at the client, and have yet to go through the bucket.
func (l *lag) again(n int) { l.level, l.kept = 0, l.kept+n }

// waited lets n times waited pass.
func (l *lag) waited(n int) {
	refill := int(waited.Seconds() * differentialRate * float64(n))
	through := min(refill, l.kept)
	l.kept -= through
	l.level = min(differentialRate, l.level+refill-through)
}

// none leaves some room for what records and their keys add.
func (l *lag) none() bool { return l.kept == 0 && l.level >= differentialRate/8 }

// ending is how something ended for one side, and when.
type ending struct {
	how string // close_notify, FIN, reset, by itself, or an error's text
	at  time.Duration
}

// seen is what one side saw.
type seen struct {
	got    int64  // bytes, each of which was the right one
	brim   bool   // more waited for it at the end than fits: what fits depends on how records are cut
	stream ending // of what is read
	socket ending // of the socket below TLS
}

// played is how a script went on one engine.
type played struct {
	sides     [2]seen
	reason    Reason
	throttled bool
	// loose: a side left while bytes were under way. How many of them arrive, and
	// which of the sides is heard first, is left open.
	loose bool
}

// TestDifferential plays scripts in synthetic time.
func TestDifferential(t *testing.T) {
	differential(t, true, 150, func(t *testing.T, s script) *played { return playInBubble(t, s) })
}

// differential has every engine play scripts, and compares.
func differential(t *testing.T, waits bool, scripts uint64, play func(t *testing.T, s script) *played) {
	seed := fromEnvironment(t, differentialSeed, uint64(time.Now().UnixNano()))
	for i := range fromEnvironment(t, differentialVariable, scripts) {
		s := newScript(rand.New(rand.NewPCG(seed, i)), waits)
		ok := t.Run(fmt.Sprintf("seed %d, script %d", seed, i), func(t *testing.T) {
			results := map[string]*played{}
			if waits {
				inBubble(t, func(t *testing.T) { results[engineOf(t)] = play(t, s) })
			} else {
				onEngines(t, func(t *testing.T) { results[engineOf(t)] = play(t, s) })
			}
			first := results[testedEngines[0]]
			for _, engine := range testedEngines[1:] {
				if first == nil || results[engine] == nil {
					t.Fatal("it was not played to its end")
				}
				for _, difference := range first.differs(results[engine], s) {
					t.Errorf("on %s and %s: %s", testedEngines[0], engine, difference)
				}
			}
			if t.Failed() {
				t.Logf("the script: %v", s)
			}
		})
		if !ok {
			return // one is enough to look at
		}
	}
}

// differs tells in what two engines differ.
func (a *played) differs(b *played, s script) (all []string) {
	if a.loose || b.loose {
		clean := []Reason{ClientClosed, UpstreamClosed, Reset, WriterStall, HalfCloseTimeout, IdleTimeout, FirstByteTimeout}
		for _, p := range []*played{a, b} {
			if !slices.Contains(clean, p.reason) {
				all = append(all, fmt.Sprintf("it ended as %s", p.reason))
			}
		}
		return all
	}
	if a.reason != b.reason {
		all = append(all, fmt.Sprintf("it ended as %s and %s", a.reason, b.reason))
	}
	if a.throttled != b.throttled {
		all = append(all, fmt.Sprintf("throttled: %v and %v", a.throttled, b.throttled))
	}
	var near time.Duration
	if a.reason == WriterStall {
		near = 3 * socket.StallSlice // memconn is not written by readiness
	}
	if s.throttle {
		near += time.Second * (128 << 10) / differentialRate // a pause comes after a read, and reads are of different sizes
	}
	same := func(x, y ending) bool { return x.how == y.how && (x.at-y.at).Abs() <= near }
	for i, x := range a.sides {
		y := b.sides[i]
		who := [...]string{"the client", "the relay"}[i]
		if x.got != y.got && !x.brim && !y.brim {
			all = append(all, fmt.Sprintf("%s got %d and %d bytes", who, x.got, y.got))
		}
		if !same(x.stream, y.stream) {
			all = append(all, fmt.Sprintf("%s read %v and %v", who, x.stream, y.stream))
		}
		if !same(x.socket, y.socket) {
			all = append(all, fmt.Sprintf("%s's socket read %v and %v", who, x.socket, y.socket))
		}
	}
	return all
}

func playInBubble(t *testing.T, s script) *played {
	e := newEdge(t, func(c *edgeConfig) {
		if s.tls != "none" {
			terminating(c)
		}
		c.upstream.ClientAddress = "none"
		c.limits.RateLimitBPS, c.limits.RateLimitBurstBytes = 1<<30, 1<<30
		if s.throttle {
			c.limits.RateLimitBPS, c.limits.RateLimitBurstBytes = differentialRate, differentialRate
		}
		if s.both {
			c.limits.IdleCounts = "both"
		}
		c.limits.FirstByteTimeoutSecs = s.first
	})
	e.relay.SetDialDelay(s.delay)
	p := &play{t: t, began: time.Now(), quiet: synctest.Wait, rest: time.Sleep}
	p.sides[client] = p.newPlayer(client, e.dial(aliceAddr), s.tls)
	p.early(s.early)
	conn, err := e.relay.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p.sides[relay] = p.newPlayer(relay, conn, "none")
	for _, at := range s.steps {
		p.perform(at)
	}
	time.Sleep(time.Hour) // longer than any limit
	synctest.Wait()
	for i, side := range p.sides {
		side.seen.brim = p.sides[1-i].underWay(side) > surely
	}
	for _, side := range p.sides {
		side.gate.allow(all)
	}
	synctest.Wait()
	return p.result(e)
}

// result is what both sides saw; the edge's connection has ended.
func (p *play) result(e *testEdge) *played {
	r := &played{loose: p.loose, throttled: e.server.stats.rejected[RateLimit].Load() > 0}
	for i, side := range p.sides {
		side.mu.Lock()
		r.sides[i] = side.seen
		if side.seen.stream.how == "" {
			p.t.Errorf("%v never ends", [...]string{"the client", "the relay"}[i])
		}
		side.mu.Unlock()
		side.raw.Close()
	}
	ends := e.ends()
	for reason := range ends {
		r.reason = reason
	}
	if len(ends) != 1 || ends[r.reason] != 1 {
		p.t.Errorf("ended: %v, want one", ends)
	}
	return r
}

// howEnded names the error that ended a reading.
func howEnded(err error) string {
	switch {
	case err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF):
		return "FIN"
	case errors.Is(err, net.ErrClosed), errors.Is(err, context.Canceled):
		return "by itself"
	case streamEnd(err) == Reset:
		return "reset"
	}
	return err.Error()
}
