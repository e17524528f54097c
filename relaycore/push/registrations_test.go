package push

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

func sourceOf(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 32)
}

// When the table is full the heaviest source loses its oldest, whoever comes.
func TestRegistrationsShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := wakerFor(t, func(c *Config) { c.MaxRegistrations = 4 })
		register := func(n, from int) {
			t.Helper()
			if _, err := w.Register(who(n), fmt.Sprintf("https://push.example.org/%d", n), time.Now(), sourceOf(from)); err != nil {
				t.Fatal(err)
			}
		}
		kept := func() (all []int) {
			for n := range 10 {
				if w.table.byIdentity[who(n)] != nil {
					all = append(all, n)
				}
			}
			return all
		}
		register(0, 1)
		register(1, 2)
		register(2, 2)
		register(3, 2)
		register(4, 3)
		if got := fmt.Sprint(kept()); got != "[0 2 3 4]" {
			t.Errorf("kept are %s", got)
		}
		// Leaving it anew makes it the newest of its source.
		register(2, 2)
		register(5, 1)
		if got := fmt.Sprint(kept()); got != "[0 2 4 5]" {
			t.Errorf("kept are %s", got)
		}
		if c := w.Stats(); c.Evicted != 2 || c.Registrations != 4 {
			t.Errorf("%+v", c)
		}
		// Another endpoint of the same identity costs nobody a place.
		if _, err := w.Register(who(2), "https://push.example.org/other", time.Now(), sourceOf(9)); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(kept()); got != "[0 2 4 5]" {
			t.Errorf("kept are %s", got)
		}
		if w.Stats().Evicted != 2 {
			t.Error("its own earlier endpoint counts as evicted")
		}
	})
}

// The budget in bytes holds, to a byte; a lowered one takes effect a few at a time.
func TestRegistrationsBytes(t *testing.T) {
	now := time.Now()
	table := newRegistrations()
	cfg := DefaultConfig()
	cfg.RegistrationBudgetBytes = 3 * (100 + registrationOverhead)
	table.bind(cfg, now)
	put := func(n, size int) int {
		return len(table.put(&registration{identity: who(n), endpoint: strings.Repeat("x", size)}, source, now))
	}
	for n := range 3 {
		if gone := put(n, 100); gone != 0 {
			t.Fatalf("%d are gone for %d", gone, n)
		}
	}
	if gone := put(3, 101); gone != 2 {
		t.Errorf("%d are gone for one byte too much", gone)
	}
	for n := 10; n < 300; n++ {
		put(n, 100)
		if table.bytes.Held() > table.budget {
			t.Fatal(table.bytes.Held())
		}
	}
	cfg.MaxRegistrations, cfg.RegistrationBudgetBytes = 1000, 1<<30
	table.bind(cfg, now)
	for n := range 1000 {
		put(n, 100)
	}
	cfg.MaxRegistrations = 1
	table.bind(cfg, now)
	if gone := put(2000, 100); gone != mostMadeRoom {
		t.Errorf("%d are gone at once", gone)
	}
	for n := range 20 {
		put(3000+n, 100)
	}
	if len(table.byIdentity) != 1 || table.line.Len() != 1 || table.places.Held() != 1 {
		t.Errorf("%d are kept", len(table.byIdentity))
	}
}

// Each lives its time from when it was left last, and costs what it is charged.
func TestRegistrationsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, func(c *Config) { c.RegistrationTTLSecs = 3600 })
		left(t, w, 1, "https://push.example.org/1")
		r := left(t, w, 2, "https://push.example.org/2")
		if !r.Expires.Equal(time.Now().Add(time.Hour)) {
			t.Error(r.Expires)
		}
		time.Sleep(30 * time.Minute)
		left(t, w, 1, "https://push.example.org/1")
		time.Sleep(30 * time.Minute)
		w.Wake(who(2))
		w.Wake(who(1))
		synctest.Wait()
		if c := w.Stats(); c.Registrations != 1 || s.count() != 1 {
			t.Errorf("%d calls: %+v", s.count(), c)
		}
		time.Sleep(time.Hour)
		if c := w.Stats(); c.Registrations != 0 || c.Bytes != 0 {
			t.Errorf("%+v", c)
		}
	})
}

func TestRegistrationOverhead(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	const n = 20000
	cfg := DefaultConfig()
	cfg.Enabled, cfg.AllowedHosts = true, []string{"*.example.org"}
	var before, after runtime.MemStats
	w := newWaker(cfg, Options{Budget: admission.NewFixedWindows(1, time.Hour), Keys: admission.NewKeyMaker(nil)}, &services{})
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		id := wire.Identity{byte(i), byte(i >> 8), byte(i >> 16)}
		from := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(i >> 8), byte(i >> 16)}), 32)
		if _, err := w.Register(id, "https://push.example.org/"+fmt.Sprintf("%075d", i), time.Now(), from); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	cost := int(after.HeapAlloc-before.HeapAlloc)/n - 100
	t.Logf("a registration costs %d bytes beside its endpoint", cost)
	if cost > registrationOverhead || cost < registrationOverhead/2 {
		t.Errorf("a registration costs %d bytes beside its endpoint, %d are charged", cost, registrationOverhead)
	}
	w.Close()
}
