//go:build !linux

package loop

import "errors"

// Open fails: the kernel's part is written for Linux.
func Open(together int) (*Loop, error) { return nil, errors.ErrUnsupported }

// Lend gives a connection that a handler has to a goroutine. It is called in the
// loop's goroutine.
func (l *Loop) Lend(c Stream) {
	if n, ok := c.(Notifier); ok {
		l.lendNotifier(n)
	}
}
