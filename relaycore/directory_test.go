package relaycore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/wire"
)

// Whatever clients do, in whatever order, no table holds more than it may, of
// one session, identity, source or in all, and all that is kept twice agrees.
func TestDirectoryHolds(t *testing.T) {
	for _, known := range []bool{true, false} {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("sources known %v, seed %d", known, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { randomClients(t, known, rand.New(rand.NewPCG(seed, 7))) })
			})
		}
	}
}

func randomClients(t *testing.T, known bool, r *rand.Rand) {
	cfg := DefaultConfig()
	l := &cfg.Limits
	pendingAtMost(l, 12)
	l.MaxPendingPerConnection, l.MaxPendingBlindPerConnection, l.MaxPendingPerSource, l.MaxPendingBlindPerSource = 3, 4, 5, 6
	l.MaxCircuits, l.MaxCircuitsPerSource, l.MaxCircuitsPerConnection = 9, 6, 3
	l.MaxIdentities, l.BlindAskBurst, l.BlindAskRefillPerSec = 7, 5, 1
	cfg.OfflineQueue.KnockBudgetBytes, cfg.OfflineQueue.TTLSecs = 96<<10, 3600
	count := new(counters)
	count.init()
	d := newDirectory(cfg, known, count, time.Now())
	defer d.close()
	var told atomic.Int64
	tell := func(all notices) {
		for _, n := range all {
			if n.to == nil {
				t.Fatalf("%+v is for nobody", n)
			}
			told.Add(1)
		}
	}
	d.tell = tell

	var live []*session
	content := make([]byte, wire.AskSize)
	opened := 0
	for step := range 2000 {
		now := time.Now()
		pick := func() *session { return live[r.IntN(len(live))] }
		switch op := r.IntN(10); {
		case op == 0 || len(live) < 3:
			c := &session{source: source(r.IntN(4)), member: &notYet}
			f := &wire.Publish{Identity: numbered(r.IntN(10)), Bundle: make([]byte, r.IntN(100))}
			replaced, all, ok := d.join(c, f, now)
			if tell(all); !ok {
				t.Fatal("a new session is refused")
			}
			live = without(live, replaced)
			live = append(live, c)
		case op == 1:
			c := pick()
			tell(d.leave(c))
			live = without(live, c)
		case op == 2:
			c := pick()
			d.mu.RLock()
			ids := slices.Collect(maps.Keys(c.member.circuits))
			d.mu.RUnlock()
			if len(ids) > 0 {
				tell(d.part(c, ids[0]))
			}
		case op == 3:
			time.Sleep(time.Duration(r.Int64N(int64(3 * time.Minute))))
			synctest.Wait()
		default:
			f := &wire.Ask{RequestID: uint64(step), Mode: wire.Named + wire.Mode(r.IntN(2)), Key: numbered(r.IntN(10)), Content: content}
			c := pick()
			a := d.ask(c, f, now)
			tell(a.told)
			if a.circuit != 0 {
				opened++
				if to, ok := d.route(c, a.circuit); !ok || to.to == c {
					t.Fatalf("circuit %d leads nowhere", a.circuit)
				}
			}
			if a.target != nil && r.IntN(2) == 0 {
				d.keepKnock(c, f.Key, content)
			}
			if r.IntN(4) == 0 {
				d.waiting(pick())
			}
		}
		agrees(t, d, live)
		if t.Failed() {
			t.Fatalf("in step %d", step)
		}
	}
	if opened < 10 || told.Load() < 10 {
		t.Errorf("%d circuits opened, %d were told: the test does too little", opened, told.Load())
	}
	for _, c := range live {
		tell(d.leave(c))
	}
	(&world{t: t, s: &Server{dir: d}}).empty()
}

func without(live []*session, c *session) (rest []*session) {
	for _, each := range live {
		if each != c {
			rest = append(rest, each)
		}
	}
	return rest
}

