package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/internal/testredis"
)

// openRecords opens the records of a space in a store of its own, as another
// process does.
func openRecords(t testing.TB, cfg Config, space string) *Records {
	t.Helper()
	s, _ := openLogged(t, cfg)
	await(t, "the store is reached", func() bool { return s.client.Load() != nil })
	r, err := s.Records(space)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func urlOf(s *testredis.Server) URL { return URL("redis://" + s.Addr) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRecords(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	a, b := openRecords(t, Config{URL: urlOf(server)}, "certificates"), openRecords(t, Config{URL: urlOf(server)}, "certificates")
	other := openRecords(t, Config{URL: urlOf(server)}, "tickets")
	ctx := t.Context()

	if _, err := a.Get(ctx, "a/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Get of nothing: %v", err)
	}
	must(t, a.Delete(ctx, "a/b"))
	for _, value := range []string{"one", "another", ""} {
		must(t, a.Put(ctx, "a/b", []byte(value), time.Hour))
		if got, err := b.Get(ctx, "a/b"); string(got) != value || err != nil {
			t.Errorf("%q, %v, want %q", got, err, value)
		}
	}
	for _, name := range []string{"a/c/d", "ab", "a", "e"} {
		must(t, a.Put(ctx, name, []byte("x"), time.Hour))
	}
	must(t, other.Put(ctx, "a/b", []byte("of another space"), time.Hour))
	for _, tt := range []struct {
		prefix string
		want   []string
	}{
		{"", []string{"a", "a/b", "a/c/d", "ab", "e"}},
		{"a", []string{"a", "a/b", "a/c/d"}},
		{"a/c", []string{"a/c/d"}},
		{"b", nil},
	} {
		got, err := b.List(ctx, tt.prefix)
		if slices.Sort(got); !slices.Equal(got, tt.want) || err != nil {
			t.Errorf("List %q: %q, %v, want %q", tt.prefix, got, err, tt.want)
		}
	}
	must(t, b.Delete(ctx, "a"))
	if got, _ := a.List(ctx, ""); len(got) != 2 {
		t.Errorf("a name is deleted with what is below, and nothing else: %q are left", got)
	}
	if got, err := other.Get(ctx, "a/b"); string(got) != "of another space" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, key := range server.Keys() {
		if left := server.Ask("PTTL", key).(int64); left <= 0 || left > time.Hour.Milliseconds() {
			t.Errorf("%s lives for %d ms", key, left)
		}
	}
}

// A record ends when its life is over, and its name with it; Keep prolongs it, and
// never shortens it.
func TestRecordsEnd(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	r, ctx := openRecords(t, Config{URL: urlOf(server)}, "certificates"), t.Context()
	left := func(name string) time.Duration {
		return time.Duration(server.Ask("PTTL", r.key(name)).(int64)) * time.Millisecond
	}
	must(t, r.Put(ctx, "short", []byte("x"), time.Second))
	must(t, r.Put(ctx, "a/kept", []byte("x"), time.Minute))
	must(t, r.Put(ctx, "a/long", []byte("x"), 3*time.Hour))
	must(t, r.Keep(ctx, "a", 2*time.Hour))
	if kept, long := left("a/kept"), left("a/long"); kept < time.Hour || kept > 2*time.Hour || long < 2*time.Hour {
		t.Errorf("kept for %v, and what lives longer for %v", kept, long)
	}
	await(t, "the short one is gone", func() bool {
		_, err := r.Get(ctx, "short")
		return errors.Is(err, fs.ErrNotExist)
	})
	await(t, "its name is gone", func() bool {
		names, err := r.List(ctx, "")
		return err == nil && len(names) == 2
	})
	if list := time.Duration(server.Ask("PTTL", r.list).(int64)) * time.Millisecond; list < 2*time.Hour {
		t.Errorf("the list of names ends in %v, before a record", list)
	}
}

// Nothing of a record can be read in the store, and none can be put in another's
// place: not under another name, in another space, nor among other processes'.
func TestRecordsAreSealed(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	cfg := withDefaults(t, Config{URL: urlOf(server)})
	r, ctx := openRecords(t, cfg, "certificates"), t.Context()
	secret := []byte("-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("0123456789abcdef", 8))
	must(t, r.Put(ctx, "a", secret, time.Hour))
	must(t, r.Put(ctx, "b", []byte("another"), time.Hour))
	at := func(name string) string { return server.Ask("GET", r.key(name)).(string) }
	first := at("a")
	if strings.Contains(first, "PRIVATE") || strings.Contains(first, "0123456789abcdef") {
		t.Error("the value stands in the store")
	}
	must(t, r.Put(ctx, "a", secret, time.Hour))
	if at("a") == first {
		t.Error("the same value is sealed to the same bytes")
	}

	sealed := func(what string, r *Records, name string) {
		t.Helper()
		if got, err := r.Get(ctx, name); !errors.Is(err, ErrSealed) || len(got) != 0 {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	server.Ask("COPY", r.key("a"), r.key("b"), "REPLACE")
	sealed("under another name", r, "b")
	tickets := openRecords(t, cfg, "tickets")
	server.Ask("COPY", r.key("a"), tickets.key("a"))
	sealed("in another space", tickets, "a")
	elsewhere := cfg
	elsewhere.Prefix = "another"
	others := openRecords(t, elsewhere, "certificates")
	server.Ask("COPY", r.key("a"), others.key("a"))
	sealed("under another prefix", others, "a")
	foreign := cfg
	foreign.SecretFile = writeFile(t, "secret", strings.Repeat("f", 32)+strings.Repeat("e", 32), 0o600)
	sealed("by another secret", openRecords(t, foreign, "certificates"), "a")

	whole := at("a")
	for i := range len(whole) {
		broken := []byte(whole)
		broken[i] ^= 1
		if got, err := r.sealer.open(r.key("a"), broken); err == nil {
			t.Fatalf("with another byte %d it is %q", i, got)
		}
	}
	for n := range len(whole) {
		if _, err := r.sealer.open(r.key("a"), []byte(whole[:n])); err == nil {
			t.Fatalf("cut to %d bytes it is opened", n)
		}
	}
	server.Ask("SET", r.key("a"), "")
	sealed("nothing", r, "a")
}

// What others wrote there, or what is too much, is an error and no more.
func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	r, ctx := openRecords(t, Config{URL: urlOf(server)}, "certificates"), t.Context()
	most := bytes.Repeat([]byte("x"), MaxRecordBytes)
	must(t, r.Put(ctx, "most", most, time.Hour))
	if got, err := r.Get(ctx, "most"); !bytes.Equal(got, most) || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := r.Put(ctx, "more", append(most, 'x'), time.Hour); !errors.Is(err, errTooLarge) {
		t.Errorf("Put of too much: %v", err)
	}
	server.Ask("SETRANGE", r.key("most"), fmt.Sprint(MaxRecordBytes+sealBytes), "x")
	server.Ask("RPUSH", r.key("list"), "x")
	for _, name := range []string{"most", "list"} {
		if got, err := r.Get(ctx, name); err == nil || errors.Is(err, fs.ErrNotExist) || len(got) > 0 {
			t.Errorf("Get %s: %d bytes, %v", name, len(got), err)
		}
	}
	must(t, r.Put(ctx, "list", []byte("ours"), time.Hour)) // it is replaced
	if got, err := r.Get(ctx, "list"); string(got) != "ours" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, name := range []string{"", "a b", "a\n", "ä", strings.Repeat("a", maxNameBytes+1)} {
		_, getErr := r.Get(ctx, name)
		_, _, holdErr := r.Hold(ctx, name)
		for _, err := range []error{getErr, holdErr, r.Put(ctx, name, nil, time.Hour), r.Delete(ctx, name), r.Keep(ctx, name, time.Hour)} {
			if !errors.Is(err, errName) {
				t.Errorf("the name %q: %v", name, err)
			}
		}
	}
	// Two are there; a third is one too many for a space of two, and what is there is not.
	put := func(name string) error {
		_, err := r.verdict(ctx, "put", name, string(r.sealed(name, nil)), "1000", "2", "", "")
		return err
	}
	if err := put("third"); !errors.Is(err, errFull) {
		t.Errorf("one too many: %v", err)
	}
	must(t, put("list"))
}

// A store that does not answer costs an operation two seconds, and the next ones
// nothing; it is asked again when it is back. One that refuses says why.
func TestRecordsOfAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	r, ctx := openRecords(t, Config{URL: urlOf(server)}, "certificates"), t.Context()
	must(t, r.Put(ctx, "a", []byte("x"), time.Hour))
	server.Freeze()
	began := time.Now()
	if _, err := r.Get(ctx, "a"); !errors.Is(err, errUnanswered) {
		t.Errorf("frozen: %v", err)
	}
	for range 1000 {
		if _, err := r.Get(ctx, "a"); err == nil {
			t.Fatal("frozen, it answers")
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a thousand operations took %v", took)
	}
	server.Thaw()
	await(t, "it is back", func() bool {
		_, err := r.Get(ctx, "a")
		return err == nil
	})
	server.Stop()
	if _, err := r.Get(ctx, "a"); !errors.Is(err, errUnanswered) {
		t.Errorf("stopped: %v", err)
	}
	server.Start()
	await(t, "it is back, with nothing", func() bool {
		_, err := r.Get(ctx, "a")
		return errors.Is(err, fs.ErrNotExist)
	})
	server.Ask("CONFIG", "SET", "maxmemory", "1")
	if err := r.Put(ctx, "a", []byte("x"), time.Hour); err == nil || !strings.HasPrefix(err.Error(), "the store: OOM ") || strings.Contains(err.Error(), "script:") {
		t.Errorf("without memory: %v", err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Get(over, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Of those who change one version of a value, one does.
func TestValue(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	var values []*Value
	for range 3 {
		values = append(values, openRecords(t, Config{URL: urlOf(server)}, "tickets").Value("secrets", time.Hour))
	}
	ctx := t.Context()
	value, version, age, err := values[0].Load(ctx)
	if len(value) != 0 || version != "" || age != 0 || err != nil {
		t.Errorf("nothing is %q, %q, %v, %v", value, version, age, err)
	}
	for round := range 20 {
		var won atomic.Int32
		var all sync.WaitGroup
		for i, v := range values {
			all.Go(func() {
				ok, err := v.Swap(ctx, version, fmt.Appendf(nil, "%d %d", round, i))
				if err != nil {
					t.Error(err)
				}
				if ok {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if n := won.Load(); n != 1 {
			t.Fatalf("%d have changed one version", n)
		}
		before := version
		value, version, age, err = values[1].Load(ctx)
		if err != nil || version == before || !strings.HasPrefix(string(value), fmt.Sprint(round)) || age > time.Minute {
			t.Fatalf("%q, %q, %v, %v", value, version, age, err)
		}
	}
	server.Ask("PEXPIRE", values[0].records.key("secrets"), fmt.Sprint((20 * time.Minute).Milliseconds()))
	if _, _, age, err = values[2].Load(ctx); age < 40*time.Minute || age > 41*time.Minute || err != nil {
		t.Errorf("with 20 minutes of an hour left it is %v old, %v", age, err)
	}
}

// The answer to a try may be lost: the second one finds what the first has done.
func TestRecordsAreTriedTwice(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	r, ctx := openRecords(t, Config{URL: urlOf(server)}, "tickets"), t.Context()
	sealed := string(r.sealed("a", []byte("x")))
	for range 2 {
		if ok, err := r.verdict(ctx, "put", "a", sealed, "60000", "9", "", "", ""); !ok || err != nil {
			t.Errorf("put: %v, %v", ok, err)
		}
		if ok, err := r.verdict(ctx, "hold", "l", "token", "60000"); !ok || err != nil {
			t.Errorf("hold: %v, %v", ok, err)
		}
	}
}

// In a cluster, all of a space is on one node.
func TestRecordsInACluster(t *testing.T) {
	t.Parallel()
	nodes := testredis.StartCluster(t, 3)
	r, ctx := openRecords(t, Config{URL: URL("redis+cluster://" + nodes[0].Addr)}, "certificates"), t.Context()
	for i := range 20 {
		must(t, r.Put(ctx, fmt.Sprintf("a/%d", i), []byte("x"), time.Hour))
	}
	if names, err := r.List(ctx, "a"); len(names) != 20 || err != nil {
		t.Errorf("%q, %v", names, err)
	}
	under, release, err := r.Hold(ctx, "lock")
	must(t, err)
	must(t, r.Put(under, "a/0", []byte("y"), time.Hour))
	release()
	must(t, r.Delete(ctx, "a"))
}
