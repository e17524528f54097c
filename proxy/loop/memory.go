package loop

import "time"

// InMemory returns a loop for connections in memory (Notifier), which sleeps on
// a channel: in a bubble of synthetic time it is idle when it sleeps.
func InMemory() *Loop { return newLoop(&channelParker{woken: make(chan struct{}, 1)}) }

// channelParker sleeps on a channel and a timer of the runtime's.
type channelParker struct {
	woken chan struct{}
	at    time.Time // zero: no timer is set
}

func (p *channelParker) run(turn func([]occurrence) outcome) {
	timer := time.NewTimer(0)
	<-timer.C
	for {
		p.at = time.Time{}
		switch turn(nil) {
		case end:
			return
		case goOn:
			continue
		}
		if p.at.IsZero() {
			<-p.woken
			continue
		}
		timer.Reset(time.Until(p.at))
		select {
		case <-p.woken:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (p *channelParker) arm(at time.Time) { p.at = at }
func (p *channelParker) close()           {}

func (p *channelParker) wake() {
	select {
	case p.woken <- struct{}{}:
	default: // it is about to take a turn
	}
}

// notified is a connection in memory with its handler.
type notified struct {
	conn    Notifier
	handler Handler
	queued  bool // guarded by the loop's mutex
	gone    bool // likewise: the handler has the connection no longer
}

// handNotifier has a connection in memory report to a handler.
func (l *Loop) handNotifier(c Notifier, h Handler) {
	n := &notified{conn: c, handler: h}
	mark := func() {
		l.mu.Lock()
		first := !n.queued
		if first {
			n.queued = true
			l.ready = append(l.ready, n)
		}
		l.mu.Unlock()
		if first {
			l.park.wake()
		}
	}
	l.mu.Lock()
	if before := l.inMemory[c]; before != nil {
		before.gone = true
	}
	if l.inMemory == nil {
		l.inMemory = make(map[Notifier]*notified)
	}
	l.inMemory[c] = n
	l.mu.Unlock()
	c.Notify(mark)
	mark()
}

// lendNotifier takes a connection in memory from its handler, which may be about
// to be told of it.
func (l *Loop) lendNotifier(c Notifier) {
	c.Notify(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.inMemory[c]; n != nil {
		n.gone = true
		delete(l.inMemory, c)
	}
}

// report tells the handler. What happened to the connection is for it to find
// out, by reading until nothing is left.
func (n *notified) report(l *Loop) {
	l.mu.Lock()
	n.queued = false
	gone := n.gone
	l.mu.Unlock()
	if gone {
		return
	}
	l.tell(n.handler, n.conn, Event{Readable: true, Writable: true, Ended: true})
}
