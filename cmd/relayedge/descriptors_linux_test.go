package main_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// crowd are dialers that want in and hold what they get.
type crowd struct {
	in, refused atomic.Int64
	tasks       sync.WaitGroup
}

// come starts n dialers, each from one of some hosts. Who is refused tries again
// after a while; all leave when ctx ends.
func (c *crowd) come(t testing.TB, ctx context.Context, n int, address string) {
	for i := range n {
		c.tasks.Go(func() {
			for ctx.Err() == nil {
				// One that has begun comes to its end: it may be counted on the other side.
				conn, err := enter(context.WithoutCancel(ctx), fmt.Sprintf("127.0.2.%d", 1+i%50), address, "")
				switch {
				case err == nil:
					c.in.Add(1)
					<-ctx.Done()
					conn.Close()
					c.in.Add(-1)
					return
				case errors.Is(err, errRefused):
					c.refused.Add(1)
				default:
					t.Error(err)
					return
				}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		})
	}
}

func (c *crowd) wantIn(t testing.TB, n int64) {
	t.Helper()
	if err := eventually(func() error {
		if in := c.in.Load(); in != n {
			return fmt.Errorf("%d are in, want %d", in, n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// cpu is the time that a process has computed.
func (p *process) cpu(t testing.TB) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, f := range fields[11:13] { // user and system time
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// idles checks that the process takes less than a third of a core for some
// seconds in which meanwhile is done over and over.
func (p *process) idles(t testing.TB, meanwhile func()) {
	t.Helper()
	const seconds = 3
	before, began := p.cpu(t), time.Now()
	for time.Since(began) < seconds*time.Second {
		meanwhile()
		time.Sleep(200 * time.Millisecond)
	}
	used, took := p.cpu(t)-before, time.Since(began)
	t.Logf("the process computed for %v of %v", used, took)
	if used >= took/3 {
		t.Error("that is more than a third of a core")
	}
}

func lines(tr *transcript) int { return strings.Count(tr.String(), "\n") }

const unlimitedClients = `
listeners: [{name: public, bind: "127.0.0.1:0", tls: none}]
limits: {max_connections: 1000, connection_rate_per_ip: 0}
`

// With descriptors for fewer connections than the policy allows, those get in
// that fit; the rest is refused, and everything else goes on.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	const dialers, fit = 400, 96 // of 256 descriptors a quarter is kept, a connection takes two
	e := runEdgeBy(t, echoBehind(t)+unlimitedClients, "sh", "-c", `ulimit -n 256 && exec "$0" "$@"`)
	if _, err := e.await(&e.stderr, regexp.MustCompile(`level=WARN .*LimitNOFILE=2065 .* descriptors=256 needed=2065 fit=96\n`)); err != nil {
		t.Error(err)
	}
	e.shows(t, fmt.Sprintf(`relayedge_limit{limit="descriptors"} %d`, fit), `relayedge_limit{limit="max_connections"} 1000`)
	told := lines(&e.stderr)
	open := func(n int) string { return fmt.Sprintf(`relayedge_connections{listener="public"} %d`, n) }

	var c crowd
	defer c.tasks.Wait()
	most, mostLeave := context.WithCancel(t.Context())
	rest, restLeave := context.WithCancel(t.Context())
	defer restLeave()
	defer mostLeave()
	c.come(t, most, 300, e.listeners["public"])
	c.come(t, rest, dialers-300, e.listeners["public"])
	c.wantIn(t, fit)
	e.shows(t, open(fit))
	ready := strings.Replace(e.metrics, "/metrics", "/readyz", 1)
	e.idles(t, func() {
		for _, url := range []string{e.metrics, ready} {
			if status, _, err := get(url); err != nil || status != http.StatusOK {
				t.Errorf("%s answers %d, %v", url, status, err)
			}
		}
	})
	// A reload opens the policy, and a listener, out of what is kept.
	before, err := os.ReadFile(e.policy())
	if err != nil {
		t.Fatal(err)
	}
	after := strings.Replace(string(before), `tls: none}`, `tls: none}, {name: more, bind: "127.0.0.1:0", tls: none}`, 1)
	if err := os.WriteFile(e.policy(), []byte(after), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	e.shows(t, `relayedge_reloads_total{result="applied"} 1`, `relayedge_connections{listener="more"} 0`)
	if in := c.in.Load(); in != fit {
		t.Errorf("%d are in after a while, want %d", in, fit)
	}

	mostLeave() // whose places the others take
	c.wantIn(t, fit)
	e.shows(t, open(fit))
	restLeave()
	c.tasks.Wait()
	e.shows(t, open(0))

	// As many others as left get in, without one refusal.
	refused := c.refused.Load()
	for range 300 / 75 {
		group, leave := context.WithCancel(t.Context())
		c.come(t, group, 75, e.listeners["public"])
		c.wantIn(t, 75)
		e.shows(t, open(75))
		leave()
		c.tasks.Wait()
		e.shows(t, open(0))
	}
	if more := c.refused.Load() - refused; more != 0 || refused == 0 {
		t.Errorf("%d were refused, and %d more when there was room", refused, more)
	}
	e.shows(t, fmt.Sprintf(`relayedge_rejections_total{reason="descriptors"} %d`, refused), fmt.Sprintf(`relayedge_ended_total{reason="descriptors"} %d`, refused))
	if more := lines(&e.stderr) - told; more >= 20 {
		t.Errorf("%d lines of log:\n%s", more, e.stderr.String())
	}
	e.terminate(t)
	if code, err := e.ended(); code != 0 || err != nil {
		t.Errorf("it ends with %d, %v", code, err)
	}
}

// A limit that falls while the edge runs is met at accept and at dial. The edge
// neither ends nor spins, and goes on when there are descriptors again.
func TestNoDescriptors(t *testing.T) {
	t.Parallel()
	const dialers = 100
	e := runEdge(t, echoBehind(t)+unlimitedClients)
	if _, err := e.await(&e.stderr, regexp.MustCompile(`limit=drain_secs .*\n`)); err != nil {
		t.Error(err)
	}
	told := lines(&e.stderr)
	before := e.descriptorLimit(t, 48)

	var c crowd
	defer c.tasks.Wait()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	c.come(t, ctx, dialers, e.listeners["public"])
	if err := eventually(func() error {
		if open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", e.cmd.Process.Pid)); err != nil || len(open) < 47 {
			return fmt.Errorf("%d descriptors are open, %v", len(open), err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	e.idles(t, func() {})
	if in := c.in.Load(); in == 0 || in > 24 {
		t.Errorf("%d are in with 48 descriptors", in)
	}

	e.descriptorLimit(t, before)
	c.wantIn(t, dialers)
	e.shows(t, fmt.Sprintf(`relayedge_connections{listener="public"} %d`, dialers))
	leave()
	c.tasks.Wait()
	e.shows(t, `relayedge_connections{listener="public"} 0`)
	_, metrics, err := get(e.metrics)
	if err != nil || strings.Contains(metrics, "relayedge_rejections_total{reason=\"descriptors\"} 0\n") {
		t.Errorf("no lack of descriptors was counted; %v", err)
	}
	if more := lines(&e.stderr) - told; more >= 20 {
		t.Errorf("%d lines of log:\n%s", more, e.stderr.String())
	}
	e.terminate(t)
	if code, err := e.ended(); code != 0 || err != nil {
		t.Errorf("it ends with %d, %v", code, err)
	}
}

// descriptorLimit sets the soft limit of the process and returns what it was.
func (p *process) descriptorLimit(t testing.TB, limit uint64) (before uint64) {
	t.Helper()
	prlimit := func(set, get *syscall.Rlimit) {
		if _, _, errno := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(p.cmd.Process.Pid), syscall.RLIMIT_NOFILE,
			uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), 0, 0); errno != 0 {
			t.Fatal(errno)
		}
	}
	var old syscall.Rlimit
	prlimit(nil, &old)
	prlimit(&syscall.Rlimit{Cur: limit, Max: old.Max}, nil)
	return old.Cur
}
