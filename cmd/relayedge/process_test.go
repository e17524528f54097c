package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what should come in milliseconds, and how
// long a session may take that should take seconds. It is generous, for a machine
// that is slow and busy with other tests: only what fails waits so long.
const patience = 2 * time.Minute

// transcript is what a process has written so far, and lets others wait for more.
type transcript struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed at the next write
}

func (tr *transcript) Write(b []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.changed != nil {
		close(tr.changed)
		tr.changed = nil
	}
	return tr.text.Write(b)
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.String()
}

// next returns the text so far and a channel that is closed at the next write.
func (tr *transcript) next() (string, <-chan struct{}) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.changed == nil {
		tr.changed = make(chan struct{})
	}
	return tr.text.String(), tr.changed
}

// process is a program that a test has started. It never outlives the test.
type process struct {
	name           string
	cmd            *exec.Cmd
	stdout, stderr transcript
	exited         chan struct{} // closed once it has ended and its output is complete
	err            error         // of Wait; to be read after exited
}

// start starts a program that stop must end.
func start(cmd *exec.Cmd, name string) (*process, error) {
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	cmd.WaitDelay = 20 * time.Second // for its last words, and no longer for a child that holds the output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// stop ends the process at once, if it still runs, and waits for its end.
func (p *process) stop() {
	p.cmd.Process.Kill()
	<-p.exited
}

// launch starts a program for the time of a test, which tells what it wrote if
// the test fails.
func launch(t testing.TB, cmd *exec.Cmd, name string) *process {
	t.Helper()
	p, err := start(cmd, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s wrote:\n%s%s", name, p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// await waits until what the process wrote matches, and returns the match.
func (p *process) await(tr *transcript, pattern *regexp.Regexp) ([]string, error) {
	deadline := time.After(patience)
	exited := p.exited
	for {
		text, changed := tr.next()
		if m := pattern.FindStringSubmatch(text); m != nil {
			return m, nil
		}
		if exited == nil {
			return nil, fmt.Errorf("%s ended (%v) without writing %s; it wrote:\n%s%s", p.name, p.err, pattern, p.stdout.String(), p.stderr.String())
		}
		select {
		case <-changed:
		case <-exited:
			exited = nil // look once more: its last words count
		case <-deadline:
			return nil, fmt.Errorf("%s has not written %s; it wrote:\n%s%s", p.name, pattern, p.stdout.String(), p.stderr.String())
		}
	}
}

// ended waits for the process to end by itself and returns its exit code.
func (p *process) ended() (int, error) {
	select {
	case <-p.exited:
	case <-time.After(patience):
		return 0, fmt.Errorf("%s still runs", p.name)
	}
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
		return exit.ExitCode(), nil
	}
	return 0, p.err
}

func (p *process) terminate(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// eventually calls look until it returns nil, and returns its last error when
// patience is over.
func eventually(look func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := look()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond) // another process is what changes: there is nothing to be woken by
	}
}
