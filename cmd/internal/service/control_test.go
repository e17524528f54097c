package service

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/cmd/internal/policy"
	"relayedge/internal/control"
)

// controlled is running, with its control socket and hangups followed.
func controlled(t *testing.T, r *running, hangups <-chan os.Signal) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "c.sock")
	ln := OpenControl(control.Config{Socket: socket}, r.Log)
	if ln == nil {
		t.Fatal(r.logged())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Control(ctx, ln, hangups)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if _, err := os.Lstat(socket); err == nil {
			t.Error("the socket is still there")
		}
	})
	return socket
}

// soon waits for what is to come.
func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}

func hangUp(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// One that comes before the start is done is taken then; of those that come
// while a reload runs, one is kept.
func TestHangups(t *testing.T) {
	hangups := CatchHangups()
	r := start(t, startPolicy)
	prepared := make(chan struct{}, 100)
	goOn := make(chan struct{})
	r.prepare = func(*policy.Policy) (func() []string, error) {
		prepared <- struct{}{}
		select {
		case <-goOn:
		case <-t.Context().Done():
		}
		return func() []string { return nil }, nil
	}
	hangUp(t)
	controlled(t, r, hangups)
	<-prepared
	for range 50 {
		hangUp(t)
	}
	soon(t, "one is kept", func() bool { return len(hangups) == 1 })
	if cap(hangups) != 1 || len(prepared) != 0 {
		t.Errorf("%d can be kept, %d reloads run beside the first", cap(hangups), len(prepared))
	}
	goOn <- struct{}{}
	<-prepared
	goOn <- struct{}{}
	soon(t, "both were applied", func() bool { return r.Reloader.applied.Load() >= 2 })
}

// One that comes while the process drains neither ends it nor changes anything.
func TestHangupWhileDraining(t *testing.T) {
	hangups := CatchHangups()
	r := start(t, startPolicy)
	controlled(t, r, hangups)
	r.Stop()
	hangUp(t)
	soon(t, "it is refused", func() bool { return r.refused.Load() == 1 })
	r.counts(0, 1)
}

// A reload that never ends does not keep the process; one that ends in time is
// waited for.
func TestEndWithAReloadThatRuns(t *testing.T) {
	for _, row := range []struct{ takes, waits time.Duration }{
		{lastReload - time.Nanosecond, lastReload - time.Nanosecond}, {time.Hour, lastReload},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, startPolicy)
			var applied atomic.Bool
			r.prepare = func(*policy.Policy) (func() []string, error) {
				time.Sleep(row.takes)
				return func() []string { applied.Store(true); return nil }, nil
			}
			hangups := make(chan os.Signal, 1)
			hangups <- syscall.SIGHUP
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				r.Control(ctx, nil, hangups)
			}()
			synctest.Wait()
			begin := time.Now()
			cancel()
			<-ended
			synctest.Wait()
			if took := time.Since(begin); took != row.waits || applied.Load() != (row.takes < lastReload) {
				t.Errorf("a reload of %v: the end took %v, applied: %v", row.takes, took, applied.Load())
			}
			time.Sleep(row.takes)
		})
	}
}

func programNamed(name string) Program {
	return Program{Name: name, Need: (*policy.Policy).NeedEdge, Socket: func(p *policy.Policy) string { return p.Control.Socket }}
}

