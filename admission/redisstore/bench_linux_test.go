package redisstore

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"relayedge/admission"
	"relayedge/internal/testredis"
)

// contestant is one limiter and what its decisions have cost.
type contestant struct {
	name   string
	decide func(caller, i int)

	decisions                 int
	took, processor, inServer time.Duration
}

// BenchmarkDecisions measures limiters beside each other, in turns on one server:
// decisions a second, and what processor time a decision takes in this process and
// in the server. An iteration is a round in which each of them makes 64 callers'
// decisions. Fixed windows and redis_rate do the same work; message limits
// look at six windows a decision. Its table is for eyes; the ratios are reported.
func BenchmarkDecisions(b *testing.B) {
	const callers, each = 64, 100
	server := testredis.Start(b)
	store := openTest(b, Config{URL: URL("redis://" + server.Addr)}, serverClock)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, PoolSize: callers})
	defer client.Close()
	theirs := redis_rate.NewLimiter(client)

	const limit = 1_000_000_000
	ctx := context.Background()
	keys := make([]admission.Key, 1000)
	names := make([]string, len(keys))
	for i := range keys {
		keys[i] = keyOf(i)
		names[i] = keys[i].String()
	}
	limits := admission.MessageLimitsConfig{
		Sender: admission.SenderMessageLimits{Minute: 1_000_000, Hour: 1_000_000, Day: 1_000_000},
		Global: admission.GlobalMessageLimits{Minute: limit, Hour: limit, Day: limit},
	}
	messagesHere, err := admission.NewMessageLimits(limits, admission.MessageLengths{})
	if err != nil {
		b.Fatal(err)
	}
	windowsHere := admission.NewFixedWindows(limit, time.Minute)
	windowsThere := store.Windows(RequestLimits, "bench", limit, time.Minute, refuseAll{})
	messagesThere := store.Messages(limits, admission.MessageLengths{}, refuseAll{})
	rate := redis_rate.PerMinute(1_000_000)
	must := func(d admission.Decision) {
		if !d.Allowed {
			b.Errorf("%+v, want it allowed", d)
		}
	}
	pick := func(caller, i int) int { return (caller*31 + i) % len(keys) }
	all := []*contestant{
		{name: "redis_rate", decide: func(c, i int) {
			if r, err := theirs.Allow(ctx, names[pick(c, i)], rate); err != nil || r.Allowed != 1 {
				b.Errorf("%+v, %v", r, err)
			}
		}},
		{name: "windows", decide: func(c, i int) { must(windowsThere.Take(ctx, keys[pick(c, i)], time.Now())) }},
		{name: "messages", decide: func(c, i int) { must(messagesThere.Take(ctx, keys[pick(c, i)], time.Now())) }},
		{name: "memory-windows", decide: func(c, i int) { must(windowsHere.Take(ctx, keys[pick(c, i)], time.Now())) }},
		{name: "memory-messages", decide: func(c, i int) { must(messagesHere.Take(ctx, keys[pick(c, i)], time.Now())) }},
	}
	round := func(c *contestant, each int) {
		runtime.GC() // each pays for its own
		start, here, there := time.Now(), processorTime(b), serverTime(b, server.Pid())
		var work sync.WaitGroup
		for caller := range callers {
			work.Go(func() {
				for i := range each {
					c.decide(caller, i)
				}
			})
		}
		work.Wait()
		c.took += time.Since(start)
		c.processor += processorTime(b) - here
		c.inServer += serverTime(b, server.Pid()) - there
		c.decisions += callers * each
	}
	for _, c := range all {
		round(c, 1)
		*c = contestant{name: c.name, decide: c.decide}
	}
	for b.Loop() {
		for _, c := range all {
			times := 1
			if strings.HasPrefix(c.name, "memory") {
				times = 50 // so that the clocks can tell
			}
			round(c, each*times)
		}
	}
	per := func(d time.Duration, c *contestant) float64 { return float64(d.Nanoseconds()) / 1000 / float64(c.decisions) }
	base := all[0]
	for _, c := range all {
		b.Logf("%-16s %10.0f decisions/s %8.2f µs here %8.2f µs in the server", c.name,
			float64(c.decisions)/c.took.Seconds(), per(c.processor, c), per(c.inServer, c))
		if c != base {
			b.ReportMetric(per(base.took, base)/per(c.took, c), c.name+"/redis_rate-speed")
			b.ReportMetric(per(c.processor, c)/per(base.processor, base), c.name+"/redis_rate-cpu")
		}
	}
}

// processorTime is what this process has used.
func processorTime(t testing.TB) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// serverTime is what another process has used, of which the kernel keeps the
// nanoseconds that its first thread ran.
func serverTime(t testing.TB, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	ran, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(ran, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ns)
}
