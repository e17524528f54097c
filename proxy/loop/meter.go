package loop

import (
	"sync/atomic"
	"time"
)

// meterWindow is the time over which a loop's work is measured.
const meterWindow = 100 * time.Millisecond

// meter measures how much of its time a loop works.
type meter struct {
	windowAt time.Time     // when the window began
	beganAt  time.Time     // when the stretch of turns began; zero: the loop sleeps
	worked   time.Duration // in the window, before the stretch
	share    atomic.Uint32 // of the latest whole window, in thousandths
}

// begin is called at the beginning of each turn.
func (m *meter) begin(now time.Time) {
	if m.beganAt.IsZero() {
		m.beganAt = now
	}
	if window := now.Sub(m.windowAt); window >= meterWindow {
		m.worked += now.Sub(m.beganAt)
		m.share.Store(uint32(min(1000*m.worked/window, 1000)))
		m.windowAt, m.beganAt, m.worked = now, now, 0
	}
}

// end is called when the loop is about to sleep.
func (m *meter) end(now time.Time) {
	m.worked += now.Sub(m.beganAt)
	m.beganAt = time.Time{}
}

// Busy is the share of its time that the loop worked lately, in thousandths. It
// may be called from any goroutine. A loop that sleeps on is busy as it was
// before: whoever compares looks at one that works.
func (l *Loop) Busy() int { return int(l.busy.share.Load()) }