// reloadLine runs the command line reload.
func reloadLine(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	c := ReloadCommand(programNamed("relayedge"))
	status = Execute(context.Background(), c, args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestReloadCommand(t *testing.T) {
	r := start(t, startPolicy)
	socket := controlled(t, r, nil)
	named := startPolicy + "control: {socket: " + socket + "}\n"

	if status, out, errs := reloadLine("--socket", socket); status != 0 || out != "nothing has changed\n" || errs != "" {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	r.write(named + "limits: {drain_secs: 8}\n")
	status, out, errs := reloadLine("-c", r.file)
	if status != 0 || errs != "" || !strings.HasPrefix(out, "limits.drain_secs: 30 → 8\ncontrol.socket: /run/relayedge/control.sock → ") || strings.Count(out, "\n") != 2 {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}

	// A file with faults: the process and the command say the same.
	r.write(named + "limits: {drain_secs: -1, max_connections: 0}\n")
	for _, args := range [][]string{{"-c", r.file}, {"--socket", socket}} {
		status, out, errs := reloadLine(args...)
		if status != 1 || out != "" || strings.Count(errs, "\n") != 3 || !strings.Contains(errs, r.file+":5:22: limits.drain_secs: ") ||
			!strings.Contains(errs, r.file+":5:43: limits.max_connections: ") || !strings.HasSuffix(errs, "\n"+unchanged+"\n") {
			t.Errorf("%v: status %d, %q, %q", args, status, out, errs)
		}
	}
	if r.Policy().Limits.DrainSecs != 8 {
		t.Errorf("in force: %d", r.Policy().Limits.DrainSecs)
	}
}

// A process that was not meant is not reloaded: one that reads another file, or
// another program.
func TestReloadOfAnotherProcess(t *testing.T) {
	r := start(t, startPolicy)
	socket := controlled(t, r, nil)
	other := filepath.Join(t.TempDir(), "other.yaml")
	named := startPolicy + "control: {socket: " + socket + "}\n"
	if err := os.WriteFile(other, []byte(named), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, out, errs := reloadLine("-c", other); status != 1 || out != "" || !strings.Contains(errs, socket+" reads "+r.file+" and not "+other) || !strings.HasSuffix(errs, unchanged+"\n") {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	var out, errs bytes.Buffer
	c := ReloadCommand(programNamed("relaycore"))
	if status := Execute(t.Context(), c, []string{"--socket", socket}, &out, &errs); status != 1 || !strings.Contains(errs.String(), socket+" is relayedge, and not relaycore; --socket names another one") {
		t.Errorf("status %d, %q, %q", status, out.String(), errs.String())
	}
	r.counts(0, 0)

	// The same file by another name is the same.
	link := filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(r.file, link); err != nil {
		t.Skip(err)
	}
	r.write(named)
	if status, _, errs := reloadLine("-c", link); status != 0 {
		t.Errorf("status %d, %q", status, errs)
	}
}

func TestReloadCommandWithoutProcess(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "p.yaml")
	write := func(socket string) {
		if err := os.WriteFile(file, []byte(startPolicy+"control: {socket: \""+socket+"\"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stale := filepath.Join(folder, "stale")
	ln, err := control.Listen(control.Config{Socket: stale})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(stale, stale+".kept"); err != nil {
		t.Skip(err)
	}
	ln.Close()
	write("none.sock")
	for _, row := range []struct {
		name string
		args []string
		says []string
	}{
		{"the policy's", []string{"-c", file}, []string{filepath.Join(folder, "none.sock"), "is relayedge running"}},
		{"one that is named", []string{"--socket", "/nowhere/c.sock"}, []string{"/nowhere/c.sock", "is relayedge running"}},
		{"one of a process that has ended", []string{"--socket", stale + ".kept"}, []string{stale, "has ended; start relayedge, or say which one is meant by -c FILE or --socket PATH", "without a policy file has no control socket, and nothing to read again"}},
		{"the default", nil, []string{"/run/relayedge/control.sock"}},
		{"both", []string{"-c", file, "--socket", "x"}, []string{"--config and --socket exclude each other"}},
		{"an argument", []string{file}, []string{"takes no argument"}},
	} {
		status, out, errs := reloadLine(row.args...)
		for _, says := range row.says {
			if status != 1 || out != "" || !strings.Contains(errs, says) {
				t.Errorf("%s: status %d, %q, %q", row.name, status, out, errs)
			}
		}
	}
	write("")
	if status, _, errs := reloadLine("-c", file); status != 1 || !strings.Contains(errs, "no control socket; send SIGHUP") {
		t.Errorf("status %d, %q", status, errs)
	}
	var out, errs bytes.Buffer
	c := UpgradeCommand(programNamed("relayedge"))
	if status := Execute(t.Context(), c, []string{"-c", file}, &out, &errs); status != 1 || !strings.Contains(errs.String(), "no control socket; send SIGUSR2") {
		t.Errorf("upgrade: status %d, %q", status, errs.String())
	}
}

// A socket that cannot be had is one line with what to do, and no end.
func TestOpenControlGoesOnWithout(t *testing.T) {
	r := start(t, startPolicy)
	socket := filepath.Join(t.TempDir(), "no", "such", "c.sock")
	if ln := OpenControl(control.Config{Socket: socket}, r.Log); ln != nil {
		t.Error("it listens")
	}
	log := r.logged()
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, socket) || !strings.Contains(log, "control.socket") || !strings.Contains(log, "SIGHUP") {
		t.Errorf("log: %s", log)
	}
	if ln := OpenControl(control.Config{}, r.Log); ln != nil || r.logged() != "" {
		t.Error("none was asked for")
	}
}
