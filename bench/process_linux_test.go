package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long something may take that should take seconds at most.
const patience = 2 * time.Minute

var built struct {
	once   sync.Once
	folder string
	err    error
}

// program builds the programs once and returns the path of one.
func program(t testing.TB, name string) string {
	t.Helper()
	built.once.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "relayedge-bench-"); built.err != nil {
			return
		}
		args := []string{"build", "-o", built.folder + "/"}
		if raceEnabled {
			args = append(args, "-race") // nothing is measured then, and the other tests have built the same
		}
		cmd := exec.Command("go", append(args, "relayedge/cmd/relayedge", "relayedge/cmd/relaycore", "relayedge/bench/plain")...)
		if !raceEnabled {
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.folder, name)
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.folder != "" {
		os.RemoveAll(built.folder)
	}
	os.Exit(code)
}

// process is a server under load.
type process struct {
	name    string
	pid     int
	told    []string // what it said that it serves
	metrics string   // the address of its metrics
	stop    func()
}

// launch starts a program and waits until it has written each of the patterns, in
// this order, one group of each of which says where it serves.
func launch(t testing.TB, name string, args []string, patterns ...string) *process {
	t.Helper()
	cmd := exec.Command(program(t, name), args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{name: name, pid: cmd.Process.Pid}
	p.stop = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	t.Cleanup(p.stop)
	late := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer late.Stop()
	lines := bufio.NewScanner(out)
	for len(p.told) < len(patterns) && lines.Scan() {
		if m := regexp.MustCompile(patterns[len(p.told)]).FindStringSubmatch(lines.Text()); m != nil {
			p.told = append(p.told, m[1])
		}
	}
	if len(p.told) < len(patterns) {
		p.stop()
		t.Fatalf("%s has not said where it serves:\n%s", name, complaints.String())
	}
	go io.Copy(io.Discard, out)
	return p
}

// write writes a policy file for the time of a test.
func write(t testing.TB, policy string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// tick is the unit of times in /proc/PID/stat.
const tick = 10 * time.Millisecond

// cpu is the CPU time that the process has used.
func (p *process) cpu(t testing.TB) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name, in parentheses, may have spaces.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		t.Fatalf("/proc/PID/stat says %q", b)
	}
	sum := 0
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * tick
}

// settle waits until the process is at rest.
func (p *process) settle(t testing.TB) {
	t.Helper()
	const rest = 500 * time.Millisecond
	deadline := time.Now().Add(patience)
	for before := p.cpu(t); ; {
		time.Sleep(rest)
		after := p.cpu(t)
		if after-before <= tick {
			return
		}
		if before = after; time.Now().After(deadline) {
			t.Fatalf("%s is not at rest", p.name)
		}
	}
}

// giveBack is the time in which our programs, at rest, have given back what a burst
// has left behind: they look every five seconds, and the second look may be needed.
// The smoke test does not wait for it.
var giveBack = 12 * time.Second

// rest waits until the process is at rest and has given back what it does not need.
func (p *process) rest(t testing.TB) {
	p.settle(t)
	time.Sleep(giveBack)
}

// memory is the process's PSS in bytes.
func (p *process) memory(t testing.TB) float64 {
	t.Helper()
	return kilobytes(t, fmt.Sprintf("/proc/%d/smaps_rollup", p.pid), "Pss:")
}

// kilobytes reads a line that is a name, a number and kB.
func kilobytes(t testing.TB, file, name string) float64 {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return float64(n) * 1024
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return 0
}

// kernelMemory is what the machine's sockets take, in bytes: buffers of TCP, and
// the kernel's objects of all kinds.
func kernelMemory(t testing.TB) float64 {
	t.Helper()
	b, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^TCP: .* mem (\d+)$`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("/proc/net/sockstat says %q", b)
	}
	pages, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return float64(pages*os.Getpagesize()) + kilobytes(t, "/proc/meminfo", "Slab:")
}

// metric reads one metric without labels.
func (p *process) metric(name string) (float64, error) {
	r, err := http.Get(p.metrics)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(b)
	if m == nil {
		return 0, errors.New("no metric " + name)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// becomes waits until each of the metrics has the value.
func (p *process) becomes(t testing.TB, value float64, names ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for _, name := range names {
		for {
			got, err := p.metric(name)
			if err == nil && got == value {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s is %v, %v; want %v", name, got, err, value)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}
