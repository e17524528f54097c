package client

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/coder/websocket"
)

const (
	// settled is how long a session lasts that was no failure.
	settled = time.Minute
	// longestPause is the longest wait between two sessions, jitter aside.
	longestPause = 40 * time.Second
	// authPause lets the relay forget that the client proved itself too often.
	authPause = 10 * time.Second
	// farewell is how long a lost session is read for the relay's close frame.
	farewell = time.Second
)

// Hold holds a session at a relay for as long as ctx lasts: it dials and calls
// use, and where the session is lost for a passing reason does both again after
// a wait, which is longer each time and random, so that the clients of a relay
// that starts again do not come all at once. It returns nil once use does, the
// session's end where that is final ([Passing]), and else what use returns of its
// own. use gives up the session by returning; Hold closes it.
func Hold(ctx context.Context, url string, o Options, use func(context.Context, *Session) error) error {
	for failures := 0; ; failures++ {
		began := time.Now()
		err, lost := hold(ctx, url, o, use)
		if err == nil || !lost || ctx.Err() != nil || !Passing(err) {
			return err
		}
		if time.Since(began) >= settled {
			failures = 0
		}
		if cause := pause(ctx, between(err, failures)); cause != nil {
			return fmt.Errorf("%w, after: %w", cause, err)
		}
	}
}

// hold holds one session. lost says that the relay or the way to it ended it.
func hold(ctx context.Context, url string, o Options, use func(context.Context, *Session) error) (err error, lost bool) {
	dialing, cancel := context.WithTimeout(ctx, attemptTime)
	s, err := Dial(dialing, url, o)
	cancel()
	if err != nil {
		return err, true
	}
	defer s.abandon()
	if err := use(ctx, s); err == nil {
		return nil, false
	} else if s.lost.Load() == nil {
		return err, false
	}
	return s.end(ctx), true
}

// between is the wait after so many sessions that were lost in a row: 1, 2, 4 …
// seconds, and up to half as much again.
func between(err error, failures int) time.Duration {
	if e, ok := errors.AsType[*UpgradeError](err); ok && e.RetryAfter > 0 {
		return jittered(min(e.RetryAfter, longestWait))
	}
	wait := min(time.Second<<min(failures, 10), longestPause)
	if e, ok := errors.AsType[websocket.CloseError](err); ok && e.Reason == authRate {
		wait = max(wait, authPause)
	}
	return wait + mathrand.N(wait/2+1)
}

// note keeps what has failed first, and the relay's close frame in its place: a
// write that fails does not say why.
func (s *Session) note(err error) {
	if err == nil {
		return
	}
	if !s.lost.CompareAndSwap(nil, &err) && websocket.CloseStatus(err) != -1 {
		s.lost.Store(&err)
	}
}

// end returns why a lost session has ended, for which it reads what the relay
// may still have said.
func (s *Session) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	for websocket.CloseStatus(*s.lost.Load()) == -1 {
		if _, _, err := s.conn.Read(ctx); err != nil {
			s.note(err)
			break
		}
	}
	return *s.lost.Load()
}
