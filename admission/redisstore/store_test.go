package redisstore

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/testredis"
)

// Two processes whose clocks are apart count together, and name the same end of a window.
func TestClocksApart(t *testing.T) {
	server := testredis.Start(t)
	cfg := Config{URL: URL("redis://" + server.Addr)}
	const limit = 20
	var both [2]admission.Windows
	for i := range both {
		both[i] = openTest(t, cfg, serverClock).Windows(RequestLimits, "test", limit, time.Hour, refuseAll{})
	}
	allowed, ends := 0, map[time.Time]bool{}
	for i := range 2 * limit {
		d := both[i%2].Take(t.Context(), keyOf(1), time.Now().Add(time.Duration(i%2)*20*time.Second))
		if d.Allowed {
			allowed++
		}
		ends[d.Reset] = true
	}
	if allowed != limit || len(ends) != 1 {
		t.Errorf("%d are allowed of %d, and the window has the ends %v", allowed, limit, ends)
	}
	for end := range ends {
		if in := time.Until(end); in > time.Hour || in < 50*time.Minute {
			t.Errorf("the window ends in %v", in)
		}
	}
}

// A key that has lost its end gets it back at its next use.
func TestImmortalKeys(t *testing.T) {
	server := testredis.Start(t)
	store := openTest(t, Config{URL: URL("redis://" + server.Addr)}, serverClock)
	w := store.Windows(RequestLimits, "test", 2, time.Minute, refuseAll{})
	c := admission.MessageLimitsConfig{Sender: admission.SenderMessageLimits{Minute: 2, Hour: 2, Day: 2}, Global: admission.GlobalMessageLimits{Minute: 100, Hour: 100, Day: 100}}
	m := store.Messages(c, admission.MessageLengths{}, refuseAll{})
	both := func() (d [2]admission.Decision) {
		return [...]admission.Decision{w.Take(t.Context(), keyOf(1), time.Now()), m.Take(t.Context(), keyOf(1), time.Now())}
	}
	both()
	for _, refused := range []bool{false, true} {
		keys := server.Keys()
		if len(keys) != 7 {
			t.Fatalf("the keys are %v, want a window's and six of message limits", keys)
		}
		for _, key := range keys {
			if server.Ask("PERSIST", key) != int64(1) {
				t.Errorf("%s had no end", key)
			}
		}
		if refused {
			both()
		}
		for _, d := range both() {
			if d.Allowed == refused {
				t.Errorf("%+v, want a refusal: %v", d, refused)
			}
		}
		for _, key := range keys {
			if left := server.Ask("PTTL", key).(int64); left <= 0 || left > (24*time.Hour+time.Second).Milliseconds() {
				t.Errorf("%s ends in %d ms", key, left)
			}
		}
	}
	// A count over the limit whose window would never end ends within one.
	hex := keyOf(2).String()
	server.Ask("SET", "relayedge:test:"+hex, "99 99999999999999")
	if d := w.Take(t.Context(), keyOf(2), time.Now()); d.Allowed || d.RetryAfter > time.Minute {
		t.Errorf("%+v, want a refusal for a minute at most", d)
	}
	if left := server.Ask("PTTL", "relayedge:test:"+hex).(int64); left <= 0 || left > time.Minute.Milliseconds() {
		t.Errorf("it ends in %d ms", left)
	}
}

