package telemetry

import (
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
)

// faults is a listener that logs why it cannot accept.
type faults struct {
	net.Listener
	log    *slog.Logger
	closed atomic.Bool

	failing bool // the last Accept failed; owned by the accept loop
}

func (f *faults) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	if err != nil {
		return nil, f.fail(err)
	}
	f.failing = false
	return c, nil
}

// fail logs the first of failures in a row, and returns what net/http should
// make of it: after one that passes it tries again by itself, with pauses up to
// a second.
func (f *faults) fail(err error) error {
	if f.closed.Load() {
		return err
	}
	if !f.failing {
		f.log.Warn("Metrics endpoint cannot accept", "error", err)
	}
	f.failing = true
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err
	}
	switch errno {
	case syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EFAULT:
		return err // the socket itself is none
	}
	return passing{err}
}

// passing is an error of accept that a pause may mend. net/http knows only some
// as such: a lack of descriptors, but not one of memory, and no fault of the
// newcomer's network.
type passing struct{ error }

func (p passing) Unwrap() error { return p.error }
func (passing) Timeout() bool   { return false }
func (passing) Temporary() bool { return true }

func (f *faults) Close() error {
	f.closed.Store(true)
	return f.Listener.Close()
}
