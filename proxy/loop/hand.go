package loop

import "fmt"

// Hand gives a connection to a handler, which is told at least once, soon. Whoever
// had the connection must not read or write it any longer, and a goroutine that
// waits in it must have returned. It may be called from any goroutine.
func (l *Loop) Hand(c Stream, h Handler) error {
	switch c := c.(type) {
	case watchable:
		return c.hand(l, h)
	case Notifier:
		l.handNotifier(c, h)
		return nil
	}
	return fmt.Errorf("a loop cannot watch a %T", c)
}

// Lend gives a connection that a handler has to a goroutine. It is called in the
// loop's goroutine.
func (l *Loop) Lend(c Stream) {
	switch c := c.(type) {
	case watchable:
		c.lend()
	case Notifier:
		l.lendNotifier(c)
	}
}

// Detach takes a socket from its handler, which is told nothing more, so that
// another loop may have it. It is called in the loop's goroutine. A connection in
// memory stays where it is.
func (l *Loop) Detach(c Stream) {
	if c, ok := c.(watchable); ok {
		c.detach()
	}
}

// Handlers returns the handlers of the loop's sockets, one for each of them. It
// is called in the loop's goroutine.
func (l *Loop) Handlers() []Handler {
	table, ok := l.park.(interface{ watchables() []watchable })
	if !ok {
		return nil
	}
	var handlers []Handler
	for _, c := range table.watchables() {
		if h := c.handledBy(); h != nil {
			handlers = append(handlers, h)
		}
	}
	return handlers
}

// Watches reports whether the loop can watch a connection.
func (l *Loop) Watches(c any) bool {
	if _, memory := l.park.(*channelParker); memory {
		_, ok := c.(Notifier)
		return ok
	}
	_, ok := c.(watchable)
	return ok
}

// watchable is a connection of the kernel's.
type watchable interface {
	hand(l *Loop, h Handler) error
	lend()
	detach()
	handledBy() Handler
}
