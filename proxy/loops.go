package proxy

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/proxy/loop"
	"relayedge/proxy/upstream"
)

// loopEngine has event loops carry what is idle or moves bytes: a connection
// until its first byte (arrival), and the forwarding (pair). In between, for the
// PROXY header, the handshake and the dial, a goroutine carries it, because all
// of them may wait, and so may the choice of a certificate; protocol: http stays
// with its goroutine until an upgrade.
//
// One loop accepts. The forwarding is shared out among as many as the load calls
// for (loopshare.go).
type loopEngine struct {
	mu     sync.Mutex   // guards all below but ends
	loops  []*loop.Loop // the first accepts
	share  loopShare    // of the load
	memory *loop.Loop   // of connections in memory; nil: there were none
	ends   sync.WaitGroup
	// together is from how many reads or writes of a turn on a loop makes them by one
	// system call; 0: never. It is set before the first is opened.
	together int
}

// accept has a loop take the newcomers, or a goroutine those that no loop can
// watch before they are there.
func (e *loopEngine) accept(ctx context.Context, l *listener) error {
	if !watchable(l.socket) {
		return l.accept(ctx)
	}
	first, err := e.first()
	if err != nil {
		return err
	}
	if polled, ok := l.socket.(interface{ Unpoll() error }); ok {
		if err := polled.Unpoll(); err != nil {
			return err
		}
	}
	failed := make(chan error, 1)
	stop, err := acceptOn(first, l, func(err error) { failed <- err })
	if err != nil {
		return err
	}
	defer stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
}

// first returns the loop that accepts.
func (e *loopEngine) first() (*loop.Loop, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.loops) > 0 {
		return e.loops[0], nil
	}
	l, err := e.open()
	if err == nil {
		e.share.active = 1
	}
	return l, err
}

// inMemory returns the loop of connections in memory.
func (e *loopEngine) inMemory() *loop.Loop {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.memory == nil {
		e.memory = loop.InMemory()
		e.ends.Go(e.memory.Run)
	}
	return e.memory
}

func (e *loopEngine) close() {
	e.mu.Lock()
	loops := slices.Clone(e.loops)
	if e.memory != nil {
		loops = append(loops, e.memory)
	}
	e.mu.Unlock()
	for _, l := range loops {
		l.Stop()
	}
	e.ends.Wait()
}

// loopOf returns the loop that a connection is for; nil: none can watch it. A
// loop that has accepted it is inside: this is its goroutine.
func (e *loopEngine) loopOf(c net.Conn) (l *loop.Loop, inside bool) {
	switch c := c.(type) {
	case interface{ Loop() *loop.Loop }:
		return c.Loop(), true
	case loop.Notifier:
		return e.inMemory(), false
	}
	return nil, false
}

func (e *loopEngine) serve(s *session) {
	l, inside := e.loopOf(s.conn)
	switch {
	case l == nil:
		go serveStream(s)
	case s.terms.trust.Empty() && s.terms.config.TLS == "none":
		go e.carry(s, l, nil) // the relay may speak first
	default:
		if a := e.await(s, l); a != nil && inside {
			contain(a, a.begin)
		} else if a != nil {
			l.Post(func() { contain(a, a.begin) })
		}
	}
}

// await has the loop carry a session until its first byte; nil: not so.
func (e *loopEngine) await(s *session, l *loop.Loop) *arrival {
	a := &arrival{engine: e, s: s, loop: l, reason: ProxyHeader, until: s.accepted.Add(s.terms.times.proxyHeader)}
	a.timer.Owner = a
	if s.terms.trust.Empty() {
		var ok bool
		if a.place, ok = s.enter(s.accepted); !ok {
			go e.carry(s, l, nil) // to be turned away
			return nil
		}
		a.reason, a.until = TLSHandshakeTimeout, s.accepted.Add(s.terms.times.handshake)
	}
	if !s.carriedBy(a) {
		a.giveUp()
		return nil
	}
	return a
}

