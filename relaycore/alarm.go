package relaycore

import "time"

// alarm rings when something is due, for where nobody comes by to do it. All of it
// is guarded by its owner's lock.
type alarm struct {
	ring func() // static; it calls rung, with the lock held

	timer *time.Timer // nil: never set
	at    time.Time   // when it rings; zero: it is not set
	off   bool        // it is not to be set again
}

// by has it ring at a time, if it would not before.
func (a *alarm) by(at, now time.Time) {
	if a.off || !a.at.IsZero() && !at.Before(a.at) {
		return
	}
	a.at = at
	if a.timer == nil {
		a.timer = time.AfterFunc(at.Sub(now), a.ring)
	} else {
		a.timer.Reset(at.Sub(now))
	}
}

// rung notes that it has rung, or need not.
func (a *alarm) rung() { a.at = time.Time{} }

// stop silences it for good.
func (a *alarm) stop() {
	a.off = true
	if a.timer != nil {
		a.timer.Stop()
	}
}
