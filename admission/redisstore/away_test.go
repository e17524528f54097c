package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/testlog"
	"relayedge/internal/testport"
	"relayedge/internal/testredis"
)

// lines collects what is logged.
type lines struct{ testlog.Log }

func (l *lines) count(what string) int { return strings.Count(l.String(), what) }

const (
	saysAway = "the store of shared limits is away"
	saysBack = "the store of shared limits is back"
)

// openLogged opens a store with the real clock and budget.
func openLogged(t testing.TB, cfg Config) (*Store, *lines) {
	t.Helper()
	l := new(lines)
	s, err := Open(withDefaults(t, cfg), slog.New(slog.NewTextHandler(l, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, l
}

// await waits for what other goroutines and processes bring about.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("a minute long it is not so that %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// localWindows are local windows that count what they are asked.
type localWindows struct {
	*admission.FixedWindows
	asked atomic.Int64
}

// SetLimit leaves the limit as it is: it tells who has decided.
func (l *localWindows) SetLimit(int64, time.Duration) {}

func newLocal(limit int64) *localWindows {
	return &localWindows{FixedWindows: admission.NewFixedWindows(limit, time.Hour)}
}

func (l *localWindows) Take(ctx context.Context, key admission.Key, now time.Time) admission.Decision {
	l.asked.Add(1)
	return l.FixedWindows.Take(ctx, key, now)
}

func keyOf(n int) admission.Key {
	return admission.NewKeyMaker([]byte("test")).Key("ip", fmt.Sprint(n))
}

// troubles are what can become of a server behind a proxy, and how it comes back.
var troubles = []struct {
	name string
	away func(*testredis.Server, *testredis.Proxy)
	back func(*testredis.Server, *testredis.Proxy)
}{
	{"stopped",
		func(s *testredis.Server, p *testredis.Proxy) { s.Stop() },
		func(s *testredis.Server, p *testredis.Proxy) { s.Start() }},
	{"frozen",
		func(s *testredis.Server, p *testredis.Proxy) { s.Freeze() },
		func(s *testredis.Server, p *testredis.Proxy) { s.Thaw() }},
	{"slow",
		func(s *testredis.Server, p *testredis.Proxy) {
			p.Decide(func(toServer bool) testredis.Fate { return testredis.Fate{Delay: 3 * time.Second} })
		},
		func(s *testredis.Server, p *testredis.Proxy) { p.Decide(nil) }},
	{"cut off",
		func(s *testredis.Server, p *testredis.Proxy) {
			p.Decide(func(bool) testredis.Fate { return testredis.Fate{Cut: true} })
		},
		func(s *testredis.Server, p *testredis.Proxy) { p.Decide(nil) }},
	{"read-only",
		func(s *testredis.Server, p *testredis.Proxy) { s.Ask("REPLICAOF", "127.0.0.1", "1") },
		func(s *testredis.Server, p *testredis.Proxy) { s.Ask("REPLICAOF", "NO", "ONE") }},
	{"without memory",
		func(s *testredis.Server, p *testredis.Proxy) { s.Ask("CONFIG", "SET", "maxmemory", "1") },
		func(s *testredis.Server, p *testredis.Proxy) { s.Ask("CONFIG", "SET", "maxmemory", "0") }},
}

// Whatever becomes of the store, decisions go on: none waits for long, the local
// limits hold meanwhile, one line tells of it, and the store decides again when it can.
func TestAway(t *testing.T) {
	for _, tt := range troubles {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := testredis.Start(t)
			proxy := testredis.NewProxy(t, server.Addr)
			store, log := openLogged(t, Config{URL: URL("redis://" + proxy.Addr)})
			const limit = 150
			local := newLocal(limit)
			w := store.Windows(RequestLimits, "test", 1_000_000, time.Hour, local)
			take := func() admission.Decision { return w.Take(t.Context(), keyOf(1), time.Now()) }
			await(t, "the store decides", func() bool { return take().Limit == 1_000_000 })
			decided := local.asked.Load()

			tt.away(server, proxy)
			allowed, refused, quickest, start := 0, 0, time.Hour, time.Now()
			for allowed+refused < 200 {
				asked := time.Now()
				d := take()
				if d.Unavailable {
					t.Fatalf("%+v, want the local limits to decide", d)
				}
				if d.Limit != limit {
					continue // the store still did
				}
				quickest = min(quickest, time.Since(asked))
				if d.Allowed {
					allowed++
				} else {
					refused++
				}
			}
			took := time.Since(start)
			if allowed > limit || allowed < limit-int(decided) || !store.Away() {
				t.Errorf("%d are allowed of a local limit of %d, away is %v", allowed, limit, store.Away())
			}
			// Alone each would wait 50 ms: 10 s in all.
			if took > 5*time.Second || quickest > 25*time.Millisecond {
				t.Errorf("200 decisions took %v, the quickest %v", took, quickest)
			}
			if stats := store.Stats(); stats.Degraded[RequestLimits].Local != uint64(local.asked.Load()) || !stats.Away {
				t.Errorf("%+v, and %d were decided here", stats, local.asked.Load())
			}
			if log.count(saysAway) != log.count(saysBack)+1 {
				t.Errorf("the log says\n%s", log)
			}

			tt.back(server, proxy)
			await(t, "the store is back", func() bool { return !store.Away() })
			await(t, "the store decides", func() bool { return take().Limit == 1_000_000 })
			await(t, "each change is a line", func() bool { return log.count(saysAway) == log.count(saysBack) })
			if n := log.count(saysAway); n > 3 {
				t.Errorf("the log tells %d times of one absence:\n%s", n, log)
			}
		})
	}
}

// The first decisions that fail wait for their budget, and not for the client's patience.
func TestBudget(t *testing.T) {
	server := testredis.Start(t)
	store, _ := openLogged(t, Config{URL: URL("redis://" + server.Addr)})
	w := store.Windows(RequestLimits, "test", 1_000_000, time.Hour, newLocal(1000))
	await(t, "the store decides", func() bool { return w.Take(t.Context(), keyOf(1), time.Now()).Limit == 1_000_000 })
	store.breaker.succeeded()
	server.Freeze()
	defer server.Thaw()
	quickest := time.Hour
	for i := range openAfter {
		if store.Away() {
			t.Errorf("the store is away after %d failures", i)
		}
		asked := time.Now()
		w.Take(t.Context(), keyOf(1), asked)
		quickest = min(quickest, time.Since(asked))
	}
	if !store.Away() {
		t.Errorf("the store is not away after %d failures", openAfter)
	}
	if quickest < budget || quickest > 10*budget {
		t.Errorf("the quickest decision took %v, want %v and little more", quickest, budget)
	}
}

// Half of all packets are lost: those decisions are made here, each in its time.
func TestHalfIsLost(t *testing.T) {
	server := testredis.Start(t)
	proxy := testredis.NewProxy(t, server.Addr)
	store, log := openLogged(t, Config{URL: URL("redis://" + proxy.Addr)})
	local := newLocal(1_000_000)
	w := store.Windows(RequestLimits, "test", 1_000_000, time.Hour, local)
	proxy.Decide(func(toServer bool) testredis.Fate {
		if !toServer && rand.IntN(2) == 0 {
			return testredis.Fate{Delay: 200 * time.Millisecond} // sent again
		}
		return testredis.Fate{}
	})
	start := time.Now()
	for range 200 {
		if d := w.Take(t.Context(), keyOf(1), time.Now()); !d.Allowed {
			t.Fatalf("%+v, want it allowed", d)
		}
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("200 decisions took %v", took)
	}
	if away, back := log.count(saysAway), log.count(saysBack); away > 10 || away-back > 1 {
		t.Errorf("the log says\n%s", log)
	}
}

// on_failure: refuse says so, per use.
func TestRefuseWhileAway(t *testing.T) {
	server := testredis.Start(t)
	cfg := Config{URL: URL("redis://" + server.Addr), OnFailure: OnFailure{RequestLimits: "refuse", MessageLimits: "refuse", Budgets: "local"}}
	store, _ := openLogged(t, cfg)
	server.Stop()
	local := newLocal(10)
	requests := store.Windows(RequestLimits, "requests", 10, time.Hour, local)
	budgets := store.Windows(Budgets, "push", 10, time.Hour, local)
	limits := store.Messages(admission.DefaultMessageLimits(), admission.MessageLengths{}, refuseAll{})
	now := time.Now()
	for range 10 {
		for _, d := range []admission.Decision{
			requests.Take(t.Context(), keyOf(1), now), limits.Peek(t.Context(), keyOf(1), now),
			limits.Take(t.Context(), keyOf(1), now), limits.Read(t.Context(), keyOf(1), now),
		} {
			if d.Allowed || !d.Unavailable || d.RetryAfter <= 0 || d.RetryAfter > 10*time.Second {
				t.Fatalf("%+v, want it refused as unavailable", d)
			}
		}
		if d := budgets.Take(t.Context(), keyOf(1), now); !d.Allowed {
			t.Fatalf("%+v, want it allowed", d)
		}
	}
	want := map[Use]Degraded{RequestLimits: {Refused: 10}, MessageLimits: {Refused: 30}, Budgets: {Local: 10}}
	for use, d := range store.Stats().Degraded {
		if d != want[use] {
			t.Errorf("%v: %+v, want %+v", use, d, want[use])
		}
	}
}

// Message limits fall back to those of this process, each call to its own.
func TestMessagesWhileAway(t *testing.T) {
	server := testredis.Start(t)
	store, _ := openLogged(t, Config{URL: URL("redis://" + server.Addr)})
	server.Stop()
	c := admission.MessageLimitsConfig{Sender: admission.SenderMessageLimits{Hour: 3}, Global: admission.GlobalMessageLimits{Minute: 64}}
	local, err := admission.NewMessageLimits(c, admission.MessageLengths{})
	if err != nil {
		t.Fatal(err)
	}
	m := store.Messages(c, admission.MessageLengths{}, local)
	now := time.Now()
	for want := int64(2); want >= 0; want-- {
		if d := m.Peek(t.Context(), keyOf(1), now); !d.Allowed || d.Remaining != want+1 {
			t.Fatalf("%+v, want it allowed, %d left", d, want+1)
		}
		if d := m.Take(t.Context(), keyOf(1), now); !d.Allowed || d.Remaining != want {
			t.Fatalf("%+v, want it allowed, %d left", d, want)
		}
	}
	if d := m.Take(t.Context(), keyOf(1), now); d.Allowed || d.Unavailable {
		t.Errorf("%+v, want it refused", d)
	}
	for range 4 {
		if d := m.Read(t.Context(), keyOf(1), now); !d.Allowed {
			t.Errorf("%+v, want it allowed", d)
		}
	}
	if d := m.Read(t.Context(), keyOf(1), now); d.Allowed || d.Scope != admission.ScopeHost {
		t.Errorf("%+v, want it refused for the host's share", d)
	}
}

// A process starts without its store, and finds it.
func TestStartWithoutStore(t *testing.T) {
	server := testredis.Start(t)
	server.Stop()
	store, log := openLogged(t, Config{URL: URL("redis://" + server.Addr)})
	if !store.Away() || log.count(saysAway) != 1 {
		t.Errorf("away is %v, the log says\n%s", store.Away(), log)
	}
	w := store.Windows(RequestLimits, "test", 1_000_000, time.Hour, newLocal(5))
	if d := w.Take(t.Context(), keyOf(1), time.Now()); d.Limit != 5 {
		t.Errorf("%+v, want the local limit", d)
	}
	server.Start()
	await(t, "the store decides", func() bool { return w.Take(t.Context(), keyOf(1), time.Now()).Limit == 1_000_000 })
	await(t, "each change is a line", func() bool { return log.count(saysAway) == log.count(saysBack) })
}

// A caller that has gone says nothing of the store.
func TestCallerIsGone(t *testing.T) {
	server := testredis.Start(t)
	store := openTest(t, Config{URL: URL("redis://" + server.Addr)}, serverClock)
	w := store.Windows(RequestLimits, "test", 1_000_000, time.Hour, newLocal(5))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 * openAfter {
		w.Take(gone, keyOf(1), time.Now())
	}
	if d := w.Take(t.Context(), keyOf(1), time.Now()); store.Away() || d.Limit != 1_000_000 || !d.Allowed {
		t.Errorf("%+v, away is %v", d, store.Away())
	}
}

// Closing ends a store that is away, in whatever way, and decisions go on here.
func TestCloseWhileAway(t *testing.T) {
	server := testredis.Start(t)
	frozen, _ := openLogged(t, Config{URL: URL("redis://" + server.Addr)})
	absent, _ := openLogged(t, Config{URL: URL(fmt.Sprintf("redis://127.0.0.1:%d", testport.Free(t)))})
	server.Freeze()
	defer server.Thaw()
	for _, store := range []*Store{frozen, absent} {
		w := store.Windows(RequestLimits, "test", 1_000_000, time.Hour, newLocal(5))
		w.Take(t.Context(), keyOf(1), time.Now())
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			store.Close()
			store.Close()
		}()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatal("Close waits for a store that does not answer")
		}
		if d := w.Take(t.Context(), keyOf(1), time.Now()); d.Limit != 5 || !store.Away() {
			t.Errorf("%+v after Close, away is %v", d, store.Away())
		}
	}
}

