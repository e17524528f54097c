package push

import "container/list"

// queue is what waits to be woken: a line for each host, which take turns, so
// that a host that does not answer holds up its own alone. It has no lock of its
// own: Waker.mu guards it.
type queue struct {
	most int // wake-ups under way at once; changed by a reload

	flying  int
	lanes   map[string]*lane // hosts for which something waits or is under way
	turns   *list.List       // those of them for which something waits
	waiting int
}

// lane is one host's.
type lane struct {
	host    string
	waiting *list.List // of *registration
	flying  int
	turn    *list.Element // in queue.turns; nil: nothing waits
}

func newQueue() queue { return queue{lanes: make(map[string]*lane), turns: list.New()} }

// add has r wait for its turn.
func (q *queue) add(r *registration) {
	l := q.lanes[r.host]
	if l == nil {
		l = &lane{host: r.host, waiting: list.New()}
		q.lanes[r.host] = l
	}
	if l.turn == nil {
		l.turn = q.turns.PushBack(l)
	}
	r.queued = l.waiting.PushBack(r)
	q.waiting++
}

// remove takes r out of the line, if it stands there.
func (q *queue) remove(r *registration) {
	if r.queued == nil {
		return
	}
	l := q.lanes[r.host]
	l.waiting.Remove(r.queued)
	r.queued = nil
	q.waiting--
	q.tidy(l)
}

// next takes out who may fly; nil: nobody may at present. The host of it has the
// turn after all others.
func (q *queue) next() *registration {
	if q.flying >= q.most {
		return nil
	}
	// Two hosts at most have all that one may have.
	for e := q.turns.Front(); e != nil; e = e.Next() {
		l := e.Value.(*lane)
		if l.flying >= max(1, q.most/2) {
			continue
		}
		r := l.waiting.Front().Value.(*registration)
		q.flying++
		l.flying++
		q.turns.MoveToBack(e)
		q.remove(r)
		return r
	}
	return nil
}

// landed ends what next began for a host.
func (q *queue) landed(host string) {
	l := q.lanes[host]
	q.flying--
	l.flying--
	q.tidy(l)
}

// tidy keeps nothing of a host for which nothing waits.
func (q *queue) tidy(l *lane) {
	if l.waiting.Len() > 0 {
		return
	}
	if l.turn != nil {
		q.turns.Remove(l.turn)
		l.turn = nil
	}
	if l.flying == 0 {
		delete(q.lanes, l.host)
	}
}
