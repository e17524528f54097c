package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrLost says that a lock is no longer held: its holder was frozen, or cut off from
// the store, for longer than the lease.
var ErrLost = errors.New("the lock was lost")

const (
	// lease is how long a lock outlives the last word of its holder.
	lease = 10 * time.Second
	// renewEvery leaves room for two words that get lost.
	renewEvery = 3 * time.Second
)

// held is a lock in a context.
type held struct {
	records     *Records
	name, token string
	end         context.CancelCauseFunc
}

type heldKey struct{}

// fence returns the lock that a context works under, as scripts have it, and what is
// told when it turns out to be lost.
func fence(ctx context.Context, r *Records) (name, token string, lost func(error)) {
	if h, ok := ctx.Value(heldKey{}).(held); ok && h.records == r {
		return h.name, h.token, func(err error) {
			if errors.Is(err, ErrLost) {
				h.end(ErrLost)
			}
		}
	}
	return "", "", func(error) {}
}

// Hold takes a lock, unless another holds it; then the context is nil. The context is
// for what is done under the lock: it ends when the lock is lost, with ErrLost as its
// cause, and Put and Delete under it are done by a holder alone. It carries the
// innermost lock. The lock is renewed until release, which is called once. The lock of
// a holder that was killed ends within ten seconds; one that was frozen for longer, or
// cut off, has lost it when it goes on.
func (r *Records) Hold(ctx context.Context, name string) (under context.Context, release func(), err error) {
	if !validName(name) {
		return nil, nil, errName
	}
	ended, end := context.WithCancelCause(ctx)
	h := held{r, name, rand.Text(), end}
	asked := time.Now()
	ok, err := r.verdict(ctx, "hold", name, h.token, milliseconds(lease))
	if err != nil {
		// It may be ours all the same, and nobody's for the length of the lease.
		r.verdict(context.WithoutCancel(ctx), "release", name, h.token)
		end(err)
		return nil, nil, fmt.Errorf("the lock %s: %w", name, err)
	}
	if !ok {
		end(context.Canceled)
		return nil, nil, nil
	}
	var heart sync.WaitGroup
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	// The lease counts from before the store was asked: so it ends here first.
	lost := time.AfterFunc(time.Until(asked.Add(lease)), func() { end(ErrLost) })
	heart.Go(func() { h.beat(beating, lost) })
	return context.WithValue(ended, heldKey{}, h), func() {
		stop()
		heart.Wait()
		lost.Stop()
		end(context.Canceled)
		// Where it cannot be said, the lease ends by itself.
		r.verdict(context.WithoutCancel(ctx), "release", name, h.token)
	}, nil
}

// beat renews the lock until ctx ends or it is lost.
func (h held) beat(ctx context.Context, lost *time.Timer) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := time.Now()
		_, err := h.records.verdict(ctx, "renew", h.name, h.token, milliseconds(lease))
		switch {
		case errors.Is(err, ErrLost):
			h.end(ErrLost)
			return
		case err == nil:
			if !lost.Reset(time.Until(asked.Add(lease))) {
				return // it has been told lost already, and stays so
			}
		}
	}
}
