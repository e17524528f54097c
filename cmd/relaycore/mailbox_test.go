package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"relayedge/relaycore/client"
	"relayedge/relaycore/wire"
)

// withMailbox is a policy whose mailbox is a file in a folder of its own.
func withMailbox(t *testing.T) (policy, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return policyFile(t, fmt.Sprintf(`relay:
  bind: "127.0.0.1:0"
  drain_secs: 1
  metrics: {enabled: false}
  offline_queue: {file: %q, key_file: %q}
`, filepath.Join(dir, "mailbox"), filepath.Join(dir, "key"))), dir
}

// program is the relay as a process of its own.
type program struct {
	cmd *exec.Cmd
	url string
}

func startProgram(t *testing.T, policy string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "run", "-c", policy)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var log lines
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, _ := bufio.NewReader(out).ReadString('\n')
	m := regexp.MustCompile(`^relay: (\S+),`).FindStringSubmatch(line)
	if m == nil {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("it says %q, %s", line, log.String())
	}
	return &program{cmd, "ws://" + m[1] + "/relay"}
}

func memberKey(n int) ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	binary.BigEndian.PutUint64(seed, uint64(n)+1)
	return ed25519.NewKeyFromSeed(seed)
}

func (p *program) member(ctx context.Context, t *testing.T, n int) *client.Session {
	t.Helper()
	s, err := client.Dial(ctx, p.url, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Publish(ctx, memberKey(n), nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// awaitFrame returns the next frame of a kind.
func awaitFrame[F wire.Frame](ctx context.Context, s *client.Session) (F, error) {
	for {
		f, err := s.Receive(ctx)
		if err != nil {
			return *new(F), err
		}
		if got, ok := f.(F); ok {
			return got, nil
		}
	}
}

func numberedID(n int) (id wire.MessageID) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	return id
}

// The relay is killed while many send to many who are away. What it has
// acknowledged to a sender comes to its recipient, in order, from the next one.
func TestKilledUnderLoad(t *testing.T) {
	const pairs, rounds = 5, 4
	policy, _ := withMailbox(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute*(rounds+1))
	defer cancel()
	accepted := make([][]int, pairs) // and not acknowledged by its recipient yet
	for round := range rounds {
		p := startProgram(t, policy)
		var senders sync.WaitGroup
		var mu sync.Mutex
		count, enough := 0, 40+rand.N(300)
		for i := range pairs {
			a, b := p.member(ctx, t, 2*i), p.member(ctx, t, 2*i+1)
			fetch(ctx, t, b, accepted[i])
			accepted[i] = nil
			token := [32]byte{byte(i), byte(round)}
			if _, err := a.AskBlinded(ctx, token); err != nil {
				t.Fatal(err)
			}
			if _, err := b.AskBlinded(ctx, token); err != nil {
				t.Fatal(err)
			}
			open, err := awaitFrame[wire.CircuitOpen](ctx, a)
			if err != nil {
				t.Fatal(err)
			}
			b.Leave(ctx, open.Circuit)
			b.Close()
			senders.Go(func() {
				defer a.Close()
				for n := 10_000*round + 1; ; n++ {
					if a.SendAs(ctx, open.Circuit, numberedID(n), make([]byte, n*37%3000)) != nil {
						return
					}
					got, err := awaitFrame[wire.MessageAck](ctx, a)
					if err != nil {
						return
					}
					if got.ID != numberedID(n) {
						t.Errorf("%x is acknowledged in place of %d", got.ID[:8], n)
					}
					mu.Lock()
					accepted[i] = append(accepted[i], n)
					if count++; count == enough {
						p.cmd.Process.Kill()
					}
					mu.Unlock()
				}
			})
		}
		senders.Wait()
		if ctx.Err() != nil {
			t.Fatal("it took too long")
		}
		if err := p.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("round %d: it ended by itself: %v", round, err)
		}
	}
	p := startProgram(t, policy)
	for i := range pairs {
		b := p.member(ctx, t, 2*i+1)
		fetch(ctx, t, b, accepted[i])
		b.Close()
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// fetch receives and acknowledges until all that was accepted has come. What it
// has fetched before can come again: the relay was killed.
func fetch(ctx context.Context, t *testing.T, s *client.Session, accepted []int) {
	t.Helper()
	latest := 0
	for next := 0; next < len(accepted); {
		m, err := awaitFrame[wire.Message](ctx, s)
		if err != nil {
			t.Fatalf("%d messages did not come, the first of them %d: %v", len(accepted)-next, accepted[next], err)
		}
		n := int(binary.BigEndian.Uint64(m.ID[:]))
		if n <= latest || !m.Stored || len(m.Payload) != n*37%3000 {
			t.Fatalf("message %d of %d bytes came behind %d", n, len(m.Payload), latest)
		}
		latest = n
		// Others came too: their acknowledgement was on its way when the relay was killed.
		switch {
		case n == accepted[next]:
			next++
		case n > accepted[next]:
			t.Fatalf("message %d was accepted, and %d came", accepted[next], n)
		}
		if err := s.Ack(ctx, m.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// check --machine opens the file as run would, and changes nothing.
func TestCheckMailbox(t *testing.T) {
	policy, dir := withMailbox(t)
	file := filepath.Join(dir, "mailbox")
	check := func(status int, says string) {
		t.Helper()
		got, out, errs := runLine(t, "check", "--machine", "-c", policy)
		if got != status || !strings.Contains(out+errs, says) {
			t.Errorf("status %d, %q, %q", got, out, errs)
		}
	}
	check(0, "")
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 1 {
		t.Errorf("%v are left", names)
	}
	p := startProgram(t, policy)
	check(1, "relay.offline_queue.file: mailbox file "+file+": another process has it open")
	if status, _, errs := runLine(t, "run", "-c", policy); status != 1 || !strings.Contains(errs, "another process has it open") {
		t.Errorf("status %d, %q", status, errs)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Wait()
	check(0, "")
	os.WriteFile(filepath.Join(dir, "key"), []byte(strings.Repeat("a5", 32)), 0o600)
	check(1, "relay.offline_queue.file: mailbox file "+file+": the key is not the one")
	os.Chmod(filepath.Join(dir, "key"), 0o644)
	check(1, "relay.offline_queue.key_file: key file: ")
	os.Remove(filepath.Join(dir, "key"))
	check(1, "relay.offline_queue.key_file: ")
	os.WriteFile(filepath.Join(dir, "key"), []byte(strings.Repeat("5a", 32)), 0o600)
	if err := os.Truncate(file, 6000); err != nil {
		t.Fatal(err)
	}
	check(1, "relay.offline_queue.file: ")
}
