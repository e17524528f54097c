package proxy

import (
	"runtime"
	"time"

	"relayedge/proxy/loop"
)

// How loops share the load. One loop costs less for each operation than several,
// which wake each other's processors; several carry more. There are at most as many
// as the program has processors, whose number goes by the same share and a look less
// (cmd/internal/service/processors.go): the processor is there before the loop.
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

// loopShare decides how many loops carry pairs, and which of them gives some to
// which. It knows loops by their number; how busy each is, in thousandths of its
// time, and the time it is told.
type loopShare struct {
	active int       // the first so many loops are given connections
	since  time.Time // when a loop has last been told to help, or to rest
	calm   time.Time // since when all together are calm; zero: they are not
	hot    []int     // by loop: at how many looks in a row it was busy
	given  []int     // by loop: the pairs that it was given since it last looked
}

// look is what a loop does that has just learned how busy it is; most is how many
// loops there may be. It returns which loop gives one of so many of its pairs to
// which: to a busy one's helper, or to the first if one less will do. oneOf 0: no
// loop gives any.
func (s *loopShare) look(loop int, busy func(loop int) int, most int, now time.Time) (from, to, oneOf int) {
	s.know(loop)
	s.given[loop] = 0
	if busy(loop) >= busyShare {
		s.hot[loop]++
	} else {
		s.hot[loop] = 0
	}
	together := 0
	for i := range s.active {
		together += busy(i)
	}
	if together > calmShare {
		s.calm = time.Time{}
	} else if s.calm.IsZero() {
		s.calm = now
	}
	switch {
	case now.Sub(s.since) < settleTime:
	case s.hot[loop] >= busyWindows:
		if helper, ok := s.helper(busy, most); ok {
			s.since = now
			return loop, helper, 2
		}
	case s.active > 1 && !s.calm.IsZero() && now.Sub(s.calm) >= calmTime:
		s.active--
		s.since = now
		return s.active, 0, 1
	}
	return 0, 0, 0
}

// helper chooses who takes half of a busy loop's pairs: one that is not half as
// busy, or one more if there may be. The latter is active from here.
func (s *loopShare) helper(busy func(loop int) int, most int) (loop int, ok bool) {
	for i := range s.active {
		if busy(i) < busyShare/2 {
			return i, true
		}
	}
	if s.active >= most {
		return 0, false
	}
	s.active++
	return s.active - 1, true
}

// lightest is the loop that the next pair is given to. How busy a loop is shows
// once a window: until then each pair given to it counts as a thousandth of its
// time, so that a burst is spread over loops that are alike.
func (s *loopShare) lightest(busy func(loop int) int) int {
	s.know(s.active - 1)
	least := 0
	for i := range s.active {
		if busy(i)+s.given[i] < busy(least)+s.given[least] {
			least = i
		}
	}
	s.given[least]++
	return least
}

// know has room for a loop, and for those before it.
func (s *loopShare) know(loop int) {
	for len(s.hot) <= loop {
		s.hot, s.given = append(s.hot, 0), append(s.given, 0)
	}
}

// busy requires mu for as long as what it returns is used.
func (e *loopEngine) busy(now time.Time) func(int) int {
	return func(i int) int { return e.loops[i].Busy(now) }
}

// open requires mu. It opens one more loop.
func (e *loopEngine) open() (*loop.Loop, error) {
	l, err := loop.Open(e.together)
	if err != nil {
		return nil, err
	}
	number := len(e.loops)
	l.OnWindow(func() { e.look(number, l.Now()) })
	e.loops = append(e.loops, l)
	e.ends.Go(l.Run)
	return l, nil
}

// lightest is the loop that a connection is given to that came by l.
func (e *loopEngine) lightest(l *loop.Loop) *loop.Loop {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.share.active < 2 {
		return l
	}
	return e.loops[e.share.lightest(e.busy(time.Now()))]
}

// look has the loops share the load as one of them calls for, which has just
// learned how busy it is.
func (e *loopEngine) look(number int, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if number >= e.share.active { // what had more to do when it was to rest goes later
		from, to := e.loops[number], e.loops[0]
		from.Post(func() { handOver(from, to, 1) })
		return
	}
	i, j, oneOf := e.share.look(number, e.busy(now), runtime.GOMAXPROCS(0), now)
	if oneOf == 0 {
		return
	}
	if j == len(e.loops) {
		if _, err := e.open(); err != nil {
			e.share.active-- // no descriptors: the loops that there are have to do
			return
		}
	}
	from, to := e.loops[i], e.loops[j]
	from.Post(func() { handOver(from, to, oneOf) })
}

// handOver moves one of so many of a loop's pairs to another loop, and returns how
// many those are. It is called in the goroutine of the loop that gives.
func handOver(from, to *loop.Loop, oneOf int) (moved int) {
	for _, p := range chosen(from.Handlers(), oneOf) {
		if p.move(to) {
			moved++
		}
	}
	return moved
}

// chosen returns one of so many of the pairs that there are among handlers, each
// of which may be there twice.
func chosen(handlers []loop.Handler, oneOf int) (pairs []*pair) {
	seen := make(map[*pair]bool)
	for _, h := range handlers {
		if p, ok := h.(*pair); ok && !seen[p] {
			seen[p] = true
			if len(seen)%oneOf == 0 {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs
}

// move gives the pair to another loop, unless it is ending, or has not begun, or
// has more to do in this one's next turn: then it stays. It reports whether it goes.
func (p *pair) move(to *loop.Loop) bool {
	if p.over || p.queued || p.start != nil || !p.s.unlessStopped(func() {
		p.loop.ClearTimer(&p.timer)
		p.loop.Detach(p.client)
		p.loop.Detach(p.relay)
		p.loop = to
	}) {
		return false
	}
	to.Post(func() { contain(p, p.arrive) })
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