// Requests at the very end of windows, on connections that are cut at any point,
// leave no key that stays.
func TestNothingIsLeft(t *testing.T) {
	server := testredis.Start(t)
	proxy := testredis.NewProxy(t, server.Addr)
	store := openTest(t, Config{URL: URL("redis://" + proxy.Addr)}, serverClock)
	const window = 20 * time.Millisecond
	lengths := admission.MessageLengths{Minute: window, Hour: 2 * window, Day: 3 * window}
	local, err := admission.NewMessageLimits(admission.DefaultMessageLimits(), lengths)
	if err != nil {
		t.Fatal(err)
	}
	w := store.Windows(RequestLimits, "test", 3, window, newLocal(3))
	m := store.Messages(admission.DefaultMessageLimits(), lengths, local)
	var n atomic.Int64
	proxy.Decide(func(bool) testredis.Fate { return testredis.Fate{Cut: n.Add(1)%41 == 0} })
	var seen sync.Map
	var callers sync.WaitGroup
	for c := range 8 {
		callers.Go(func() {
			for range 400 {
				w.Take(t.Context(), keyOf(c), time.Now())
				m.Take(t.Context(), keyOf(c), time.Now())
				m.Read(t.Context(), keyOf(c), time.Now())
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		callers.Wait()
		close(ended)
	}()
	for going := true; going; {
		select {
		case <-ended:
			going = false
		default:
		}
		for _, key := range server.Keys() {
			seen.Store(key, true)
			left := server.Ask("PTTL", key).(int64)
			if most := lengths.Day.Milliseconds() + 2; left == -1 || left > most && key != "relayedge:probe" {
				t.Fatalf("%s ends in %d ms, want %d at most", key, left, most)
			}
		}
	}
	count := 0
	seen.Range(func(any, any) bool { count++; return true })
	if count < 10 {
		t.Errorf("only %d keys were seen", count)
	}
	await(t, "nothing is left", func() bool { return len(server.Keys()) == 0 })
}

// The server forgets the scripts, its data, or both, under load: no decision
// fails, and where only the scripts are gone the counts go on.
func TestServerForgets(t *testing.T) {
	for _, tt := range []struct {
		name   string
		forget func(*testredis.Server)
		counts bool // go on
		fails  bool // decisions may, and are made here
	}{
		{"scripts", func(s *testredis.Server) { s.Ask("SCRIPT", "FLUSH") }, true, false},
		{"data", func(s *testredis.Server) { s.Ask("FLUSHALL") }, false, false},
		{"everything, by a restart", func(s *testredis.Server) { s.Stop(); s.Start() }, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := testredis.Start(t)
			store := openTest(t, Config{URL: URL("redis://" + server.Addr)}, serverClock)
			local := newLocal(1_000_000)
			const limit = 1_000_000
			w := store.Windows(RequestLimits, "test", limit, time.Hour, local)
			var stop atomic.Bool
			var taken, failed atomic.Int64
			var callers sync.WaitGroup
			for range 4 {
				callers.Go(func() {
					for !stop.Load() {
						d := w.Take(t.Context(), keyOf(1), time.Now())
						if !d.Allowed || d.Unavailable {
							failed.Add(1)
						}
						taken.Add(1)
						time.Sleep(20 * time.Millisecond) // 200 a second in all
					}
				})
			}
			for range 3 {
				before := taken.Load()
				await(t, "requests go on", func() bool { return taken.Load() > before+20 })
				tt.forget(server)
			}
			before := taken.Load()
			await(t, "requests go on", func() bool { return taken.Load() > before+20 })
			stop.Store(true)
			callers.Wait()
			await(t, "the store decides", func() bool { return !store.Away() })
			if n := failed.Load(); n != 0 {
				t.Errorf("%d requests of %d failed", n, taken.Load())
			}
			if n := local.asked.Load(); n != 0 && !tt.fails {
				t.Errorf("%d requests were decided here", n)
			}
			d := w.Take(t.Context(), keyOf(1), time.Now())
			counted := limit - d.Remaining - 1
			if tt.counts != (counted == taken.Load()) || counted > taken.Load() {
				t.Errorf("the store has counted %d of %d", counted, taken.Load())
			}
		})
	}
}

// No credential, address or name reaches the server, in a key or in a command.
func TestServerLearnsNobody(t *testing.T) {
	server := testredis.Start(t)
	cfg := withDefaults(t, Config{URL: URL("redis://" + server.Addr)})
	store := openTest(t, cfg, serverClock)
	secret, err := cfg.Secret()
	if err != nil {
		t.Fatal(err)
	}
	keys := admission.NewKeyMaker(secret)
	stop := server.Monitor()
	w := store.Windows(RequestLimits, "test", 10, time.Minute, refuseAll{})
	m := store.Messages(admission.DefaultMessageLimits(), admission.MessageLengths{}, refuseAll{})
	clear := []string{"tok-SECRET-1", "192.0.2.77", "alice"}
	w.Take(t.Context(), keys.Key("credential", clear[0]), time.Now())
	w.Take(t.Context(), keys.Key("ip", clear[1]), time.Now())
	m.Peek(t.Context(), keys.Key("sender", clear[2]), time.Now())
	m.Take(t.Context(), keys.Key("sender", clear[2]), time.Now())
	m.Read(t.Context(), keys.Key("ip", clear[1]), time.Now())
	seen := stop() + strings.Join(server.Keys(), "\n")
	for _, word := range append(clear, string(secret)) {
		if strings.Contains(seen, word) {
			t.Errorf("the server learns %q", word)
		}
	}
	for _, key := range []admission.Key{keys.Key("credential", clear[0]), keys.Key("sender", clear[2])} {
		if !strings.Contains(seen, key.String()) {
			t.Error("the server does not see the key either: nothing is tested")
		}
	}
}

// Every decision is one script in one round trip.
func TestOneRoundTrip(t *testing.T) {
	server := testredis.Start(t)
	store := openTest(t, Config{URL: URL("redis://" + server.Addr)}, serverClock)
	w := store.Windows(RequestLimits, "test", 2, time.Minute, refuseAll{})
	m := store.Messages(admission.DefaultMessageLimits(), admission.MessageLengths{}, refuseAll{})
	calls := []func() admission.Decision{
		func() admission.Decision { return w.Take(t.Context(), keyOf(1), time.Now()) },
		func() admission.Decision { return m.Peek(t.Context(), keyOf(1), time.Now()) },
		func() admission.Decision { return m.Take(t.Context(), keyOf(1), time.Now()) },
		func() admission.Decision { return m.Read(t.Context(), keyOf(1), time.Now()) },
	}
	for _, call := range calls {
		call() // from now on the server knows the script
	}
	stop := server.Monitor()
	for _, call := range calls {
		call()
	}
	scripts, others := 0, 0
	for line := range strings.Lines(stop()) {
		switch {
		case strings.Contains(line, " lua]"), strings.Contains(line, `"PING"`), strings.Contains(line, `"ECHO"`):
		case strings.Contains(line, `"EVALSHA"`):
			scripts++
		default:
			others++
		}
	}
	if scripts != len(calls) || others != 0 {
		t.Errorf("%d decisions take %d scripts and %d other commands", len(calls), scripts, others)
	}
}