// A store that answers, and always late, does not come and go.
func TestLateStoreStaysAway(t *testing.T) {
	server := testredis.Start(t)
	proxy := testredis.NewProxy(t, server.Addr)
	store, log := openLogged(t, Config{URL: URL("redis://" + proxy.Addr)})
	w := store.Windows(RequestLimits, "test", 1_000_000, time.Hour, newLocal(1_000_000))
	var asked atomic.Int64
	proxy.Decide(func(toServer bool) testredis.Fate {
		if toServer {
			asked.Add(1)
			return testredis.Fate{}
		}
		return testredis.Fate{Delay: 4 * budget}
	})
	await(t, "the store is away", func() bool { w.Take(t.Context(), keyOf(1), time.Now()); return store.Away() })
	told, before := log.count(saysBack), asked.Load()
	await(t, "it was tried", func() bool { return asked.Load() > before+3*probesGood })
	if !store.Away() || log.count(saysBack) != told {
		t.Errorf("away is %v, the log says\n%s", store.Away(), log)
	}
}

// When as many decisions wait as may, the others wait for their turn, and no
// longer than for an answer.
func TestPlaces(t *testing.T) {
	server := testredis.Start(t)
	store, _ := openLogged(t, Config{URL: URL("redis://" + server.Addr)})
	w := store.Windows(RequestLimits, "test", 1_000_000, time.Hour, newLocal(5))
	for range inFlight {
		store.places <- struct{}{}
	}
	if d := w.Take(t.Context(), keyOf(1), time.Now()); d.Limit != 5 {
		t.Errorf("%+v, want it decided here", d)
	}
	<-store.places
	await(t, "the store decides", func() bool { return w.Take(t.Context(), keyOf(1), time.Now()).Limit == 1_000_000 })
	if n := len(store.places); n != inFlight-1 {
		t.Errorf("%d places are taken, want %d", n, inFlight-1)
	}
	for range inFlight - 1 {
		<-store.places
	}
}
