package service

import (
	"context"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// memoryPause is the time from one look at the memory to the next.
const memoryPause = 5 * time.Second

// leastGarbage is how many bytes must have been allocated for a collection to be
// worth it.
const leastGarbage = 1 << 20

// Who has gone is not heard of in what is allocated: closing a connection takes
// little. So if anything at all was done, memory is given back once more after
// some looks.
const (
	patientLooks = 4
	anyGarbage   = 64 << 10
)

// calm decides when a process that is at rest gives back what a burst has left
// behind. By itself the collector runs when the heap has grown, which at rest it
// does not, or two minutes after it ran last.
type calm struct {
	seen      uint64 // bytes that were ever allocated, at the last look
	collected uint64 // the same when the memory was given back last
	looks     int    // since then
}

// due reports whether to give memory back, with allocated bytes that were ever
// allocated and heap bytes in the heap: an eighth of the heap may be garbage, and
// since the last look hardly any has come.
func (c *calm) due(allocated, heap uint64) bool {
	rest := allocated-c.seen <= heap/64
	c.seen = allocated
	c.looks++
	least := max(heap/8, leastGarbage)
	if c.looks >= patientLooks {
		least = anyGarbage
	}
	return rest && allocated-c.collected >= least
}

// given notes that it was given back, with allocated bytes ever allocated.
func (c *calm) given(allocated uint64) { *c = calm{seen: allocated, collected: allocated} }

// memoryShare is the part of a cgroup's memory that the heap may grow to before
// the collector works harder: the rest is for what is no heap, and is the kernel's
// for sockets.
const memoryShare = 0.8

// LimitMemory has the collector keep within the memory of the process's cgroup,
// unless GOMEMLIMIT says what it is to keep within.
func LimitMemory(log *slog.Logger) {
	if _, set := os.LookupEnv("GOMEMLIMIT"); set {
		return
	}
	limit, err := memlimit.Set(memlimit.WithRatio(memoryShare), memlimit.WithProvider(memlimit.FromCgroup), memlimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err == nil && limit > 0 && limit < math.MaxInt64 { // the greatest is none
		log.Info("the heap keeps within the memory of the cgroup", "bytes", limit)
	}
}

// GiveBackMemory has the system get back, within seconds, the memory that a burst
// of connections took, until ctx ends.
func GiveBackMemory(ctx context.Context) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	read := func() (allocated, heap uint64) {
		metrics.Read(samples)
		return samples[0].Value.Uint64(), samples[1].Value.Uint64()
	}
	looks := time.NewTicker(memoryPause)
	defer looks.Stop()
	var c calm
	for {
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
		}
		if c.due(read()) {
			debug.FreeOSMemory()
			allocated, _ := read()
			c.given(allocated)
		}
	}
}