// agrees counts everything anew.
func agrees(t *testing.T, d *directory, live []*session) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	bound := func(what string, n, most int) {
		t.Helper()
		if n > most {
			t.Errorf("%s: %d of at most %d", what, n, most)
		}
	}
	equal := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	p, c := &d.pending, &d.circuits
	equal("connected", len(d.members), len(live))

	// Requests.
	named, blinded := 0, 0
	perSource := map[wire.Mode]map[source]int{wire.Named: {}, wire.Blinded: {}}
	for _, s := range live {
		for mode, own := range map[wire.Mode]*line[request]{wire.Named: &s.member.asking.named, wire.Blinded: &s.member.asking.blinded} {
			n := 0
			for r := own.first; r != nil; r = r.own.after {
				n++
				if r.asker != s || r.mode != mode {
					t.Error("a request is in another's line")
				}
				if mode == wire.Named && p.named[r.pair()] != r || mode == wire.Blinded && p.blinded[r.key] != r {
					t.Error("a request is not in the table")
				}
			}
			equal("own line", own.n, n)
			bound("requests of a session", n, p.perSession[at(mode)])
			perSource[mode][s.source] += n
			if mode == wire.Named {
				named += n
			} else {
				blinded += n
			}
		}
	}
	equal("named", len(p.named), named)
	equal("blinded", len(p.blinded), blinded)
	bound("requests", named+blinded, p.most)
	bound("blinded requests", blinded, p.mostBlinded)
	for mode, sources := range perSource {
		n := 0
		for from, each := range sources {
			n += each
			h := p.modeShares[at(mode)].Holding(from.key(), nil)
			equal("share of requests", int(p.modeShares[at(mode)].Of(&h).Amount), each)
			if p.sources {
				bound("requests of a source", each, p.perSource[at(mode)])
			}
		}
		equal("shares of requests", int(p.modeShares[at(mode)].Held()), n)
		equal("line of requests", p.lines[at(mode)].n, n)
	}
	equal("shares of all requests", int(p.shares.Held()), named+blinded)

	// Circuits.
	perIdentity, sides, fading := map[wire.Identity]int{}, 0, 0
	for id, ct := range c.byID {
		if ct.id != id || ct.sides[0].identity == ct.sides[1].identity {
			t.Error("a circuit is not what its place says")
		}
		there := 0
		for i := range ct.sides {
			s := &ct.sides[i]
			perIdentity[s.identity]++
			sides++
			if s.session != nil {
				there++
				if d.members[s.identity] != s.session || s.session.member.circuits[id] != ct {
					t.Error("a side is held by a session that does not know it")
				}
			}
		}
		if there == 0 || !ct.blind && there == 1 {
			t.Errorf("a circuit has %d sessions", there)
		}
		if there == 1 {
			fading++
		}
		if ct.blind && c.byToken[ct.token] != ct || !ct.blind && c.byPair[pair{ct.sides[0].identity, ct.sides[1].identity}] != ct {
			t.Error("a circuit is not in its table")
		}
	}
	known := 0
	for _, s := range live {
		for id := range s.member.circuits {
			if c.byID[id] == nil {
				t.Error("a session knows a circuit that is no more")
			}
			known++
		}
	}
	equal("sides with a session", known, sides-fading)
	equal("fading", c.fading.n, fading)
	equal("shares of circuits", int(c.shares.Held()), sides)
	bound("circuits", sides, c.most)
	equal("members", len(c.byIdentity), len(perIdentity))
	for id, n := range perIdentity {
		equal("circuits of an identity", len(c.byIdentity[id]), n)
		bound("circuits of an identity", n, c.perIdentity)
	}
	equal("pairs and tokens", len(c.byPair)/2+len(c.byToken), len(c.byID))
	if c.sources {
		bound("circuits of the heaviest source", int(c.shares.Heaviest().Amount), c.perSource)
	}

	// What is kept.
	bound("bytes of knocks", int(d.knocks.shares.Held()), int(d.knocks.budget))
	if d.knocks.sources {
		bound("bytes of knocks of the heaviest source", int(d.knocks.shares.Heaviest().Amount), int(d.knocks.budget)/sourceShare)
	}
	bound("identities", len(d.identities.byIdentity), d.identities.most)
	(&world{t: t, s: &Server{dir: d}}).kept()
}
