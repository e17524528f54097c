package mailbox

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Environment of the test binary as a process of its own.
const (
	childJob  = "MAILBOX_TEST_JOB"
	childPath = "MAILBOX_TEST_PATH"
	childFrom = "MAILBOX_TEST_FROM"
)

// child does a job in a process of its own and returns its exit code.
func child(job string) int {
	jobs := map[string]func(path string) error{"write": writeUntilKilled, "full": fillDisk}
	do := jobs[job]
	if do == nil {
		fmt.Fprintln(os.Stderr, "no such job:", job)
		return 2
	}
	if err := do(os.Getenv(childPath)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func childCommand(t testing.TB, job, path string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childJob+"="+job, childPath+"="+path), env...)
	cmd.Stderr = os.Stderr
	return cmd
}

const killSenders, killRecipients = 6, 3

// killLetter is message n: everything about it follows from n.
func killLetter(n int) Message {
	m := letter(1+n%killRecipients, 10+n%killSenders, n, "")
	sizes := []int{5, 1226, 300, 5000, 40_000}
	m.Payload = make([]byte, sizes[n%len(sizes)]+8)
	binary.BigEndian.PutUint64(m.Payload, uint64(n))
	for i := 8; i < len(m.Payload); i++ {
		m.Payload[i] = byte(n + i)
	}
	return m
}

// writeUntilKilled puts and acknowledges messages for ever. It says "p n" when n
// is held, and "a n" before n is acknowledged; "o" when the file is open.
func writeUntilKilled(path string) error {
	from, err := strconv.Atoi(os.Getenv(childFrom))
	if err != nil {
		return err
	}
	o := plainOptions
	o.compactFrom = 1 // whenever a quarter is in use
	f, err := openFile(path, testKey, plenty(), time.Now(), o)
	if err != nil {
		return err
	}
	// One write a line: a line is there as a whole or not at all.
	say := func(what string, n int) { os.Stdout.WriteString(fmt.Sprintf("%s %d\n", what, n)) }
	say("o", 0)
	var all sync.WaitGroup
	for s := range killSenders {
		all.Go(func() {
			for n := from + s; ; n += killSenders {
				if f.Put(killLetter(n), time.Now()) == nil {
					say("p", n)
				}
			}
		})
	}
	for to := range killRecipients {
		all.Go(func() {
			for {
				portion, err := f.Read(identity(1+to), 0, 20, 1<<20, time.Now())
				if err != nil {
					panic(err)
				}
				for i, h := range portion {
					if i%4 != 0 { // some stay
						n := int(binary.BigEndian.Uint64(h.Payload))
						say("a", n)
						f.Ack(identity(1+to), ids(n), time.Now())
					}
				}
				time.Sleep(time.Duration(rand.N(5)) * time.Millisecond)
			}
		})
	}
	all.Wait()
	return nil
}

// Nothing acknowledged is lost, whenever the process is killed.
func TestKilledAtAnyMoment(t *testing.T) {
	rounds := 36
	if testing.Short() {
		rounds = 6
	}
	path := filepath.Join(t.TempDir(), "mailbox")
	must := map[int]bool{} // held, and not acknowledged
	may := map[int]bool{}  // acknowledged, or perhaps not held
	puts, acks, unopened := 0, 0, 0
	for round := range rounds {
		from := (round + 1) * 60_000
		cmd := childCommand(t, "write", path, childFrom+"="+strconv.Itoa(from))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		opened := false
		kill := func() { cmd.Process.Kill() }
		// Every fourth is killed from its first moment on, another once the file is open,
		// the others once something is held.
		var timer *time.Timer
		if round%4 == 3 {
			timer = time.AfterFunc(time.Duration(rand.N(40_000))*time.Microsecond, kill)
		}
		killSoon := func() {
			if timer == nil {
				timer = time.AfterFunc(time.Duration(rand.N(150_000))*time.Microsecond, kill)
			}
		}
		for {
			line, err := lines.ReadString('\n')
			if err == io.EOF {
				if line != "" {
					t.Fatalf("half a line: %q", line)
				}
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatalf("%q", line)
			}
			switch what {
			case "o":
				opened = true
				if round%4 == 2 {
					killSoon()
				}
			case "p":
				puts++
				killSoon()
				if !may[n] {
					must[n] = true
				}
			case "a":
				// It can be said before its sender has said that it is held.
				acks++
				delete(must, n)
				may[n] = true
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("round %d: the process ended by itself: %v", round, err)
		}
		timer.Stop()
		if !opened {
			unopened++
		}
		compareKilled(t, round, path, from, must, may)
	}
	if puts < 2*rounds || acks < rounds {
		t.Errorf("%d were put and %d acknowledged in %d rounds: this test tries nothing", puts, acks, rounds)
	}
	t.Logf("%d rounds, %d ended before the file was open: %d put, %d acknowledged, %d left", rounds, unopened, puts, acks, len(must))
}

// compareKilled opens the file and holds it against what its writer has said.
// What is there afterwards is what must be there in the next round.
func compareKilled(t *testing.T, round int, path string, from int, must, may map[int]bool) {
	t.Helper()
	f, err := OpenFile(path, testKey, plenty(), time.Now())
	if err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	defer f.Close()
	found := map[int]bool{}
	for to := range killRecipients {
		portion, err := f.Read(identity(1+to), 0, 1<<20, 1<<30, time.Now())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		latest := map[int]int{}
		for _, h := range portion {
			n := int(binary.BigEndian.Uint64(h.Payload))
			m := killLetter(n)
			if m.Recipient != identity(1+to) || m.Sender != h.Sender || m.ID != h.ID || string(m.Payload) != string(h.Payload) {
				t.Fatalf("round %d: message %d is not what was put", round, n)
			}
			if n <= latest[n%killSenders] || found[n] {
				t.Fatalf("round %d: message %d after %d of its sender", round, n, latest[n%killSenders])
			}
			latest[n%killSenders] = n
			found[n] = true
			if !must[n] && !may[n] && n < from {
				t.Fatalf("round %d: message %d has come back", round, n)
			}
		}
	}
	for n := range must {
		if !found[n] {
			t.Fatalf("round %d: message %d was acknowledged to its sender and is lost", round, n)
		}
	}
	// What is read here is known to be held: the next writer must not lose it.
	clear(must)
	clear(may)
	for n := range found {
		must[n] = true
	}
}

// Space for the file ends, and comes back.
func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	cmd := childCommand(t, "full", path)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v", err)
	}
	if strings.TrimSpace(string(out)) == "skip" {
		t.Skip("no limit on the length of files on this system")
	}
	// Whoever comes next finds what was acknowledged.
	f := openTest(t, path, plenty(), start)
	want(t, "inbox", inbox(t, f, 2, start), "8:last")
	// And nothing of what was acknowledged while the disk was full.
	if left := fmt.Sprint(len(inbox(t, f, 1, start))); left != strings.TrimSpace(string(out)) {
		t.Errorf("%s are left, want %s", left, out)
	}
}
