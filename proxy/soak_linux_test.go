package proxy

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"relayedge/admission"
)

// soakVariable says how many connections the soak makes. A million of them, with
// their progress:
//
//	RELAYEDGE_SOAK=1000000 go test ./proxy -run 'TestSoak/engine=stream' -v -timeout 2h
//
// It needs no more than 1,024 descriptors. RELAYEDGE_SOAK_SEED repeats an order.
const (
	soakVariable = "RELAYEDGE_SOAK"
	soakSeed     = "RELAYEDGE_SOAK_SEED"
	soakShort    = 5000
	soakAtOnce   = 64
)

// openDescriptors counts those of the process by what they are: "socket", "pipe",
// "anon_inode" of a loop's.
func openDescriptors(t *testing.T) map[string]int {
	t.Helper()
	const folder = "/proc/self/fd/"
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]int)
	for _, e := range entries {
		if to, err := os.Readlink(folder + e.Name()); err == nil {
			kind, _, _ := strings.Cut(to, ":")
			kinds[kind]++
		}
	}
	return kinds
}

// waitForDescriptors waits until no more of the kinds are open than there were.
func waitForDescriptors(t *testing.T, were map[string]int, kinds ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		open, more := openDescriptors(t), ""
		for _, kind := range kinds {
			if open[kind] > were[kind] {
				more = kind
			}
		}
		switch {
		case more == "":
			return
		case time.Now().After(deadline):
			t.Fatalf("%d descriptors that are a %s are open, there were %d", open[more], more, were[more])
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// After many connections of all kinds nothing is left of them: no gauge, no
// descriptor, no goroutine.
func TestSoak(t *testing.T) {
	short := uint64(soakShort)
	if underRace {
		short /= 4
	}
	n := int(fromEnvironment(t, soakVariable, short))
	seed := fromEnvironment(t, soakSeed, uint64(time.Now().UnixNano()))
	onEngines(t, func(t *testing.T) {
		descriptors, goroutines := openDescriptors(t), runtime.NumGoroutine()
		t.Run("throng", func(t *testing.T) { soak(t, n, seed) })
		waitFor(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
		waitForDescriptors(t, descriptors, "socket", "pipe", "anon_inode")
	})
}

func soak(t *testing.T, n int, seed uint64) {
	c := newThrong(t)
	c.come(1, 1, seed) // whatever is made once is there
	c.settle()
	descriptors := openDescriptors(t)
	began := time.Now()
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-time.After(30 * time.Second):
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				t.Logf("%d of %d connections after %v, %d faults, %d KiB of heap", c.dialled.Load(), n, time.Since(began).Round(time.Second), c.faults.Load(), m.HeapInuse>>10)
			case <-over:
				return
			}
		}
	}()
	atOnce := soakAtOnce
	if underRace {
		atOnce /= 2 // a handshake is to be done in its time on a slow machine too
	}
	c.come(n, atOnce, seed)
	close(over)
	c.settle()
	waitForDescriptors(t, descriptors, "socket", "pipe") // the load may have had another loop opened
	t.Logf("%d connections in %v, seed %d; ended: %v", c.dialled.Load(), time.Since(began).Round(time.Second), seed, c.e.ends())
	for _, r := range []Reason{NotTLS, TLSHandshakeTimeout, admission.PerIPCap, WriterStall, Reset, ClientClosed, UpstreamClosed, ProxyHeader} {
		if c.e.ended(r) == 0 && n >= soakShort {
			t.Errorf("no connection ended as %s", r)
		}
	}
	for _, r := range []Reason{TaskPanic, UpstreamUnavailable, UpstreamTimeout, LocalPorts, Descriptors, IdleTimeout} {
		if k := c.e.ended(r); k != 0 {
			t.Errorf("%d connections ended as %s", k, r)
		}
	}
}
