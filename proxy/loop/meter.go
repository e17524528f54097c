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

	share atomic.Int64 // of the latest whole window, in thousandths
	until atomic.Int64 // when that ended, in Unix nanoseconds
}

// begin is called at the beginning of each turn. It reports whether a window has
// ended.
func (m *meter) begin(now time.Time) (ended bool) {
	if m.beganAt.IsZero() {
		m.beganAt = now
	}
	window := now.Sub(m.windowAt)
	if window < meterWindow {
		return false
	}
	m.worked += now.Sub(m.beganAt)
	m.share.Store(int64(min(1000*m.worked/window, 1000)))
	m.until.Store(now.UnixNano())
	m.windowAt, m.beganAt, m.worked = now, now, 0
	return true
}

// end is called when the loop is about to sleep.
func (m *meter) end(now time.Time) {
	m.worked += now.Sub(m.beganAt)
	m.beganAt = time.Time{}
}

// Busy is the share of its time that the loop worked lately, in thousandths; of
// one that has slept for long it is 0. It may be called from any goroutine.
func (l *Loop) Busy(now time.Time) int {
	if now.UnixNano()-l.busy.until.Load() > int64(2*meterWindow) {
		return 0
	}
	return int(l.busy.share.Load())
}

// OnWindow has f called in the loop's goroutine when Busy has changed, between
// what it does for its connections. It is set before Run.
func (l *Loop) OnWindow(f func()) { l.onWindow = f }
