package redisstore

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"relayedge/admission"
)

//go:embed fleet.lua
var fleetScript string

const (
	// FleetLease is for how long the store counts what an edge holds after its
	// latest beat.
	FleetLease = 3 * time.Second

	// fleetEvery is the time between two beats of an edge; where somebody waits for a
	// claim the next one comes sooner, and not before fleetApart is over.
	fleetEvery = 250 * time.Millisecond
	fleetApart = 50 * time.Millisecond
	// fleetPatience is how long a beat waits for its answer. Several have to fit into the lease.
	fleetPatience = 500 * time.Millisecond
	// fleetRow is how many beats follow each other at once.
	fleetRow = 100
)

// RefusesConnections reports whether an edge that cannot count with the others
// refuses everybody.
func (f OnFailure) RefusesConnections() bool { return f.Connections == refuse }

// Fleet carries the beats of an edge to the store.
type Fleet struct {
	// Static.
	store  *Store
	fleet  *admission.Fleet
	script *script
	id     string
	keys   []string
	lease  time.Duration

	// turn holds one element, for whoever beats. handed is of whoever has it: another
	// process beats for this edge.
	turn   chan struct{}
	handed bool

	// Owned by whoever has the turn.
	began  time.Time
	latest time.Time // the start of the latest beat
	told   bool      // that this edge is alone
}

// Fleet returns what carries the beats of f, whose lease is FleetLease.
func (s *Store) Fleet(f *admission.Fleet) *Fleet { return s.newFleet(f, serverClock, FleetLease) }

func (s *Store) newFleet(f *admission.Fleet, clock string, lease time.Duration) *Fleet {
	var id [8]byte
	rand.Read(id[:]) // never fails: it ends the process instead
	c := &Fleet{store: s, fleet: f, script: newScript(clock, fleetScript), id: hex.EncodeToString(id[:]), lease: lease, turn: make(chan struct{}, 1), began: time.Now()}
	for _, name := range []string{"edges", "totals", "tight", "changed", "gone", "buckets"} {
		// One script writes them all, so they are in one slot of a cluster.
		c.keys = append(c.keys, s.cfg.Prefix+":{fleet}:"+name)
	}
	return c
}

// Join has this edge known to the others, and knows them, when it returns: before
// the first connection. Where the store does not answer it gives up with ctx.
func (c *Fleet) Join(ctx context.Context) {
	for again := true; again && ctx.Err() == nil; {
		again = c.beats(ctx)
	}
}

// Run beats until ctx ends, and then gives back what this edge holds: its
// connections are to be over by then.
func (c *Fleet) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			c.leave()
			return
		case <-timer.C:
		case <-c.fleet.Pressed():
			if early := fleetApart - time.Since(c.latest); early > 0 {
				timer.Reset(early)
				continue
			}
		}
		next := fleetEvery
		if c.beats(ctx) {
			next = fleetApart
		}
		timer.Reset(next)
	}
}

// beats has one beat follow the other as long as there is something to tell at
// once, and reports whether there still is.
func (c *Fleet) beats(ctx context.Context) (again bool) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if c.handed {
		return false
	}
	for range fleetRow {
		again, err := c.beat(ctx)
		if err != nil || !again {
			return false
		}
	}
	return true
}

func (c *Fleet) beat(ctx context.Context) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	c.latest = time.Now()
	b := c.fleet.Beat(c.latest)
	r, err := c.send(ctx, b)
	now := time.Now()
	if err != nil {
		alone := c.fleet.Failed(now)
		if alone || !c.told && c.fleet.Edges() == 0 && now.Sub(c.began) > c.lease {
			c.told = true
			c.store.log.Warn("the other edges cannot be counted with; until the store is back, connections are limited as redis.on_failure.connections says", "error", err)
		}
		return false, err
	}
	before := c.fleet.Edges()
	again = c.fleet.Done(now, r)
	if after := c.fleet.Edges(); before == 0 && after > 0 {
		c.told = false
		c.store.log.Info("connections are limited over all edges", "edges", after)
	}
	return again, nil
}

// Edges returns over how many edges connections are limited; 0: this one alone.
func (c *Fleet) Edges() int { return c.fleet.Edges() }

// Claims returns of how many hosts and sites this edge has claims.
func (c *Fleet) Claims() int { return c.fleet.Claims() }

// leave gives back what the store counts of this edge. Where that fails, the lease does.
func (c *Fleet) leave() {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if c.handed {
		return // it is another process's to say
	}
	ctx, cancel := context.WithTimeout(context.Background(), fleetPatience)
	defer cancel()
	client := c.store.client.Load()
	if client == nil {
		return
	}
	c.script.lua.Exec(ctx, *client, c.keys, []string{c.name(c.fleet.Beat(time.Now())), milliseconds(c.lease), "leave"})
}

// name is what the store knows this edge by.
func (c *Fleet) name(b admission.Beat) string { return c.id + "." + strconv.FormatUint(b.Life, 10) }

// send has the store take a beat.
func (c *Fleet) send(ctx context.Context, b admission.Beat) (admission.Reply, error) {
	client := c.store.client.Load()
	if client == nil {
		return admission.Reply{}, errAway
	}
	args := make([]string, 0, 8+6*len(b.Asks))
	args = append(args, c.name(b), milliseconds(c.lease), whole(int64(b.Number)), flag(b.Begin),
		whole(int64(b.Edges)), whole(int64(b.Seen)), flag(b.News), whole(int64(b.Cursor)))
	for _, a := range b.Asks {
		spent := (a.Spent + time.Microsecond - 1) / time.Microsecond
		args = append(args, string(a.Key[:]), whole(int64(a.Held)), whole(int64(a.Need)), whole(int64(a.Want)), whole(int64(a.Cap)), whole(int64(spent)))
	}
	answer, err := c.script.lua.Exec(ctx, *client, c.keys, args).ToArray()
	if err != nil {
		return admission.Reply{}, err
	}
	return reply(answer)
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// reply reads what the script answers.
func reply(answer []rueidis.RedisMessage) (r admission.Reply, err error) {
	at := func(i int) int64 {
		n, e := answer[i].AsInt64()
		if e != nil && err == nil {
			err = fmt.Errorf("the answer to a beat: %w", e)
		}
		return n
	}
	if len(answer) < 4 || (len(answer)-4)%5 != 0 {
		return r, errNoAnswer
	}
	r = admission.Reply{Unknown: at(0) == 1, Edges: int(at(1)), Version: uint64(at(2)), More: at(3) == 1}
	for i := 4; i < len(answer); i += 5 {
		a := admission.Answer{Claim: int(at(i + 1)), Total: int(at(i + 2)), Tight: at(i+3) == 1, Debt: time.Duration(at(i+4)) * time.Microsecond}
		key, e := answer[i].ToString()
		if e != nil {
			return r, errNoAnswer
		}
		if len(key) != len(a.Key) {
			continue // it is none of ours, whoever has put it there
		}
		copy(a.Key[:], key)
		r.Answers = append(r.Answers, a)
	}
	return r, err
}
