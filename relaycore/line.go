package relaycore

// line is a list in the order in which its elements came, through places that
// they hold themselves. Whatever lives equally long ends in that order too.
type line[T any] struct {
	place       func(*T) *place[T] // static: an element's place in this line
	first, last *T
	n           int
}

// place is an element's place in a line.
type place[T any] struct{ before, after *T }

func (l *line[T]) append(e *T) {
	p := l.place(e)
	p.before, p.after = l.last, nil
	if l.last == nil {
		l.first = e
	} else {
		l.place(l.last).after = e
	}
	l.last = e
	l.n++
}

func (l *line[T]) remove(e *T) {
	p := l.place(e)
	if p.before == nil {
		l.first = p.after
	} else {
		l.place(p.before).after = p.after
	}
	if p.after == nil {
		l.last = p.before
	} else {
		l.place(p.after).before = p.before
	}
	*p = place[T]{}
	l.n--
}
