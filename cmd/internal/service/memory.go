package service

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// memoryPause is the time from one look at the memory to the next.
const memoryPause = 5 * time.Second

// leastGarbage is how many bytes must have been allocated for a collection to be
// worth it.
const leastGarbage = 1 << 20

// calm decides when a process that is at rest gives back what a burst has left
// behind. By itself the collector runs when the heap has grown, which at rest it
// does not, or two minutes after it ran last.
type calm struct {
	seen      uint64 // bytes that were ever allocated, at the last look
	collected uint64 // the same when the memory was given back last
}

// due reports whether to give memory back, with allocated bytes that were ever
// allocated and heap bytes in the heap: an eighth of the heap may be garbage, and
// since the last look hardly any has come.
func (c *calm) due(allocated, heap uint64) bool {
	rest := allocated-c.seen <= heap/64
	c.seen = allocated
	return rest && allocated-c.collected >= max(heap/8, leastGarbage)
}

// given notes that it was given back, with allocated bytes ever allocated.
func (c *calm) given(allocated uint64) { c.seen, c.collected = allocated, allocated }

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
