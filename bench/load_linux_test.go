package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/internal/testport"
)

// crowd are the clients of one server.
type crowd []*client

// workers is how many clients connect at once.
const workers = 8

// each does something for every number below n, a few at once.
func each(t testing.TB, n int, do func(i int) error) {
	t.Helper()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					err = fmt.Errorf("client %d: %w", i, err)
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
}

// connect connects clients, the first of them of number from.
func connect(t testing.TB, to target, from, n int) crowd {
	t.Helper()
	all := make(crowd, n)
	t.Cleanup(func() { all.leave() })
	each(t, n, func(i int) (err error) {
		all[i], err = to.connect(from + i)
		return err
	})
	return all
}

func (all crowd) identify(t testing.TB) {
	t.Helper()
	each(t, len(all), func(i int) error { return all[i].identify(i) })
}

// pairUp makes pairs of neighbours.
func (all crowd) pairUp(t testing.TB) {
	t.Helper()
	each(t, len(all)/2, func(i int) error { return pair(all[2*i], all[2*i+1], i) })
}

func (all crowd) listen() {
	for _, c := range all {
		go c.listen()
	}
}

func (all crowd) leave() {
	for _, c := range all {
		if c != nil {
			c.conn.Close()
		}
	}
}

// all fails the test for a client that has ended.
func (all crowd) stay(t testing.TB) {
	t.Helper()
	for i, c := range all {
		if err := c.err.Load(); err != nil {
			t.Fatalf("client %d was cut: %v", i, *err)
		}
	}
}

// spent is what servers have used for one of something, by their order.
type spent []time.Duration

// during measures the CPU time of servers while do runs, which returns how many
// operations those were.
func during(t testing.TB, servers []*process, do func() int) spent {
	t.Helper()
	before := make([]time.Duration, len(servers))
	for i, p := range servers {
		before[i] = p.cpu(t)
	}
	n := do()
	if n == 0 {
		t.Fatal("nothing came through")
	}
	s := make(spent, len(servers))
	for i, p := range servers {
		s[i] = (p.cpu(t) - before[i]) / time.Duration(n)
	}
	return s
}

// closedLoop keeps one operation on its way in each group for a while: start begins
// one, and each of the group's clients tells once that its part of it has come.
// It returns how many were done.
func closedLoop(t testing.TB, groups []crowd, start func(g crowd) error, period time.Duration) int {
	t.Helper()
	var done, open atomic.Int64
	var over atomic.Bool
	failed := make(chan error, len(groups))
	for _, g := range groups {
		var came atomic.Int64
		arrived := func(op byte, _ []byte) {
			if op != opBinary || int(came.Add(1))%len(g) != 0 {
				return
			}
			done.Add(1)
			if over.Load() {
				open.Add(-1)
				return
			}
			if err := start(g); err != nil {
				failed <- err
			}
		}
		for _, c := range g {
			c.got.Store(&arrived)
		}
	}
	for _, g := range groups {
		open.Add(1)
		if err := start(g); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-failed:
		t.Fatal(err)
	case <-time.After(period):
	}
	over.Store(true)
	for deadline := time.Now().Add(patience); open.Load() > 0; time.Sleep(time.Millisecond) {
		for _, g := range groups {
			g.stay(t)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d operations hang", open.Load())
		}
	}
	for _, g := range groups {
		for _, c := range g {
			c.got.Store(nil)
		}
	}
	return int(done.Load())
}

// firstByte is what tells messages apart in paced.
type firstByte byte

// paced sends so many messages a second for a while, from each of the senders in
// turn, and waits until as many have come to one of the others. It returns how many.
func paced(t testing.TB, all, senders crowd, rate int, period time.Duration, first firstByte) int {
	t.Helper()
	var came atomic.Int64
	arrived := func(op byte, payload []byte) {
		if op == opBinary && len(payload) > 0 && payload[0] == byte(first) {
			came.Add(1)
		}
	}
	for _, c := range all {
		c.got.Store(&arrived)
	}
	frames := make([][]byte, len(senders))
	for i, c := range senders {
		frames[i] = c.message()
	}
	began, sent := time.Now(), 0
	clock := time.NewTicker(time.Millisecond)
	defer clock.Stop()
	for now := range clock.C {
		due := int(min(now.Sub(began), period).Seconds() * float64(rate))
		for ; sent < due; sent++ {
			i := sent % len(senders)
			if err := senders[i].write(frames[i]); err != nil {
				t.Fatal(err)
			}
		}
		if now.Sub(began) >= period {
			break
		}
	}
	for deadline := time.Now().Add(patience); int(came.Load()) < sent; time.Sleep(time.Millisecond) {
		all.stay(t)
		if time.Now().After(deadline) {
			t.Fatalf("of %d messages %d have come", sent, came.Load())
		}
	}
	for _, c := range all {
		c.got.Store(nil)
	}
	return sent
}

// sheet collects figures by row over the rounds.
type sheet struct {
	rows   []string
	values map[string][]float64
}

func (s *sheet) add(row string, value float64) {
	if s.values == nil {
		s.values = make(map[string][]float64)
	}
	if s.values[row] == nil {
		s.rows = append(s.rows, row)
	}
	s.values[row] = append(s.values[row], value)
}

func (s *sheet) addTime(row string, d time.Duration) {
	s.add(row+", µs", float64(d)/float64(time.Microsecond))
}

// last is what was added last under a row of times.
func (s *sheet) last(row string) float64 {
	v := s.values[row+", µs"]
	return v[len(v)-1]
}

// median of a row; of an even number, the mean of the two in the middle.
func (s *sheet) median(row string) float64 {
	v := slices.Sorted(slices.Values(s.values[row]))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func (s *sheet) String() string {
	var out strings.Builder
	for _, row := range s.rows {
		v := s.values[row]
		fmt.Fprintf(&out, "\n%-44s %8.2f  (%.2f to %.2f, %d rounds)", row, s.median(row), slices.Min(v), slices.Max(v), len(v))
	}
	return out.String()
}

// report prints the sheet, and some of its rows as metrics. It prints by itself:
// what a benchmark logs is cut after ten lines.
func (s *sheet) report(b *testing.B, metrics map[string]string) {
	fmt.Printf("%s:%s\n", b.Name(), s)
	for row, unit := range metrics {
		b.ReportMetric(s.median(row), unit)
	}
	b.ReportMetric(0, "ns/op") // a round's length says nothing
}

// address is where a server of a test listens, as the policy writes it.
func address(t testing.TB, network, name string) string {
	t.Helper()
	if network == "unix" {
		return "unix:" + t.TempDir() + "/" + cmp.Or(name, "socket")
	}
	return fmt.Sprintf("127.0.0.1:%d", testport.Free(t))
}
