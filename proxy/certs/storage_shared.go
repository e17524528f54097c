package certs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
)

// Shared keeps what several edges have in common, so that each can serve what one of
// them ordered. It hides from whoever keeps it what it holds. Its methods answer within
// seconds, or fail; a record that is not there is an error that is fs.ErrNotExist.
// Names are paths of printable ASCII.
type Shared interface {
	Get(ctx context.Context, name string) ([]byte, error)
	// Put stores a record for life. Under the context of a lock it fails once the lock
	// is lost, as Delete does.
	Put(ctx context.Context, name string, value []byte, life time.Duration) error
	// Delete removes a record, and all below its name.
	Delete(ctx context.Context, name string) error
	// List returns the names at a prefix and below it.
	List(ctx context.Context, prefix string) ([]string, error)
	// Keep has the records at a prefix and below it live for life from now on, or longer.
	Keep(ctx context.Context, prefix string, life time.Duration) error
	// Hold takes a lock until release, unless another holds it: then the context is nil.
	// The context ends when the lock is lost.
	Hold(ctx context.Context, name string) (under context.Context, release func(), err error)
}

const (
	// sharedLife is how long a record stays that no edge tells to keep: the edges do
	// so every day. What is ordered no longer is gone after it.
	sharedLife   = 60 * 24 * time.Hour
	keepInterval = 24 * time.Hour
	probeLife    = time.Minute
	// sharedLockPoll is how often a lock is tried that another holds.
	sharedLockPoll = 500 * time.Millisecond
	// sealName is a record by which an edge sees that its secret is that of the others,
	// before it would write over what they have.
	sealName = "seal"
)

// sharedStorage is the storage that edges share.
type sharedStorage struct {
	shared Shared

	mu    sync.Mutex
	locks map[string]func() // releases of those that this process holds by Lock
}

var _ storage = (*sharedStorage)(nil)

func newSharedStorage(shared Shared) *sharedStorage {
	return &sharedStorage{shared: shared, locks: make(map[string]func())}
}

// storageAway is a read that does not tell what is stored.
type storageAway struct{ cause error }

func (e *storageAway) Error() string { return e.cause.Error() }
func (e *storageAway) Unwrap() error { return e.cause }

func (s *sharedStorage) name() string     { return storageRedis }
func (s *sharedStorage) volatile() string { return "" } // nobody can ask

func (s *sharedStorage) unusable(err error) error {
	return fmt.Errorf("storage %s cannot be used: %w; nothing is ordered until it can", storageRedis, err)
}

// ProbeShared tells whether what a CA issues could be kept in a storage that edges
// share. It leaves nothing behind but what tells their secret.
func ProbeShared(ctx context.Context, shared Shared) error {
	return newSharedStorage(shared).probe(ctx)
}

func (s *sharedStorage) probe(ctx context.Context) error {
	err := s.probeSeal(ctx)
	if err == nil {
		err = s.probeRoom(ctx)
	}
	if err != nil {
		return s.unusable(err)
	}
	return nil
}

// probeSeal fails where others seal by another secret: to order by our own would
// take from them what they have.
func (s *sharedStorage) probeSeal(ctx context.Context) error {
	_, err := s.shared.Get(ctx, sealName)
	if errors.Is(err, fs.ErrNotExist) {
		return s.shared.Put(ctx, sealName, []byte("relayedge"), sharedLife)
	}
	return err
}

// probeRoom writes, reads and removes a record as large as the result of an order.
func (s *sharedStorage) probeRoom(ctx context.Context) error {
	key := "probe-" + randomName()
	want := make([]byte, probeBytes)
	rand.Read(want)
	err := s.shared.Put(ctx, key, want, probeLife)
	if err == nil {
		var got []byte
		if got, err = s.shared.Get(ctx, key); err == nil && !bytes.Equal(got, want) {
			err = errors.New("what was written was read back otherwise")
		}
	}
	if err != nil {
		return err // the probe ends by itself
	}
	return s.shared.Delete(ctx, key)
}

func (s *sharedStorage) keep(ctx context.Context, keys ...string) error {
	for _, key := range append(keys, sealName) {
		if err := s.shared.Keep(ctx, key, sharedLife); err != nil {
			return err
		}
	}
	return nil
}

// Store implements certmagic.Storage, as the other methods do.
func (s *sharedStorage) Store(ctx context.Context, key string, value []byte) error {
	return s.shared.Put(ctx, key, value, sharedLife)
}

// Load returns the value at key, or an error that is fs.ErrNotExist, or *storageAway.
func (s *sharedStorage) Load(ctx context.Context, key string) ([]byte, error) {
	value, err := s.shared.Get(ctx, key)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = &storageAway{err}
	}
	return value, err
}

func (s *sharedStorage) Delete(ctx context.Context, key string) error {
	return s.shared.Delete(ctx, key)
}

func (s *sharedStorage) Exists(ctx context.Context, key string) bool {
	names, err := s.shared.List(ctx, key)
	return err == nil && len(names) > 0
}

func (s *sharedStorage) List(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	names, err := s.shared.List(ctx, strings.Trim(path.Clean("/"+prefix), "/"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: %w", prefix, fs.ErrNotExist)
	}
	var keys []string
	for _, name := range names {
		below := strings.TrimPrefix(strings.TrimPrefix(name, prefix), "/")
		if below == "" {
			continue
		}
		if first, _, deeper := strings.Cut(below, "/"); deeper && !recursive {
			name = path.Join(prefix, first)
		}
		keys = append(keys, name)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Stat describes what is at key. When it was stored is not known.
func (s *sharedStorage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	value, err := s.Load(ctx, key)
	if errors.Is(err, fs.ErrNotExist) && s.Exists(ctx, key) {
		return certmagic.KeyInfo{Key: key}, nil
	}
	return certmagic.KeyInfo{Key: key, Size: int64(len(value)), IsTerminal: true}, err
}

func (s *sharedStorage) hold(ctx context.Context, name string) (under context.Context, release func(), err error) {
	return s.shared.Hold(ctx, name)
}

// Lock waits for the lock of a name until ctx ends. What is done under it is fenced by
// the lock of the order that it is a part of.
func (s *sharedStorage) Lock(ctx context.Context, name string) error {
	for {
		under, release, err := s.shared.Hold(ctx, name)
		if err != nil {
			return err
		}
		if under != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.locks[name] = release
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(sharedLockPoll):
		}
	}
}

// Unlock gives back what Lock has taken.
func (s *sharedStorage) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	release := s.locks[name]
	delete(s.locks, name)
	s.mu.Unlock()
	if release == nil {
		return fmt.Errorf("the lock %q is not held", name)
	}
	release()
	return nil
}