// carry takes a session to its relay in a goroutine, and hands it to the loop.
func (e *loopEngine) carry(s *session, l *loop.Loop, place *admission.Place) {
	carried := false
	defer func() {
		if carried {
			return
		}
		if cause := recover(); cause != nil {
			s.panicked(cause)
		}
		s.finish()
	}()
	s.gathers = s.terms.config.Protocol != "http"
	f, ready := s.carry(place)
	if f == nil {
		return
	}
	client, relay := e.streams(l, s)
	if client == nil {
		s.wire.depart()
		f.forward(ready)
		return
	}
	var header []byte
	if f.introduce {
		var reason Reason
		if header, reason = s.introduction(s.upstream.Config()); reason != "" {
			s.end(reason)
			return
		}
	}
	p := newPair(f, e.lightest(l), client, relay, header, ready)
	if carried = s.carriedBy(p); carried {
		p.hand()
	}
}

// streams returns both connections of a session as its loop can watch them; none
// if it cannot.
func (e *loopEngine) streams(l *loop.Loop, s *session) (client, relay loop.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.relay == nil || !l.Watches(s.conn) || !l.Watches(s.relay) {
		return nil, nil
	}
	return s.conn.(loop.Stream), s.relay.(loop.Stream)
}

// arrival is a connection whose first byte is awaited in an event loop.
type arrival struct {
	engine *loopEngine
	s      *session
	loop   *loop.Loop
	place  *admission.Place // among the handshakes; nil: a PROXY header comes before
	timer  loop.Timer
	until  time.Time
	reason Reason // when the time is over
	over   bool
}

// begin is the first of the loop's goroutine.
func (a *arrival) begin() {
	if a.over {
		return
	}
	a.loop.SetTimer(&a.timer, a.until)
	if err := a.loop.Hand(a.s.conn.(loop.Stream), a); err != nil {
		a.end(Descriptors)
	}
}

// Ready has a goroutine go on, once there is something to read.
func (a *arrival) Ready(c loop.Stream, e loop.Event) {
	if a.over || !e.Readable && !e.Ended {
		return
	}
	a.over = true
	a.loop.ClearTimer(&a.timer)
	a.loop.Lend(c)
	if !a.s.carriedBy(nil) {
		a.giveUp()
		return
	}
	go a.engine.carry(a.s, a.loop, a.place)
}

// Expire ends a session that has said nothing in its time.
func (a *arrival) Expire() { contain(a, func() { a.end(a.reason) }) }

func (a *arrival) Panicked(cause any) {
	a.s.panicked(cause)
	a.end(TaskPanic)
}

// interrupt ends the session for the outcome that was named.
func (a *arrival) interrupt() { a.loop.Post(func() { contain(a, func() { a.end("") }) }) }

func (a *arrival) end(r Reason) {
	if a.over {
		return
	}
	a.over = true
	a.loop.ClearTimer(&a.timer)
	if r != "" {
		a.s.end(r)
	}
	a.giveUp()
}

// giveUp ends a session that nobody has heard of.
func (a *arrival) giveUp() {
	if a.place != nil {
		a.place.Leave()
	}
	if a.s.release() {
		abort(a.s.conn)
	}
	a.s.conn.Close()
	a.s.finish()
}

func (e *loopEngine) connector(s *session) upstream.Connector {
	if l, inside := e.loopOf(s.conn); inside {
		return connectorOf(l)
	}
	return nil
}

// hand gives both connections to the loop, which begins with the first of them
// that is ready for anything: that a relay which has just been reached takes its
// header. After an upgrade both may be ready for nothing.
func (p *pair) hand() {
	if p.start != nil && p.start.spoken {
		defer p.loop.Post(func() { contain(p, func() { p.Ready(nil, loop.Event{}) }) })
	}
	err := p.loop.Hand(p.relay, p)
	if err == nil {
		err = p.loop.Hand(p.client, p)
	}
	if err != nil {
		p.s.stop(Descriptors)
	}
}

// contain tells a handler of a panic in what does not come by its Ready, as the
// loop does of one in there.
func contain(h loop.Handler, f func()) {
	defer func() {
		if cause := recover(); cause != nil {
			h.Panicked(cause)
		}
	}()
	f()
}
