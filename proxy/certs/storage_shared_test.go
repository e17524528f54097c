package certs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"

	"relayedge/admission/redisstore"
	"relayedge/internal/testca"
	"relayedge/internal/testredis"
)

// openRecords opens the storage of one edge in a Redis.
func openRecords(t *testing.T, server *testredis.Server, secret string) *redisstore.Records {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	try(t, os.WriteFile(file, []byte(secret), 0o600))
	store, err := redisstore.Open(redisstore.Config{URL: redisstore.URL("redis://" + server.Addr), SecretFile: file, Prefix: "relayedge"}, slog.New(slog.DiscardHandler))
	try(t, err)
	t.Cleanup(store.Close)
	records, err := store.Records("certificates")
	try(t, err)
	return records
}

var ourSecret = strings.Repeat("0123456789abcdef", 4)

// Without the Redis at the start an edge serves nothing of it and says so; it takes
// what is there once it can, and serves it on when the Redis goes again.
func TestRedisAwayAtTheStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testca.Options{}, challengeALPN, "a.example.org")
	f.used()
	first := f.add()
	f.answer(func() *Store { return first.store })
	f.until("a certificate", func() bool { return first.has("a.example.org") })
	first.end()
	f.redis.Freeze()
	began := time.Now()
	late := f.add()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the start took %v", took)
	}
	if _, err := late.store.Certificate(helloFor(0x0304, "a.example.org", 0x0403)); err != ErrUnavailable {
		t.Errorf("without the Redis: %v", err)
	}
	f.until("it says so", func() bool {
		return slices.ContainsFunc(late.j.take(), func(line string) bool {
			return strings.Contains(line, "ERROR nothing is ordered, since it could not be kept: storage redis cannot be used: the store does not answer")
		})
	})
	f.redis.Thaw()
	f.until("the certificate", func() bool { return late.has("a.example.org") })
	f.redis.Stop()
	f.until("it says that it cannot look", func() bool {
		late.store.acme.Load().current()[0].wake()
		return slices.ContainsFunc(late.j.take(), func(line string) bool {
			return strings.Contains(line, "ERROR the storage cannot be read; what is loaded is served on")
		})
	})
	if !late.has("a.example.org") {
		t.Error("the certificate is gone with the Redis")
	}
	if n := f.ca.Orders(); n != 1 {
		t.Errorf("%d orders", n)
	}
}

// wake looks at the storage as watch does in its time.
func (d *domain) wake() { d.reads(d.look()) }

func (d *domain) look() error {
	_, err := d.storage.Load(context.Background(), "look")
	return err
}

// An edge with another secret takes nothing from the others, and orders nothing.
func TestAnEdgeWithAnotherSecret(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testca.Options{}, challengeALPN, "a.example.org")
	f.used()
	first := f.add()
	f.answer(func() *Store { return first.store })
	f.until("a certificate", func() bool { return first.has("a.example.org") })
	var j journal
	stranger, err := OpenShared(Config{ACME: f.cfg}, openRecords(t, f.redis, strings.Repeat("another secret ", 4)), j.logger())
	try(t, err)
	m := stranger.acme.Load()
	d := m.current()[0]
	m.firstAt = time.Time{}
	for range 3 {
		d.wait = time.Time{}
		d.tend(t.Context())
	}
	if lines := strings.Join(j.take(), "\n"); strings.Count(lines, "the secret of redis.secret_file") < 2 || strings.Count(lines, "\n") > 4 {
		t.Errorf("logged:\n%s", lines)
	}
	if d.broken != "" {
		t.Error("what it cannot open passes for broken, and would be removed")
	}
	if _, err := openRecords(t, f.redis, ourSecret).Get(t.Context(), certmagic.StorageKeys.SitePrivateKey(first.store.acme.Load().key, "a.example.org")); err != nil {
		t.Errorf("the key: %v", err)
	}
	if n := f.ca.Orders(); n != 1 {
		t.Errorf("%d orders", n)
	}
}

// The lock of an order that is lost ends it; who has the lock next goes on.
func TestTheLockOfAnOrderIsLost(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testca.Options{}, challengeALPN, "a.example.org")
	f.used()
	release := f.ca.Hold()
	first := f.add()
	f.answer(func() *Store { return first.store })
	lock := ""
	f.until("the lock", func() bool {
		for _, key := range f.redis.Keys() {
			if strings.HasSuffix(key, "!order_a.example.org") {
				lock = key
			}
		}
		return lock != ""
	})
	f.redis.Ask("SET", lock, "another's", "PX", "600000")
	f.until("the loss", func() bool {
		return slices.ContainsFunc(first.j.take(), func(line string) bool {
			return strings.Contains(line, "WARN the lock of an order was lost while it was under way")
		})
	})
	release()
	if got := f.redis.Ask("GET", lock); got != "another's" {
		t.Errorf("the lock is %v", got)
	}
	if n := f.ca.Orders(); n != 0 || first.has("a.example.org") {
		t.Errorf("%d orders after the loss", n)
	}
}

