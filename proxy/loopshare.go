package proxy

import (
	"runtime"
	"time"

	"relayedge/proxy/loop"
)

// How loops share the load. One loop costs less for each operation than several,
// which wake each other's processors; several carry more.
const (
	// busyShare is of its time, in thousandths, what a loop works that is given no
	// more if another can have it.
	busyShare = 950
	// busyWindows is for how many looks in a row it does, before another helps.
	busyWindows = 5
	// calmShare is how little all loops work together if one less will do.
	calmShare = 700
	// calmTime is for how long they do.
	calmTime = 3 * time.Second
	// settleTime is between one change and the next: what it has led to is to be
	// seen first.
	settleTime = time.Second
	// callsTogether is from how many reads or writes of a turn on it costs less to
	// make them by one system call.
	callsTogether = 4
)

// member is a loop of the engine's.
type member struct {
	*loop.Loop
	hot  int       // looks in a row at which it was busy; guarded by the engine's mu
	calm time.Time // since when all together were calm; likewise; zero: they are not
}

// open requires mu. It opens one more loop.
func (e *loopEngine) open() (*member, error) {
	l, err := loop.Open(e.together)
	if err != nil {
		return nil, err
	}
	m := &member{Loop: l}
	l.OnWindow(func() { e.look(m) })
	e.loops = append(e.loops, m)
	e.ends.Go(l.Run)
	return m, nil
}

// lightest is the loop that a connection is given to that came by l.
func (e *loopEngine) lightest(l *loop.Loop) *loop.Loop {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.active < 2 {
		return l
	}
	now := time.Now()
	least := e.loops[0]
	for _, m := range e.loops[1:e.active] {
		if m.Busy(now) < least.Busy(now) {
			least = m
		}
	}
	return least.Loop
}

// look is in the goroutine of a loop, which has just learned how busy it is. It
// has others help, or does with fewer.
func (e *loopEngine) look(m *member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := m.Now()
	if m.Busy(now) >= busyShare {
		m.hot++
	} else {
		m.hot = 0
	}
	if now.Sub(e.since) < settleTime {
		return
	}
	switch {
	case m.hot >= busyWindows:
		if to := e.helper(m, now); to != nil {
			e.since = now
			handOver(m.Loop, to.Loop, 2)
		}
	case e.active > 1 && e.calm(m, now):
		e.active--
		e.since = now
		last := e.loops[e.active].Loop
		last.Post(func() { handOver(last, e.loops[0].Loop, 1) })
	}
}

// helper requires mu. It returns the loop that takes half of a busy one's
// connections: one more if there may be, or one that is not half as busy.
func (e *loopEngine) helper(m *member, now time.Time) *member {
	for _, other := range e.loops[:e.active] {
		if other.Busy(now) < busyShare/2 {
			return other
		}
	}
	if e.active == runtime.GOMAXPROCS(0) {
		return nil
	}
	if e.active == len(e.loops) {
		if _, err := e.open(); err != nil {
			return nil // no descriptors: those that there are have to do
		}
	}
	e.active++
	return e.loops[e.active-1]
}

// calm requires mu. It reports whether one loop less would do.
func (e *loopEngine) calm(m *member, now time.Time) bool {
	together := 0
	for _, each := range e.loops[:e.active] {
		together += each.Busy(now)
	}
	if together > calmShare {
		m.calm = time.Time{}
		return false
	}
	if m.calm.IsZero() {
		m.calm = now
	}
	return now.Sub(m.calm) >= calmTime
}

// handOver moves one of so many of a loop's pairs to another loop, and returns how
// many those are. It is called in the goroutine of the loop that gives.
func handOver(from, to *loop.Loop, oneOf int) (moved int) {
	seen := make(map[*pair]bool)
	for _, h := range from.Handlers() {
		if p, ok := h.(*pair); ok && !seen[p] {
			seen[p] = true
			if len(seen)%oneOf == 0 && p.move(to) {
				moved++
			}
		}
	}
	return moved
}

// move gives the pair to another loop, unless it is ending, or has not begun, or
// has more to do in this one's next turn: then it stays. It reports whether it goes.
func (p *pair) move(to *loop.Loop) bool {
	if p.over || p.queued || p.start != nil || !p.s.carriedOn(func() {
		p.loop.ClearTimer(&p.timer)
		p.loop.Detach(p.client)
		p.loop.Detach(p.relay)
		p.loop = to
	}) {
		return false
	}
	to.Post(func() { p.contain(p.arrive) })
	return true
}

// arrive is the first in the goroutine of the loop that a pair was moved to.
func (p *pair) arrive() {
	if p.over {
		return
	}
	p.s.wire.gather = &p.loop.Out
	if at := p.armed; !at.IsZero() {
		p.loop.SetTimer(&p.timer, at)
	}
	p.hand()
}
