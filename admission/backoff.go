package admission

import (
	"errors"
	"syscall"
	"time"
)

const (
	firstAcceptPause = 5 * time.Millisecond
	lastAcceptPause  = time.Second
)

// AcceptBackoff tells an accept loop which errors to live through, and how long
// to pause after them. The zero AcceptBackoff is ready; it is not safe for
// concurrent use.
type AcceptBackoff struct {
	pause time.Duration // the latest; 0: none since the last success
}

// Retry reports whether the loop accepts again after err, and how long it
// pauses before: not at all after a connection that was gone before it was
// accepted; else 5 ms, doubled up to 1 s. What the system reports at accept
// passes: a lack of descriptors or memory, a firewall's no, a fault of the
// newcomer's network, which Linux reports there. Only errors that say that the
// socket itself is none, or closed, are final.
func (b *AcceptBackoff) Retry(err error) (pause time.Duration, retry bool) {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return 0, false
	}
	switch errno {
	case syscall.ECONNABORTED:
		return 0, true
	case syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EFAULT:
		return 0, false
	}
	b.pause = min(max(2*b.pause, firstAcceptPause), lastAcceptPause)
	return b.pause, true
}

// Wait pauses as Retry says, or until done is closed, and reports whether to
// accept again: what done stands for, the next accept tells.
func (b *AcceptBackoff) Wait(err error, done <-chan struct{}) (retry bool) {
	pause, retry := b.Retry(err)
	if pause == 0 {
		return retry
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
	return true
}

// Reset starts the pauses over. The loop calls it after an accept that succeeded.
func (b *AcceptBackoff) Reset() { b.pause = 0 }