// What edges use stays in the store; what nobody uses ends by itself.
func TestWhatIsUsedIsKept(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testca.Options{}, challengeALPN, "a.example.org", "b.example.org")
	f.used()
	first := f.add()
	f.answer(func() *Store { return first.store })
	f.until("certificates", func() bool { return first.has("a.example.org") && first.has("b.example.org") })
	first.end()
	const late = 5 * time.Hour
	left := func(key string) time.Duration {
		return time.Duration(f.redis.Ask("PTTL", key).(int64)) * time.Millisecond
	}
	for _, key := range f.redis.Keys() {
		f.redis.Ask("PEXPIRE", key, fmt.Sprint(late.Milliseconds()))
	}
	f.cfg.Domains = []string{"a.example.org"}
	f.add()
	f.until("what is used is kept", func() bool {
		for _, key := range f.redis.Keys() {
			_, name, record := strings.Cut(key, ":certificates:")
			used := record && !strings.Contains(name, "b.example.org") && name != "orders/used"
			if used && left(key) < sharedLife-time.Hour {
				return false
			}
		}
		return true
	})
	for _, key := range f.redis.Keys() {
		if strings.Contains(key, "b.example.org") && left(key) > late {
			t.Errorf("%s is kept", key)
		}
	}
}

// That the CA as a whole is left alone for a while is known to all who would order.
func TestTheCAIsLeftAloneByAll(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testca.Options{}, challengeALPN, "a.example.org")
	f.used()
	open := func() *manager {
		s, err := OpenShared(Config{ACME: f.cfg}, openRecords(t, f.redis, ourSecret), f.j.logger())
		try(t, err)
		return s.acme.Load()
	}
	a, b := open(), open()
	now := time.Now()
	a.refused(t.Context(), now, errors.New("down"), time.Hour)
	b.current()[0].tend(t.Context()) // its time to order has come
	if until := b.heldUntil(); !until.Equal(a.heldUntil()) || until.Before(now.Add(time.Hour)) {
		t.Errorf("held until %v, and %v at the other", until, a.heldUntil())
	}
	if n := f.ca.Requests(); n != 0 {
		t.Errorf("%d requests to a CA that is left alone", n)
	}
	f.redis.Freeze()
	b.lookAtHold(t.Context(), now)
	if b.heldUntil().IsZero() {
		t.Error("a store that does not answer ends the pause")
	}
	f.redis.Thaw()
}

// The records of a folder and of a fleet are used alike.
func TestSharedStorage(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	s, ctx := newSharedStorage(openRecords(t, redis, ourSecret)), t.Context()
	if _, err := s.Load(ctx, "a/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of nothing: %v", err)
	}
	if _, err := s.Stat(ctx, "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat of nothing: %v", err)
	}
	if _, err := s.List(ctx, "a", true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("List of nothing: %v", err)
	}
	for _, key := range []string{"a/b", "a/c/d", "a/c/e", "f"} {
		try(t, s.Store(ctx, key, []byte("x")))
	}
	for _, tt := range []struct {
		prefix    string
		recursive bool
		want      string
	}{
		{"a", true, "[a/b a/c/d a/c/e]"}, {"a", false, "[a/b a/c]"}, {"", false, "[a f]"}, {".", false, "[a f]"}, {"a/c", false, "[a/c/d a/c/e]"},
	} {
		if got, err := s.List(ctx, tt.prefix, tt.recursive); fmt.Sprint(got) != tt.want || err != nil {
			t.Errorf("List %q: %v, %v, want %s", tt.prefix, got, err, tt.want)
		}
	}
	if info, err := s.Stat(ctx, "a/c/d"); err != nil || info.Size != 1 || !info.IsTerminal {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := s.Stat(ctx, "a/c"); err != nil || info.IsTerminal {
		t.Errorf("%+v, %v", info, err)
	}
	try(t, s.Delete(ctx, "a"))
	if s.Exists(ctx, "a") || s.Exists(ctx, "a/c/d") || !s.Exists(ctx, "f") {
		t.Error("a key is deleted with what is below, and nothing else")
	}
	try(t, s.Lock(ctx, "one"))
	over, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := newSharedStorage(s.shared).Lock(over, "one"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a lock that is held: %v", err)
	}
	try(t, s.Unlock(ctx, "one"))
	if err := s.Unlock(ctx, "one"); err == nil {
		t.Error("a lock that is not held was given back")
	}
	try(t, s.probe(ctx))
	redis.Ask("CONFIG", "SET", "maxmemory", "1")
	if err := s.probe(ctx); err == nil || !strings.Contains(err.Error(), "storage redis cannot be used: the store: OOM") {
		t.Errorf("without memory: %v", err)
	}
}

// A policy that asks for a store where the process has none is refused.
func TestRedisWithoutAStore(t *testing.T) {
	cfg := ACME{Domains: []string{"a.example.org"}, AgreeToTerms: true, Challenges: []string{challengeALPN}, Storage: storageRedis}
	if _, err := Open(Config{ACME: cfg}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "certificates.acme.storage: is redis, and this process has no store") {
		t.Errorf("%v", err)
	}
}

// meanwhile has something happen after a record is read, before its reader has it.
type meanwhile struct {
	storage
	happens func()
}

func (m meanwhile) Load(ctx context.Context, key string) ([]byte, error) {
	data, err := m.storage.Load(ctx, key)
	m.happens()
	return data, err
}

// What another name finds out while a record is read is not forgotten for it.
func TestRefusalWhileTheRecordIsRead(t *testing.T) {
	now := time.Now()
	m := &manager{storage: newFolder(t.TempDir()), key: "ca", log: quiet}
	m.authority.Store(new(authority))
	try(t, m.hold.store(t.Context(), m.storage, m.recordKey("ca")))
	m.storage = meanwhile{m.storage, func() { m.refused(t.Context(), now, errors.New("down"), time.Hour) }}
	m.lookAtHold(t.Context(), now)
	if until := m.heldUntil(); !until.After(now) {
		t.Errorf("the CA is left alone until %v, and should be for an hour from %v", until, now)
	}
}
