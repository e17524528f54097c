//go:build unix

package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"relayedge/internal/testredis"
)

// take waits for a lock.
func take(t testing.TB, r *Records, name string) (under context.Context, release func()) {
	t.Helper()
	await(t, "the lock "+name+" is free", func() bool {
		var err error
		under, release, err = r.Hold(t.Context(), name)
		return under != nil && err == nil
	})
	return under, release
}

func TestLocks(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	a, b := openRecords(t, Config{URL: urlOf(server)}, "certificates"), openRecords(t, Config{URL: urlOf(server)}, "certificates")
	ctx := t.Context()
	under, release := take(t, a, "one")
	for _, r := range []*Records{a, b} {
		if again, _, err := r.Hold(ctx, "one"); again != nil || err != nil {
			t.Errorf("two hold it: %v, %v", again, err)
		}
	}
	_, other := take(t, b, "two")
	other()
	must(t, a.Put(under, "x", []byte("1"), time.Hour))
	release()
	if !errors.Is(under.Err(), context.Canceled) {
		t.Errorf("after its release: %v", under.Err())
	}
	if err := a.Put(context.WithoutCancel(under), "x", []byte("2"), time.Hour); !errors.Is(err, ErrLost) {
		t.Errorf("Put after the release: %v", err)
	}
	_, release = take(t, b, "one")
	if err := a.Delete(context.WithoutCancel(under), "x"); !errors.Is(err, ErrLost) {
		t.Errorf("Delete while another holds it: %v", err)
	}
	if got, err := b.Get(ctx, "x"); string(got) != "1" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	release()
	if keys := server.Keys(); len(keys) != 2 {
		t.Errorf("left: %q", keys)
	}

	// A lock without an end is none of ours; it is given one.
	server.Ask("SET", a.list+"!three", "x")
	if under, _, err := a.Hold(ctx, "three"); under != nil || err != nil {
		t.Errorf("%v, %v", under, err)
	}
	if left := server.Ask("PTTL", a.list+"!three").(int64); left <= 0 {
		t.Error("it has no end")
	}
}

// Never more than one of many holds a lock, and each gets it.
func TestLocksExclude(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	var holders, most atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		r := openRecords(t, Config{URL: urlOf(server)}, "certificates")
		for range 4 {
			all.Go(func() {
				_, release := take(t, r, "one")
				if n := holders.Add(1); n > 1 {
					most.Store(n)
				}
				holders.Add(-1)
				release()
			})
		}
	}
	all.Wait()
	if n := most.Load(); n > 1 {
		t.Errorf("%d have held it at once", n)
	}
}

// A lock outlives its lease for as long as its holder lives; a store that has lost
// it, or another who has taken it, ends it.
func TestLocksAreRenewed(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	r := openRecords(t, Config{URL: urlOf(server)}, "certificates")
	under, release := take(t, r, "one")
	defer release()
	began := time.Now()
	for time.Since(began) < lease+2*time.Second {
		if under.Err() != nil || server.Ask("EXISTS", r.list+"!one") != int64(1) {
			t.Fatalf("lost after %v", time.Since(began))
		}
		time.Sleep(50 * time.Millisecond)
	}
	server.Ask("DEL", r.list+"!one")
	await(t, "the loss is noticed", func() bool { return errors.Is(context.Cause(under), ErrLost) })
	_, again := take(t, r, "one")
	again()
}

// Who is cut off from the store has lost its lock before another gets it.
func TestLocksOfAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	r := openRecords(t, Config{URL: urlOf(server)}, "certificates")
	under, release := take(t, r, "one")
	server.Freeze()
	await(t, "the loss is noticed", func() bool { return errors.Is(context.Cause(under), ErrLost) })
	server.Thaw()
	release()
}

// A holder that is killed, or frozen, holds nothing after the lease; one that goes
// on notices, and changes nothing any more.
func TestHoldersThatAreKilledOrFrozen(t *testing.T) {
	t.Parallel()
	if url := os.Getenv("REDISSTORE_TEST_HOLDER"); url != "" {
		holdAndWrite(t, url)
		return
	}
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen %v", frozen), func(t *testing.T) {
			t.Parallel()
			server := testredis.Start(t)
			cfg := withDefaults(t, Config{URL: urlOf(server)})
			r := openRecords(t, cfg, "certificates")
			holder := exec.Command(os.Args[0], "-test.run=^TestHoldersThatAreKilledOrFrozen$", "-test.count=1")
			holder.Env = append(os.Environ(), "REDISSTORE_TEST_HOLDER="+string(cfg.URL), "REDISSTORE_TEST_SECRET="+cfg.SecretFile)
			out, err := holder.StdoutPipe()
			must(t, err)
			must(t, holder.Start())
			defer holder.Wait()
			defer holder.Process.Kill()
			lines := bufio.NewScanner(out)
			said := func(word string) {
				t.Helper()
				for lines.Scan() {
					if strings.TrimSpace(lines.Text()) == word {
						return
					}
				}
				t.Fatalf("it has not said %q", word)
			}
			said("held")
			if under, _, err := r.Hold(t.Context(), "one"); under != nil || err != nil {
				t.Fatalf("%v, %v", under, err)
			}
			signal := syscall.SIGKILL
			if frozen {
				signal = syscall.SIGSTOP
			}
			began := time.Now()
			must(t, holder.Process.Signal(signal))
			under, release := take(t, r, "one")
			if took := time.Since(began); took > 3*lease {
				t.Errorf("the lock was free after %v", took)
			} else {
				t.Logf("the lock was free after %v", took)
			}
			defer release()
			must(t, r.Put(under, "x", []byte("the next holder's"), time.Hour))
			if !frozen {
				return
			}
			must(t, holder.Process.Signal(syscall.SIGCONT))
			said("lost")
			said("the lock was lost")
			if got, err := r.Get(t.Context(), "x"); string(got) != "the next holder's" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// holdAndWrite is the process that holds the lock.
func holdAndWrite(t *testing.T, url string) {
	r := openRecords(t, Config{URL: URL(url), SecretFile: os.Getenv("REDISSTORE_TEST_SECRET")}, "certificates")
	under, release := take(t, r, "one")
	defer release()
	must(t, r.Put(under, "x", []byte("the first holder's"), time.Hour))
	fmt.Println("held")
	<-under.Done()
	if errors.Is(context.Cause(under), ErrLost) {
		fmt.Println("lost")
	}
	fmt.Println(r.Put(context.WithoutCancel(under), "x", []byte("too late"), time.Hour))
}
