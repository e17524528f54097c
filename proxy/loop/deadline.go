package loop

import (
	"sync"
	"time"
)

// deadline ends waits at a time that may change while they wait.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{} // closed at the time
}

func newDeadline() *deadline { return &deadline{over: make(chan struct{})} }

// set moves the deadline; the zero time is never.
func (d *deadline) set(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // the timer's function has run, or does so at this moment
	}
	d.timer = nil
	select {
	case <-d.over:
		d.over = make(chan struct{})
	default:
	}
	if at.IsZero() {
		return
	}
	wait := time.Until(at)
	if wait <= 0 {
		close(d.over)
		return
	}
	over := d.over
	d.timer = time.AfterFunc(wait, func() { close(over) })
}

// drop forgets a deadline that nobody waits for any longer. Its timer would
// otherwise outlive the connection.
func (d *deadline) drop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// passed returns the channel that closes at the deadline as it is set at present.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

// isOver reports whether the deadline has passed.
func (d *deadline) isOver() bool {
	select {
	case <-d.passed():
		return true
	default:
		return false
	}
}

// past is a deadline that is over.
var past = time.Unix(1, 0)
